// Finds tool calls in the text of an answer while it comes.
//
// What is promised, however the text is cut into pieces:
//   * the pieces joined are what one piece would have given;
//   * a call is given once it is whole, and its arguments are a JSON object, as the model wrote it;
//   * nothing is lost: what looks like a call and is none is content. White space beside a call is
//     dropped.
// So a call is held back until its end; all other text is passed on as soon as no call can begin in
// it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/tools/json_text.h"

namespace octet::server {

// How a family of models writes a call.
enum class ToolFormat : uint8_t {
  hermes,       // <tool_call>\n{"name": "f", "arguments": {..}}\n</tool_call>: Hermes, Qwen
  llama3_json,  // {"name": "f", "parameters": {..}}; {..}, the whole answer: Llama 3
  deepseek_v3,  // <｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{..}\n```<｜tool▁call▁end｜>
};

// The name that --tool-call-parser takes, and back; nothing if there is no such format.
std::string_view to_string(ToolFormat format);
std::optional<ToolFormat> parse_tool_format(std::string_view name);
inline constexpr std::string_view kToolFormats = "hermes, llama3_json, deepseek_v3";

// The format that a chat template teaches its model; nothing if it shows none of these.
std::optional<ToolFormat> tool_format_of(std::string_view chat_template);

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object
  bool operator==(const ToolCall&) const = default;
};

// What has become certain.
struct ToolText {
  std::string content;
  std::vector<ToolCall> calls;
};

class ToolParser {
 public:
  virtual ~ToolParser() = default;

  // The next piece of the answer.
  ToolText push(std::string_view text);
  // The end of the answer: what is still held back is a call or content.
  ToolText finish();

 protected:
  // What stands at the beginning of the text.
  struct Reading {
    enum class Is : uint8_t { call, content, unfinished } is = Is::unfinished;
    size_t bytes = 0;  // of the call, or of what is certainly content
    ToolCall call;
  };
  static Reading unfinished() { return {}; }
  static Reading content(size_t bytes) { return {Reading::Is::content, bytes, {}}; }
  static Reading a_call(size_t bytes, ToolCall call) {
    return {Reading::Is::call, bytes, std::move(call)};
  }

  // Where a call may begin: bytes before it are content. text.size(): nowhere.
  virtual size_t find(std::string_view text, bool ended) const = 0;
  // Reads a call at the beginning of the text, which find() said may be one. Not unfinished() where
  // the answer has `ended`.
  virtual Reading read(std::string_view text, bool ended) = 0;

  // The end of the JSON object at text[begin]; npos while it is not there.
  size_t object_end(std::string_view text, size_t begin) { return scan_.find(text, begin); }
  // Calls given so far, and whether any content has been.
  size_t calls() const { return calls_; }
  bool only_calls() const { return !wrote_content_; }

 private:
  ToolText advance(bool ended);
  void give(std::string_view content, ToolText& out);

  std::string held_;   // not decided yet
  std::string space_;  // at the end of the content so far: dropped if a call follows
  ObjectScan scan_;
  size_t calls_ = 0;
  bool wrote_content_ = false;
  bool after_call_ = false;  // nothing but white space since
};

// `names` are the functions that the request offers: a format without marks of its own (Llama 3)
// takes only these for calls.
std::unique_ptr<ToolParser> make_tool_parser(ToolFormat format, std::vector<std::string> names);

// The call that a JSON object writes down: its "name", and the object in "arguments" or
// "parameters" ({} if there is neither). Nothing if it is no such object.
std::optional<ToolCall> tool_call_of(std::string_view object);

}  // namespace octet::server
