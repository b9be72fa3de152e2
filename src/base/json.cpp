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
  return fmt::format("{} ({})", shortened(dump_json(value), 80), value.type_name());
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
  // It quotes the text up to the fault, which may be long, and bytes that are no text.
  constexpr size_t most = 200;
  std::string shown;
  if (message.size() > most) {
    shown = "...";
    message.remove_prefix(message.size() - most);
  }
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    shown += byte < 0x80 ? std::string(1, c) : fmt::format("\\x{:02X}", byte);
  }
  return shown;
}

// Looks at a text before it is parsed, for a repeated key or a bottomless nest. Throws Error. A
// pass of its own: the parser's callback looks through the parent at the end of every object, so
// that an array of n objects takes n² steps.
template <class J>
class Guard final : public nlohmann::json_sax<J> {
 public:
  using Number = typename J::number_float_t;
  Guard(const std::string& name, JsonRules rules) : name_(name), rules_(rules) {}

  bool start_object(size_t) override {
    if (!rules_.duplicates) keys_.emplace_back();
    return enter();
  }
  bool key(std::string& key) override {
    if (rules_.duplicates || keys_.back().insert(key).second) return true;
    throw Error({.what = "JSON key appears twice in one object",
                 .where = name_,
                 .value = excerpt(J(key)),
                 .fix = "remove one of the two"});
  }
  bool end_object() override {
    if (!rules_.duplicates) keys_.pop_back();
    return leave();
  }
  bool start_array(size_t) override { return enter(); }
  bool end_array() override { return leave(); }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(Number, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(typename J::binary_t&) override { return true; }
  // The parser that comes after says it better.
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  bool enter() {
    if (++depth_ <= rules_.max_depth) return true;
    throw Error({.what = "JSON is nested too deeply",
                 .where = name_,
                 .accepted = fmt::format("at most {} levels", rules_.max_depth)});
  }
  bool leave() {
    --depth_;
    return true;
  }

  const std::string& name_;
  JsonRules rules_;
  int depth_ = 0;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
};

}  // namespace

template <class J>
J parse_json(std::string_view text, const std::string& name, JsonRules rules) {
  Guard<J> guard(name, rules);
  J::sax_parse(text, &guard, J::input_format_t::json, /*strict=*/true, rules.comments);
  try {
    return J::parse(text, nullptr, /*allow_exceptions=*/true, rules.comments);
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

std::vector<JsonView> JsonView::elements(std::string_view key) const {
  const Json& array = member(key);
  if (!array.is_array()) refuse(key, "a field has the wrong type", "an array of objects");
  std::vector<JsonView> views;
  for (size_t i = 0; i < array.size(); ++i) {
    if (!array[i].is_object()) {
      throw Error({.what = "an element of an array has the wrong type",
                   .where = fmt::format("{}, {}[{}]", file_, path_of(key), i),
                   .value = excerpt(array[i]),
                   .accepted = "an object"});
    }
    views.push_back({array[i], file_, fmt::format("{}[{}]", path_of(key), i)});
  }
  return views;
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

double JsonView::number(std::string_view key, double least, double most) const {
  const auto value = get<double>(key);
  if (value < least || value > most) {
    refuse(key, "a field is out of range", fmt::format("{} to {}", least, most));
  }
  return value;
}

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
