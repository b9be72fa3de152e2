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
#include <span>
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

// A stretch of text: an added token with the white space that it takes, or text to be split and
// merged (id -1).
struct AddedTokenSpan {
  std::string_view text;
  int32_t id;
};

// What may be found in a text.
struct AddedTokenSearch {
  // False: special tokens stay text; like the reference, such a place is still taken by the special
  // token: a shorter token inside it is not found.
  bool parse_special = true;
  // Places in the text, ascending, across which no token is found: what would cover one is text.
  std::span<const size_t> walls = {};
};

// Finds a fixed set of added tokens. Immutable; any number of threads may use it.
class AddedTokenMatcher {
 public:
  // Keeps what it needs of `tokens`.
  explicit AddedTokenMatcher(const std::vector<AddedToken>& tokens);

  // Cuts `text` (valid UTF-8) at the tokens with normalized=false into spans in order and appends
  // them to `spans`; empty stretches are left out.
  void split_raw(std::string_view text, const AddedTokenSearch& search,
                 std::vector<AddedTokenSpan>& spans) const {
    split(0, text, search, spans);
  }

  // The same for those with normalized=true, whose content must be normalized like the text.
  void split_normalized(std::string_view text, const AddedTokenSearch& search,
                        std::vector<AddedTokenSpan>& spans) const {
    split(1, text, search, spans);
  }

  // Calls `take(id, begin, end)` for every place where a token's content stands in `text`,
  // ascending by begin, whatever its flags are and whether it overlaps with another.
  template <typename Take>
  void for_each_place(std::string_view text, Take take) const {
    for (size_t at = 0; at < text.size(); ++at) {
      for (const int pass : {0, 1}) {
        if (!starts_[pass][static_cast<uint8_t>(text[at])]) continue;
        int32_t node = roots_[pass];
        for (size_t i = at; i < text.size() && node >= 0; ++i) {
          node = find_child(node, static_cast<uint8_t>(text[i]));
          if (node >= 0 && nodes_[node].token >= 0) {
            take(tokens_[nodes_[node].token].id, at, i + 1);
          }
        }
      }
    }
  }

  // Whether any token has normalized=true.
  bool has_normalized() const { return any_[1]; }

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
  void split(int pass, std::string_view text, const AddedTokenSearch& search,
             std::vector<AddedTokenSpan>& spans) const;

  std::vector<Node> nodes_;
  std::vector<Flags> tokens_;
  int32_t roots_[2];          // raw, normalized
  bool starts_[2][256] = {};  // bytes with which a token of that pass begins
  bool any_[2] = {};
  std::optional<Regex> word_;  // one word character; only where a token is single_word
};

}  // namespace octet::text
