// What the tasks of octet eval share that ask a model questions: one model or two, which see the
// same prompts; seeded samples; answers that are kept for a later run; gates; a report.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "cli/open_model.h"
#include "eval/choices.h"
#include "eval/dataset.h"
#include "eval/generate.h"
#include "eval/item_log.h"
#include "eval/prompts.h"
#include "eval/task_result.h"

namespace octet::cli {

struct PairedOptions {
  ModelOptions model, baseline;  // no baseline.path: the model alone
  BackendOptions device;
  int sequences = 16;  // answered at a time
  std::string resume, json, html;
  std::string chat_template;  // a file, in place of both models' own
  std::optional<double> max_accuracy_drop, min_accuracy;
};

// MODEL, and the rows of all of them but for the gates; the caller adds its own groups between.
void add_paired_model(OptionTable& table, PairedOptions& options);
void add_gate_rows(OptionTable& table, PairedOptions& options);
void add_paired_rows(OptionTable& table, PairedOptions& options);

// One question as it goes to the model, and what it is called.
struct AskedJob {
  std::string item;
  eval::Job job;
};
struct AskedChoices {
  std::string item;
  std::vector<eval::Choice> choices;
};

// One model of the two. Answers come from the log where they are there already. The weights are
// loaded when something is asked, since how much memory a model needs depends on it.
class Side {
 public:
  Side(const ModelOptions& model, const PairedOptions& options, std::string task,
       eval::ItemLog& log);

  const OpenModel& open() const { return open_; }
  const std::string& path() const { return path_; }
  // Known once something was answered.
  const std::string& arithmetic() const { return arithmetic_; }

  // The prompts in the model's tokens; with `chat` each as a user's message in its chat template.
  std::vector<std::vector<int32_t>> encode(const std::vector<eval::UserPrompt>& prompts,
                                           bool chat) const;
  // In the order of `asked`. Error if one does not fit into the model's context.
  std::vector<eval::Answer> generate(const std::vector<AskedJob>& asked);
  // The log-likelihood of each choice.
  std::vector<std::vector<double>> score(const std::vector<AskedChoices>& asked);

 private:
  eval::Subject load(int64_t max_tokens);
  eval::ItemKey key(const std::string& item, std::string input) const;

  const PairedOptions& options_;
  std::string path_, task_, arithmetic_;
  OpenModel open_;
  std::string fingerprint_;
  std::unique_ptr<ops::Backend> backend_;
  eval::ItemLog& log_;
};

// Error if there is no --baseline, for tasks that are nothing without one.
void require_baseline(const PairedOptions& options);

// Calls `run` for the model and then, if there is one, for the baseline; the first is gone before
// the second is opened.
void for_each_side(const PairedOptions& options, const std::string& task,
                   const std::function<void(Side&)>& run);
// The same for tasks that give scores.
void run_sides(const PairedOptions& options, eval::TaskResult& result,
               const std::function<eval::TaskRun(Side&)>& run);

// Says on stderr how many rows of a data set were broken, and which.
void warn_of_broken(const eval::ReadRows& rows);

// Prints and writes what --json and --html ask for, and checks the gates. Returns the exit code.
int finish_task(const PairedOptions& options, const eval::TaskResult& result, int64_t seed,
                const std::string& extra_html = {});

// Writes a page where --html says; nothing for "".
void write_html(const std::string& target, const std::string& html);

// The prompts of a file: `limit` of them, drawn by `seed`, or all if it is 0. Warns of broken rows.
std::vector<eval::UserPrompt> draw_prompts(const std::string& path, int64_t limit, int64_t seed);

}  // namespace octet::cli
