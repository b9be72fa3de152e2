#include "text/schema_keywords.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace octet::text {
namespace {

// The engine reads the first of these that a schema has, and nothing beside it.
constexpr std::string_view kWhole[] = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};

// Says nothing of which values are valid. `type` does, but beside one of the above it repeats what
// those say.
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

std::string find_unsupported(const OrderedJson& schema, const std::string& path);

std::string find_in_nested(const OrderedJson& value, const std::string& path) {
  if (!value.is_array()) return find_unsupported(value, path);
  for (size_t i = 0; i < value.size(); ++i) {
    std::string found = find_unsupported(value[i], fmt::format("{}[{}]", path, i));
    if (!found.empty()) return found;
  }
  return "";
}

// The engine keeps quotes out of such an expression alone.
bool is_printable_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= 0x20 && c <= 0x7e; });
}

// What one schema says itself, without those inside.
std::string find_here(const OrderedJson& schema, const std::string& path) {
  for (const std::string_view keyword : kUnsupported) {
    if (schema.contains(keyword)) return fmt::format("{}: {}", path, keyword);
  }
  if (schema.contains("uniqueItems") && schema["uniqueItems"] != false) {
    return fmt::format("{}: uniqueItems", path);
  }
  if (schema.contains("pattern") && schema["pattern"].is_string() &&
      !is_printable_ascii(schema["pattern"].get<std::string>())) {
    return fmt::format("{}: a pattern with characters other than printable ASCII", path);
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

std::string find_unsupported(const OrderedJson& schema, const std::string& path) {
  if (!schema.is_object()) return "";
  std::string own = find_here(schema, path);
  if (!own.empty()) return own;
  for (const auto& [key, value] : schema.items()) {
    const std::string here = fmt::format("{}.{}", path, key);
    std::string found;
    if (among(key, kNested)) found = find_in_nested(value, here);
    if (among(key, kMaps) && value.is_object()) {
      for (const auto& [name, inner] : value.items()) {
        if (found.empty()) found = find_unsupported(inner, fmt::format("{}.{}", here, name));
      }
    }
    if (!found.empty()) return found;
  }
  return "";
}

}  // namespace

std::string unsupported_keyword(const OrderedJson& schema) {
  return find_unsupported(schema, "$");
}

}  // namespace octet::text
