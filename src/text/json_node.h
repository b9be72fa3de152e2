// A value in a JSON file that knows where it stands, so that each complaint names file and path:
// what base/json.h's JsonView is for small files. A tokenizer.json has 8 MB and 250,000 strings,
// which simdjson reads ten times as fast and without a copy of each.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace octet::text {

class JsonNode {
 public:
  // Parses `json` with `parser`, which must outlive the node and all made from it. Throws Error
  // naming `file`, also where an object has a key twice.
  static JsonNode parse(simdjson::dom::parser& parser, std::string_view json,
                        const std::string& file);

  JsonNode(simdjson::dom::element value, std::string place)
      : value_(value), place_(std::move(place)) {}

  // The member `key`, or nothing where it is missing or null. Throws Error if this is no object.
  std::optional<JsonNode> find(std::string_view key) const;

  // The member `key`. Throws Error where find() has nothing.
  JsonNode at(std::string_view key) const;

  // The value as a type; each throws Error where it is another.
  std::string_view string() const;
  bool boolean() const;
  int64_t integer() const;
  simdjson::dom::array array() const;
  simdjson::dom::object object() const;

  // A boolean member, or `otherwise` where it is missing or null.
  bool flag(std::string_view key, bool otherwise) const;

  // The i-th element of an array, for its place.
  JsonNode item(simdjson::dom::element value, size_t index) const;

  simdjson::dom::element value() const { return value_; }
  const std::string& place() const { return place_; }

  // Throws the Error for this value.
  [[noreturn]] void fail(std::string what, std::string accepted, std::string fix = "") const;

 private:
  simdjson::dom::element value_;
  std::string place_;  // "dir/tokenizer.json, $.model.vocab"
};

}  // namespace octet::text
