#include "server/tools/json_text.h"

namespace octet::server {

constexpr size_t kNone = std::string_view::npos;

size_t skip_space(std::string_view text, size_t at) {
  const size_t next = text.find_first_not_of(" \t\r\n", at);
  return next == kNone ? text.size() : next;
}

size_t ObjectScan::find(std::string_view text, size_t begin) {
  if (begin != begin_) {
    if (begin_ != kNone) reset();
    begin_ = at_ = begin;
  }
  if (end_ > 0) return end_;
  for (; at_ < text.size(); ++at_) {
    const char c = text[at_];
    if (in_string_) {
      in_string_ = escaped_ || c != '"';
      escaped_ = !escaped_ && c == '\\';
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if ((c == '}' || c == ']') && --depth_ == 0) {
      return end_ = at_ + 1;
    }
  }
  return kNone;
}

namespace {

// One behind the JSON value at text[at].
size_t value_end(std::string_view text, size_t at) {
  if (text[at] == '{' || text[at] == '[') return ObjectScan().find(text, at);
  if (text[at] != '"') return text.find_first_of(",}] \t\r\n", at);
  for (++at; text[at] != '"'; ++at) at += text[at] == '\\';
  return at + 1;
}

}  // namespace

std::string_view raw_member(std::string_view object, std::string_view key) {
  for (size_t at = skip_space(object, 1); object[at] == '"';) {
    const size_t key_end = value_end(object, at);
    const std::string_view name = object.substr(at + 1, key_end - at - 2);
    const size_t begin = skip_space(object, skip_space(object, key_end) + 1);  // behind the colon
    const size_t end = value_end(object, begin);
    if (name == key) return object.substr(begin, end - begin);
    at = skip_space(object, end);
    if (object[at] == ',') at = skip_space(object, at + 1);
  }
  return {};
}

}  // namespace octet::server
