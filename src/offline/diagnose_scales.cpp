// What may be wrong with the scales of weights, of inputs and of the KV cache.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>

#include "model/binder.h"
#include "offline/findings.h"

namespace octet::offline {
namespace {

constexpr double kShardRatio = 8;        // between scales that other engines merge
constexpr double kSharedInputRatio = 2;  // between input scales of linears with one input
constexpr double kOddScale = 100;        // between the same linear's in two layers
constexpr double kLeastRange = 1e-3, kMostRange = 1e6;    // of activations, K and V
constexpr double kLeastWeight = 1e-9, kMostWeight = 1e4;  // the largest of a linear's
// compressed-tensors lets no scale fall below FP32's epsilon.
constexpr double kFloor = 1.3e-7;
constexpr const char* kCalibrate =
    "`octet calibrate` and `octet quantize --calibration-file` on the 16-bit checkpoint";

bool is_input_scale(std::string_view name) {
  return name.ends_with(".input_scale") || name.ends_with(".activation_scale");
}

bool is_weight_scale(std::string_view name) {
  return name.ends_with(".weight_scale") || name.ends_with(".weight_scale_inv");
}

bool is_cache_scale(std::string_view name) {
  return is_scale(name) && !is_weight_scale(name) && !is_input_scale(name);
}

// Of K, V or both: those of queries and probabilities are not used.
bool is_kv_scale(std::string_view name) {
  return name.ends_with(".k_scale") || name.ends_with(".v_scale") || name.ends_with(".kv_scale") ||
         name.ends_with("k_proj.output_scale") || name.ends_with("v_proj.output_scale");
}

std::string without_numbers(std::string name) {
  std::erase_if(name, [](char c) { return c >= '0' && c <= '9'; });
  return name;
}

std::string_view before_last_dot(std::string_view name) {
  return name.substr(0, name.rfind('.'));
}

std::string_view last_of(std::string_view module) {
  return module.substr(module.rfind('.') + 1);
}

bool all_ones(const ScannedTensor& scales) {
  return scales.scan->least == 1.0f && scales.scan->most == 1.0f;
}

double largest_code(const TensorScan& codes) {
  return std::max(std::fabs(codes.least), std::fabs(codes.most));
}

// Linears that read the same input, and that some engines run as one.
constexpr std::array<std::array<std::string_view, 3>, 3> kFused = {{
    {"q_proj", "k_proj", "v_proj"},
    {"gate_proj", "up_proj", ""},
    {"w1", "w3", ""},
}};

class Scales {
 public:
  explicit Scales(Findings& found) : found_(found) {}

  void out_of_range() {
    for (const ScannedTensor& t : found_.tensors()) {
      if (!t.scan || !is_scale(t.name) || t.tensor.count() == 0) continue;
      // Below zero, a scale of the KV cache means that there is none.
      if (t.scan->most < 0.0f && is_cache_scale(t.name)) continue;
      const bool least = t.scan->least < model::kLeastScale;
      if (!least && !(t.scan->most > model::kMostScale)) continue;
      found_.add(Severity::wrong, "scale_range", t.name,
                 fmt::format("a scale of {:.3g}", least ? t.scan->least : t.scan->most),
                 "scales are positive, and neither they nor 448 times them leave FP32's range: "
                 "download the checkpoint again, or quantize the 16-bit one again");
    }
  }

  void ones() {
    for (const auto& [is_kind, what, fix] :
         {std::tuple{
              &is_weight_scale, "weight scales",
              std::string("the weights were cast, not quantized: those below 2^-6 lose "
                          "precision; quantize the 16-bit checkpoint with `octet quantize`")},
          std::tuple{&is_input_scale, "scales of inputs",
                     fmt::format("they were never measured: inputs beyond 448 saturate, and those "
                                 "below 2^-6 lose precision; run {}",
                                 kCalibrate)}}) {
      int64_t scales = 0, ones = 0;
      for (const ScannedTensor& t : found_.tensors()) {
        if (!t.scan || !is_kind(t.name) || t.tensor.count() == 0) continue;
        ++scales;
        ones += all_ones(t);
      }
      if (scales == 0 || ones < scales) continue;
      found_.add(Severity::note, "scale_ones", "", fmt::format("all {} {} are 1", scales, what),
                 fix);
      if (is_kind == &is_weight_scale) cast_ = true;
    }
  }

