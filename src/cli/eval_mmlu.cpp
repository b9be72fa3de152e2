// octet eval mmlu: multiple-choice questions, by the likelihood of the letter.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "cli/eval_tasks.h"
#include "cli/output.h"
#include "cli/paired.h"
#include "eval/mmlu.h"

namespace octet::cli {
namespace {

struct MmluOptions {
  PairedOptions paired;
  std::string data, few_shot;
  int shots = 5;
  int64_t limit = 0, seed = 1;
};

OptionTable table_of(MmluOptions& o) {
  OptionTable table("octet eval mmlu",
                    "MMLU: the most likely of the letters A to D after a question, as lm-eval's "
                    "tasks `mmlu_SUBJECT` ask.");
  add_paired_model(table, o.paired);
  table.group("Questions");
  table.add("--data", &o.data,
            "JSONL of {subject, question, choices, answer}, a CSV, or a folder of CSVs "
            "(SUBJECT_test.csv)",
            {.metavar = "PATH", .required = true});
  table.add("--few-shot", &o.few_shot,
            "examples, in one of the same forms; without it each subject's first questions are "
            "its examples, and are not asked",
            {.metavar = "PATH"});
  table.add("--shots", &o.shots, "examples before each question", {.least = 0, .most = 100});
  table.add("--limit", &o.limit, "ask N questions, drawn by --seed; 0 asks all", {.least = 0});
  table.add("--seed", &o.seed, "of the questions that are drawn", {.least = 0});
  add_gate_rows(table, o.paired);
  add_paired_rows(table, o.paired);
  return table;
}

void require_examples(const eval::MmluSet& set, const eval::MmluSet& examples, int shots,
                      const std::string& where) {
  for (const eval::MmluQuestion& q : set.questions) {
    const int64_t count = eval::examples_of(examples, q.subject);
    if (count >= shots) continue;
    throw Error({.what = "there are too few examples",
                 .where = where,
                 .value = fmt::format("{} of '{}'", count, q.subject),
                 .accepted = fmt::format("{} or more of each subject", shots),
                 .fix = "take a smaller --shots"});
  }
}

std::string item_of(const eval::MmluQuestion& q) {
  return fmt::format("{}/{}", q.subject, q.number);
}

eval::TaskRun run_side(Side& side, const std::vector<eval::MmluQuestion>& questions,
                       const eval::MmluSet& examples, int shots) {
  std::vector<AskedChoices> asked;
  for (const eval::MmluQuestion& q : questions) {
    AskedChoices one{.item = item_of(q)};
    const std::string prompt = eval::mmlu_prompt(q, examples, shots);
    for (size_t i = 0; i < q.choices.size(); ++i) {
      one.choices.push_back(eval::encode_choice(side.open().tokenizer(), prompt,
                                                eval::mmlu_continuation(static_cast<int>(i))));
    }
    asked.push_back(std::move(one));
  }
  const std::vector<std::vector<double>> scores = side.score(asked);
  eval::TaskRun run;
  for (size_t i = 0; i < questions.size(); ++i) {
    const eval::MmluQuestion& q = questions[i];
    const auto best = std::ranges::max_element(scores[i]) - scores[i].begin();
    run.items.push_back({.item = asked[i].item,
                         .group = q.subject,
                         .scores = {best == q.answer ? 1.0 : 0.0},
                         .detail = {{"said", best}, {"right", q.answer}, {"logprobs", scores[i]}}});
  }
  return run;
}

}  // namespace

int run_eval_mmlu(Args args) {
  MmluOptions o;
  OptionTable table = table_of(o);
  if (table.parse(args) == OptionTable::Outcome::done) return print(table.output()), 0;

  eval::MmluSet set = eval::read_mmlu(o.data);
  warn_of_broken(set.rows);
  eval::MmluSet examples;
  if (!o.few_shot.empty()) {
    examples = eval::read_mmlu(o.few_shot);
    warn_of_broken(examples.rows);
  } else if (o.shots > 0) {
    examples = eval::split_examples(set, o.shots, o.data);
  }
  std::vector<eval::MmluQuestion> questions;
  for (const size_t place : eval::choose(set.questions.size(), static_cast<size_t>(o.limit),
                                         static_cast<uint64_t>(o.seed))) {
    questions.push_back(set.questions[place]);
  }
  set.questions = questions;
  require_examples(set, examples, o.shots, o.few_shot.empty() ? o.data : o.few_shot);
  eval::TaskResult result{
      .task = "mmlu",
      .how = fmt::format(
          "{}-shot, log-likelihood of the letter, examples {}", o.shots,
          o.few_shot.empty() ? "from the first rows of each subject" : "from a file of their own"),
      .metrics = {"acc"}};
  run_sides(o.paired, result,
            [&](Side& side) { return run_side(side, questions, examples, o.shots); });
  return finish_task(o.paired, result, o.seed);
}

}  // namespace octet::cli
