#include "text/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "text/utf8.h"

namespace octet::text {
namespace {

struct Part {
  size_t begin, end;
  bool is_match;
};

// Calls `emit(begin, end, is_match)` for the matches of `regex` and the gaps between them, in
// order, until that returns false, and then returns false. An empty match directly behind another
// match does not count; behind an empty match the search goes on one character later.
template <typename Emit>
bool for_each_part(const Regex& regex, std::string_view text, RegexScratch& scratch, Emit emit) {
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
    if (done < match->begin && !emit(done, match->begin, false)) return false;
    if (!emit(match->begin, match->end, true)) return false;
    had_match = true;
    from = done = match->end;
  }
  return done == text.size() || emit(done, text.size(), false);
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

}  // namespace

PreTokenizer::PreTokenizer(std::vector<SplitStage> splits, bool add_prefix_space,
                           std::optional<Regex> byte_level)
    : stages_(std::move(splits)),
      prefix_space_before_(stages_.size()),
      add_prefix_space_(add_prefix_space) {
  if (byte_level) stages_.push_back({.pattern = std::move(*byte_level)});
}

bool PreTokenizer::split(std::string_view text, Scratch& scratch, const Take& take) const {
  return text.empty() || split_from(0, text, scratch, take);
}

bool PreTokenizer::split_from(size_t stage, std::string_view text, Scratch& scratch,
                              const Take& take) const {
  if (stage == prefix_space_before_ && add_prefix_space_ && text.front() != ' ') {
    scratch.spaced_from = text.data();
    scratch.spaced.assign(1, ' ').append(text);
    text = scratch.spaced;
  }
  if (stage == stages_.size()) return take(text);
  const SplitStage& split = stages_[stage];
  const auto pass_on = [&](size_t begin, size_t end) {
    return begin == end || split_from(stage + 1, text.substr(begin, end - begin), scratch, take);
  };
  if (split.behavior == SplitBehavior::isolated) {
    // By far the most common: needs no list of parts.
    return for_each_part(split.pattern, text, scratch.regex,
                         [&](size_t begin, size_t end, bool) { return pass_on(begin, end); });
  }
  std::vector<Part> parts;
  for_each_part(split.pattern, text, scratch.regex, [&](size_t begin, size_t end, bool is_match) {
    parts.push_back({begin, end, is_match != split.invert});
    return true;
  });
  return std::ranges::all_of(merge_parts(parts, split.behavior),
                             [&](const Part& part) { return pass_on(part.begin, part.end); });
}

}  // namespace octet::text