  // Weights that no model has, by their scales.
  void implausible_weights() {
    int64_t linears = 0;
    std::vector<const ScannedTensor*> vanishing;
    for (const ScannedTensor& t : found_.tensors()) {
      if (!t.scan || !is_weight_scale(t.name)) continue;
      ++linears;
      const ScannedTensor* codes = codes_of(t);
      const double largest = t.scan->most * (codes ? largest_code(*codes->scan) : 1.0);
      if (largest > 0 && largest < kLeastWeight) vanishing.push_back(&t);
      // 1 is the scale of cells of zeros.
      if (largest <= kMostWeight || t.scan->most == 1.0f || found_.has(t.name)) continue;
      found_.add(
          Severity::wrong, "scale_range", t.name,
          fmt::format("a scale of {:.3g} makes weights of up to {:.3g}", t.scan->most, largest),
          "no trained weight is so large: download the checkpoint again, or quantize the "
          "16-bit one again");
    }
    // One or the other may be dead in a sound model.
    const bool most = 2 * static_cast<int64_t>(vanishing.size()) > linears;
    for (const ScannedTensor* t : vanishing) {
      if (found_.has(t->name)) continue;
      found_.add(most ? Severity::wrong : Severity::note, "scale_range", t->name,
                 fmt::format("scales of at most {:.3g}: no weight reaches {:g}", t->scan->most,
                             kLeastWeight),
                 "what this linear adds vanishes: compare it with the 16-bit checkpoint by "
                 "`octet inspect --twin`, and quantize that one again if they differ");
    }
  }

  // Modules whose weight scales are unlike those of the same linear in other layers (or experts).
  void odd_modules() {
    std::map<std::string, std::vector<const ScannedTensor*>> alike;  // by name without its numbers
    for (const ScannedTensor& t : found_.tensors()) {
      if (cast_ || !t.scan || !is_weight_scale(t.name) || t.tensor.count() == 0) continue;
      if (const ScannedTensor* codes = codes_of(t); codes && largest_code(*codes->scan) == 0) {
        continue;  // whose scales say nothing
      }
      if (all_ones(t)) {
        found_.add(
            Severity::note, "scale_ones", t.name,
            fmt::format("{} 1, and other modules' are not",
                        t.tensor.count() == 1 ? "its scale is"
                                              : fmt::format("its {} scales are", t.tensor.count())),
            "it was cast, not quantized, or its scales were lost: compare it with the 16-bit "
            "checkpoint by `octet inspect --twin`, and quantize that one again");
        continue;
      }
      alike[without_numbers(std::string(before_last_dot(t.name)))].push_back(&t);
    }
    compare_layers(alike, "those of the same linear",
                   "its scales may be another tensor's, or in another unit: compare it with the "
                   "16-bit checkpoint by `octet inspect --twin`, and quantize that one again if "
                   "they differ");
  }

  void cache_scales() {
    std::map<std::string, std::vector<const ScannedTensor*>> alike;
    for (const ScannedTensor& t : found_.tensors()) {
      if (!t.scan || !is_kv_scale(t.name) || t.scan->least < 0.0f) continue;
      const double least = 448.0 * t.scan->least, most = 448.0 * t.scan->most;
      if (least >= kLeastRange && most <= kMostRange) {
        alike[without_numbers(t.name)].push_back(&t);
        continue;
      }
      if (found_.has(t.name)) continue;
      const bool small = least < kLeastRange;
      found_.add(
          Severity::wrong, "kv_scale", t.name,
          fmt::format("a scale of {:.3g}: the range of what it scales ends at {:.3g}",
                      small ? t.scan->least : t.scan->most, small ? least : most),
          fmt::format("keys and values reach from about 1 to some thousands, so that {}; "
                      "calibrate again ({}), or take the KV scales out: the cache then "
                      "chooses its own",
                      small ? "all of them saturate" : "most of them become zero", kCalibrate));
    }
    compare_layers(alike, "those",
                   fmt::format("one of them was measured wrongly, or is another "
                               "tensor's: calibrate again ({}), or take the KV "
                               "scales out",
                               kCalibrate));
  }

  void input_scales() {
    for (const ScannedTensor& t : found_.tensors()) {
      if (!is_input_scale(t.name) || !t.scan || found_.has(t.name)) continue;
      const double range = 448.0 * t.scan->most;
      if (range >= kLeastRange && range <= kMostRange) continue;
      found_.add(Severity::wrong, "input_scale", t.name,
                 fmt::format("the input's range ends at {:.3g}", range),
                 fmt::format("inputs of linears reach from about 1 to some thousands, so that {}; "
                             "calibrate again: {}",
                             range < kLeastRange ? "all of them saturate"
                                                 : "most of them become "
                                                   "zero",
                             kCalibrate));
    }
  }

