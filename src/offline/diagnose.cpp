#include "offline/diagnose.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/rope.h"
#include "model/unused_tensors.h"
#include "offline/findings.h"

namespace octet::offline {
namespace {

constexpr double kMostSaturated = 1e-3;  // of the codes of a weight
constexpr float kMostValue = 1e6f;       // of a weight
constexpr int64_t kFewMagnitudes = 8;    // of a weight that was made of few values

void find_nonfinite(Findings& found) {
  for (const ScannedTensor& t : found.tensors()) {
    if (!t.scan || t.scan->nan + t.scan->inf == 0) continue;
    found.add(Severity::wrong, "nonfinite", t.name,
              fmt::format("{} NaN, {} infinite", t.scan->nan, t.scan->inf),
              "export or download the checkpoint again: what it computes will be NaN");
  }
}

void find_implausible(Findings& found) {
  for (const ScannedTensor& t : found.tensors()) {
    if (!t.scan || is_code(t.tensor.type) || is_scale(t.name)) continue;
    const float largest = std::max(-t.scan->least, t.scan->most);
    if (largest <= kMostValue) continue;
    found.add(Severity::note, "magnitude", t.name, fmt::format("values of up to {:.3g}", largest),
              "no trained weight is so large: export or download the checkpoint again");
  }
}

void find_zero_norms(Findings& found) {
  for (const ScannedTensor& t : found.tensors()) {
    if (!t.scan || !t.name.ends_with("norm.weight") || t.scan->elements == 0) continue;
    if (t.scan->zero < t.scan->elements) continue;
    found.add(Severity::note, "magnitude", t.name, "all zeros: nothing passes this norm",
              "export or download the checkpoint again");
  }
}

void find_layers_beyond(const model::ModelConfig& config, Findings& found) {
  std::vector<std::string> names;
  for (const ScannedTensor& t : found.tensors()) names.push_back(t.name);
  const auto beyond = model::layers_beyond(config, names);
  if (!beyond) return;
  found.add(
      Severity::wrong, "layers", beyond->example,
      fmt::format("num_hidden_layers is {}, and the checkpoint goes on to layer {} ({} "
                  "tensors)",
                  config.layers, beyond->last, beyond->tensors),
      fmt::format("those layers would not be run: set num_hidden_layers to {} in config.json, "
                  "or take the config.json that belongs to the checkpoint",
                  beyond->last + 1));
}

// Clipping heaps up values at the end of the range; an even distribution, or one of few values, may
// have many there as well, but no heap beside its neighbours.
void find_saturated(const model::Model& model, Findings& found) {
  for (const model::LinearUse& use : model.linears()) {
    const ops::Linear& linear = *use.linear;
    if (!linear.quant) continue;
    const ScannedTensor* t = found.find(linear.name + ".weight");
    if (!t || !t->scan || t->scan->magnitudes <= kFewMagnitudes) continue;
    // A scale chosen from the data puts a value or so of each cell at the end.
    const ScaleShape cells = scale_shape(linear.quant.format.grid, linear.out, linear.in);
    const int64_t beyond = t->scan->at_end - 2 * cells.count();
    const double share =
        static_cast<double>(beyond) / static_cast<double>(std::max<int64_t>(t->scan->elements, 1));
    if (share <= kMostSaturated || beyond <= t->scan->near_end) continue;
    found.add(Severity::note, "saturated", t->name,
              fmt::format("{:.2f} % of its codes are the largest, more than of any near it",
                          100.0 * share),
              "its scales were too small, and large weights were cut off: quantize the 16-bit "
              "checkpoint again with scales from the weights' own range");
  }
}

// "mlp.gate" of "model.layers.3.mlp.gate".
std::string_view within_layer(std::string_view module) {
  const size_t digit = module.find_first_of("0123456789");
  const size_t dot = digit == module.npos ? module.npos : module.find('.', digit);
  return dot == module.npos ? module : module.substr(dot + 1);
}

void find_wrong_precisions(const model::Model& model, Findings& found) {
  for (const model::LinearUse& use : model.linears()) {
    const ops::Linear& linear = *use.linear;
    if (!linear.quant || linear.role != Role::router) continue;
    found.add(
        Severity::wrong, "ignore_list", linear.name,
        fmt::format("the router is stored as {}", to_string(linear.quant.format)),
        fmt::format("small errors in it change which experts are chosen, and an ignore list "
                    "alone does not change what is stored: quantize the 16-bit checkpoint "
                    "again with `octet quantize`, which leaves routers out, or with your tool "
                    "and \"re:.*{}$\" on its ignore list",
                    within_layer(linear.name)));
  }
  const ScannedTensor* head = found.find("lm_head.weight");
  if (!head || !is_code(head->tensor.type)) return;
  found.add(Severity::note, "ignore_list", "lm_head",
            fmt::format("the head is stored in {}", name_of(head->tensor.type)),
            "its error goes straight into the logits: quantize the 16-bit checkpoint again with "
            "`octet quantize`, which leaves the head out, or with your tool and \"lm_head\" on its "
            "ignore list");
}

void find_context(const model::ModelConfig& config, std::optional<int64_t> max_length,
                  Findings& found) {
  if (!max_length || *max_length >= config.max_positions) return;
  found.add(Severity::note, "context", "tokenizer_config.json",
            fmt::format("model_max_length is {}, and max_position_embeddings {}", *max_length,
                        config.max_positions),
            "find out which of them the checkpoint was made and calibrated for, and pass it as "
            "--max-model-len");
}

}  // namespace

std::string_view name_of(Severity severity) {
  return severity == Severity::wrong ? "wrong" : "note";
}

std::vector<Finding> diagnose(const model::ModelConfig& config, const model::Model& model,
                              std::span<const ScannedTensor> tensors,
                              std::optional<int64_t> max_length) {
  Findings found(tensors);
  find_nonfinite(found);
  find_implausible(found);
  find_zero_norms(found);
  find_layers_beyond(config, found);
  diagnose_scales(model, found);
  find_saturated(model, found);
  find_wrong_precisions(model, found);
  find_context(config, max_length, found);
  return found.take();
}

std::vector<Finding> diagnose_calibration(const model::RecordedCalibration& c, const ServedAs& as) {
  std::vector<Finding> found;
  const bool cache = c.kv_cache && as.e4m3_cache, inputs = c.inputs && as.fp8_inputs;
  const std::string_view what = cache && inputs ? "scales of inputs and of the KV cache"
                                : cache         ? "scales of the KV cache"
                                : inputs        ? "scales of inputs"
                                                : "roundings";
  if ((cache || inputs) && c.longest > 0 && as.length > c.longest) {
    found.push_back(
        {Severity::note, "calibration_length", "config.json",
         fmt::format("its {} were measured on {} samples of at most {} tokens, and sequences of up "
                     "to {} are served",
                     what, c.samples, c.longest, as.length),
         fmt::format(
             "later positions may exceed what was seen and saturate: calibrate with "
             "`octet calibrate --window {}` on long texts, or serve with --max-model-len {}",
             as.length, c.longest)});
  }
  if ((cache || inputs || c.rounding) && c.rope && !model::same_rotation(*c.rope, as.rope)) {
    found.push_back({Severity::note, "calibration_rope", "config.json",
                     fmt::format("its {} were measured under RoPE {}, and RoPE {} is served", what,
                                 to_string(*c.rope), to_string(as.rope)),
                     "keys turn otherwise than those that were measured: serve it without the "
                     "change (--rope-scaling, --rope-theta, --hf-overrides, --max-model-len), or "
                     "calibrate and quantize the 16-bit checkpoint under the RoPE that is served"});
  }
  return found;
}

std::vector<Finding> diagnose_twin(const model::ModelConfig& checkpoint,
                                   const model::ModelConfig& twin) {
  if (model::same_rotation(checkpoint.rope, twin.rope)) return {};
  return {{Severity::wrong, "twin_rope", "config.json",
           fmt::format("RoPE {}; the 16-bit checkpoint has RoPE {}", to_string(checkpoint.rope),
                       to_string(twin.rope)),
           "what it answers differs from the model that it was made from: take the RoPE members "
           "of that one's config.json, or make sure that the change is meant"}};
}

}  // namespace octet::offline
