#include "text/schema_refs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/schema_keywords.h"

namespace octet::text {
namespace {

constexpr size_t kMostBytes = size_t{1} << 20;  // of all definitions, each counted once

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const int lower = std::tolower(static_cast<unsigned char>(c));
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// The steps of a fragment "#/a/b", as RFC 6901 writes them: %xx stands for a byte, then ~1 for '/'
// and ~0 for '~'. Nothing if it is no such fragment.
std::optional<std::vector<std::string>> steps_of(std::string_view ref) {
  if (!ref.starts_with('#')) return std::nullopt;
  std::string pointer;
  for (size_t i = 1; i < ref.size(); ++i) {
    if (ref[i] != '%') {
      pointer += ref[i];
      continue;
    }
    const int high = i + 2 < ref.size() ? hex_digit(ref[i + 1]) : -1;
    const int low = i + 2 < ref.size() ? hex_digit(ref[i + 2]) : -1;
    if (high < 0 || low < 0) return std::nullopt;
    pointer += static_cast<char>(high * 16 + low);
    i += 2;
  }
  std::vector<std::string> steps;
  if (pointer.empty()) return steps;
  if (pointer[0] != '/') return std::nullopt;  // an $anchor
  for (size_t i = 0; i < pointer.size(); ++i) {
    if (pointer[i] == '/') {
      steps.emplace_back();
    } else if (pointer[i] != '~') {
      steps.back() += pointer[i];
    } else {
      const char escaped = i + 1 < pointer.size() ? pointer[++i] : '\0';
      if (escaped != '0' && escaped != '1') return std::nullopt;
      steps.back() += escaped == '0' ? '~' : '/';
    }
  }
  return steps;
}

// Null: there is nothing.
const OrderedJson* follow(const OrderedJson& root, const std::vector<std::string>& steps) {
  const OrderedJson* at = &root;
  for (const std::string& step : steps) {
    if (at->is_object() && at->contains(step)) {
      at = &at->at(step);
      continue;
    }
    const bool digits = !step.empty() && step.size() < 9 &&
                        std::ranges::all_of(step, [](char c) { return c >= '0' && c <= '9'; });
    if (!at->is_array() || !digits || (step.size() > 1 && step[0] == '0')) return nullptr;
    const auto index = static_cast<size_t>(std::stoi(step));
    if (index >= at->size()) return nullptr;
    at = &(*at)[index];
  }
  return at;
}

bool says_array(const OrderedJson& type) {
  return type == "array" ||
         (type.is_array() && std::ranges::find(type, OrderedJson("array")) != type.end());
}

class Rewriter {
 public:
  Rewriter(const OrderedJson& root, const std::string& where, const std::string& prefix)
      : root_(root), where_(where), prefix_(prefix) {}

  OrderedJson run() {
    OrderedJson schema = root_;
    if (schema.is_object()) {
      schema.erase("$defs");
      schema.erase("definitions");
    }
    rewrite(schema);
    OrderedJson definitions = OrderedJson::object();
    for (size_t bytes = 0; !waiting_.empty(); waiting_.pop_front()) {
      auto& [name, target] = waiting_.front();
      bytes += dump_json(*target).size();
      if (bytes > kMostBytes) {
        throw Error({.what = "what the $ref of a schema lead to is too much",
                     .where = where_,
                     .accepted = fmt::format("at most {} bytes, each counted once", kMostBytes)});
      }
      OrderedJson definition = *target;
      if (target == &root_) {
        definition.erase("$defs");
        definition.erase("definitions");
      }
      rewrite(definition);
      definitions[name] = std::move(definition);
    }
    if (!definitions.empty()) schema["$defs"] = std::move(definitions);
    return schema;
  }

 private:
  void rewrite(OrderedJson& schema) {
    if (!schema.is_object()) return;
    if (schema.contains("$ref") && schema["$ref"].is_string()) {
      schema["$ref"] = "#/$defs/" + definition_of(schema["$ref"].get<std::string>());
    }
    if (schema.contains("type") && says_array(schema["type"]) && !schema.contains("items") &&
        !schema.contains("prefixItems")) {
      schema["items"] = true;
    }
    for_each_inside(schema, [&](OrderedJson& inner) { rewrite(inner); });
  }

  const std::string& definition_of(const std::string& ref) {
    const auto steps = steps_of(ref);
    const OrderedJson* target = steps ? follow(root_, *steps) : nullptr;
    if (target == nullptr || !(target->is_object() || target->is_boolean())) {
      throw Error({.what = "a $ref that leads to no schema",
                   .where = where_,
                   .value = ref,
                   .accepted = "# or #/.., a JSON pointer to a place in the same schema"});
    }
    std::string& name = names_[*steps];
    if (!name.empty()) return name;
    name = prefix_;
    const std::string last = steps->empty() ? "root" : steps->back();
    for (const char c : last.substr(0, 40)) {
      if (std::isalnum(static_cast<unsigned char>(c)) || c == '_') name += c;
    }
    const std::string plain = name;
    for (size_t i = 2; name.empty() || !taken_.insert(name).second; ++i) {
      name = fmt::format("{}{}", plain, i);
    }
    waiting_.emplace_back(name, target);
    return name;
  }

  const OrderedJson& root_;
  const std::string& where_;
  const std::string& prefix_;
  std::map<std::vector<std::string>, std::string> names_;  // by pointer
  std::set<std::string> taken_;
  std::deque<std::pair<std::string, const OrderedJson*>> waiting_;
};

}  // namespace

const OrderedJson* without_top_refs(const OrderedJson& schema) {
  const OrderedJson* at = &schema;
  for (std::set<const OrderedJson*> seen; at != nullptr && seen.insert(at).second;) {
    if (!at->is_object() || !at->contains("$ref")) return at;
    const OrderedJson& ref = at->at("$ref");
    const auto steps = ref.is_string() ? steps_of(ref.get<std::string>()) : std::nullopt;
    at = steps ? follow(schema, *steps) : nullptr;
  }
  return nullptr;
}

OrderedJson with_plain_refs(const OrderedJson& schema, const std::string& where,
                            const std::string& prefix) {
  return Rewriter(schema, where, prefix).run();
}

}  // namespace octet::text
