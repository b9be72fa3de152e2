// octet eval gsm8k: word problems, answered greedily with the reasoning written down.
#include <fmt/format.h>

#include "base/error.h"
#include "cli/eval_tasks.h"
#include "cli/output.h"
#include "cli/paired.h"
#include "eval/gsm8k.h"
#include "eval/repetition.h"

namespace octet::cli {
namespace {

struct Gsm8kOptions {
  PairedOptions paired;
  std::string data, few_shot;
  int shots = 5, max_tokens = 256;
  int64_t limit = 0, seed = 1;
};

OptionTable table_of(Gsm8kOptions& o) {
  OptionTable table("octet eval gsm8k",
                    "GSM8K: word problems with worked examples before them, as lm-eval's task "
                    "`gsm8k` asks; strict-match and flexible-extract.");
  add_paired_model(table, o.paired);
  table.group("Problems");
  table.add("--data", &o.data, "JSONL of {question, answer}",
            {.metavar = "FILE", .required = true});
  table.add("--few-shot", &o.few_shot,
            "examples, the first of a file of the same form; without it the first problems are "
            "the examples, and are not asked",
            {.metavar = "FILE"});
  table.add("--shots", &o.shots, "examples before each problem", {.least = 0, .most = 100});
  table.add("--max-tokens", &o.max_tokens, "most tokens of an answer", {.least = 1});
  table.add("--limit", &o.limit, "ask N problems, drawn by --seed; 0 asks all", {.least = 0});
  table.add("--seed", &o.seed, "of the problems that are drawn", {.least = 0});
  table.add("--max-num-seqs", &o.paired.sequences, "answers at a time", {.least = 1, .most = 1024});
  add_gate_rows(table, o.paired);
  add_paired_rows(table, o.paired);
  return table;
}

std::vector<eval::Gsm8kProblem> take_examples(eval::Gsm8kSet& set, const Gsm8kOptions& o) {
  std::vector<eval::Gsm8kProblem>& from = set.problems;
  const auto shots = static_cast<size_t>(o.shots);
  if (from.size() < shots) {
    throw Error({.what = "there are too few examples",
                 .where = o.few_shot.empty() ? o.data : o.few_shot,
                 .value = fmt::format("{} problems", from.size()),
                 .accepted = fmt::format("{} or more", shots),
                 .fix = "take a smaller --shots"});
  }
  const auto end = from.begin() + static_cast<std::ptrdiff_t>(shots);
  std::vector<eval::Gsm8kProblem> examples(from.begin(), end);
  from.erase(from.begin(), end);
  return examples;
}

eval::TaskRun run_side(Side& side, const std::vector<eval::Gsm8kProblem>& problems,
                       const std::vector<eval::Gsm8kProblem>& examples, int max_tokens) {
  std::vector<AskedJob> asked;
  for (const eval::Gsm8kProblem& problem : problems) {
    asked.push_back(
        {.item = fmt::format("problem {}", problem.number),
         .job = {.prompt = side.open().tokenizer().encode(eval::gsm8k_prompt(problem, examples)),
                 .max_tokens = max_tokens,
                 .stop = eval::gsm8k_stops()}});
  }
  const std::vector<eval::Answer> answers = side.generate(asked);
  eval::TaskRun run;
  for (size_t i = 0; i < problems.size(); ++i) {
    const std::string strict = eval::strict_match(answers[i].text),
                      flexible = eval::flexible_extract(answers[i].text);
    const std::string& wanted = problems[i].answer;
    run.items.push_back({.item = asked[i].item,
                         .group = "gsm8k",
                         .scores = {eval::exact_match(strict, wanted) ? 1.0 : 0.0,
                                    eval::exact_match(flexible, wanted) ? 1.0 : 0.0,
                                    eval::ends_in_loop(answers[i].tokens) ? 1.0 : 0.0},
                         .detail = {{"text", answers[i].text},
                                    {"strict", strict},
                                    {"flexible", flexible},
                                    {"right", eval::strict_match(wanted)}}});
  }
  return run;
}

}  // namespace

int run_eval_gsm8k(Args args) {
  Gsm8kOptions o;
  OptionTable table = table_of(o);
  if (table.parse(args) == OptionTable::Outcome::done) return print(table.output()), 0;

  eval::Gsm8kSet set = eval::read_gsm8k(o.data), others;
  warn_of_broken(set.rows);
  if (!o.few_shot.empty()) {
    others = eval::read_gsm8k(o.few_shot);
    warn_of_broken(others.rows);
  }
  const std::vector<eval::Gsm8kProblem> examples =
      take_examples(o.few_shot.empty() ? set : others, o);
  if (set.problems.empty()) {
    throw Error({.what = "no problem is left beside the examples",
                 .where = o.data,
                 .accepted = fmt::format("more than {} problems", o.shots),
                 .fix = "give the examples with --few-shot FILE, or take a smaller --shots"});
  }
  std::vector<eval::Gsm8kProblem> problems;
  for (const size_t place : eval::choose(set.problems.size(), static_cast<size_t>(o.limit),
                                         static_cast<uint64_t>(o.seed))) {
    problems.push_back(set.problems[place]);
  }
  eval::TaskResult result{
      .task = "gsm8k",
      .how =
          fmt::format("{}-shot, greedy, at most {} tokens, examples from {}", o.shots, o.max_tokens,
                      o.few_shot.empty() ? "the first rows" : "a file of their own"),
      .metrics = {"strict-match", "flexible-extract", "loop rate"}};
  run_sides(o.paired, result,
            [&](Side& side) { return run_side(side, problems, examples, o.max_tokens); });
  return finish_task(o.paired, result, o.seed);
}

}  // namespace octet::cli
