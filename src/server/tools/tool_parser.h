// Finds tool calls in the text of an answer while it comes.
//
// What is promised, however the text is cut into pieces:
//   * the parts joined are what one piece would have given;
//   * a call is given once its name is known and its arguments have begun; these follow as they
//   come,
//     exactly as the model writes them. A call whose arguments do not stand right behind its name
//     is given once it is whole, and is an object then;
//   * nothing is lost: what looks like a call and is none is content. White space beside a call is
//     dropped, and so is what an object has behind a call's arguments.
// So text is held back only as long as a call may begin in it.
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
  std::string arguments;  // a JSON object, if the model made no mistake and was not cut off
  bool operator==(const ToolCall&) const = default;
};

// A part of a call: with a name where it begins, and without one where the last call goes on.
struct ToolCallPart {
  std::string name;
  std::string arguments;  // the next bytes of them
};

// What has become certain.
struct ToolText {
  std::string content;
  std::vector<ToolCallPart> calls;
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
    enum class Is : uint8_t { call, begun, content, unfinished } is = Is::unfinished;
    size_t bytes = 0;  // of the call, of what is before its arguments, or certainly content
    ToolCall call;     // one that has begun: its name
  };
  static Reading unfinished() { return {}; }
  static Reading content(size_t bytes) { return {Reading::Is::content, bytes, {}}; }
  static Reading a_call(size_t bytes, ToolCall call) {
    return {Reading::Is::call, bytes, std::move(call)};
  }
  // A call whose arguments are the object at text[bytes], whose end may not be there yet.
  static Reading begun(size_t bytes, std::string name) {
    return {Reading::Is::begun, bytes, {std::move(name), {}}};
  }

  // Where a call may begin: bytes before it are content. text.size(): nowhere.
  virtual size_t find(std::string_view text, bool ended) const = 0;
  // Reads a call at the beginning of the text, which find() said may be one. Not unfinished() where
  // the answer has `ended`.
  virtual Reading read(std::string_view text, bool ended) = 0;
  // Bytes of the text behind the arguments of a call that had begun which belong to it. Nothing
  // while that is not to be known, which it is where the answer has `ended`.
  virtual std::optional<size_t> close(std::string_view text, bool ended) = 0;

  // The end of the JSON object at text[begin]; npos while it is not there.
  size_t object_end(std::string_view text, size_t begin) { return scan_.find(text, begin); }
  // Calls given so far, and whether any content has been.
  size_t calls() const { return calls_; }
  bool only_calls() const { return !wrote_content_; }

 private:
  ToolText advance(bool ended);
  bool advance_call(bool ended, ToolText& out);
  void give(std::string_view content, ToolText& out);

  std::string held_;   // not decided yet
  std::string space_;  // at the end of the content so far: dropped if a call follows
  ObjectScan scan_;
  enum class In : uint8_t { text, arguments, behind } in_ = In::text;
  size_t given_ = 0;  // bytes of the arguments at the beginning of held_
  size_t calls_ = 0;
  bool wrote_content_ = false;
  bool after_call_ = false;  // nothing but white space since
};

// `names` are the functions that the request offers: a format without marks of its own (Llama 3)
// takes only these for calls.
std::unique_ptr<ToolParser> make_tool_parser(ToolFormat format, std::vector<std::string> names);

// The beginning {"name": "f", "arguments": {, or with "parameters", of a call as an object.
struct CallOpening {
  enum class Is : uint8_t { yes, no, unknown } is = Is::unknown;  // unknown: the text is too short
  size_t bytes = 0;                                               // before the last '{'
  std::string name;
};
CallOpening call_opening(std::string_view text);

// Bytes up to the end of that object behind its arguments, at which `text` begins: 0 where the
// object does not go on as one. Nothing while that is not to be known.
std::optional<size_t> call_rest(std::string_view text, bool ended);

// The call that a JSON object writes down: its "name", and the object in "arguments" or
// "parameters" ({} if there is neither). Nothing if it is no such object.
std::optional<ToolCall> tool_call_of(std::string_view object);

}  // namespace octet::server
