// octet eval sensitivity: which part of a model loses how much in FP8.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cli/eval_tasks.h"
#include "cli/output.h"
#include "cli/paired.h"
#include "cli/sensitivity.h"
#include "page/page.h"
#include "page/plot.h"

namespace octet::cli {
namespace {

// KL for each MB that FP8 saves; an input saves none.
std::string per_mb(double cost, const eval::Part& part) {
  if (part.bytes == part.bytes_low) return "";
  return fmt::format("{:.2e}", cost / (static_cast<double>(part.bytes - part.bytes_low) * 1e-6));
}

double sum_of_costs(const Sensitivity& s) {
  double sum = 0;
  for (const MeasuredPart& measured : s.parts) {
    const auto kind = measured.part.kind;
    if (kind == eval::Part::Kind::linear || kind == eval::Part::Kind::cache) {
      sum += s.cost(measured);
    }
  }
  return sum;
}

std::string what_of(const Sensitivity& s) {
  return s.options.leave_one_out ? "all but the part in FP8" : "the part alone in FP8";
}

// What is tried beside weights and inputs, or which of the two.
std::string beside_of(const Sensitivity& s) {
  return s.options.operand == "both" ? "cache " + s.options.kv_cache_dtype
                                     : s.options.operand + "s alone";
}

void print_table(const Sensitivity& s) {
  std::string text = fmt::format(
      "{}: {}, {}, all else as stored; {} tokens, perplexity {:.4f}\n"
      "everything in FP8: KL {:.5f}, perplexity {}; the parts' costs add up to {:.5f}\n\n"
      "       KL   +-        perplexity   same top-1      saves  {}\n",
      s.options.model, s.options.scheme, beside_of(s), s.tokens, s.perplexity, s.everything.kl,
      increase_of(s.everything.perplexity, s.perplexity), sum_of_costs(s), what_of(s));
  for (const MeasuredPart& m : s.parts) {
    text += fmt::format(
        "  {:.6f} {:>8}  {:>10}   {:>8.2f} %  {:>9}  {}\n", m.fidelity.kl, error_of(m.fidelity, 6),
        increase_of(m.fidelity.perplexity, s.perplexity), 100 * m.fidelity.top1,
        show_bytes(static_cast<double>(m.part.bytes - m.part.bytes_low)), m.part.name);
  }
  print(text);
}

// Rows are kinds of linears, columns layers; a cell is the part's cost as a share of the highest.
std::string map_of(const Sensitivity& s) {
  std::map<std::string, std::map<int64_t, double>> costs;
  int64_t layers = 0;
  double highest = 0;
  for (const MeasuredPart& m : s.parts) {
    const auto [layer, role] = eval::place_of(m.part.name);
    if (layer < 0) continue;
    costs[role][layer] = std::max(0.0, s.cost(m));
    layers = std::max(layers, layer + 1);
    highest = std::max(highest, s.cost(m));
  }
  if (costs.empty() || highest <= 0) return "";
  page::HeatMap map{.title = "Cost of FP8, as a share of the highest", .corner = "layer"};
  for (int64_t layer = 0; layer < layers; ++layer) map.columns.push_back(fmt::format("{}", layer));
  for (const auto& [role, by_layer] : costs) {
    map.rows.push_back(role);
    auto& row = map.shares.emplace_back(static_cast<size_t>(layers));
    for (const auto& [layer, cost] : by_layer) row[static_cast<size_t>(layer)] = cost / highest;
  }
  return page::heat_map(map);
}

// The summed cost of each layer's parts.
std::string plot_of(const Sensitivity& s) {
  std::map<int64_t, double> by_layer;
  for (const MeasuredPart& m : s.parts) {
    if (const int64_t layer = eval::place_of(m.part.name).layer; layer >= 0)
      by_layer[layer] += s.cost(m);
  }
  if (by_layer.size() < 2) return "";
  page::Plot plot{.title = "KL that a layer's parts cost", .x_label = "layer"};
  page::Series series{"KL", {}, true};
  for (const auto& [layer, cost] : by_layer) {
    series.points.emplace_back(static_cast<double>(layer), cost);
  }
  plot.series = {series};
  return page::plots({page::svg_of(plot)});
}

std::string html_of(const Sensitivity& s) {
  std::vector<std::vector<std::string>> rows;
  for (const MeasuredPart& m : s.parts) {
    rows.push_back({m.part.name, fmt::format("{:.6f}", m.fidelity.kl), error_of(m.fidelity, 6),
                    increase_of(m.fidelity.perplexity, s.perplexity),
                    fmt::format("{:.2f} %", 100 * m.fidelity.top1),
                    show_bytes(static_cast<double>(m.part.bytes - m.part.bytes_low)),
                    per_mb(s.cost(m), m.part)});
  }
  const std::string body =
      page::tiles(
          {{fmt::format("{:.5f}", s.everything.kl), "KL, everything in FP8"},
           {increase_of(s.everything.perplexity, s.perplexity), "perplexity, everything in FP8"},
           {fmt::format("{:.5f}", sum_of_costs(s)), "sum of the parts' costs"}}) +
      plot_of(s) + map_of(s) + page::heading("Parts: " + what_of(s)) +
      page::table({"part", "KL", "+-", "perplexity", "same top-1", "FP8 saves", "KL for each MB"},
                  rows);
  return page::document(
      "octet eval sensitivity",
      {{"model", s.options.model},
       {"format", fmt::format("{}, {}; all else as stored, computed in {}", s.options.scheme,
                              beside_of(s), s.options.compute)},
       {"text", fmt::format("{}: {} tokens in {} windows, seed {}", s.options.text.file, s.tokens,
                            s.options.text.windows, s.options.text.seed)}},
      body);
}

}  // namespace

int run_eval_sensitivity(Args args) {
  SensitivityOptions o;
  std::string json, html;
  std::vector<std::string> schemes_known;
  for (const Scheme& scheme : schemes()) {
    // Scales of inputs that come with a checkpoint cannot be tried on one that has none.
    if (scheme.format.input && scheme.format.when == InputScale::calibrated) continue;
    schemes_known.emplace_back(scheme.name);
  }
  OptionTable table(
      "octet eval sensitivity",
      "Which part of a model loses how much in FP8: one at a time, by KL divergence.");
  table.positional("MODEL", &o.model, "model directory in BF16, FP16 or FP32, or a .gguf file");
  table.group("Text");
  add_drawn_text_rows(table, o.text, true);
  table.group("Parts");
  table.add("--by", &o.by,
            "a part is a linear (experts of a layer together), a layer, or a role in all layers",
            {.choices = {"linear", "layer", "role"}});
  table.add("--scheme", &o.scheme, "the format that is tried on each part",
            {.choices = schemes_known});
  table.add("--operand", &o.operand,
            "what of a linear is tried: its weight, its input, or both, and the cache with both",
            {.choices = {"both", "weight", "input"}});
  table.add("--kv-cache-dtype", &o.kv_cache_dtype, "that is tried on the KV cache of each layer",
            {.choices = {"fp8_e4m3", "fp8_e5m2", "fp8_per_token_head", "int8_per_token_head",
                         "int8_per_token_group"}});
  table.add("--leave-one-out", &o.leave_one_out, "all in FP8 but the part, which stays as stored");
  table.add("--high-roles", &o.high_roles,
            "try what is kept high by default, too: router, embedding, lm_head");
  table.add("--compute", &o.compute,
            "of all else. In FP32 a figure is the part's own; in BF16 it has the noise of rounding "
            "otherwise after it",
            {.choices = {"fp32", "bf16"}});
  add_backend_rows(table, o.device);
  table.group("Output");
  add_resume_row(table, &o.resume);
  add_json_row(table, &json);
  table.add("--html", &html, "write a report as one page", {.metavar = "FILE", .written = true});
  if (table.parse(args) == OptionTable::Outcome::done) return print(table.output()), 0;

  const Sensitivity found = measure_sensitivity(o);
  if (prints_text(json)) print_table(found);
  write_json(json, json_of(found));
  write_html(html, html_of(found));
  return 0;
}

}  // namespace octet::cli
