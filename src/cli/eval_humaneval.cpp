// octet eval humaneval: functions that a model completes, judged by running their tests in a
// sandbox.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/progress.h"
#include "cli/eval_tasks.h"
#include "cli/output.h"
#include "cli/paired.h"
#include "eval/humaneval.h"
#include "eval/program.h"

namespace octet::cli {
namespace {

struct HumanEvalOptions {
  PairedOptions paired;
  std::string data, python = "python3";
  int samples = 1, max_tokens = 1024;
  float temperature = 0, top_p = 1;
  double timeout = 3;
  int64_t limit = 0, seed = 1, memory_mib = 1024;
};

OptionTable table_of(HumanEvalOptions& o) {
  OptionTable table(
      "octet eval humaneval",
      "HumanEval: functions to complete, as lm-eval's task `humaneval` asks. Programs "
      "that the model wrote run in processes without network, that can write no file "
      "and start no process.");
  add_paired_model(table, o.paired);
  table.group("Tasks");
  table.add("--data", &o.data, "HumanEval.jsonl, plain or .gz",
            {.metavar = "FILE", .required = true});
  table.add("--samples", &o.samples, "completions of each task; more than one need a --temperature",
            {.least = 1, .most = 1000});
  table.add("--temperature", &o.temperature, "0 takes the most likely token",
            {.least = 0, .most = 1e6});
  table.add("--top-p", &o.top_p, "keep the least set of tokens of this probability",
            {.most = 1, .above = 0});
  table.add("--max-tokens", &o.max_tokens, "most tokens of a completion", {.least = 1});
  table.add("--limit", &o.limit, "ask N tasks, drawn by --seed; 0 asks all", {.least = 0});
  table.add("--seed", &o.seed, "of the tasks that are drawn, and of sampling", {.least = 0});
  table.add("--max-num-seqs", &o.paired.sequences, "answers at a time", {.least = 1, .most = 1024});
  table.group("Sandbox");
  table.add("--python", &o.python, "what runs the programs: a name in PATH, or a path");
  table.add("--timeout", &o.timeout, "seconds for a program", {.most = 3600, .above = 0});
  table.add("--memory", &o.memory_mib, "MiB for a program", {.least = 64, .most = 1 << 20});
  add_gate_rows(table, o.paired);
  add_paired_rows(table, o.paired);
  return table;
}

// The k of pass@k that the samples allow.
std::vector<int64_t> ks_of(int samples) {
  std::vector<int64_t> ks;
  for (const int64_t k : {1, 10, 100}) {
    if (k <= samples) ks.push_back(k);
  }
  return ks;
}

std::vector<AskedJob> ask(const Side& side, const std::vector<eval::HumanEvalTask>& tasks,
                          const HumanEvalOptions& o) {
  std::vector<AskedJob> asked;
  for (const eval::HumanEvalTask& task : tasks) {
    const std::vector<int32_t> prompt = side.open().tokenizer().encode(task.prompt);
    for (int sample = 0; sample < o.samples; ++sample) {
      AskedJob one{
          .item = fmt::format("{}, sample {}", task.id, sample),
          .job = {.prompt = prompt, .max_tokens = o.max_tokens, .stop = eval::humaneval_stops()}};
      one.job.sampling = {.temperature = o.temperature,
                          .top_p = o.top_p,
                          .seed = static_cast<uint64_t>(o.seed + sample)};
      asked.push_back(std::move(one));
    }
  }
  return asked;
}

eval::TaskRun run_side(Side& side, const std::vector<eval::HumanEvalTask>& tasks,
                       const eval::ProgramRunner& runner, const HumanEvalOptions& o) {
  const std::vector<AskedJob> asked = ask(side, tasks, o);
  const std::vector<eval::Answer> answers = side.generate(asked);
  Progress progress("humaneval: tests", static_cast<int64_t>(answers.size()));
  eval::TaskRun run;
  for (size_t i = 0; i < tasks.size(); ++i) {
    int64_t passed = 0;
    OrderedJson samples = OrderedJson::array();
    for (int sample = 0; sample < o.samples; ++sample) {
      const eval::Answer& answer =
          answers[i * static_cast<size_t>(o.samples) + static_cast<size_t>(sample)];
      const eval::ProgramResult ran = runner.run(eval::humaneval_program(tasks[i], answer.text));
      passed += ran.end == eval::ProgramEnd::passed ? 1 : 0;
      samples.push_back(
          {{"text", answer.text}, {"end", eval::name_of(ran.end)}, {"message", ran.message}});
      progress.advance(1);
    }
    eval::ItemScore score{.item = tasks[i].id, .group = "humaneval", .detail = std::move(samples)};
    for (const int64_t k : ks_of(o.samples)) {
      score.scores.push_back(eval::pass_at_k(o.samples, passed, k));
    }
    run.items.push_back(std::move(score));
  }
  return run;
}

}  // namespace

int run_eval_humaneval(Args args) {
  HumanEvalOptions o;
  OptionTable table = table_of(o);
  if (table.parse(args) == OptionTable::Outcome::done) return print(table.output()), 0;
  if (o.samples > 1 && o.temperature == 0) {
    throw Error({.what = "samples at temperature 0 are all the same",
                 .where = "--samples",
                 .value = fmt::format("{}", o.samples),
                 .accepted = "1, or a --temperature above 0",
                 .fix = "add --temperature 0.2 for pass@1, 0.8 for pass@10 and pass@100"});
  }

  const eval::HumanEvalSet set = eval::read_humaneval(o.data);
  warn_of_broken(set.rows);
  std::vector<eval::HumanEvalTask> tasks;
  for (const size_t place : eval::choose(set.tasks.size(), static_cast<size_t>(o.limit),
                                         static_cast<uint64_t>(o.seed))) {
    tasks.push_back(set.tasks[place]);
  }
  // Before hours of generation: can their programs run at all?
  const eval::ProgramRunner runner(o.python,
                                   {.seconds = o.timeout, .memory_bytes = o.memory_mib << 20});
  eval::TaskResult result{
      .task = "humaneval",
      .how = fmt::format("{} samples a task at temperature {}, at most {} tokens, {} s a program",
                         o.samples, o.temperature, o.max_tokens, o.timeout)};
  for (const int64_t k : ks_of(o.samples)) result.metrics.push_back(fmt::format("pass@{}", k));
  run_sides(o.paired, result, [&](Side& side) { return run_side(side, tasks, runner, o); });
  return finish_task(o.paired, result, o.seed);
}

}  // namespace octet::cli
