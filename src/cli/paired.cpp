#include "cli/paired.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/atomic_write.h"
#include "base/hash.h"
#include "base/log.h"
#include "cli/chat_model.h"
#include "cli/eval_common.h"
#include "cli/fingerprint.h"
#include "cli/output.h"

namespace octet::cli {
namespace {

void add_tokens(Hash64& hash, const std::vector<int32_t>& tokens) {
  hash.add(std::as_bytes(std::span(tokens)));
  hash.add(";");
}

std::string input_of(const eval::Job& job) {
  Hash64 hash;
  add_tokens(hash, job.prompt);
  hash.add(fmt::format("{};{};{};{}", job.max_tokens, job.sampling.temperature, job.sampling.top_p,
                       job.sampling.seed));
  for (const std::string& stop : job.stop) hash.add(stop + ";");
  return hash.hex();
}

std::string input_of(const std::vector<eval::Choice>& choices) {
  Hash64 hash;
  for (const eval::Choice& choice : choices) {
    add_tokens(hash, choice.tokens);
    hash.add(fmt::format("{};", choice.context));
  }
  return hash.hex();
}

Json json_of(const eval::Answer& answer) {
  return {{"text", answer.text}, {"tokens", answer.tokens}, {"complete", answer.complete}};
}

eval::Answer answer_of(const Json& json) {
  const JsonView view(json, "--resume");
  return {view.get<std::string>("text"), view.get<std::vector<int32_t>>("tokens"),
          view.get<bool>("complete")};
}

void require_room(int64_t tokens, int64_t most, const std::string& item) {
  if (tokens <= most) return;
  throw Error({.what = "the model's context is too small for a prompt and its answer",
               .where = item,
               .value = fmt::format("{} tokens", tokens),
               .accepted = fmt::format("at most {}", most),
               .fix =
                   "ask for fewer examples or a shorter answer, or take a longer --max-model-len "
                   "if the model allows it"});
}

}  // namespace

void add_paired_model(OptionTable& table, PairedOptions& o) {
  table.positional("MODEL", &o.model.path, "model directory, or a .gguf file");
  table.add("--baseline", &o.baseline.path,
            "a model that is asked the same; may be the same directory in another arithmetic",
            {.metavar = "MODEL"});
}

void add_gate_rows(OptionTable& table, PairedOptions& o) {
  table.group("Gates: exit with 1 beyond them");
  table.add("--max-accuracy-drop", &o.max_accuracy_drop,
            "most that the first metric may be below the baseline's: 0.01 is one point",
            {.least = 0, .most = 1});
  table.add("--min-accuracy", &o.min_accuracy, "least value of the first metric",
            {.least = 0, .most = 1});
}

void add_paired_rows(OptionTable& table, PairedOptions& o) {
  add_model_rows(table, o.model);
  add_model_rows(table, o.baseline, "baseline-");
  add_backend_rows(table, o.device);
  table.group("Output");
  table.add("--resume", &o.resume,
            "keep answers in this file (JSON lines), and take those that are there already",
            {.metavar = "FILE"});
  add_json_row(table, &o.json);
  table.add("--html", &o.html, "write a report as one page", {.metavar = "FILE", .written = true});
}

Side::Side(const ModelOptions& model, const PairedOptions& options, std::string task,
           eval::ItemLog& log)
    : options_(options),
      path_(model.path),
      task_(std::move(task)),
      open_(model),
      fingerprint_(fingerprint_of(model, options.device)),
      log_(log) {
  open_.tokenizer();  // Error if there is none
}

eval::ItemKey Side::key(const std::string& item, std::string input) const {
  return {fingerprint_, task_, item, std::move(input)};
}

eval::Subject Side::load(int64_t max_tokens) {
  if (!backend_) backend_ = open_backend(options_.device);
  open_.load(*backend_, max_tokens);
  arithmetic_ = arithmetic_of(open_);
  return subject_of(open_, *backend_);
}

std::vector<std::vector<int32_t>> Side::encode(const std::vector<eval::UserPrompt>& prompts,
                                               bool chat) const {
  std::vector<std::vector<int32_t>> encoded;
  std::optional<text::ChatTemplate> form;
  if (chat) form.emplace(open_chat(open_, path_, options_.chat_template));
  for (const eval::UserPrompt& prompt : prompts) {
    if (!chat) {
      encoded.push_back(open_.encode_prompt(prompt.text, "prompt " + prompt.id));
      continue;
    }
    text::ChatInput input;
    input.messages.push_back({{"role", "user"}, {"content", prompt.text}});
    const text::RenderedChat rendered = form->render(input);
    encoded.push_back(
        open_.encode_prompt(rendered.text, "prompt " + prompt.id, rendered.encode_options()));
  }
  return encoded;
}

std::vector<eval::Answer> Side::generate(const std::vector<AskedJob>& asked) {
  std::vector<eval::Answer> answers(asked.size());
  std::vector<eval::Job> jobs;
  std::vector<size_t> places;
  std::vector<eval::ItemKey> keys;
  for (size_t i = 0; i < asked.size(); ++i) {
    const eval::Job& job = asked[i].job;
    require_room(static_cast<int64_t>(job.prompt.size()) + job.max_tokens, open_.max_model_len(),
                 asked[i].item);
    open_.require_known(job.prompt, asked[i].item);
    eval::ItemKey key = this->key(asked[i].item, input_of(job));
    if (const Json* known = log_.find(key)) {
      answers[i] = answer_of(*known);
      continue;
    }
    jobs.push_back(job);
    places.push_back(i);
    keys.push_back(std::move(key));
  }
  const int64_t longest = std::max<int64_t>(eval::longest(jobs), 2);
  const eval::Subject subject = load(longest);
  Progress progress(task_, static_cast<int64_t>(jobs.size()));
  eval::generate(subject, open_.tokenizer(), jobs,
                 {.sequences = options_.sequences, .max_model_len = longest},
                 [&](size_t job, eval::Answer answer) {
                   log_.add(keys[job], json_of(answer));
                   answers[places[job]] = std::move(answer);
                   progress.advance(1);
                 });
  return answers;
}

std::vector<std::vector<double>> Side::score(const std::vector<AskedChoices>& asked) {
  std::vector<std::vector<double>> scores(asked.size());
  int64_t longest = 2;
  for (const AskedChoices& one : asked) {
    for (const eval::Choice& choice : one.choices) {
      const auto tokens = static_cast<int64_t>(choice.tokens.size());
      require_room(tokens, open_.max_model_len(), one.item);
      open_.require_known(choice.tokens, one.item);
      longest = std::max(longest, tokens);
    }
  }
  const eval::Subject subject = load(longest);
  eval::ChoiceScorer scorer(subject, longest);
  Progress progress(task_, static_cast<int64_t>(asked.size()));
  for (size_t i = 0; i < asked.size(); ++i) {
    const eval::ItemKey key = this->key(asked[i].item, input_of(asked[i].choices));
    if (const Json* known = log_.find(key)) {
      scores[i] = JsonView(*known, "--resume").get<std::vector<double>>("logprobs");
      if (scores[i].size() != asked[i].choices.size()) {
        throw Error(
            {.what = "an answer of the file has another number of choices",
             .where = "--resume",
             .value = fmt::format("{} log-probabilities of {}", scores[i].size(), asked[i].item),
             .accepted = fmt::format("{}", asked[i].choices.size()),
             .fix = "remove that line, or begin a new file"});
      }
    } else {
      for (const eval::Choice& choice : asked[i].choices) {
        scores[i].push_back(scorer.score(choice, asked[i].item));
      }
      log_.add(key, {{"logprobs", scores[i]}});
    }
    progress.advance(1);
  }
  return scores;
}

void require_baseline(const PairedOptions& options) {
  if (!options.baseline.path.empty()) return;
  throw Error({.what = "this task compares two models, and one is missing",
               .where = "--baseline",
               .accepted = "a model, such as the 16-bit one that MODEL was quantized from"});
}

void for_each_side(const PairedOptions& options, const std::string& task,
                   const std::function<void(Side&)>& run) {
  if (options.max_accuracy_drop && options.baseline.path.empty()) {
    throw Error({.what = "a drop is measured against a baseline, and there is none",
                 .where = "--max-accuracy-drop",
                 .value = fmt::format("{}", *options.max_accuracy_drop),
                 .fix = "name the 16-bit model with --baseline, or gate with --min-accuracy"});
  }
  eval::ItemLog log = options.resume.empty() ? eval::ItemLog() : eval::ItemLog(options.resume);
  if (log.broken() > 0) {
    log::warning("{}: {} lines are broken and left out", options.resume, log.broken());
  }
  // A mistyped baseline is noticed before the model has answered for hours.
  if (!options.baseline.path.empty()) OpenModel(options.baseline).tokenizer();
  for (const ModelOptions* model : {&options.model, &options.baseline}) {
    if (model->path.empty()) continue;
    Side side(*model, options, task, log);
    run(side);
  }
}

void run_sides(const PairedOptions& options, eval::TaskResult& result,
               const std::function<eval::TaskRun(Side&)>& run) {
  std::vector<eval::TaskRun> runs;
  for_each_side(options, result.task, [&](Side& side) {
    eval::TaskRun one = run(side);
    one.model = side.path();
    one.arithmetic = side.arithmetic();
    runs.push_back(std::move(one));
  });
  result.candidate = std::move(runs[0]);
  if (runs.size() > 1) result.baseline = std::move(runs[1]);
}

void warn_of_broken(const eval::ReadRows& rows) {
  if (rows.broken == 0) return;
  log::warning("{} broken rows are left out, {} are used", rows.broken, rows.used);
  for (const std::string& fault : rows.faults) log::warning("{}", fault);
}

void write_html(const std::string& target, const std::string& html) {
  if (target.empty()) return;
  if (target == "-") return print(html);
  AtomicFile file(target, Overwrite::replace);
  file.write(html);
  file.commit();
}

int finish_task(const PairedOptions& o, const eval::TaskResult& result, int64_t seed,
                const std::string& extra_html) {
  if (prints_text(o.json)) print(eval::text_of(result));
  OrderedJson json = eval::json_of(result);
  json["seed"] = seed;
  write_json(o.json, json);
  write_html(o.html, eval::html_of(result, {{"seed", fmt::format("{}", seed)}}, extra_html));
  int code = 0;
  const double value = result.candidate.mean(0);
  if (o.min_accuracy && !(value >= *o.min_accuracy)) {
    log::error("gate failed: {} is {:.4f}, at least {} is accepted", result.metrics[0], value,
               *o.min_accuracy);
    code = 1;
  }
  if (o.max_accuracy_drop && result.baseline) {
    const double drop = result.baseline->mean(0) - value;
    if (!(drop <= *o.max_accuracy_drop)) {
      log::error("gate failed: {} is {:.4f} below the baseline's, at most {} is accepted",
                 result.metrics[0], drop, *o.max_accuracy_drop);
      code = 1;
    }
  }
  return code;
}

std::vector<eval::UserPrompt> draw_prompts(const std::string& path, int64_t limit, int64_t seed) {
  const eval::UserPrompts read = eval::read_prompts(path);
  warn_of_broken(read.rows);
  std::vector<eval::UserPrompt> drawn;
  for (const size_t place :
       eval::choose(read.prompts.size(), static_cast<size_t>(limit), static_cast<uint64_t>(seed))) {
    drawn.push_back(read.prompts[place]);
  }
  return drawn;
}

}  // namespace octet::cli
