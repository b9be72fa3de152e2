#include "text/pre_tokenizer.h"

#include <utility>

#include "text/utf8.h"

namespace octet::text {
namespace {

struct Part {
  size_t begin, end;
  bool is_match;
};

// Calls `emit(begin, end, is_match)` for the matches of `regex` and the gaps between them, in
// order. An empty match directly behind another match does not count; behind an empty match the
// search goes on one character later.
template <typename Emit>
void for_each_part(const Regex& regex, std::string_view text, RegexScratch& scratch, Emit emit) {
  size_t from = 0, done = 0;
  bool had_match = false;
  while (from <= text.size()) {
    const std::optional<RegexMatch> match = regex.search(text, from, scratch);
    if (!match) break;
    if (match->end == match->begin && had_match && match->end == done) {
      if (from == text.size()) break;
      from += utf8_step(text.substr(from)).bytes;
      continue;
    }
    if (done < match->begin) emit(done, match->begin, false);
    emit(match->begin, match->end, true);
    had_match = true;
    from = done = match->end;
  }
  if (done < text.size()) emit(done, text.size(), false);
}

// Joins parts as the behavior says; returns what is left as pieces, in order.
std::vector<Part> merge_parts(const std::vector<Part>& parts, SplitBehavior behavior) {
  std::vector<Part> out;
  bool previous_match = false;
  switch (behavior) {
    case SplitBehavior::isolated:
      return parts;
    case SplitBehavior::removed:
      for (const Part& part : parts) {
        if (!part.is_match) out.push_back(part);
      }
      return out;
    case SplitBehavior::contiguous:
      for (const Part& part : parts) {
        if (part.is_match == previous_match && !out.empty()) {
          out.back().end = part.end;
        } else {
          out.push_back(part);
        }
        previous_match = part.is_match;
      }
      return out;
    case SplitBehavior::merged_with_previous:
      for (const Part& part : parts) {
        if (part.is_match && !previous_match && !out.empty()) {
          out.back().end = part.end;
        } else {
          out.push_back(part);
        }
        previous_match = part.is_match;
      }
      return out;
    case SplitBehavior::merged_with_next:
      for (size_t i = parts.size(); i-- > 0;) {
        if (parts[i].is_match && !previous_match && !out.empty()) {
          out.back().begin = parts[i].begin;
        } else {
          out.push_back(parts[i]);
        }
        previous_match = parts[i].is_match;
      }
      return {out.rbegin(), out.rend()};
  }
  return out;
}

void apply(const SplitStage& stage, std::string_view text, RegexScratch& scratch,
           std::vector<std::string_view>& pieces) {
  if (stage.behavior == SplitBehavior::isolated) {
    // By far the most common: needs no list of parts.
    for_each_part(stage.pattern, text, scratch, [&](size_t begin, size_t end, bool) {
      if (begin < end) pieces.push_back(text.substr(begin, end - begin));
    });
    return;
  }
  std::vector<Part> parts;
  for_each_part(stage.pattern, text, scratch, [&](size_t begin, size_t end, bool is_match) {
    parts.push_back({begin, end, is_match != stage.invert});
  });
  for (const Part& part : merge_parts(parts, stage.behavior)) {
    if (part.begin < part.end) pieces.push_back(text.substr(part.begin, part.end - part.begin));
  }
}

// Rewrites the text with a space before each piece that has none, and points the pieces there.
void add_prefix_spaces(std::vector<std::string_view>& pieces, std::string& spaced) {
  size_t size = 0;
  for (const std::string_view piece : pieces) size += piece.size() + 1;
  spaced.clear();
  spaced.reserve(size);  // so that the views below stay good
  for (std::string_view& piece : pieces) {
    const size_t begin = spaced.size();
    if (piece.front() != ' ') spaced.push_back(' ');
    spaced.append(piece);
    piece = std::string_view(spaced).substr(begin);
  }
}

}  // namespace

PreTokenizer::PreTokenizer(std::vector<SplitStage> splits, bool add_prefix_space,
                           std::optional<Regex> byte_level)
    : stages_(std::move(splits)),
      prefix_space_before_(stages_.size()),
      add_prefix_space_(add_prefix_space) {
  if (byte_level) stages_.push_back({.pattern = std::move(*byte_level)});
}

const std::vector<std::string_view>& PreTokenizer::split(std::string_view text,
                                                         Scratch& scratch) const {
  scratch.pieces.clear();
  if (!text.empty()) scratch.pieces.push_back(text);
  for (size_t i = 0; i <= stages_.size(); ++i) {
    if (i == prefix_space_before_ && add_prefix_space_) {
      add_prefix_spaces(scratch.pieces, scratch.spaced);
    }
    if (i == stages_.size()) break;
    std::swap(scratch.pieces, scratch.before);
    scratch.pieces.clear();
    for (const std::string_view piece : scratch.before) {
      apply(stages_[i], piece, scratch.regex, scratch.pieces);
    }
  }
  return scratch.pieces;
}

}  // namespace octet::text
