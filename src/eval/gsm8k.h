// GSM8K (Cobbe et al., 2021): word problems, whose answer is a number.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "eval/dataset.h"

namespace octet::eval {

struct Gsm8kProblem {
  std::string question, answer;  // the answer with its reasoning, "...\n#### 18"
  size_t number = 0;             // of its line
};

struct Gsm8kSet {
  std::vector<Gsm8kProblem> problems;
  ReadRows rows;
};

// From JSON lines of {question, answer}. Throws Error if nothing can be used.
Gsm8kSet read_gsm8k(const std::filesystem::path& path);

// The prompt as lm-eval's task `gsm8k` writes it: `examples` with their answers, then the question.
std::string gsm8k_prompt(const Gsm8kProblem& problem, const std::vector<Gsm8kProblem>& examples);

// What ends an answer there.
std::vector<std::string> gsm8k_stops();

// The two ways of lm-eval to find the number in an answer: the first that stands behind "#### ",
// and the last of all. "[invalid]" where there is none.
std::string strict_match(std::string_view answer);
std::string flexible_extract(std::string_view answer);

// Whether two such numbers are the same text, by the rules of the task: case, commas, dollar signs,
// a period at the end, and what stands before "#### " do not count.
bool exact_match(std::string_view found, std::string_view wanted);

}  // namespace octet::eval
