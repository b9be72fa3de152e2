// octet eval TASK MODEL: how good a model is, and what its arithmetic costs.
#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/progress.h"
#include "cli/open_model.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "engine/capacity.h"
#include "offline/evaluate.h"
#include "offline/needle.h"

namespace octet::cli {
namespace {

struct EvalOptions {
  ModelOptions model, baseline;
  BackendOptions backend;
  std::string text, convention = "windows", json;
  std::optional<int64_t> window;
  int64_t max_tokens = 0;
  std::optional<double> max_kl, max_perplexity_increase, min_accuracy;
  std::string lengths = "1024,2048,4096,8192";
  int64_t count = 25, seed = 1;
};

void add_text_rows(OptionTable& table, EvalOptions& o) {
  table.group("Text");
  table.add("--text", &o.text, "the text to score", {.metavar = "FILE", .required = true});
  table.add("--convention", &o.convention,
            "windows: windows of --window tokens, BOS included (512); single: one pass; chunks: "
            "long windows (2048); halves: the second half of each window of 512 is scored, as "
            "llama.cpp does",
            {.choices = {"windows", "single", "chunks", "halves"}});
  table.add("--window", &o.window, "tokens of a window, BOS included", {.least = 2});
  table.add("--max-tokens", &o.max_tokens, "score the first N tokens of the text; 0 is all",
            {.least = 0});
}

struct Cut {
  std::vector<offline::Piece> pieces;
  std::string convention;
};

Cut cut_text(const EvalOptions& o, const OpenModel& open) {
  std::vector<int32_t> ids =
      open.encode(read_text(o.text), o.text, {.add_special_tokens = false, .parse_special = false});
  if (o.max_tokens > 0 && static_cast<size_t>(o.max_tokens) < ids.size()) {
    ids.resize(static_cast<size_t>(o.max_tokens));
  }
  const auto convention = offline::parse_convention(o.convention);
  const int64_t window = o.window.value_or(offline::default_window(convention));
  // The model's BOS, whether or not its tokenizer puts one before every text; llama.cpp asks.
  std::optional<int32_t> bos = open.config().bos ? open.config().bos : open.tokenizer().bos_id();
  if (convention == offline::Convention::halves && !open.tokenizer().adds_bos()) bos.reset();
  if (bos) open.require_known({&*bos, 1}, "the begin-of-text token");
  return {offline::cut(ids, bos, convention, window, open.max_model_len()),
          offline::describe(convention, window, bos.has_value())};
}

offline::Subject subject_of(const OpenModel& open, ops::Backend& backend) {
  return {open.model(), backend, open.kv_type(), open.unit_kv_scale()};
}

int64_t tokens_of(const std::vector<offline::Piece>& pieces) {
  int64_t count = 0;
  for (const offline::Piece& piece : pieces) count += static_cast<int64_t>(piece.tokens.size());
  return count;
}

// "fp8, e4m3[1x*]f32 ..., KV e4m3, attention fp8": what a run computed, for people and the JSON.
std::string arithmetic_of(const OpenModel& open) {
  const model::Model& model = open.model();
  const auto kv = engine::kv_dtype(model, open.kv_type());
  return fmt::format("{}, KV cache {}{}, attention {}", name_of(open.load_options().compute),
                     name_of(kv), open.unit_kv_scale() ? " unscaled" : "",
                     model.fp8_attention() ? "fp8" : name_of(model.activation()));
}

int run_perplexity(Args args) {
  EvalOptions o;
  OptionTable table("octet eval perplexity", "The perplexity of a text.");
  table.positional("MODEL", &o.model.path, "model directory, or a .gguf file");
  add_text_rows(table, o);
  add_model_rows(table, o.model);
  add_backend_rows(table, o.backend);
  table.group("Output");
  add_json_row(table, &o.json);
  if (table.parse(args) == OptionTable::Outcome::done) return print(table.output()), 0;

  OpenModel open(o.model);
  const Cut cut = cut_text(o, open);
  const auto backend = open_backend(o.backend);
  open.load(*backend, offline::longest(cut.pieces));
  Progress progress("perplexity", tokens_of(cut.pieces), Progress::Unit::tokens);
  const offline::Perplexity result = offline::perplexity(
      subject_of(open, *backend), cut.pieces, [&](int64_t tokens) { progress.advance(tokens); });
  if (prints_text(o.json)) {
    print(fmt::format("perplexity {:.4f}  ({:.5f} nats a token, {} tokens)\n{}\n{}\n",
                      result.value(), result.nll / static_cast<double>(result.tokens),
                      result.tokens, cut.convention, arithmetic_of(open)));
  }
  write_json(o.json, {{"perplexity", result.value()},
                      {"nll", result.nll},
                      {"tokens", result.tokens},
                      {"convention", cut.convention},
                      {"arithmetic", arithmetic_of(open)}});
  return 0;
}

std::string percent(double ratio) {
  return fmt::format("{:+.2f} %", 100.0 * (ratio - 1.0));
}

// The residual stream after each layer, the farthest from the baseline's first.
std::string worst_layers(const std::vector<offline::LayerError>& layers) {
  struct Row {
    int64_t layer = 0;
    double relative = 0, added = 0;
  };
  std::vector<Row> rows;
  for (size_t i = 1; i < layers.size(); ++i) {
    // What enters a layer is what the one before it left.
    rows.push_back(
        {layers[i].layer - 1, layers[i].relative, layers[i].relative - layers[i - 1].relative});
  }
  std::ranges::stable_sort(rows, std::ranges::greater(), &Row::relative);
  std::string text =
      "\nresidual stream, worst layers: |difference| / |baseline|, mean over tokens\n";
  for (size_t i = 0; i < std::min<size_t>(5, rows.size()); ++i) {
    text += fmt::format("  after layer {:<6}{:.5f}  ({:+.5f} by this layer)\n", rows[i].layer,
                        rows[i].relative, rows[i].added);
  }
  return text;
}

void print_comparison(const offline::Comparison& c, const Cut& cut, const OpenModel& open,
                      const OpenModel& base) {
  const double before = c.baseline.value(), after = c.candidate.value();
  std::string text = fmt::format(
      "baseline    {}\nmodel       {}\ntext        {} tokens; {}\n\n"
      "perplexity  {:.4f} -> {:.4f}  ({})\n"
      "KL          mean {:.5f}  median {:.5f}  P99 {:.4f}  P99.9 {:.4f}  max {:.3f}\n"
      "same top-1  {:.2f} %\n",
      arithmetic_of(base), arithmetic_of(open), c.baseline.tokens, cut.convention, before, after,
      percent(after / before), c.kl_mean, c.kl_quantile(0.5), c.kl_quantile(0.99),
      c.kl_quantile(0.999), c.kl.back(), 100.0 * c.top1_agreement());
  if (!c.layers.empty()) text += worst_layers(c.layers);
  print(text);
}

OrderedJson json_of(const offline::Comparison& c, const Cut& cut, const OpenModel& open,
                    const OpenModel& base) {
  OrderedJson layers = OrderedJson::array();
  for (size_t i = 1; i < c.layers.size(); ++i) {
    layers.push_back({{"layer", c.layers[i].layer - 1},
                      {"relative_error", c.layers[i].relative},
                      {"added", c.layers[i].relative - c.layers[i - 1].relative}});
  }
  return {{"perplexity_baseline", c.baseline.value()},
          {"perplexity", c.candidate.value()},
          {"perplexity_increase", c.candidate.value() / c.baseline.value() - 1.0},
          {"kl_mean", c.kl_mean},
          {"kl_median", c.kl_quantile(0.5)},
          {"kl_p99", c.kl_quantile(0.99)},
          {"kl_p999", c.kl_quantile(0.999)},
          {"kl_max", c.kl.back()},
          {"top1_agreement", c.top1_agreement()},
          {"tokens", c.baseline.tokens},
          {"convention", cut.convention},
          {"arithmetic_baseline", arithmetic_of(base)},
          {"arithmetic", arithmetic_of(open)},
          {"layers", std::move(layers)}};
}

// 1 and a line on stderr if a gate is exceeded. NaN exceeds every gate.
int check_gates(const EvalOptions& o, const offline::Comparison& c) {
  int code = 0;
  const auto gate = [&](std::string_view name, double value, const std::optional<double>& most) {
    if (!most || value <= *most) return;
    log::error("gate failed: {} is {:.6f}, at most {} is accepted", name, value, *most);
    code = 1;
  };
  gate("--max-kl", c.kl_mean, o.max_kl);
  gate("--max-perplexity-increase", c.candidate.value() / c.baseline.value() - 1.0,
       o.max_perplexity_increase);
  return code;
}

int run_compare(Args args) {
  EvalOptions o;
  OptionTable table("octet eval compare", "How far a model is from a baseline, token by token.");
  table.positional("MODEL", &o.model.path, "model directory, or a .gguf file");
  table.add("--baseline", &o.baseline.path,
            "the model to compare with; may be the same directory in another arithmetic",
            {.metavar = "MODEL", .required = true});
  add_text_rows(table, o);
  table.group("Gates: exit with 1 beyond them");
  table.add("--max-kl", &o.max_kl, "most mean KL divergence", {.least = 0});
  table.add("--max-perplexity-increase", &o.max_perplexity_increase,
            "most relative increase of perplexity: 0.013 is 1.3 %");
  add_model_rows(table, o.model);
  add_model_rows(table, o.baseline, "baseline-");
  add_backend_rows(table, o.backend);
  table.group("Output");
  add_json_row(table, &o.json);
  if (table.parse(args) == OptionTable::Outcome::done) return print(table.output()), 0;

  OpenModel open(o.model), base(o.baseline);
  const Cut cut = cut_text(o, open);
  const std::vector<offline::Piece> base_pieces = cut_text(o, base).pieces;
  const bool same = std::ranges::equal(cut.pieces, base_pieces, {}, &offline::Piece::tokens,
                                       &offline::Piece::tokens);
  if (!same) {
    throw Error({.what = "the two models cut the text into different tokens",
                 .where = "--baseline",
                 .value = o.baseline.path,
                 .accepted = "a model with the same vocabulary and tokenizer"});
  }
  const auto backend = open_backend(o.backend);
  open.load(*backend, offline::longest(cut.pieces));
  base.load(*backend, offline::longest(cut.pieces));
  Progress progress("compare", tokens_of(cut.pieces), Progress::Unit::tokens);
  const offline::Comparison result =
      offline::compare(subject_of(open, *backend), subject_of(base, *backend), cut.pieces,
                       [&](int64_t tokens) { progress.advance(tokens); });
  if (prints_text(o.json)) print_comparison(result, cut, open, base);
  write_json(o.json, json_of(result, cut, open, base));
  return check_gates(o, result);
}

std::vector<int64_t> parse_lengths(const std::string& text, int64_t limit) {
  std::vector<int64_t> lengths;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    char* end = nullptr;
    const int64_t length = std::strtoll(part.c_str(), &end, 10);
    if (part.empty() || *end != '\0' || length < 1 || length > limit) {
      throw Error({.what = "a length is a number of tokens",
                   .where = "--lengths",
                   .value = part,
                   .accepted = fmt::format("1 to {}, separated by commas", limit)});
    }
    lengths.push_back(length);
  }
  if (lengths.empty())
    throw Error({.what = "no lengths are given",
                 .where = "--lengths",
                 .accepted = "one length or more, in tokens"});
  return lengths;
}

int run_needle_task(Args args) {
  EvalOptions o;
  OptionTable table("octet eval needle", "Is a fact found again, from any depth of a long text?");
  table.positional("MODEL", &o.model.path, "model directory, or a .gguf file");
  table.group("Cases");
  table.add("--text", &o.text, "what the facts are hidden in",
            {.metavar = "FILE", .required = true});
  table.add("--lengths", &o.lengths, "tokens of a prompt, separated by commas");
  table.add("--count", &o.count, "cases of each length", {.least = 1});
  table.add("--seed", &o.seed, "of names, codes and pieces", {.least = 0});
  table.add("--min-accuracy", &o.min_accuracy, "exit with 1 below this share of all cases",
            {.least = 0, .most = 1});
  add_model_rows(table, o.model);
  add_backend_rows(table, o.backend);
  table.group("Output");
  add_json_row(table, &o.json);
  if (table.parse(args) == OptionTable::Outcome::done) return print(table.output()), 0;

  OpenModel open(o.model);
  const std::vector<int64_t> lengths = parse_lengths(o.lengths, open.max_model_len());
  const std::string haystack = read_text(o.text);
  const auto backend = open_backend(o.backend);
  open.load(*backend);
  int64_t tokens = 0, count = 0, found = 0;
  for (const int64_t length : lengths) tokens += length * o.count;
  Progress progress("needle", tokens, Progress::Unit::tokens);
  OrderedJson rows = OrderedJson::array();
  for (const int64_t length : lengths) {
    const auto cases = offline::needle_cases(open.tokenizer(), haystack, length, o.count,
                                             static_cast<uint64_t>(o.seed));
    for (const offline::NeedleCase& one : cases) open.require_known(one.prompt, o.text);
    const offline::NeedleResult result =
        offline::run_needle(subject_of(open, *backend), open.tokenizer(), length, cases,
                            [&](int64_t done) { progress.advance(done); });
    count += result.count;
    found += result.found;
    if (prints_text(o.json)) {
      std::string text =
          fmt::format("{:>8} tokens  {} of {}\n", length, result.found, result.count);
      for (const std::string& miss : result.misses) text += fmt::format("           {}\n", miss);
      print(text);
    }
    rows.push_back({{"length", length},
                    {"found", result.found},
                    {"count", result.count},
                    {"misses", result.misses}});
  }
  const double accuracy = static_cast<double>(found) / static_cast<double>(count);
  write_json(o.json, {{"accuracy", accuracy},
                      {"found", found},
                      {"count", count},
                      {"arithmetic", arithmetic_of(open)},
                      {"lengths", std::move(rows)}});
  if (!o.min_accuracy || accuracy >= *o.min_accuracy) return 0;
  log::error("gate failed: accuracy {:.4f}, at least {} is accepted", accuracy, *o.min_accuracy);
  return 1;
}

}  // namespace

int run_eval(Args args) {
  struct Task {
    std::string_view name, summary;
    int (*run)(Args);
  };
  constexpr Task tasks[] = {
      {"perplexity", "the perplexity of a text", run_perplexity},
      {"compare", "perplexity, KL and top-1 agreement against a baseline", run_compare},
      {"needle", "retrieval from long texts", run_needle_task},
  };
  std::string names, help = "octet eval TASK MODEL ...: how good a model is.\n\nTasks:\n";
  for (const Task& task : tasks) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", task.name);
    help += fmt::format("  {:<14}{}\n", task.name, task.summary);
  }
  help += "\n`octet eval TASK --help` lists a task's options.\n";
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
