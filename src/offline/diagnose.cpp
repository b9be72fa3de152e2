#include "offline/diagnose.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "model/binder.h"
#include "model/rope.h"

namespace octet::offline {
namespace {

constexpr double kMostSaturated = 1e-3;  // of the codes of a weight
constexpr float kShardRatio = 8.0f;      // between scales that other engines merge
constexpr float kSharedInputRatio = 2.0f;
constexpr float kOddScale = 100.0f;                      // between the same linear's in two layers
constexpr float kLeastRange = 1e-3f, kMostRange = 1e6f;  // of activations

bool is_input_scale(std::string_view name) {
  return name.ends_with(".input_scale") || name.ends_with(".activation_scale");
}

bool is_weight_scale(std::string_view name) {
  return name.ends_with(".weight_scale") || name.ends_with(".weight_scale_inv");
}

bool is_cache_scale(std::string_view name) {
  return !is_weight_scale(name) && !is_input_scale(name);
}

std::string without_numbers(std::string name) {
  std::erase_if(name, [](char c) { return c >= '0' && c <= '9'; });
  return name;
}

std::string_view before_last_dot(std::string_view name) {
  return name.substr(0, name.rfind('.'));
}

}  // namespace

bool is_scale(std::string_view name) {
  return name.ends_with("_scale") || name.ends_with("_scale_inv");
}

namespace {

// Linears that read the same input, and that some engines run as one.
constexpr std::array<std::array<std::string_view, 3>, 3> kFused = {{
    {"q_proj", "k_proj", "v_proj"},
    {"gate_proj", "up_proj", ""},
    {"w1", "w3", ""},
}};

class Diagnosis {
 public:
  explicit Diagnosis(std::span<const ScannedTensor> tensors) : tensors_(tensors) {
    for (const ScannedTensor& tensor : tensors_) by_name_.emplace(tensor.name, &tensor);
  }

  void nonfinite() {
    for (const ScannedTensor& t : tensors_) {
      if (!t.scan || t.scan->nan + t.scan->inf == 0) continue;
      add(Severity::wrong, "nonfinite", t.name,
          fmt::format("{} NaN, {} infinite", t.scan->nan, t.scan->inf),
          "export or download the checkpoint again: what it computes will be NaN");
    }
  }

  void scales() {
    int64_t weights = 0, ones = 0;
    for (const ScannedTensor& t : tensors_) {
      if (!t.scan || !is_scale(t.name)) continue;
      // Below zero, a scale of the KV cache means that there is none.
      if (t.scan->most < 0.0f && is_cache_scale(t.name)) continue;
      if (is_weight_scale(t.name) && t.tensor.count() > 0) {
        ++weights;
        ones += t.scan->least == 1.0f && t.scan->most == 1.0f;
      }
      const bool least = t.scan->least<model::kLeastScale, most = t.scan->most> model::kMostScale;
      if (!least && !most) continue;
      add(Severity::wrong, "scale_range", t.name,
          fmt::format("a scale of {}", least ? t.scan->least : t.scan->most),
          "quantize again: scales are finite, positive, and 448 times them as well");
    }
    if (ones < weights) {
      odd_modules();
    } else if (weights > 0) {
      add(Severity::note, "scale_ones", "", fmt::format("all {} weight scales are 1", weights),
          "the weights were cast, not quantized: those below 2^-6 lose precision; quantize the "
          "16-bit checkpoint with `octet quantize`");
    }
  }

  // Modules whose weight scales are unlike those of the same linear in other layers (or experts).
  void odd_modules() {
    struct One {
      const ScannedTensor* scales;
      float least;
    };
    std::map<std::string, std::vector<One>> alike;  // by name without its numbers
    for (const ScannedTensor& t : tensors_) {
      if (!t.scan || !is_weight_scale(t.name) || t.tensor.count() == 0) continue;
      const std::string module(before_last_dot(t.name));
      const ScannedTensor* weight = find(module + ".weight");
      const bool zero = weight && weight->scan && weight->scan->zero == weight->scan->elements;
      if (zero) continue;  // whose scales say nothing
      if (t.scan->least == 1.0f && t.scan->most == 1.0f) {
        add(Severity::note, "scale_ones", t.name,
            fmt::format("its {} scales are 1, and other modules' are not", t.tensor.count()),
            "it was cast, not quantized, or its scales were lost: compare it with `octet inspect "
            "--twin`, and quantize it again");
        continue;
      }
      // The least: cells of zeros have the scale 1, however small their neighbours' are.
      alike[without_numbers(module)].push_back({&t, t.scan->least});
    }
    for (auto& [name, group] : alike) {
      if (group.size() < 3) continue;  // else nobody can tell which of them is odd
      std::vector<One> sorted = group;
      const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
      std::ranges::nth_element(sorted, middle, {}, &One::least);
      const float usual = middle->least;
      for (const One& one : group) {
        const float ratio = one.least / usual;
        if (!(ratio > kOddScale) && !(ratio < 1 / kOddScale)) continue;
        add(Severity::note, "scale_apart", one.scales->name,
            fmt::format("its least scale, {:.3g}, is {:.3g} times that of the same linear in other "
                        "layers",
                        one.least, ratio),
            "its scales may be another tensor's, or in another unit: compare it with `octet "
            "inspect --twin`");
      }
    }
  }

