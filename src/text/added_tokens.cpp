#include "text/added_tokens.h"

#include <algorithm>

#include "text/utf8.h"

namespace octet::text {
namespace {

// The Unicode property White_Space: 25 code points, stable since Unicode 6.3.
bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

std::string_view first_character(std::string_view text) {
  return text.substr(0, text.empty() ? 0 : utf8_step(text).bytes);
}

std::string_view last_character(std::string_view text) {
  size_t begin = text.size();
  while (begin > 0) {
    --begin;
    if ((static_cast<uint8_t>(text[begin]) & 0xC0) != 0x80) break;
  }
  return text.substr(begin);
}

size_t white_space_prefix(std::string_view text) {
  size_t n = 0;
  for (;;) {
    const std::string_view c = first_character(text.substr(n));
    if (c.empty() || !is_white_space(utf8_code_point(c))) return n;
    n += c.size();
  }
}

size_t white_space_suffix(std::string_view text) {
  size_t n = 0;
  for (;;) {
    const std::string_view c = last_character(text.substr(0, text.size() - n));
    if (c.empty() || !is_white_space(utf8_code_point(c))) return n;
    n += c.size();
  }
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(const std::vector<AddedToken>& tokens) {
  nodes_.resize(2);
  roots_[0] = 0;
  roots_[1] = 1;
  for (const AddedToken& token : tokens) {
    const int pass = token.normalized ? 1 : 0;
    int32_t node = roots_[pass];
    for (const char c : token.content) {
      const uint8_t byte = static_cast<uint8_t>(c);
      int32_t next = find_child(node, byte);
      if (next < 0) {
        next = static_cast<int32_t>(nodes_.size());
        nodes_.push_back({.byte = byte, .sibling = nodes_[node].child});
        nodes_[node].child = next;
      }
      node = next;
    }
    if (node == roots_[pass]) continue;  // an empty string matches nothing
    starts_[pass][static_cast<uint8_t>(token.content[0])] = true;
    any_[pass] = true;
    nodes_[node].token = static_cast<int32_t>(tokens_.size());
    tokens_.push_back({token.id, token.special, token.lstrip, token.rstrip, token.single_word});
    if (token.single_word && !word_) {
      // UTS 18 annex C with the joiners, as Rust's \w has it.
      word_ = Regex::compile("[\\p{Alphabetic}\\p{L}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}]",
                             "single_word");
    }
  }
}

int32_t AddedTokenMatcher::find_child(int32_t node, uint8_t byte) const {
  int32_t child = nodes_[node].child;
  while (child >= 0 && nodes_[child].byte != byte) child = nodes_[child].sibling;
  return child;
}

bool AddedTokenMatcher::touches_word(std::string_view before, std::string_view after) const {
  RegexScratch scratch;
  const auto is_word = [&](std::string_view c) {
    return !c.empty() && word_->search(c, 0, scratch).has_value();
  };
  return is_word(last_character(before)) || is_word(first_character(after));
}

void AddedTokenMatcher::split(int pass, std::string_view text, const AddedTokenSearch& search,
                              std::vector<AddedTokenSpan>& spans) const {
  if (text.empty()) return;
  if (!any_[pass]) {
    spans.push_back({text, -1});
    return;
  }
  const int32_t root = roots_[pass];
  const bool* starts = starts_[pass];
  size_t done = 0;  // text before this is in `spans`
  for (size_t at = 0; at < text.size();) {
    if (!starts[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    int32_t found = -1;
    size_t found_end = at;
    int32_t node = root;
    for (size_t i = at; i < text.size(); ++i) {
      node = find_child(node, static_cast<uint8_t>(text[i]));
      if (node < 0) break;
      if (nodes_[node].token >= 0) {
        found = nodes_[node].token;
        found_end = i + 1;
      }
    }
    if (found < 0) {
      ++at;
      continue;
    }
    size_t begin = at, end = found_end;
    at = found_end;  // also where the match is dropped below: its text is not searched again
    const Flags& token = tokens_[found];
    if (token.special && !search.parse_special) continue;
    if (const auto wall = std::ranges::upper_bound(search.walls, begin);
        wall != search.walls.end() && *wall < end) {
      at = begin + 1;  // what begins behind the wall may be found
      continue;
    }
    if (token.single_word && touches_word(text.substr(0, begin), text.substr(end))) continue;
    if (token.lstrip) {
      // White space that the token before has taken stays its own.
      begin = std::max(begin - white_space_suffix(text.substr(0, begin)), done);
    }
    if (token.rstrip) end += white_space_prefix(text.substr(end));
    if (done < begin) spans.push_back({text.substr(done, begin - done), -1});
    // A token of white space all of which an earlier token took: nothing is left for an lstrip one.
    if (begin < end) spans.push_back({text.substr(begin, end - begin), token.id});
    done = std::max(done, end);
  }
  if (done < text.size()) spans.push_back({text.substr(done), -1});
}

}  // namespace octet::text
