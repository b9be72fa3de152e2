// Pre-tokenization: text is cut into pieces, and merges never cross a cut.
//
// A pipeline of splits, each applied to every piece of the one before on its own, so that lookahead
// in a pattern sees the end of a piece as the end of text. Depth first: a piece goes through all
// splits before the next one is looked for, so that who has enough can stop. Rules: Hugging Face
// tokenizers, pre_tokenizers/{split,digits,byte_level,sequence}.rs and NormalizedString::split.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"

namespace octet::text {

// What becomes of the matches of a pattern. Given "a--b" and the pattern "-":
enum class SplitBehavior {
  isolated,              // a | - | - | b
  removed,               // a | b
  merged_with_previous,  // a- | - | b
  merged_with_next,      // a | - | -b
  contiguous,            // a | -- | b
};

// One split. The pattern decides which parts of the text are matches; the behavior, what is cut.
struct SplitStage {
  Regex pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // the matches are what the pattern does not match
};

// Immutable; any number of threads may use one.
class PreTokenizer {
 public:
  // Memory of one caller, kept between calls so that they need not allocate.
  struct Scratch {
    RegexScratch regex;
    // The piece at hand with its prefix space, if it got one, and where it stands in the text.
    std::string spaced;
    const char* spaced_from = nullptr;
  };

  // Applies `splits` in order. Then ByteLevel's part: with `add_prefix_space` each piece that does
  // not begin with a space gets one, and `byte_level` (GPT-2's pattern, where use_regex is set) is
  // the last split, Isolated.
  PreTokenizer(std::vector<SplitStage> splits, bool add_prefix_space,
               std::optional<Regex> byte_level);

  // Takes a piece; false ends the split.
  using Take = std::function<bool(std::string_view piece)>;

  // Gives the pieces of `text` (valid UTF-8), none empty, to `take`, in order; false if that ended
  // it. A piece is good until `take` returns; it is a part of `text` or, with a prefix space, of
  // `scratch.spaced`. Throws Error where a pattern gives up (see Regex::search).
  bool split(std::string_view text, Scratch& scratch, const Take& take) const;

 private:
  bool split_from(size_t stage, std::string_view text, Scratch& scratch, const Take& take) const;

  std::vector<SplitStage> stages_;  // byte_level is the last, if there is one
  size_t prefix_space_before_;      // index of the stage before which spaces are added
  bool add_prefix_space_;
};

}  // namespace octet::text
