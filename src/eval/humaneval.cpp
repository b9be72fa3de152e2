#include "eval/humaneval.h"

#include "base/error.h"

namespace octet::eval {

HumanEvalSet read_humaneval(const std::filesystem::path& path) {
  HumanEvalSet set;
  set.rows = read_json_rows(path, [&](const JsonView& row) {
    set.tasks.push_back({row.get<std::string>("task_id"), row.get<std::string>("prompt"),
                         row.get<std::string>("test"), row.get<std::string>("entry_point")});
  });
  return set;
}

std::vector<std::string> humaneval_stops() {
  return {"\nclass", "\ndef", "\n#", "\nif", "\nprint"};
}

JudgedProgram humaneval_program(const HumanEvalTask& task, std::string_view completion) {
  return {.known = task.prompt,
          .answer = task.prompt + std::string(completion) + "\n",
          .entry = task.entry_point,
          .test = task.test + "\ncheck(" + task.entry_point + ")\n"};
}

double pass_at_k(int64_t n, int64_t c, int64_t k) {
  invariant(c >= 0 && c <= n && k >= 1 && k <= n, "k and the passes are of the samples");
  double none = 1;  // that none of k passes
  for (int64_t i = 0; i < k; ++i) {
    none *= static_cast<double>(n - c - i) / static_cast<double>(n - i);
    if (none <= 0) return 1;
  }
  return 1 - none;
}

}  // namespace octet::eval
