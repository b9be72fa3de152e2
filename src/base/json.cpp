#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"

namespace octet {
namespace {

constexpr const char* kJson = "JSON (RFC 8259) in UTF-8";

// A value short enough for an error message.
template <class J>
std::string excerpt(const J& value) {
  std::string text = dump_json(value);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return fmt::format("{} ({})", text, value.type_name());
}

// "FILE, line 3, column 7" of the byte at `offset`.
std::string place(std::string_view text, size_t offset, const std::string& name) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t start = before.rfind('\n');
  const size_t column = before.size() - (start == before.npos ? 0 : start + 1);
  return fmt::format("{}, line {}, column {}", name, line, std::max<size_t>(column, 1));
}

// nlohmann prefixes its messages with "[id] " and a place that we name better.
std::string reason(std::string_view message) {
  if (const size_t end = message.find("] "); end != message.npos) message.remove_prefix(end + 2);
  if (message.starts_with("parse error")) message.remove_prefix(message.find(": ") + 2);
  // It quotes the text up to the fault, which may be bytes that are no text.
  std::string shown;
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    shown += byte < 0x80 ? std::string(1, c) : fmt::format("\\x{:02X}", byte);
  }
  return shown;
}

// Watches the parser's events for a repeated key or a bottomless nest. Throws Error.
class Guard {
 public:
  Guard(const std::string& name, JsonRules rules) : name_(name), rules_(rules) {}

  template <class J>
  void see(int depth, typename J::parse_event_t event, const J& value) {
    using Event = typename J::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= rules_.max_depth) {
        throw Error({.what = "JSON is nested too deeply",
                     .where = name_,
                     .accepted = fmt::format("at most {} levels", rules_.max_depth)});
      }
      if (event == Event::object_start && !rules_.duplicates) keys_.emplace_back();
    } else if (event == Event::object_end && !rules_.duplicates) {
      keys_.pop_back();
    } else if (event == Event::key && !rules_.duplicates) {
      const auto& key = value.template get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) {
        throw Error({.what = "JSON key appears twice in one object",
                     .where = name_,
                     .value = excerpt(value),
                     .fix = "remove one of the two"});
      }
    }
  }

 private:
  const std::string& name_;
  JsonRules rules_;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
};

}  // namespace

template <class J>
J parse_json(std::string_view text, const std::string& name, JsonRules rules) {
  Guard guard(name, rules);
  try {
    const auto watch = [&](int depth, typename J::parse_event_t event, J& value) {
      guard.see<J>(depth, event, value);
      return true;
    };
    return J::parse(text, watch, /*allow_exceptions=*/true, rules.comments);
  } catch (const typename J::parse_error& error) {
    throw Error({.what = "not valid JSON",
                 .where = place(text, error.byte, name),
                 .value = reason(error.what()),
                 .accepted = kJson});
  } catch (const typename J::exception& error) {  // a number out of range
    throw Error({.what = "not valid JSON",
                 .where = name,
                 .value = reason(error.what()),
                 .accepted = kJson});
  }
}

template <class J>
J parse_json_file(const std::filesystem::path& path, JsonRules rules) {
  return parse_json<J>(read_text(path, rules.max_bytes), path.string(), rules);
}

template Json parse_json(std::string_view, const std::string&, JsonRules);
template OrderedJson parse_json(std::string_view, const std::string&, JsonRules);
template Json parse_json_file(const std::filesystem::path&, JsonRules);
template OrderedJson parse_json_file(const std::filesystem::path&, JsonRules);

namespace {

// convert(json, out): "" if done, else the name of what is accepted.

std::string convert(const Json& json, bool& out) {
  if (!json.is_boolean()) return "true or false";
  out = json.get<bool>();
  return "";
}

std::string convert(const Json& json, int64_t& out) {
  if (json.is_number_unsigned()) {
    const auto value = json.get<uint64_t>();
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return "an integer of 64 bits";
    }
    out = static_cast<int64_t>(value);
    return "";
  }
  if (json.is_number_integer()) {
    out = json.get<int64_t>();
    return "";
  }
  if (!json.is_number_float()) return "an integer";
  const auto value = json.get<double>();
  if (value != std::trunc(value) || std::abs(value) > 0x1p53) return "an integer";
  out = static_cast<int64_t>(value);
  return "";
}

