#include "offline/calibrated_scales.h"

#include <fmt/format.h>

#include <variant>

#include "base/error.h"
#include "model/identity.h"

namespace octet::offline {
namespace {

// Of one side of a layer.
std::vector<float> scales_of(const std::vector<Range>& heads, const ScaleChoice& choice) {
  std::vector<float> scales;
  Range all;
  for (const Range& head : heads) {
    if (choice.kv_per_head) {
      scales.push_back(scale_of(head, choice.kv, choice.delayed, Code::e4m3));
    } else {
      all.merge(head);
    }
  }
  if (!choice.kv_per_head) scales = {scale_of(all, choice.kv, choice.delayed, Code::e4m3)};
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
  if (!gqa) return scales;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string attention = fmt::format("model.layers.{}.self_attn", layer);
    const auto found = calibration.caches.find(attention);
    const bool there = found != calibration.caches.end();
    const size_t heads = there ? found->second.k.size() : 0;
    if (heads != static_cast<size_t>(gqa->kv_heads) || found->second.v.size() != heads) {
      throw Error(
          {.what = "the calibration lacks K and V of a layer",
           .where = fmt::format("--calibration-file, \"caches\", '{}'", attention),
           .value = fmt::format("{} heads", heads),
           .accepted = fmt::format("{} heads in each of {} layers", gqa->kv_heads, config.layers),
           .fix = "calibrate this model"});
    }
    scales[attention + ".k_scale"] = scales_of(found->second.k, choice);
    scales[attention + ".v_scale"] = scales_of(found->second.v, choice);
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