  // Linears whose config says that scales of their inputs are stored.
  void missing_input_scales(const model::Model& model) {
    if (!model.config().quant) return;
    const Policy policy = model::effective_policy(model.config(), {.compute = model::Compute::fp8});
    int64_t all = 0, missing = 0;
    std::string first;
    for (const model::LinearUse& use : model.linears()) {
      const ops::Linear& linear = *use.linear;
      const LinearFormat& format = resolve(policy, linear.role, linear.name).format;
      if (!linear.quant || !format.input || format.when != InputScale::calibrated) continue;
      ++all;
      if (found_.find(linear.name + ".input_scale")) continue;
      if (found_.find(linear.name + ".activation_scale")) continue;
      if (++missing == 1) first = linear.name;
    }
    if (missing == 0) return;
    found_.add(Severity::wrong, "input_scale", first,
               fmt::format("{} of {} linears lack the static scale of their input that "
                           "quantization_config speaks of",
                           missing, all),
               fmt::format("it cannot be served so: calibrate ({}), or let inputs be scaled at run "
                           "time (\"activation_scheme\": \"dynamic\"; in compressed-tensors' "
                           "input_activations, \"dynamic\": true)",
                           kCalibrate));
  }

  // Scales of one value a tensor, of linears that read the same input.
  void shards_apart() {
    for (const auto& group : kFused) {
      compare(group, ".weight_scale", kShardRatio, "fused_scales",
              "nothing to do here; for such an engine, quantize the 16-bit checkpoint with a scale "
              "per channel or block: `octet quantize --scheme fp8_channel`",
              [](double ratio) {
                return fmt::format(
                    "scales {:.3g} times apart beside each other: Octet keeps one each; an engine "
                    "that merges them to the largest loses {:.1f} bits of the smallest",
                    ratio, std::log2(ratio));
              });
      compare(
          group, ".input_scale", kSharedInputRatio, "input_scale",
          fmt::format("one of them was measured on other data: calibrate again ({})", kCalibrate),
          [](double ratio) {
            return fmt::format(
                "input scales {:.3g} times apart of linears that read the same input", ratio);
          });
    }
  }

  // Codes that leave most of their range unused: the scale was chosen for larger values. Where
  // shards of one input have the same scale, for the largest of them: they were merged.
  void unused_range() {
    std::map<std::string, std::vector<const ScannedTensor*>> shards;  // by parent, kind and scale
    std::vector<const ScannedTensor*> loose;
    for (const ScannedTensor& t : found_.tensors()) {
      const ScannedTensor* scales = t.name.ends_with(".weight") ? scales_of(t) : nullptr;
      if (!scales || !t.scan || !is_code(t.tensor.type) || all_ones(*scales)) continue;
      if (largest_code(*t.scan) == 0 || scales->scan->most < kFloor) continue;
      if (share_of(t) * kShardRatio <= 1) loose.push_back(&t);
      const std::string_view module = before_last_dot(t.name);
      for (size_t kind = 0; kind < kFused.size(); ++kind) {
        if (std::ranges::find(kFused[kind], last_of(module)) == kFused[kind].end()) continue;
        if (scales->tensor.count() != 1) continue;
        shards[fmt::format("{} {} {}", before_last_dot(module), kind, scales->scan->most)]
            .push_back(&t);
      }
    }
    const ScannedTensor* worst = nullptr;
    int64_t merged = 0;
    for (const auto& [key, group] : shards) {
      const auto [least, most] = std::ranges::minmax_element(group, {}, share_of_pointer);
      if (group.size() < 2 || share_of(**most) < 0.5 || share_of(**least) * kShardRatio > 1) {
        continue;
      }
      ++merged;
      if (!worst || share_of(**least) < share_of(*worst)) worst = *least;
      for (const ScannedTensor* shard : group) std::erase(loose, shard);
    }
    if (worst) {
      found_.add(
          Severity::note, "merged_shards", std::string(before_last_dot(worst->name)),
          fmt::format("it has the same scale as the linears beside it, and its codes reach "
                      "{:.3g} of {:g}: shards far apart were merged to the scale of the largest "
                      "(groups merged so: {})",
                      largest_code(*worst->scan), largest_of(*worst), merged),
          "its smallest weights are lost, and no scale brings them back: quantize the 16-bit "
          "checkpoint again with a scale each, or one per channel or block, as `octet "
          "quantize --scheme fp8_channel` does");
    }
    if (loose.empty()) return;
    const ScannedTensor& least = **std::ranges::min_element(loose, {}, share_of_pointer);
    found_.add(Severity::note, "scale_loose", std::string(before_last_dot(least.name)),
               fmt::format("its codes reach {:.3g} of {:g} ({} linears have such scales)",
                           largest_code(*least.scan), largest_of(least), loose.size()),
               "its scale was chosen for larger weights, and its small ones are lost: quantize the "
               "16-bit checkpoint again with scales from the weights' own range");
  }

