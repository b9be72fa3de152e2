// MMLU (Hendrycks et al., 2021): questions with four answers, by the likelihood of the letter.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "eval/dataset.h"

namespace octet::eval {

struct MmluQuestion {
  std::string subject, question;
  std::vector<std::string> choices;  // four
  int answer = 0;                    // the right one
  int64_t number = 0;                // of its subject, in the order of the files
};

struct MmluSet {
  std::vector<MmluQuestion> questions;  // subject by subject
  ReadRows rows;
};

// From JSON lines or a JSON array of {subject, question, choices[4], answer 0-3 or "A"-"D"}; from a
// CSV of question, A, B, C, D, letter without header, whose name says the subject
// (anatomy_test.csv); or from a folder of such CSVs. Throws Error if nothing can be used.
MmluSet read_mmlu(const std::filesystem::path& path);

// Takes the first `count` questions of each subject away from `set`, as its examples: for data
// without a part for them. Throws Error, naming `where`, if a subject has no question left then.
MmluSet split_examples(MmluSet& set, int count, const std::string& where);

// The prompt as lm-eval's `mmlu` tasks write it: a description, then `shots` examples of the
// question's subject with their letters, then the question. It ends with "Answer:".
std::string mmlu_prompt(const MmluQuestion& question, const MmluSet& examples, int shots);

// " A", " B", " C", " D": what follows the prompt.
std::string mmlu_continuation(int choice);

// How many examples of the subject there are.
int64_t examples_of(const MmluSet& set, const std::string& subject);

}  // namespace octet::eval
