// JSON that says where it is wrong. A file is parsed with its duplicates and depth checked; a
// JsonView walks it with typed getters whose errors name the file, the path inside it, the value
// found and what is accepted.
//
//   const Json json = parse_json_file("config.json");
//   const JsonView config(json, "config.json");
//   auto hidden = config.integer("hidden_size", 1, 1 << 20);
//   auto theta = config.get<double>("rope_theta", 10000.0);
//   if (auto scaling = config.find("rope_scaling")) scaling->get<std::string>("rope_type");
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

using Json = nlohmann::json;                 // keys sorted; lookup is fast in big objects
using OrderedJson = nlohmann::ordered_json;  // keys as written; for small objects that are shown

struct JsonRules {
  bool duplicates = false;  // a key twice in one object: refused unless set (then the last wins)
  int max_depth = 64;       // of nested arrays and objects
  bool comments = false;    // // and /* */ are skipped
  size_t max_bytes = size_t{256} << 20;  // of a file
};

// Throws Error naming `name`, line, column and the fault. Instantiated for Json and OrderedJson.
template <class J = Json>
J parse_json(std::string_view text, const std::string& name, JsonRules rules = {});
template <class J = Json>
J parse_json_file(const std::filesystem::path& path, JsonRules rules = {});

// Never throws: bytes that are not UTF-8 become U+FFFD. indent < 0 = one line.
template <class J>
std::string dump_json(const J& value, int indent = -1) {
  return value.dump(indent, ' ', false, J::error_handler_t::replace);
}

// A value and its place. The document must outlive the view.
class JsonView {
 public:
  // Throws Error unless `object` is an object.
  JsonView(const Json& object, std::string file);
  JsonView(Json&&, std::string) = delete;

  const Json& json() const { return *value_; }
  const std::string& file() const { return file_; }
  const std::string& path() const { return path_; }  // "$.rope_scaling.factor"

  // A member that is neither absent nor null.
  bool has(std::string_view key) const;

  // The member `key`; Error if it is absent or null (at), or not an object.
  JsonView at(std::string_view key) const;
  std::optional<JsonView> find(std::string_view key) const;
  // The elements of the array `key`, "$.parts[3]"; Error if it is absent, no array, or one of them
  // is no object.
  std::vector<JsonView> elements(std::string_view key) const;

  // A member as T: bool, int, int64_t, float, double, std::string, or a vector of one of them.
  // Integers may be written 8192.0 and must fit; NaN and infinity do not exist in JSON. Error if
  // it has another type, and unless a fallback is given, if it is absent or null.
  template <class T>
  T get(std::string_view key) const;
  template <class T>
  T get(std::string_view key, T fallback) const {
    return has(key) ? get<T>(key) : std::move(fallback);
  }
  template <class T>
  std::optional<T> get_optional(std::string_view key) const {
    return has(key) ? std::optional<T>(get<T>(key)) : std::nullopt;
  }

  // A number in [least, most].
  double number(std::string_view key, double least, double most) const;
  // An integer in [least, most].
  int64_t integer(std::string_view key, int64_t least, int64_t most) const;
  int64_t integer(std::string_view key, int64_t least, int64_t most, int64_t fallback) const {
    return has(key) ? integer(key, least, most) : fallback;
  }

  // The Error for a member whose value is wrong in a way the getters do not know.
  [[noreturn]] void refuse(std::string_view key, std::string what, std::string accepted) const;

 private:
  JsonView(const Json& value, std::string file, std::string path)
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}
  const Json& member(std::string_view key) const;
  std::string path_of(std::string_view key) const;

  const Json* value_;
  std::string file_, path_;
};

}  // namespace octet