  void saturated(const model::Model& model) {
    for (const model::LinearUse& use : model.linears()) {
      const ops::Linear& linear = *use.linear;
      if (!linear.quant) continue;
      const ScannedTensor* t = find(linear.name + ".weight");
      if (!t || !t->scan) continue;
      // A scale chosen from the data puts a value or so of each cell at the end.
      const ScaleShape cells = scale_shape(linear.quant.format.grid, linear.out, linear.in);
      const auto beyond = static_cast<double>(t->scan->saturated - 2 * cells.count());
      const double share = beyond / static_cast<double>(std::max<int64_t>(t->scan->elements, 1));
      if (share <= kMostSaturated) continue;
      add(Severity::note, "saturated", t->name,
          fmt::format("{:.2f} % of its codes are the largest", 100.0 * share),
          "its scales were too small, and large weights were cut off: quantize it again with "
          "scales from the weights' own range");
    }
  }

  void ignore_list(const model::Model& model) {
    for (const model::LinearUse& use : model.linears()) {
      const ops::Linear& linear = *use.linear;
      if (!linear.quant) continue;
      if (linear.role == Role::router) {
        add(Severity::wrong, "ignore_list", linear.name,
            fmt::format("the router is stored as {}", to_string(linear.quant.format)),
            "quantize again with the router on the ignore list: small errors in it change which "
            "experts are chosen");
      }
    }
    const ScannedTensor* head = find("lm_head.weight");
    if (!head || !is_code(head->tensor.type)) return;
    add(Severity::note, "ignore_list", "lm_head",
        fmt::format("the head is stored in {}", name_of(head->tensor.type)),
        "quantize again with the head on the ignore list: its error goes straight into the logits");
  }

  void input_scales() {
    for (const ScannedTensor& t : tensors_) {
      if (!is_input_scale(t.name) || !t.scan) continue;
      const float range = 448.0f * t.scan->most;
      if (range >= kLeastRange && range <= kMostRange) continue;
      add(Severity::wrong, "input_scale", t.name,
          fmt::format("the input's range ends at {:.3g}", range),
          fmt::format(
              "calibrate again: inputs of linears reach from about 1 to some thousands, so that {}",
              range < kLeastRange ? "all of them saturate" : "most of them become zero"));
    }
  }

  // Scales of one value a tensor, of linears that read the same input.
  void fused() {
    for (const auto& group : kFused) {
      compare(group, ".weight_scale", kShardRatio, "fused_scales", [](double ratio) {
        return fmt::format(
            "scales {:.3g} times apart beside each other: Octet keeps one each; an engine that "
            "merges them to the largest loses {:.1f} bits of the smallest",
            ratio, std::log2(ratio));
      });
      compare(group, ".input_scale", kSharedInputRatio, "input_scale", [](double ratio) {
        return fmt::format("input scales {:.3g} times apart of linears that read the same input",
                           ratio);
      });
    }
  }

  void context(const model::ModelConfig& config, std::optional<int64_t> max_length) {
    if (!max_length || *max_length >= config.max_positions) return;
    add(Severity::note, "context", "tokenizer_config.json",
        fmt::format("model_max_length is {}, and max_position_embeddings {}", *max_length,
                    config.max_positions),
        "find out which of them the checkpoint was made and calibrated for, and pass it as "
        "--max-model-len");
  }

  std::vector<Finding> take() { return std::move(found_); }

 private:
  void add(Severity severity, std::string_view check, std::string where, std::string what,
           std::string fix) {
    found_.push_back({severity, check, std::move(where), std::move(what), std::move(fix)});
  }

  const ScannedTensor* find(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }

  // The worst ratio between scales of one value under one parent.
  template <class Say>
  void compare(const std::array<std::string_view, 3>& group, std::string_view suffix, float allowed,
               std::string_view check, Say say) {
    struct Range {
      float least = 0, most = 0;
      std::string where;
    };
    std::map<std::string, Range, std::less<>> ranges;
    for (const ScannedTensor& t : tensors_) {
      if (!t.scan || !t.name.ends_with(suffix) || t.tensor.count() != 1) continue;
      const std::string_view module = before_last_dot(t.name);
      const std::string_view last = module.substr(module.rfind('.') + 1);
      if (std::ranges::find(group, last) == group.end()) continue;
      Range& range = ranges[std::string(before_last_dot(module))];
      const bool first = range.where.empty();
      range.least = first ? t.scan->least : std::min(range.least, t.scan->least);
      range.most = first ? t.scan->most : std::max(range.most, t.scan->most);
      if (first) range.where = module;
    }
    const Range* worst = nullptr;
    int64_t count = 0;
    for (const auto& [parent, range] : ranges) {
      if (!(range.least > 0.0f) || range.most / range.least < allowed) continue;
      ++count;
      if (!worst || range.most / range.least > worst->most / worst->least) worst = &range;
    }
    if (!worst) return;
    add(Severity::note, check, worst->where,
        fmt::format("{} ({} of {} groups)", say(worst->most / worst->least), count, ranges.size()),
        "a scale per channel or block avoids it: `octet quantize --scheme fp8_channel`");
  }

  std::span<const ScannedTensor> tensors_;
  std::map<std::string_view, const ScannedTensor*> by_name_;
  std::vector<Finding> found_;
};

}  // namespace

std::string_view name_of(Severity severity) {
  return severity == Severity::wrong ? "wrong" : "note";
}

std::vector<Finding> diagnose(const model::ModelConfig& config, const model::Model& model,
                              std::span<const ScannedTensor> tensors,
                              std::optional<int64_t> max_length) {
  Diagnosis diagnosis(tensors);
  diagnosis.nonfinite();
  diagnosis.scales();
  diagnosis.saturated(model);
  diagnosis.ignore_list(model);
  diagnosis.input_scales();
  diagnosis.fused();
  diagnosis.context(config, max_length);
  return diagnosis.take();
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
