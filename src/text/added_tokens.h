// Added tokens: strings such as "<|eos|>" that are found in raw text before it is split and that
// become one id whatever the merges say.
//
// Rules (Hugging Face tokenizers, added_vocabulary.rs): the leftmost match wins, at one place the
// longest; matches do not overlap. `lstrip`/`rstrip` take the white space beside the token with it;
// `single_word` drops a match that touches a word character. Tokens with normalized=false are
// searched first, those with normalized=true in the text that is left.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"

namespace octet::text {

struct AddedToken {
  std::string content;  // not empty
  int32_t id = 0;
  bool special = false;     // decode may skip it, encode may be told not to parse it
  bool normalized = false;  // searched in the second pass
  bool lstrip = false;
  bool rstrip = false;
  bool single_word = false;
};

// A stretch of text: an added token (`text` is empty then), or text to be split and merged (id -1).
struct AddedTokenSpan {
  std::string_view text;
  int32_t id;
};

// Finds a fixed set of added tokens. Immutable; any number of threads may use it.
class AddedTokenMatcher {
 public:
  // Keeps what it needs of `tokens`.
  explicit AddedTokenMatcher(const std::vector<AddedToken>& tokens);

  // Cuts `text` (valid UTF-8) into spans in order and appends them to `spans`; empty stretches are
  // left out. Where `parse_special` is false, special tokens stay text; like the reference, such a
  // place is still taken by the special token: a shorter token inside it is not found.
  void split(std::string_view text, bool parse_special, std::vector<AddedTokenSpan>& spans) const;

 private:
  // A trie with the children of a node as a list: there are at most some thousand tokens, and all
  // but a few bytes of text are dismissed by `starts_`.
  struct Node {
    uint8_t byte = 0;
    int32_t child = -1, sibling = -1;
    int32_t token = -1;  // index into tokens_ of the token that ends here
  };
  struct Flags {
    int32_t id;
    bool special, lstrip, rstrip, single_word;
  };
  int32_t find_child(int32_t node, uint8_t byte) const;
  bool touches_word(std::string_view before, std::string_view after) const;
  void split_pass(std::string_view text, bool parse_special, int32_t root, const bool* starts,
                  std::vector<AddedTokenSpan>& spans) const;

  std::vector<Node> nodes_;
  std::vector<Flags> tokens_;
  int32_t roots_[2];          // raw, normalized
  bool starts_[2][256] = {};  // bytes with which a token of that pass begins
  bool any_[2] = {};
  std::optional<Regex> word_;  // one word character; only where a token is single_word
};

}  // namespace octet::text
