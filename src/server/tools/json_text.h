// JSON as text: where an object ends, and what a member looks like, byte by byte.
#pragma once

#include <cstddef>
#include <string_view>

namespace octet::server {

// Finds the end of an object in a text that grows, and looks at each byte once. It counts brackets
// outside of strings; whether it is JSON is for a parser to say.
class ObjectScan {
 public:
  // `depth`: of the brackets that are open before the text.
  explicit ObjectScan(size_t depth = 0) : depth_(depth) {}
  // One behind the object that begins at text[begin], a '{'; npos while its end is not there. Since
  // the last call with the same `begin`, the text may only have grown; else reset() first.
  size_t find(std::string_view text, size_t begin);
  void reset() { *this = ObjectScan(); }

 private:
  size_t begin_ = std::string_view::npos, at_ = 0;
  size_t depth_;
  size_t end_ = 0;  // once it is found
  bool in_string_ = false, escaped_ = false;
};

// The value of a member as it is written in `object`, which is a valid JSON object; empty if it has
// no member of this name. A key that is written with escapes is not found.
std::string_view raw_member(std::string_view object, std::string_view key);

// One behind the white space of JSON at text[at] and after it.
size_t skip_space(std::string_view text, size_t at);

}  // namespace octet::server
