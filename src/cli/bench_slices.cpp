// octet bench slices MODEL: a model that is loaded once and computes short slices of work on
// command, so that a script can let several engines take turns on one machine.
//
//   decode BATCH CONTEXT SECONDS   decode steps of BATCH sequences behind CONTEXT tokens each
//   prefill TOKENS SECONDS         prompts of TOKENS tokens, each with its first token, one by one
//   probe                          the machine's own rates
//
// One command a line of standard input, one JSON object a line of standard output; the first object
// tells of the model. The end of the input ends the run.
#include <fmt/format.h>

#include <chrono>
#include <iostream>
#include <map>
#include <sstream>

#include "cli/bench.h"
#include "cli/bench_common.h"

namespace octet::cli {
namespace {

// Decode steps before a sequence is rewound to its context: so few that the context hardly grows.
constexpr int64_t max_steps = 32;

struct SlicesOptions {
  ModelOptions model;
  BackendOptions backend;
  int64_t probe_mib = 512, chunk = 512, max_length = 2176;
};

class Slices {
 public:
  Slices(const SlicesOptions& o, const OpenModel& open, const model::Model& model,
         ops::Backend& backend)
      : o_(o), open_(open), model_(model), backend_(backend) {}

  OrderedJson about() const {
    return {{"model", o_.model.path},
            {"backend", backend_.info().name},
            {"compute", name_of(open_.load_options().compute)},
            {"weight_bytes_per_token", model_.bytes_per_token()},
            {"prompt_flop_per_token", prompt_flop(model_)},
            {"decode_flop_per_token", decode_flop(model_)}};
  }

  OrderedJson answer(const std::string& line) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (name == "decode") {
      const int64_t batch = number(words, line, 1024);
      const int64_t context = number(words, line, o_.max_length - max_steps);
      return decode(batch, context, seconds(words, line));
    }
    if (name == "prefill") {
      const int64_t tokens = number(words, line, o_.max_length);
      return prefill(tokens, seconds(words, line));
    }
    if (name == "probe") return probe();
    refuse(line, "decode BATCH CONTEXT SECONDS, prefill TOKENS SECONDS, probe");
  }

 private:
  using Clock = std::chrono::steady_clock;

  [[noreturn]] static void refuse(const std::string& line, std::string accepted) {
    throw Error({.what = "not a command of bench slices",
                 .where = "standard input",
                 .value = line,
                 .accepted = std::move(accepted)});
  }

  static int64_t number(std::istringstream& words, const std::string& line, int64_t most) {
    int64_t value = 0;
    if (words >> value && value >= 1 && value <= most) return value;
    refuse(line, fmt::format("a whole number from 1 to {}", most));
  }
  static double seconds(std::istringstream& words, const std::string& line) {
    double value = 0;
    if (words >> value && value > 0 && value <= 600) return value;
    refuse(line, "seconds, above 0 and at most 600");
  }

  BatchRun& run_of(int64_t batch, int64_t length) {
    std::unique_ptr<BatchRun>& run = runs_[{batch, length}];
    if (!run) {
      check_length(open_, length, 0);
      run = std::make_unique<BatchRun>(model_, backend_,
                                       BatchRunOptions{.sequences = batch,
                                                       .max_tokens = length,
                                                       .chunk = o_.chunk,
                                                       .kv_type = open_.kv_type(),
                                                       .unit_kv_scale = open_.unit_kv_scale()});
    }
    return *run;
  }

  OrderedJson decode(int64_t batch, int64_t context, double at_least) {
    BatchRun& run = run_of(batch, context + max_steps);
    std::vector<double> step_us;
    if (run.tokens(0) == 0) {
      run.prefill(0, batch, random_prompt(model_.config(), context));
      run.decode(max_steps, step_us);
    }
    step_us.clear();
    double taken = 0;
    while (taken < at_least) {
      run.rewind(context);
      taken += seconds_of([&] { run.decode(max_steps, step_us); });
    }
    const auto steps = static_cast<int64_t>(step_us.size());
    return {{"tokens", steps * batch},
            {"seconds", taken},
            {"weight_bytes", static_cast<double>(steps) * step_bytes(model_, batch)},
            {"step_us", spread_of(step_us).median}};
  }

  OrderedJson prefill(int64_t tokens, double at_least) {
    BatchRun& run = run_of(1, tokens);
    const std::vector<int32_t> prompt = random_prompt(model_.config(), tokens);
    const bool first = run.tokens(0) == 0;
    std::vector<double> each;
    double taken = 0;
    if (first) run.prefill(0, 1, prompt);
    while (taken < at_least) {
      run.reset();
      each.push_back(seconds_of([&] { run.prefill(0, 1, prompt); }));
      taken += each.back();
    }
    return {{"tokens", static_cast<int64_t>(each.size()) * tokens},
            {"seconds", taken},
            {"ttft_ms", 1e3 * spread_of(each).median}};
  }

  OrderedJson probe() {
    if (!probe_) probe_ = make_probe(o_.backend, backend_, o_.probe_mib);
    const double read = probe_->read_gb_s();
    return {{"read_gb_s", read},
            {"compute_gflops", probe_->compute_gflops()},
            {"compute_probe", probe_->compute_name()}};
  }

  const SlicesOptions& o_;
  const OpenModel& open_;
  const model::Model& model_;
  ops::Backend& backend_;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<BatchRun>> runs_;  // by batch and length
  std::unique_ptr<DeviceProbe> probe_;
};

OptionTable table_of(SlicesOptions& o) {
  OptionTable table("octet bench slices",
                    "Short slices of work, one command a line of standard input: decode BATCH "
                    "CONTEXT SECONDS, prefill TOKENS SECONDS, probe. One JSON object a line.");
  table.positional("MODEL", &o.model.path,
                   "model directory, a .gguf file, or a config with --random-weights");
  table.group("Run");
  table.add("--max-length", &o.max_length, "most tokens of a sequence", {.least = 64});
  table.add("--probe-mib", &o.probe_mib, "memory that the read probe reads, on a CPU",
            {.least = 64});
  table.add("--chunk", &o.chunk, "most prompt tokens of one step", {.least = 1});
  add_model_rows(table, o.model);
  add_backend_rows(table, o.backend);
  return table;
}

}  // namespace

int run_bench_slices(Args args) {
  SlicesOptions o;
  OptionTable table = table_of(o);
  if (table.parse(args) == OptionTable::Outcome::done) return print(table.output()), 0;

  OpenModel open(o.model);
  check_length(open, o.max_length, 0);
  const auto backend = open_backend(o.backend);
  const model::Model& model = open.load(*backend, o.max_length);
  Slices slices(o, open, model, *backend);
  print(slices.about().dump() + "\n");
  for (std::string line; std::getline(std::cin, line);) print(slices.answer(line).dump() + "\n");
  return 0;
}

}  // namespace octet::cli
