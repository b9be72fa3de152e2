// What changes a text before it is split: normalization, and the "▁" of SentencePiece models.
//
// Rules: Hugging Face tokenizers, normalizers/{unicode,prepend,replace}.rs, pre_tokenizers/
// metaspace.rs and NormalizedString, which also say where each byte of the new text came from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"

namespace octet::text {

inline constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581, "▁"

// One step. `text` is what is put in: the prefix, or what takes the place of a match.
struct Rewrite {
  enum Kind {
    nfc,      // Unicode form C
    prepend,  // `text` goes before a text that is not empty
    replace,  // every match of `pattern` becomes `text`
  };
  Kind kind = nfc;
  std::string text;
  std::optional<Regex> pattern;  // of replace
  // Of prepend. Metaspace puts its prefix only where it is not there already, and, as
  // prepend_scheme "first" says, only at the begin of all text.
  bool unless_there = false;
  bool only_first = false;
};

// Bytes [begin, end) of a source text.
struct ByteRange {
  uint32_t begin, end;
  bool operator==(const ByteRange&) const = default;
};

// A text that is rewritten step by step.
struct Rewritten {
  std::string text;
  // The source of each byte of `text`: whole characters, also for a part of one. What was put in
  // has the source of a neighbour.
  std::vector<ByteRange> from;
};

// The source of a text that is still as it was.
Rewritten unchanged(std::string_view text);

// Applies one step. `first`: the text is the begin of all text.
void apply(const Rewrite& step, bool first, RegexScratch& scratch, Rewritten& text);

// The same without the sources, and faster.
void apply(const Rewrite& step, bool first, RegexScratch& scratch, std::string& text);

// An upper bound of how many times shorter than its source a text of these steps can be; 0: none is
// known.
size_t most_shrinkage(const std::vector<Rewrite>& steps);

// An upper bound of how many times longer it can be, but for what goes before it once; saturates.
size_t most_growth(const std::vector<Rewrite>& steps);

}  // namespace octet::text