std::string convert(const Json& json, int& out) {
  int64_t wide = 0;
  std::string fault = convert(json, wide);
  if (fault.empty() && !std::in_range<int>(wide)) fault = "an integer of 32 bits";
  if (fault.empty()) out = static_cast<int>(wide);
  return fault;
}

std::string convert(const Json& json, double& out) {
  if (!json.is_number()) return "a number";
  out = json.get<double>();
  return "";
}

std::string convert(const Json& json, float& out) {
  double wide = 0;
  std::string fault = convert(json, wide);
  if (fault.empty() && std::abs(wide) > std::numeric_limits<float>::max()) {
    fault = "a number that fits 32 bits";
  }
  if (fault.empty()) out = static_cast<float>(wide);
  return fault;
}

std::string convert(const Json& json, std::string& out) {
  if (!json.is_string()) return "a string";
  out = json.get<std::string>();
  return "";
}

template <class T>
std::string convert(const Json& json, std::vector<T>& out) {
  if (!json.is_array()) return "an array";
  for (const Json& element : json) {
    T value{};
    if (std::string fault = convert(element, value); !fault.empty()) {
      return "an array whose every element is " + fault;
    }
    out.push_back(std::move(value));
  }
  return "";
}

}  // namespace

JsonView::JsonView(const Json& object, std::string file) : JsonView(object, std::move(file), "$") {
  if (!object.is_object()) {
    throw Error({.what = "not a JSON object",
                 .where = file_,
                 .value = excerpt(object),
                 .accepted = "an object"});
  }
}

std::string JsonView::path_of(std::string_view key) const {
  return fmt::format("{}.{}", path_, key);
}

bool JsonView::has(std::string_view key) const {
  const auto it = value_->find(key);
  return it != value_->end() && !it->is_null();
}

const Json& JsonView::member(std::string_view key) const {
  const auto it = value_->find(key);
  if (it == value_->end() || it->is_null()) {
    throw Error({.what = "a required field is missing",
                 .where = fmt::format("{}, {}", file_, path_of(key)),
                 .value = it == value_->end() ? "nothing" : "null",
                 .accepted = fmt::format("a value of '{}'", key)});
  }
  return *it;
}

JsonView JsonView::at(std::string_view key) const {
  const Json& value = member(key);
  if (!value.is_object()) refuse(key, "a field has the wrong type", "an object");
  return {value, file_, path_of(key)};
}

std::optional<JsonView> JsonView::find(std::string_view key) const {
  return has(key) ? std::optional<JsonView>(at(key)) : std::nullopt;
}

template <class T>
T JsonView::get(std::string_view key) const {
  T out{};
  if (std::string accepted = convert(member(key), out); !accepted.empty()) {
    refuse(key, "a field has the wrong type", std::move(accepted));
  }
  return out;
}

template bool JsonView::get(std::string_view) const;
template int JsonView::get(std::string_view) const;
template int64_t JsonView::get(std::string_view) const;
template float JsonView::get(std::string_view) const;
template double JsonView::get(std::string_view) const;
template std::string JsonView::get(std::string_view) const;
template std::vector<int> JsonView::get(std::string_view) const;
template std::vector<int64_t> JsonView::get(std::string_view) const;
template std::vector<float> JsonView::get(std::string_view) const;
template std::vector<double> JsonView::get(std::string_view) const;
template std::vector<std::string> JsonView::get(std::string_view) const;

int64_t JsonView::integer(std::string_view key, int64_t least, int64_t most) const {
  const auto value = get<int64_t>(key);
  if (value < least || value > most) {
    refuse(key, "a field is out of range", fmt::format("{} to {}", least, most));
  }
  return value;
}

void JsonView::refuse(std::string_view key, std::string what, std::string accepted) const {
  const auto it = value_->find(key);
  throw Error({.what = std::move(what),
               .where = fmt::format("{}, {}", file_, path_of(key)),
               .value = it == value_->end() ? "nothing" : excerpt(*it),
               .accepted = std::move(accepted)});
}

}  // namespace octet
