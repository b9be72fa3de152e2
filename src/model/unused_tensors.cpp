#include "model/unused_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "base/error.h"

namespace octet::model {
namespace {

constexpr std::string_view kLayers = "model.layers.";

// 12 of "model.layers.12.mlp.gate.weight".
std::optional<int64_t> layer_of(std::string_view name) {
  if (!name.starts_with(kLayers)) return std::nullopt;
  int64_t layer = 0;
  const char* end = name.data() + name.size();
  const auto [rest, fault] = std::from_chars(name.data() + kLayers.size(), end, layer);
  if (fault != std::errc() || rest == end || *rest != '.') return std::nullopt;
  return layer;
}

bool is_dispensable(std::string_view name) {
  static constexpr std::array endings = {".rotary_emb.inv_freq",
                                         "_zero_point",
                                         ".k_scale",
                                         ".v_scale",
                                         ".kv_scale",
                                         "_channel_scale",
                                         ".q_scale",
                                         ".prob_scale",
                                         ".prob_output_scale",
                                         ".input_scale",
                                         ".output_scale",
                                         ".activation_scale"};
  return std::ranges::any_of(endings, [&](std::string_view end) { return name.ends_with(end); });
}

// Of the products of attention, which other engines quantize by scales that are stored.
bool is_attention_scale(std::string_view name) {
  return name.ends_with(".q_scale") || name.ends_with(".prob_scale") ||
         name.ends_with(".prob_output_scale");
}

// Whether `name` is a bias or a scale of a weight that is in use.
bool belongs_to_used(std::string_view name, const std::set<std::string, std::less<>>& used) {
  for (const std::string_view ending : {".bias", ".weight_scale", ".weight_scale_inv"}) {
    if (!name.ends_with(ending)) continue;
    const std::string_view module = name.substr(0, name.size() - ending.size());
    if (used.contains(fmt::format("{}.weight", module))) return true;
  }
  return false;
}

std::string first_three(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(3, names.size()); ++i) {
    text += fmt::format("{}{}", i ? ", " : "", names[i]);
  }
  return names.size() > 3 ? text + ", ..." : text;
}

}  // namespace

std::optional<LayersBeyond> layers_beyond(const ModelConfig& config,
                                          const std::vector<std::string>& names) {
  std::set<int64_t> predicting;
  for (const std::string& name : names) {
    const std::optional<int64_t> layer = layer_of(name);
    if (layer && name.ends_with(".eh_proj.weight")) predicting.insert(*layer);
  }
  std::optional<LayersBeyond> beyond;
  for (const std::string& name : names) {
    const std::optional<int64_t> layer = layer_of(name);
    if (!layer || *layer < config.layers + config.mtp_layers || predicting.contains(*layer)) {
      continue;
    }
    if (!beyond) beyond = LayersBeyond{.example = name};
    beyond->last = std::max(beyond->last, *layer);
    ++beyond->tensors;
  }
  return beyond;
}

void report_unused(const ModelConfig& config, const WeightSource& source,
                   const std::set<std::string, std::less<>>& used,
                   std::vector<std::string>& notices) {
  std::vector<std::string> wrong, others, attention;
  for (const std::string& name : source.names()) {
    if (is_attention_scale(name)) attention.push_back(name);
    if (used.contains(name) || is_dispensable(name)) continue;
    const int64_t layer = layer_of(name).value_or(-1);
    if (layer >= config.layers) continue;
    const bool own = belongs_to_used(name, used) || (layer >= 0 && layer < config.layers);
    (own ? wrong : others).push_back(name);
  }
  if (!wrong.empty()) {
    throw Error({.what = "the checkpoint has tensors that config.json leaves out",
                 .where = fmt::format("tensor '{}' in {}", wrong[0], source.locate(wrong[0])),
                 .value = fmt::format("{} unused: {}", wrong.size(), first_three(wrong)),
                 .fix = "check that config.json belongs to this checkpoint"});
  }
  if (!attention.empty()) {
    notices.push_back(fmt::format(
        "{} stored scales of queries and probabilities are not used ({}): FP8 attention chooses a "
        "query's by token and head, and that of probabilities is fixed",
        attention.size(), first_three(attention)));
  }
  if (const auto beyond = layers_beyond(config, source.names())) {
    notices.push_back(fmt::format(
        "num_hidden_layers is {}, and the checkpoint goes on to layer {} ({} tensors, '{}' is the "
        "first), which is not run: without its last layers a model answers badly, so correct "
        "config.json unless this is meant",
        config.layers, beyond->last, beyond->tensors, beyond->example));
  }
  if (!others.empty()) {
    notices.push_back(fmt::format(
        "{} of the checkpoint's tensors are not used ({}): check that config.json belongs to it",
        others.size(), first_three(others)));
  }
}

}  // namespace octet::model
