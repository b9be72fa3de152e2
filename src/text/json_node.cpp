#include "text/json_node.h"

#include <unordered_set>
#include <utility>

#include "base/error.h"

namespace octet::text {
namespace {

// simdjson keeps a key that is there twice, and finds the first: other readers find the last.
// `place` is where `value` stands, and is so again afterwards.
void refuse_duplicates(simdjson::dom::element value, std::string& place) {
  const size_t length = place.size();
  const auto descend = [&](simdjson::dom::element member, const auto&... names) {
    if (!member.is_object() && !member.is_array()) return;
    (place.append(names), ...);
    refuse_duplicates(member, place);
    place.resize(length);
  };
  simdjson::dom::object object;
  simdjson::dom::array array;
  if (value.get(object) == simdjson::SUCCESS) {
    std::unordered_set<std::string_view> keys(object.size());
    for (const simdjson::dom::key_value_pair member : object) {
      if (!keys.insert(member.key).second) {
        throw Error({.what = "JSON key appears twice in one object",
                     .where = place,
                     .value = "\"" + std::string(member.key.substr(0, 100)) + "\"",
                     .accepted = "distinct keys"});
      }
      descend(member.value, ".", member.key);
    }
  } else if (value.get(array) == simdjson::SUCCESS) {
    size_t i = 0;
    for (const simdjson::dom::element item : array) {
      descend(item, "[", std::to_string(i++), "]");
    }
  }
}

}  // namespace

JsonNode JsonNode::parse(simdjson::dom::parser& parser, std::string_view json,
                         const std::string& file) {
  // parse() copies the text: simdjson reads some bytes behind its end.
  simdjson::dom::element root;
  const simdjson::error_code error = parser.parse(json.data(), json.size()).get(root);
  if (error) {
    throw Error({.what = std::string("not a JSON file: ") + simdjson::error_message(error),
                 .where = file,
                 .value = std::to_string(json.size()) + " bytes",
                 .accepted = "JSON in UTF-8",
                 .fix = "download the file again"});
  }
  std::string place = file + ", $";
  refuse_duplicates(root, place);
  return {root, place};
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  simdjson::dom::element member;
  if (object().at_key(key).get(member) || member.is_null()) return std::nullopt;
  return JsonNode(member, place_ + "." + std::string(key));
}

JsonNode JsonNode::at(std::string_view key) const {
  std::optional<JsonNode> member = find(key);
  if (!member) fail("missing member \"" + std::string(key) + "\"", "an object that has it");
  return std::move(*member);
}

std::string_view JsonNode::string() const {
  std::string_view text;
  if (value_.get(text)) fail("wrong type", "a string");
  return text;
}

bool JsonNode::boolean() const {
  bool truth = false;
  if (value_.get(truth)) fail("wrong type", "true or false");
  return truth;
}

int64_t JsonNode::integer() const {
  int64_t number = 0;
  if (value_.get(number)) fail("wrong type", "an integer");
  return number;
}

simdjson::dom::array JsonNode::array() const {
  simdjson::dom::array items;
  if (value_.get(items)) fail("wrong type", "an array");
  return items;
}

simdjson::dom::object JsonNode::object() const {
  simdjson::dom::object members;
  if (value_.get(members)) fail("wrong type", "an object");
  return members;
}

bool JsonNode::flag(std::string_view key, bool otherwise) const {
  const std::optional<JsonNode> member = find(key);
  return member ? member->boolean() : otherwise;
}

JsonNode JsonNode::item(simdjson::dom::element value, size_t index) const {
  return {value, place_ + "[" + std::to_string(index) + "]"};
}

void JsonNode::fail(std::string what, std::string accepted, std::string fix) const {
  std::string found = value_.is_object() || value_.is_array() ? "" : simdjson::minify(value_);
  if (value_.is_object()) found = "an object";
  if (value_.is_array()) found = "an array";
  if (found.size() > 200) found = found.substr(0, 200) + "...";
  throw Error({.what = std::move(what),
               .where = place_,
               .value = std::move(found),
               .accepted = std::move(accepted),
               .fix = std::move(fix)});
}

}  // namespace octet::text