 private:
  static double largest_of(const ScannedTensor& codes) {
    return max_of(code_of(codes.tensor.type));
  }
  static double share_of(const ScannedTensor& codes) {
    return largest_code(*codes.scan) / largest_of(codes);
  }
  static double share_of_pointer(const ScannedTensor* codes) { return share_of(*codes); }

  // The scanned codes of a scale tensor; nullptr where there are none.
  const ScannedTensor* codes_of(const ScannedTensor& scales) const {
    const ScannedTensor* codes = found_.find(std::string(before_last_dot(scales.name)) + ".weight");
    return codes && codes->scan && is_code(codes->tensor.type) ? codes : nullptr;
  }

  const ScannedTensor* scales_of(const ScannedTensor& weight) const {
    for (const char* suffix : {"_scale", "_scale_inv"}) {
      const ScannedTensor* scales = found_.find(weight.name + suffix);
      if (scales && scales->scan && scales->tensor.count() > 0) return scales;
    }
    return nullptr;
  }

  template <class Value>
  static double median(const std::vector<const ScannedTensor*>& group, Value value) {
    std::vector<double> values;
    for (const ScannedTensor* t : group) values.push_back(value(t));
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::ranges::nth_element(values, middle);
    return *middle;
  }

  // Notes those tensors of each group whose scales are far from the group's usual ones.
  void compare_layers(const std::map<std::string, std::vector<const ScannedTensor*>>& alike,
                      std::string_view of, const std::string& fix) {
    for (const auto& [name, group] : alike) {
      if (group.size() < 3) continue;  // else nobody can tell which of them is odd
      const double usual =
          median(group, [](const ScannedTensor* t) { return t->scan->mean_exponent; });
      const double usual_most =
          median(group, [](const ScannedTensor* t) { return static_cast<double>(t->scan->most); });
      for (const ScannedTensor* t : group) {
        const double ratio = std::exp2(t->scan->mean_exponent - usual);
        if (ratio <= kOddScale && ratio >= 1 / kOddScale) continue;
        // Small in the mean alone: some of its rows are dead. (1 is the scale of cells of zeros.)
        if (ratio < 1 && t->scan->most != 1.0f && t->scan->most * kOddScale > usual_most) continue;
        if (found_.has(t->name)) continue;
        found_.add(Severity::note, "scale_apart", t->name,
                   fmt::format("its scales are about {:.3g} times {} in other layers", ratio, of),
                   fix);
      }
    }
  }

  // The worst ratio between scales of one value under one parent.
  template <class Say>
  void compare(const std::array<std::string_view, 3>& group, std::string_view suffix,
               double allowed, std::string_view check, const std::string& fix, Say say) {
    struct Range {
      double least = 0, most = 0;
      std::string where;
    };
    std::map<std::string, Range, std::less<>> ranges;
    for (const ScannedTensor& t : found_.tensors()) {
      if (!t.scan || !t.name.ends_with(suffix) || t.tensor.count() != 1) continue;
      const std::string_view module = before_last_dot(t.name);
      if (found_.has(t.name) || std::ranges::find(group, last_of(module)) == group.end()) continue;
      Range& range = ranges[std::string(before_last_dot(module))];
      const bool first = range.where.empty();
      range.least = first ? t.scan->least : std::min<double>(range.least, t.scan->least);
      range.most = first ? t.scan->most : std::max<double>(range.most, t.scan->most);
      if (first) range.where = module;
    }
    const Range* worst = nullptr;
    int64_t count = 0;
    for (const auto& [parent, range] : ranges) {
      if (!(range.least > 0) || range.most / range.least < allowed) continue;
      ++count;
      if (!worst || range.most / range.least > worst->most / worst->least) worst = &range;
    }
    if (!worst) return;
    found_.add(
        Severity::note, check, worst->where,
        fmt::format("{} ({} of {} groups)", say(worst->most / worst->least), count, ranges.size()),
        fix);
  }

  Findings& found_;
  bool cast_ = false;  // all weights
};

}  // namespace

bool is_scale(std::string_view name) {
  return name.ends_with("_scale") || name.ends_with("_scale_inv");
}

void diagnose_scales(const model::Model& model, Findings& found) {
  Scales scales(found);
  scales.out_of_range();
  scales.ones();
  scales.implausible_weights();
  scales.odd_modules();
  scales.missing_input_scales(model);
  scales.input_scales();
  scales.cache_scales();
  scales.shards_apart();
  scales.unused_range();
}

}  // namespace octet::offline
