// Recall: is what stands somewhere in a long prompt found again at its end? Prompts of five kinds,
// made by us; names, numbers, places and fillings follow from the seed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace octet::eval {

enum class RecallKind : uint8_t {
  needle,     // one fact in a text, in the form that the bundled demo model was trained on
  multi_key,  // eight such facts with different names, one of which is asked for (RULER's MK-NIAH)
  multi_value,  // one name with four numbers in four places, all of which are asked for (MV-NIAH)
  code,         // a long Python module of small functions, one of which is to be written once more
  dialogue,  // some fifty turns of small talk, a fact told in one of them, and asked for at the end
};
std::string_view name_of(RecallKind kind);
RecallKind parse_recall_kind(std::string_view text);  // throws Error
inline constexpr RecallKind kRecallKinds[] = {RecallKind::needle, RecallKind::multi_key,
                                              RecallKind::multi_value, RecallKind::code,
                                              RecallKind::dialogue};

// One question: `prompt` ends where the model is to answer, within max_tokens.
struct RecallCase {
  std::vector<int32_t> prompt;
  std::vector<std::string> answers;  // five digits each
  double depth = 0;  // of the fact: 0 = at the beginning, 1 = just before the question
  int max_tokens = 10;
};

// `count` cases of about `length` tokens each, answer included, the facts at evenly spaced depths.
// `haystack` is what facts of the first three kinds are hidden in; the others make their own text.
// Throws Error if `length` has no room for the facts and the question, or the haystack is empty.
std::vector<RecallCase> recall_cases(RecallKind kind, const text::Tokenizer& tokenizer,
                                     std::string_view haystack, int64_t length, int64_t count,
                                     uint64_t seed);

// The share of the answers that were given. A single one must be the first number that is said;
// several may come in any order, as long as they stand alone.
double recall_score(const RecallCase& one, std::string_view said);

}  // namespace octet::eval
