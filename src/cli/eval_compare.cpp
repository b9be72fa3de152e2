// octet eval compare: how far a model is from a baseline, token by token.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/eval_common.h"
#include "cli/eval_tasks.h"
#include "cli/output.h"
#include "cli/paired.h"
#include "eval/by_position.h"
#include "page/page.h"
#include "page/plot.h"

namespace octet::cli {
namespace {

std::string percent(double ratio) {
  return fmt::format("{:+.2f} %", 100.0 * (ratio - 1.0));
}

// The residual stream after each layer, the farthest from the baseline's first.
std::string worst_layers(const std::vector<eval::LayerError>& layers) {
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

// What one run gave, and how to read it.
struct Compared {
  const eval::Comparison& result;
  std::vector<eval::PositionBucket> positions;
  std::optional<eval::Interval> increase;  // of perplexity, 95 %
};

std::string range_of(const eval::PositionBucket& b) {
  return fmt::format("{} to {}", b.first, b.last - 1);
}

std::string by_position_text(const std::vector<eval::PositionBucket>& positions) {
  std::string text =
      "\nby position     tokens   perplexity                    KL      same top-1\n";
  for (const eval::PositionBucket& b : positions) {
    const double before = b.baseline.value(), after = b.candidate.value();
    text += fmt::format("  {:<13}{:>7}   {:.3f} -> {:.3f} ({})   {:.5f}   {:.2f} %\n", range_of(b),
                        b.baseline.tokens, before, after, percent(after / before), b.kl_mean,
                        100 * b.top1_agreement);
  }
  return text;
}

OrderedJson by_position_json(const std::vector<eval::PositionBucket>& positions) {
  OrderedJson rows = OrderedJson::array();
  for (const eval::PositionBucket& b : positions) {
    rows.push_back({{"first", b.first},
                    {"last", b.last - 1},
                    {"tokens", b.baseline.tokens},
                    {"perplexity_baseline", b.baseline.value()},
                    {"perplexity", b.candidate.value()},
                    {"kl_mean", b.kl_mean},
                    {"top1_agreement", b.top1_agreement}});
  }
  return rows;
}

void print_comparison(const Compared& compared, const Cut& cut, const OpenModel& open,
                      const OpenModel& base) {
  const eval::Comparison& c = compared.result;
  const double before = c.baseline.value(), after = c.candidate.value();
  std::string text = fmt::format(
      "baseline    {}\nmodel       {}\ntext        {} tokens; {}\n\n"
      "perplexity  {:.4f} -> {:.4f}  ({}{})\n"
      "KL          mean {:.5f}  median {:.5f}  P99 {:.4f}  P99.9 {:.4f}  max {:.3f}\n"
      "same top-1  {:.2f} %\n",
      arithmetic_of(base), arithmetic_of(open), c.baseline.tokens, cut.convention, before, after,
      percent(after / before),
      compared.increase ? fmt::format("; 95 %: {} to {}", percent(1 + compared.increase->low),
                                      percent(1 + compared.increase->high))
                        : "",
      c.kl_mean, c.kl_quantile(0.5), c.kl_quantile(0.99), c.kl_quantile(0.999), c.kl.back(),
      100.0 * c.top1_agreement());
  if (compared.positions.size() > 1) text += by_position_text(compared.positions);
  if (!c.layers.empty()) text += worst_layers(c.layers);
  print(text);
}

OrderedJson json_of(const Compared& compared, const Cut& cut, const OpenModel& open,
                    const OpenModel& base) {
  const eval::Comparison& c = compared.result;
  OrderedJson layers = OrderedJson::array(), interval;
  if (compared.increase) interval = {compared.increase->low, compared.increase->high};
  for (size_t i = 1; i < c.layers.size(); ++i) {
    layers.push_back({{"layer", c.layers[i].layer - 1},
                      {"relative_error", c.layers[i].relative},
                      {"added", c.layers[i].relative - c.layers[i - 1].relative}});
  }
  return {{"perplexity_baseline", c.baseline.value()},
          {"perplexity", c.candidate.value()},
          {"perplexity_increase", c.candidate.value() / c.baseline.value() - 1.0},
          {"perplexity_increase_interval", std::move(interval)},
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
          {"by_position", by_position_json(compared.positions)},
          {"layers", std::move(layers)}};
}

std::string html_of(const Compared& compared, const Cut& cut, const OpenModel& open,
                    const OpenModel& base) {
  const eval::Comparison& c = compared.result;
  page::Plot kl{.title = "KL divergence by position", .x_label = "tokens before", .log_x = true};
  page::Plot perplexity{
      .title = "Perplexity by position", .x_label = "tokens before", .log_x = true};
  page::Series divergence{"KL", {}, true}, before{"baseline", {}, true}, after{"model", {}, true};
  std::vector<std::vector<std::string>> rows;
  for (const eval::PositionBucket& b : compared.positions) {
    const auto x = static_cast<double>(b.first);
    divergence.points.emplace_back(x, b.kl_mean);
    before.points.emplace_back(x, b.baseline.value());
    after.points.emplace_back(x, b.candidate.value());
    rows.push_back({range_of(b), fmt::format("{}", b.baseline.tokens),
                    fmt::format("{:.3f}", b.baseline.value()),
                    fmt::format("{:.3f}", b.candidate.value()), fmt::format("{:.5f}", b.kl_mean),
                    fmt::format("{:.2f} %", 100 * b.top1_agreement)});
  }
  kl.series = {divergence};
  perplexity.series = {before, after};
  page::Plot layers{.title = "Residual stream: |difference| / |baseline|", .x_label = "layer"};
  page::Series errors{"error", {}, true};
  for (const eval::LayerError& error : c.layers) {
    errors.points.emplace_back(static_cast<double>(error.layer), error.relative);
  }
  layers.series = {errors};
  const std::string body =
      page::tiles({{percent(c.candidate.value() / c.baseline.value()), "perplexity"},
                   {fmt::format("{:.5f}", c.kl_mean), "mean KL"},
                   {fmt::format("{:.2f} %", 100 * c.top1_agreement()), "same top-1"}}) +
      page::plots({page::svg_of(kl), page::svg_of(perplexity), page::svg_of(layers)}) +
      page::table({"position", "tokens", "perplexity, baseline", "model", "KL", "same top-1"},
                  rows);
  return page::document("octet eval compare",
                        {{"model", arithmetic_of(open)},
                         {"baseline", arithmetic_of(base)},
                         {"text", fmt::format("{} tokens; {}", c.baseline.tokens, cut.convention)}},
                        body);
}

struct CompareOptions {
  ModelOptions model, baseline;
  BackendOptions device;
  TextOptions text;
  std::optional<double> max_kl, max_perplexity_increase;
  std::string json, html;
};

// 1 and a line on stderr if a gate is exceeded. NaN exceeds every gate.
int check_gates(const CompareOptions& o, const eval::Comparison& c) {
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

}  // namespace

int run_eval_compare(Args args) {
  CompareOptions o;
  OptionTable table("octet eval compare", "How far a model is from a baseline, token by token.");
  table.positional("MODEL", &o.model.path, "model directory, or a .gguf file");
  table.add("--baseline", &o.baseline.path,
            "the model to compare with; may be the same directory in another arithmetic",
            {.metavar = "MODEL", .required = true});
  add_text_rows(table, o.text);
  table.group("Gates: exit with 1 beyond them");
  table.add("--max-kl", &o.max_kl, "most mean KL divergence", {.least = 0});
  table.add("--max-perplexity-increase", &o.max_perplexity_increase,
            "most relative increase of perplexity: 0.013 is 1.3 %");
  add_model_rows(table, o.model);
  add_model_rows(table, o.baseline, "baseline-");
  add_backend_rows(table, o.device);
  table.group("Output");
  add_json_row(table, &o.json);
  table.add("--html", &o.html, "write a report as one page", {.metavar = "FILE", .written = true});
  if (table.parse(args) == OptionTable::Outcome::done) return print(table.output()), 0;

  OpenModel open(o.model), base(o.baseline);
  const Cut cut = cut_text(o.text, open);
  const std::vector<eval::Piece> base_pieces = cut_text(o.text, base).pieces;
  const bool same =
      std::ranges::equal(cut.pieces, base_pieces, {}, &eval::Piece::tokens, &eval::Piece::tokens);
  if (!same) {
    throw Error({.what = "the two models cut the text into different tokens",
                 .where = "--baseline",
                 .value = o.baseline.path,
                 .accepted = "a model with the same vocabulary and tokenizer"});
  }
  const auto backend = open_backend(o.device);
  open.load(*backend, eval::longest(cut.pieces));
  base.load(*backend, eval::longest(cut.pieces));
  Progress progress("compare", eval::total_tokens(cut.pieces), Progress::Unit::tokens);
  const eval::Comparison result =
      eval::compare(subject_of(open, *backend), subject_of(base, *backend), cut.pieces,
                    [&](int64_t tokens) { progress.advance(tokens); });
  const Compared compared{result, eval::by_position(result, cut.pieces),
                          eval::perplexity_interval(result, cut.pieces)};
  if (prints_text(o.json)) print_comparison(compared, cut, open, base);
  write_json(o.json, json_of(compared, cut, open, base));
  write_html(o.html, html_of(compared, cut, open, base));
  return check_gates(o, result);
}

}  // namespace octet::cli
