#include "text/rewrite.h"

#include <algorithm>
#include <utility>

#include "text/nfc.h"
#include "text/utf8.h"

namespace octet::text {
namespace {

size_t first_bytes(std::string_view text) {
  return utf8_step(text).bytes;
}

bool wants_prefix(const Rewrite& step, bool first, std::string_view text) {
  return !text.empty() && (first || !step.only_first) &&
         !(step.unless_there && text.starts_with(step.text));
}

// Calls `emit(begin, end, is_match)` for the matches of the step's pattern and what lies between.
template <typename Emit>
void for_each_part(const Rewrite& step, std::string_view text, RegexScratch& scratch, Emit emit) {
  size_t from = 0, done = 0;
  while (from <= text.size()) {
    const std::optional<RegexMatch> match = step.pattern->search(text, from, scratch);
    if (!match) break;
    if (done < match->begin) emit(done, match->begin, false);
    emit(match->begin, match->end, true);
    done = from = match->end;
    if (match->begin == match->end) {
      if (from == text.size()) break;
      from += first_bytes(text.substr(from));
    }
  }
  if (done < text.size()) emit(done, text.size(), false);
}

// The changed characters as text, each with the source of what it takes the place of.
Rewritten take_changes(const std::vector<ChangedChar>& chars, const Rewritten& source) {
  Rewritten out;
  out.text.reserve(source.text.size());
  out.from.reserve(source.text.size());
  size_t at = 0;  // in the source
  const auto skip_one = [&] {
    if (at < source.text.size()) at += first_bytes(std::string_view(source.text).substr(at));
  };
  for (const ChangedChar& c : chars) {
    ByteRange from{0, 0};
    if (c.change > 0) {
      if (at > 0) from = source.from[at - 1];
    } else {
      if (at < source.text.size()) from = source.from[at];
      for (int i = c.change; i <= 0; ++i) skip_one();
    }
    append_utf8(c.code_point, out.text);
    out.from.resize(out.text.size(), from);
  }
  return out;
}

}  // namespace

Rewritten unchanged(std::string_view text) {
  Rewritten out{std::string(text), {}};
  out.from.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = first_bytes(text.substr(at));
    const ByteRange range{static_cast<uint32_t>(at), static_cast<uint32_t>(at + bytes)};
    out.from.insert(out.from.end(), bytes, range);
    at += bytes;
  }
  return out;
}

void apply(const Rewrite& step, bool first, RegexScratch& scratch, Rewritten& text) {
  switch (step.kind) {
    case Rewrite::nfc:
      if (!is_surely_nfc(text.text)) text = take_changes(nfc(text.text), text);
      return;
    case Rewrite::prepend:
      if (!wants_prefix(step, first, text.text)) return;
      text.from.insert(text.from.begin(), step.text.size(), ByteRange(text.from.front()));
      text.text.insert(0, step.text);
      return;
    case Rewrite::replace: {
      Rewritten out;
      for_each_part(step, text.text, scratch, [&](size_t begin, size_t end, bool is_match) {
        if (!is_match) {
          out.text.append(text.text, begin, end - begin);
          out.from.insert(out.from.end(), text.from.begin() + static_cast<ptrdiff_t>(begin),
                          text.from.begin() + static_cast<ptrdiff_t>(end));
          return;
        }
        out.text += step.text;
        const ByteRange from = end > 0 ? text.from[end - 1] : ByteRange{0, 0};
        out.from.resize(out.text.size(), from);
      });
      text = std::move(out);
      return;
    }
  }
}

void apply(const Rewrite& step, bool first, RegexScratch& scratch, std::string& text) {
  switch (step.kind) {
    case Rewrite::nfc: {
      if (is_surely_nfc(text)) return;
      std::string out;
      out.reserve(text.size());
      for (const ChangedChar& c : nfc(text)) append_utf8(c.code_point, out);
      text = std::move(out);
      return;
    }
    case Rewrite::prepend:
      if (wants_prefix(step, first, text)) text.insert(0, step.text);
      return;
    case Rewrite::replace: {
      std::string out;
      out.reserve(text.size());
      for_each_part(step, text, scratch, [&](size_t begin, size_t end, bool is_match) {
        if (is_match) {
          out += step.text;
        } else {
          out.append(text, begin, end - begin);
        }
      });
      text = std::move(out);
      return;
    }
  }
}

// Beyond it nothing is worth knowing; a step's own factor keeps a product within 64 bits.
constexpr size_t kLargestFactor = size_t{1} << 32;

size_t most_shrinkage(const std::vector<Rewrite>& steps) {
  size_t factor = 1;
  for (const Rewrite& step : steps) {
    // Three bytes of a composed character stand for at most 9 (Hangul).
    if (step.kind == Rewrite::nfc) factor *= 4;
    if (step.kind == Rewrite::replace) {
      // A literal pattern cannot match more than its own bytes; of an expression nothing is known.
      if (!step.pattern->is_literal() || step.text.empty()) return 0;
      factor *= std::max<size_t>(1, step.pattern->pattern().size() / step.text.size() + 1);
    }
    if (factor > kLargestFactor) return 0;
  }
  return factor;
}

size_t most_growth(const std::vector<Rewrite>& steps) {
  size_t factor = 1;
  for (const Rewrite& step : steps) {
    if (step.kind == Rewrite::nfc) factor *= 3;  // of the characters that are never composed
    if (step.kind == Rewrite::replace) {
      // An expression may match one byte, or nothing between two.
      const size_t least = step.pattern->is_literal() ? step.pattern->pattern().size() : 0;
      factor *= least > 0 ? std::max<size_t>(1, (step.text.size() + least - 1) / least)
                          : step.text.size() + 1;
    }
    factor = std::min(factor, kLargestFactor);
  }
  return factor;
}

}  // namespace octet::text
