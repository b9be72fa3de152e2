#include "server/tools/tool_parser.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "server/tools/formats.h"

namespace octet::server {
namespace {

struct FormatRow {
  ToolFormat format;
  std::string_view name;
  std::string_view taught_by;  // what a template of its models has, and no other's
  std::unique_ptr<ToolParser> (*make)(std::vector<std::string> names);
};

// DeepSeek's and Hermes' marks are tried before Llama's, which is a word that others may write.
constexpr FormatRow kFormatTable[] = {
    {ToolFormat::deepseek_v3, "deepseek_v3", "<｜tool▁call▁begin｜>", make_deepseek_parser},
    {ToolFormat::hermes, "hermes", "<tool_call>", make_hermes_parser},
    {ToolFormat::llama3_json, "llama3_json", "\"parameters\": dictionary", make_llama3_parser},
};

const FormatRow& row_of(ToolFormat format) {
  for (const FormatRow& row : kFormatTable) {
    if (row.format == format) return row;
  }
  throw Fault("a tool format without a row");
}

}  // namespace

std::string_view to_string(ToolFormat format) {
  return row_of(format).name;
}

std::optional<ToolFormat> parse_tool_format(std::string_view name) {
  for (const FormatRow& row : kFormatTable) {
    if (row.name == name) return row.format;
  }
  return std::nullopt;
}

std::optional<ToolFormat> tool_format_of(std::string_view chat_template) {
  for (const FormatRow& row : kFormatTable) {
    if (chat_template.find(row.taught_by) != chat_template.npos) return row.format;
  }
  return std::nullopt;
}

std::unique_ptr<ToolParser> make_tool_parser(ToolFormat format, std::vector<std::string> names) {
  return row_of(format).make(std::move(names));
}

std::optional<ToolCall> tool_call_of(std::string_view object) {
  OrderedJson json;
  try {
    json = parse_json<OrderedJson>(object, "tool call");
  } catch (const Error&) {
    return std::nullopt;  // the model's mistake, which is shown as it is
  }
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string()) return std::nullopt;
  ToolCall call{json["name"].get<std::string>(), "{}"};
  if (call.name.empty()) return std::nullopt;
  for (const char* key : {"arguments", "parameters"}) {
    if (!json.contains(key)) continue;
    call.arguments = raw_member(object, key);
    if (!json[key].is_object() || call.arguments.empty()) return std::nullopt;
    break;
  }
  return call;
}

CallOpening call_opening(std::string_view text) {
  using Is = CallOpening::Is;
  size_t at = 0;
  Is found = Is::yes;
  // Moves behind `word` and the white space before it.
  const auto pass = [&](std::string_view word) {
    at = skip_space(text, at);
    const Stands here = stands(text, at, word, false);
    found = here == Stands::unknown ? Is::unknown : here == Stands::no ? Is::no : Is::yes;
    if (found == Is::yes) at += word.size();
    return found == Is::yes;
  };
  if (!pass("{") || !pass("\"name\"") || !pass(":") || !pass("\"")) return {found};
  const size_t begin = at;
  at = text.find_first_of("\"\\", begin);
  if (at == text.npos) return {Is::unknown};
  std::string name(text.substr(begin, at - begin));
  if (text[at] == '\\' || name.empty()) return {Is::no};
  ++at;
  if (!pass(",")) return {found};
  const size_t key = skip_space(text, at);
  if (!pass("\"arguments\"")) {
    const Is first = std::exchange(found, Is::yes);
    at = key;
    if (!pass("\"parameters\"")) return {first == Is::unknown ? first : found};
  }
  if (!pass(":")) return {found};
  at = skip_space(text, at);
  if (at == text.size()) return {Is::unknown};
  return {text[at] == '{' ? Is::yes : Is::no, at, std::move(name)};
}

std::optional<size_t> call_rest(std::string_view text, bool ended) {
  const size_t at = skip_space(text, 0);
  if (at == text.size()) return ended ? std::optional<size_t>(0) : std::nullopt;
  if (text[at] == '}') return at + 1;
  if (text[at] != ',') return 0;
  const size_t end = ObjectScan(/*depth=*/1).find(text, at);
  if (end != text.npos) return end;
  return ended ? std::optional<size_t>(0) : std::nullopt;
}

ToolText ToolParser::push(std::string_view text) {
  held_ += text;
  return advance(false);
}

ToolText ToolParser::finish() {
  ToolText out = advance(true);
  if (!after_call_) out.content += std::exchange(space_, {});
  return out;
}

// Content is passed on up to the white space at its end.
void ToolParser::give(std::string_view content, ToolText& out) {
  const size_t last = content.find_last_not_of(" \t\r\n");
  const size_t size = last == content.npos ? 0 : last + 1;
  if (size > 0) {
    std::string_view text = content.substr(0, size);
    if (after_call_) text.remove_prefix(text.find_first_not_of(" \t\r\n"));
    out.content += std::exchange(space_, {});
    out.content += text;
    wrote_content_ = true;
    after_call_ = false;
  }
  if (!after_call_) space_ += content.substr(size);
}

// Goes on in a call; false: it waits for more text.
bool ToolParser::advance_call(bool ended, ToolText& out) {
  if (in_ == In::arguments) {
    const size_t end = scan_.find(held_, 0);
    const size_t known = std::min(end, held_.size());
    if (known > given_) out.calls.push_back({"", held_.substr(given_, known - given_)});
    given_ = known;
    if (end == held_.npos && !ended) return false;
    held_.erase(0, known);
    scan_.reset();
    in_ = In::behind;
  }
  const std::optional<size_t> rest = close(held_, ended);
  if (!rest) return false;
  held_.erase(0, *rest);
  in_ = In::text;
  return true;
}

ToolText ToolParser::advance(bool ended) {
  ToolText out;
  while (!held_.empty()) {
    if (in_ != In::text) {
      if (!advance_call(ended, out)) break;
      continue;
    }
    const size_t begin = find(held_, ended);
    give(std::string_view(held_).substr(0, begin), out);
    held_.erase(0, begin);
    if (begin > 0) scan_.reset();
    if (held_.empty()) break;
    Reading found = read(held_, ended);
    if (found.is == Reading::Is::unfinished) break;
    if (found.is == Reading::Is::content) {
      give(std::string_view(held_).substr(0, found.bytes), out);
    } else {
      out.calls.push_back({std::move(found.call.name), std::move(found.call.arguments)});
      ++calls_;
      space_.clear();
      after_call_ = true;
      given_ = 0;
      if (found.is == Reading::Is::begun) in_ = In::arguments;
    }
    held_.erase(0, found.bytes);
    scan_.reset();
  }
  return out;
}

}  // namespace octet::server
