// octet eval TASK MODEL: how good a model is, and what its arithmetic costs.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "cli/eval_tasks.h"
#include "cli/output.h"

namespace octet::cli {

int run_eval(Args args) {
  struct Task {
    std::string_view name, summary;
    int (*run)(Args);
  };
  constexpr Task tasks[] = {
      {"perplexity", "the perplexity of a text", run_eval_perplexity},
      {"compare", "perplexity, KL and top-1 agreement against a baseline", run_eval_compare},
      {"needle", "recall from long texts, code and dialogues", run_eval_needle},
      {"mmlu", "multiple-choice questions, by the likelihood of the letter", run_eval_mmlu},
      {"gsm8k", "word problems, by the number at the end", run_eval_gsm8k},
      {"humaneval", "functions to complete, by their tests", run_eval_humaneval},
      {"regress", "your own prompts: which answers of two models differ", run_eval_regress},
      {"sensitivity", "which part of a model loses how much in FP8", run_eval_sensitivity},
      {"sampling", "a sweep of temperature and top_p: where quantization shows", run_eval_sampling},
  };
  std::string names, help = "octet eval TASK MODEL ...: how good a model is.\n\nTasks:\n";
  for (const Task& task : tasks) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", task.name);
    help += fmt::format("  {:<14}{}\n", task.name, task.summary);
  }
  help +=
      "\nEvery task takes, beside its own options:\n"
      "  --help         list its options\n"
      "  --config FILE  read options from a JSON file; flags override it\n"
      "  --print-config print all values, with where each came from\n";
  if (!args.empty() && (args[0] == "--help" || args[0] == "-h")) return print(help), 0;
  const auto* task = args.empty()
                         ? std::end(tasks)
                         : std::ranges::find(tasks, std::string_view(args[0]), &Task::name);
  if (task == std::end(tasks)) {
    throw Error({.what = args.empty() ? "TASK is missing" : "unknown task",
                 .value = args.empty() ? "" : args[0],
                 .accepted = names,
                 .fix = "see octet eval --help"});
  }
  return task->run(args.subspan(1));
}

}  // namespace octet::cli
