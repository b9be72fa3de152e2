#include "cli/calibration_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "eval/sensitivity.h"
#include "page/page.h"
#include "page/plot.h"

namespace octet::cli {
namespace {

struct Magnitudes {
  double largest = 0, p9999 = 0, p999 = 0;
  void add(const offline::ValueHistogram& values) {
    largest = std::max(largest, double{values.absmax()});
    p9999 = std::max(p9999, double{values.percentile(0.9999)});
    p999 = std::max(p999, double{values.percentile(0.999)});
  }
};

// By what it is, then by layer.
using ByLayer = std::map<int64_t, Magnitudes>;
std::map<std::string, ByLayer> magnitudes_of(const offline::Calibration& c) {
  std::map<std::string, ByLayer> found;
  for (const auto& [name, input] : c.inputs) {
    const eval::ModulePlace place = eval::place_of(name);
    found["input of " + place.role][place.layer].add(input.range.values);
  }
  for (const auto& [name, cache] : c.caches) {
    const int64_t layer = eval::place_of(name).layer;
    const std::pair<const char*, const std::vector<offline::Range>*> parts[] = {
        {"K, after RoPE", &cache.k}, {"V", &cache.v}, {"latent", &cache.latent}};
    for (const auto& [part, ranges] : parts) {
      for (const offline::Range& range : *ranges) found[part][layer].add(range.values);
    }
  }
  return found;
}

std::string plot_of(const std::string& name, const ByLayer& layers) {
  page::Plot plot{.title = name, .x_label = "layer"};
  page::Series largest{"largest", {}, true}, p9999{"P99.99", {}, true}, p999{"P99.9", {}, true};
  for (const auto& [layer, m] : layers) {
    const auto x = static_cast<double>(layer);
    largest.points.emplace_back(x, m.largest);
    p9999.points.emplace_back(x, m.p9999);
    p999.points.emplace_back(x, m.p999);
  }
  plot.series = {largest, p9999, p999};
  return page::svg_of(plot);
}

std::string table_of(const offline::Calibration& c) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, input] : c.inputs) {
    const offline::ValueHistogram& values = input.range.values;
    rows.push_back({name, fmt::format("{:.4g}", values.absmax()),
                    fmt::format("{:.4g}", values.percentile(0.9999)),
                    fmt::format("{:.4g}", values.percentile(0.999)),
                    fmt::format("{:.4g}", values.mean_abs()),
                    fmt::format("{}", offline::outlier_channels(input).size()),
                    input.range.is_exceeded() ? "yes" : "no"});
  }
  return page::table({"input of", "largest", "P99.99", "P99.9", "mean magnitude",
                      "outlier channels", "held-out samples beyond it"},
                     rows);
}

}  // namespace

std::string html_of(const offline::Calibration& c) {
  std::vector<std::string> plots;
  for (const auto& [name, layers] : magnitudes_of(c)) plots.push_back(plot_of(name, layers));
  std::string body = page::tiles(
      {{fmt::format("{}", c.samples), "samples"}, {fmt::format("{}", c.tokens), "tokens"}});
  for (const std::string& warning : offline::warnings_of(c)) body += page::paragraph(warning);
  body += page::plots(plots) + page::heading("Inputs") + table_of(c);
  return page::document("octet calibrate",
                        {{"model", fmt::format("{}, {}", c.model, c.model_hash)},
                         {"data", fmt::format("{}, {}", c.data, c.data_hash)}},
                        body);
}

}  // namespace octet::cli
