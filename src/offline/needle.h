// Retrieval: is a fact that stands somewhere in a long text found again at its end? The form is the
// one that the bundled demo model was trained on.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "offline/evaluate.h"
#include "text/tokenizer.h"

namespace octet::offline {

// One question: `prompt` ends where the model is to say `answer`.
struct NeedleCase {
  std::vector<int32_t> prompt;
  std::string answer;  // five digits
  double depth = 0;    // of the fact: 0 = at the beginning, 1 = just before the question
};

// `count` cases of about `length` tokens each: pieces of `haystack`, a fact at evenly spaced
// depths, and the question. Names, codes and pieces follow from the seed. Throws Error if `length`
// has no room for fact and question, or the haystack is empty.
std::vector<NeedleCase> needle_cases(const text::Tokenizer& tokenizer, std::string_view haystack,
                                     int64_t length, int64_t count, uint64_t seed);

struct NeedleResult {
  int64_t length = 0, count = 0, found = 0;
  std::vector<std::string> misses;  // "depth 0.25: wanted 34203, got ' 3420\n'"
};

// Answers each case greedily.
NeedleResult run_needle(const Subject& subject, const text::Tokenizer& tokenizer, int64_t length,
                        std::span<const NeedleCase> cases, const Advance& advance = {});

}  // namespace octet::offline
