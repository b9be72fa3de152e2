#include "offline/calibrated_scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "base/error.h"
#include "model/identity.h"
#include "numerics/attention_rule.h"
#include "numerics/quantize.h"

namespace octet::offline {
namespace {

using attention_rule::kLatentGroup;

// A calibration of `attention` that is not what the model's cache needs.
Error lacking(const std::string& attention, std::string what, std::string value,
              std::string accepted) {
  return Error({.what = std::move(what),
                .where = fmt::format("--calibration-file, \"caches\", '{}'", attention),
                .value = std::move(value),
                .accepted = std::move(accepted),
                .fix = "calibrate this model"});
}

// 2^-n for each channel, as far below the largest of its `part` neighbours as its largest value is,
// so that both use the range of codes alike. A channel of zeros says nothing, and one that is
// smaller than kLeast may turn out larger.
std::vector<float> channel_scales(const std::vector<float>& absmax, size_t part,
                                  const std::string& attention, size_t expected) {
  constexpr float kLeast = 0x1p-8f;
  if (absmax.size() != expected) {
    throw lacking(attention, "the calibration lacks the largest values of channels",
                  fmt::format("{} channels", absmax.size()), fmt::format("{} channels", expected));
  }
  std::vector<float> scales;
  for (size_t i = 0; i < absmax.size(); ++i) {
    const auto first = absmax.begin() + static_cast<std::ptrdiff_t>(i / part * part);
    const auto count = static_cast<std::ptrdiff_t>(std::min(part, absmax.size() - i / part * part));
    const float most = *std::max_element(first, first + count);
    scales.push_back(absmax[i] > 0 ? std::max(ceil_pow2(absmax[i] / most), kLeast) : 1.0f);
  }
  return scales;
}

// Of a layer's latent, by dimension.
std::vector<float> latent_scales(const CacheRange& cache, const model::Mla& mla,
                                 const ScaleChoice& choice, const std::string& attention) {
  const auto group = static_cast<size_t>(kLatentGroup), width = static_cast<size_t>(mla.kv_lora);
  const size_t groups = (width + group - 1) / group;
  if (cache.latent.size() != groups) {
    throw lacking(attention, "the calibration lacks the latent of a layer",
                  fmt::format("{} groups", cache.latent.size()), fmt::format("{} groups", groups));
  }
  std::vector<float> scales(width, 1.0f);
  if (choice.granularity == KvGranularity::channel) {
    scales = channel_scales(cache.latent_channels, group, attention, width);
  }
  for (size_t i = 0; i < width; ++i) {
    scales[i] *=
        ceil_pow2(scale_of(cache.latent[i / group], choice.kv, choice.delayed, Code::e4m3));
  }
  return scales;
}

void refuse_granularity(const ScaleChoice& choice, bool latent, const std::string& architecture) {
  const bool fits = choice.granularity == KvGranularity::channel ||
                    (choice.granularity == KvGranularity::group) == latent;
  if (fits || (latent && choice.granularity == KvGranularity::tensor)) return;
  throw Error(
      {.what = latent ? "a latent has no heads" : "K and V have no groups as a latent has",
       .where = "--kv-scale-granularity",
       .value = fmt::format("{}, {}", latent ? "head" : "group", architecture),
       .accepted = latent ? "group or channel; without the flag scales are chosen token by token"
                          : "tensor, head or channel"});
}

// Of one side of a layer.
std::vector<float> scales_of(const std::vector<Range>& heads, const ScaleChoice& choice) {
  std::vector<float> scales;
  Range all;
  for (const Range& head : heads) {
    if (choice.granularity != KvGranularity::tensor) {
      scales.push_back(scale_of(head, choice.kv, choice.delayed, Code::e4m3));
    } else {
      all.merge(head);
    }
  }
  if (choice.granularity == KvGranularity::tensor)
    scales = {scale_of(all, choice.kv, choice.delayed, Code::e4m3)};
  return scales;
}

}  // namespace

void require_calibration_of(const Calibration& calibration, const std::string& path,
                            const ScaleChoice& choice) {
  if (calibration.samples < calibration.samples_in_all) {
    throw Error(
        {.what = "the calibration was interrupted",
         .where = "--calibration-file",
         .value = fmt::format("{} of {} samples", calibration.samples, calibration.samples_in_all),
         .accepted = "a finished calibration",
         .fix = "run `octet calibrate` again: it goes on where it was"});
  }
  if (choice.any_model) return;
  const std::string hash = model::identity_of(path);
  if (hash == calibration.model_hash) return;
  throw Error(
      {.what = "the calibration is of another model",
       .where = "--calibration-file",
       .value = fmt::format("model_hash {} (of '{}')", calibration.model_hash, calibration.model),
       .accepted = hash,
       .fix = "calibrate this model, or pass --any-calibration if you know that they have "
              "the same activations"});
}

std::map<std::string, std::vector<float>> kv_scales(const Calibration& calibration,
                                                    const model::ModelConfig& config,
                                                    const ScaleChoice& choice) {
  std::map<std::string, std::vector<float>> scales;
  const auto* const gqa = std::get_if<model::Gqa>(&config.attention);
  refuse_granularity(choice, !gqa, config.architecture);
  if (!gqa && choice.granularity == KvGranularity::tensor) return scales;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string attention = fmt::format("model.layers.{}.self_attn", layer);
    const auto found = calibration.caches.find(attention);
    static const CacheRange none;
    const CacheRange& cache = found == calibration.caches.end() ? none : found->second;
    if (!gqa) {
      scales[attention + ".latent_channel_scale"] =
          latent_scales(cache, std::get<model::Mla>(config.attention), choice, attention);
      continue;
    }
    const size_t heads = cache.k.size();
    if (heads != static_cast<size_t>(gqa->kv_heads) || cache.v.size() != heads) {
      throw lacking(attention, "the calibration lacks K and V of a layer",
                    fmt::format("{} heads", heads),
                    fmt::format("{} heads in each of {} layers", gqa->kv_heads, config.layers));
    }
    scales[attention + ".k_scale"] = scales_of(cache.k, choice);
    scales[attention + ".v_scale"] = scales_of(cache.v, choice);
    if (choice.granularity != KvGranularity::channel) continue;
    const auto dim = static_cast<size_t>(gqa->head_dim);
    scales[attention + ".k_channel_scale"] =
        channel_scales(cache.k_channels, dim, attention, heads * dim);
    scales[attention + ".v_channel_scale"] =
        channel_scales(cache.v_channels, dim, attention, heads * dim);
  }
  return scales;
}

float input_scale(const Calibration& calibration, const std::string& module, Code code,
                  const ScaleChoice& choice) {
  const InputRange* const input = calibration.input_of(module);
  if (input && input->range.values.count() > 0) {
    return scale_of(input->range, choice.input, choice.delayed, code);
  }
  throw Error({.what = "the calibration never saw what enters a linear",
               .where = fmt::format("--calibration-file, \"inputs\", '{}'", module),
               .accepted = "every linear that is quantized with a fixed scale of its input",
               .fix = "calibrate on more samples (an expert may be chosen rarely), or keep the "
                      "linear in 16 bits with a --policy row"});
}

}  // namespace octet::offline
