#include "text/schema_keywords.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace octet::text {
namespace {

// The engine reads the first of these that a schema has, and nothing beside it.
constexpr std::string_view kWhole[] = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};

// Says nothing of which values are valid. `type` does; find_beside_type() sees to it.
constexpr std::string_view kSilent[] = {"$schema",   "$id",         "$anchor",       "$comment",
                                        "$defs",     "definitions", "title",         "description",
                                        "default",   "examples",    "deprecated",    "readOnly",
                                        "writeOnly", "type",        "discriminator", "nullable"};

constexpr std::string_view kUnsupported[] = {"not",
                                             "if",
                                             "then",
                                             "else",
                                             "dependentRequired",
                                             "dependentSchemas",
                                             "dependencies",
                                             "contains",
                                             "minContains",
                                             "maxContains",
                                             "additionalItems",
                                             "$dynamicRef",
                                             "$recursiveRef"};

// The values of these are schemas by name; of those below, schemas, or lists of them.
constexpr std::string_view kMaps[] = {"properties", "patternProperties", "$defs", "definitions"};
constexpr std::string_view kNested[] = {"items",
                                        "prefixItems",
                                        "additionalProperties",
                                        "unevaluatedProperties",
                                        "unevaluatedItems",
                                        "propertyNames",
                                        "anyOf",
                                        "oneOf",
                                        "allOf"};

bool among(std::string_view key, std::span<const std::string_view> list) {
  return std::ranges::find(list, key) != list.end();
}

bool is_of(const OrderedJson& value, std::string_view type) {
  if (type == "string") return value.is_string();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  return true;  // no type at all: the engine says so
}

bool is_of_any(const OrderedJson& value, const OrderedJson& types) {
  if (types.is_string()) return is_of(value, types.get<std::string>());
  return !types.is_array() || std::ranges::any_of(types, [&](const OrderedJson& type) {
    return type.is_string() && is_of(value, type.get<std::string>());
  });
}

// The engine reads a list of values, or of schemas, without the type beside it.
std::string find_beside_type(const OrderedJson& schema, const std::string& path) {
  if (!schema.contains("type")) return "";
  const OrderedJson& type = schema["type"];
  for (const char* keyword : {"const", "enum"}) {
    if (!schema.contains(keyword)) continue;
    const OrderedJson& values = schema[keyword];
    const bool all = std::string_view(keyword) == "const" || !values.is_array()
                         ? is_of_any(values, type)
                         : std::ranges::all_of(values, [&](const OrderedJson& value) {
                             return is_of_any(value, type);
                           });
    if (!all) return fmt::format("{}: {} has a value that is not of the type", path, keyword);
  }
  for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
    if (!schema.contains(keyword) || !schema[keyword].is_array()) continue;
    for (const OrderedJson& one : schema[keyword]) {
      if (one.is_object() && one.contains("type") && one["type"] == type) continue;
      return fmt::format("{}: type beside {}, of which one has another type or none", path,
                         keyword);
    }
  }
  return schema.contains("$ref") ? fmt::format("{}: type beside $ref", path) : "";
}

// What one schema says itself, without those inside.
std::string find_here(const OrderedJson& schema, const std::string& path) {
  for (const char* keyword : {"anyOf", "oneOf", "allOf", "enum", "type"}) {
    if (schema.contains(keyword) && schema[keyword].is_array() && schema[keyword].empty()) {
      return fmt::format("{}: an empty {}", path, keyword);
    }
  }
  if (const std::string found = find_beside_type(schema, path); !found.empty()) return found;
  for (const std::string_view keyword : kUnsupported) {
    if (schema.contains(keyword)) return fmt::format("{}: {}", path, keyword);
  }
  if (schema.contains("uniqueItems") && schema["uniqueItems"] != false) {
    return fmt::format("{}: uniqueItems", path);
  }
  for (const std::string_view whole : kWhole) {
    if (!schema.contains(whole)) continue;
    for (const auto& [key, value] : schema.items()) {
      if (key != whole && !among(key, kSilent)) {
        return fmt::format("{}: {} beside {}", path, whole, key);
      }
    }
  }
  if (schema.contains("required") && schema["required"].is_array()) {
    for (const OrderedJson& name : schema["required"]) {
      const bool listed = name.is_string() && schema.contains("properties") &&
                          schema["properties"].contains(name.get<std::string>());
      if (!listed) return fmt::format("{}: required names what properties lacks", path);
    }
  }
  return "";
}

// Calls `see(schema, path)` for a schema and all inside it, until one gives a text that is not
// empty.
template <class See>
std::string walk(const OrderedJson& schema, const std::string& path, See& see) {
  if (schema.is_array()) {  // of schemas, below one of kNested
    for (size_t i = 0; i < schema.size(); ++i) {
      std::string found = walk(schema[i], fmt::format("{}[{}]", path, i), see);
      if (!found.empty()) return found;
    }
  }
  if (!schema.is_object()) return "";
  std::string found = see(schema, path);
  for (const auto& [key, value] : schema.items()) {
    if (!found.empty()) break;
    const std::string here = fmt::format("{}.{}", path, key);
    if (among(key, kNested)) found = walk(value, here, see);
    if (!among(key, kMaps) || !value.is_object()) continue;
    for (const auto& [name, inner] : value.items()) {
      if (found.empty()) found = walk(inner, fmt::format("{}.{}", here, name), see);
    }
  }
  return found;
}

}  // namespace

std::string unsupported_keyword(const OrderedJson& schema) {
  return walk(schema, "$", find_here);
}

std::vector<std::string> patterns_of(const OrderedJson& schema) {
  std::vector<std::string> patterns;
  const auto see = [&](const OrderedJson& one, const std::string&) {
    const auto pattern = one.find("pattern");
    if (pattern != one.end() && pattern->is_string()) patterns.push_back(*pattern);
    const auto names = one.find("patternProperties");
    if (names != one.end() && names->is_object()) {
      for (const auto& [name, value] : names->items()) patterns.push_back(name);
    }
    return std::string();
  };
  walk(schema, "$", see);
  return patterns;
}

void for_each_inside(OrderedJson& schema, FunctionRef<void(OrderedJson&)> see) {
  for (const auto& [key, value] : schema.items()) {
    if (among(key, kNested) && !value.is_array()) see(value);
    const bool many =
        (among(key, kNested) && value.is_array()) || (among(key, kMaps) && value.is_object());
    if (!many) continue;
    for (OrderedJson& inner : value) see(inner);
  }
}

}  // namespace octet::text
