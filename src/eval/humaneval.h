// HumanEval (Chen et al., 2021): functions to complete, judged by running their tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "eval/dataset.h"
#include "eval/judged_program.h"

namespace octet::eval {

struct HumanEvalTask {
  std::string id, prompt, test, entry_point;  // "HumanEval/0", ...
};

struct HumanEvalSet {
  std::vector<HumanEvalTask> tasks;
  ReadRows rows;
};

// From JSON lines of {task_id, prompt, test, entry_point}, plain or gzipped. Throws Error if
// nothing can be used.
HumanEvalSet read_humaneval(const std::filesystem::path& path);

// What ends a completion: the next thing at the outermost level.
std::vector<std::string> humaneval_stops();

// The completed function, and its tests.
JudgedProgram humaneval_program(const HumanEvalTask& task, std::string_view completion);

// The probability that of k samples one or more pass, estimated without bias from n samples of
// which c passed: 1 - C(n - c, k) / C(n, k) (Chen et al., 2021). 0 <= c <= n, 1 <= k <= n.
double pass_at_k(int64_t n, int64_t c, int64_t k);

}  // namespace octet::eval
