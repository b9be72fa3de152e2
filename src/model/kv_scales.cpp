#include "model/kv_scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

namespace octet::model {
namespace {

// All that writers called the scale of a side, 'k' or 'v'; the first that is there holds.
std::array<std::string, 5> names_of(const std::string& attention, char side) {
  return {attention + ".kv_scale", fmt::format("{0}.{1}_proj.{1}_scale", attention, side),
          fmt::format("{}.{}_scale", attention, side),
          fmt::format("{}.attn.{}_scale", attention, side),
          fmt::format("{}.{}_proj.output_scale", attention, side)};
}

std::string channels_of(const std::string& attention, char side) {
  return fmt::format("{}.{}_channel_scale", attention, side);
}

constexpr const char* kLatentChannels = ".latent_channel_scale";

class KvScaledSource final : public WeightSource {
 public:
  KvScaledSource(std::shared_ptr<const WeightSource> source,
                 std::map<std::string, std::vector<float>> scales, std::string origin)
      : source_(std::move(source)), scales_(std::move(scales)), origin_(std::move(origin)) {
    for (auto& [name, values] : scales_) {
      const std::string attention = name.substr(0, name.rfind('.'));
      for (const char side : {'k', 'v'}) {
        const auto hidden = names_of(attention, side);
        hidden_.insert(hidden.begin(), hidden.end());
        hidden_.insert(channels_of(attention, side));
      }
      hidden_.insert(attention + kLatentChannels);
      const auto count = static_cast<int64_t>(values.size());
      tensors_[name] = Tensor(values.data(), DType::f32, {count});
    }
  }

  const Tensor* find(std::string_view name, const Shape& expected) const override {
    if (const auto found = tensors_.find(name); found != tensors_.end()) return &found->second;
    return hidden_.contains(name) ? nullptr : source_->find(name, expected);
  }
  Tensor read(std::string_view name, const Tensor& found) const override {
    return tensors_.contains(name) ? found : source_->read(name, found);
  }
  void release(std::string_view name) const override {
    if (!tensors_.contains(name)) source_->release(name);
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> names = source_->names();
    std::erase_if(names, [&](const std::string& name) { return hidden_.contains(name); });
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return names;
  }
  std::string locate(std::string_view name) const override {
    return tensors_.contains(name) ? origin_ : source_->locate(name);
  }

 private:
  std::shared_ptr<const WeightSource> source_;
  std::map<std::string, std::vector<float>> scales_;
  std::string origin_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  std::set<std::string, std::less<>> hidden_;
};

}  // namespace

std::shared_ptr<const WeightSource> with_kv_scales(std::shared_ptr<const WeightSource> source,
                                                   std::map<std::string, std::vector<float>> scales,
                                                   std::string origin) {
  return std::make_shared<KvScaledSource>(std::move(source), std::move(scales), std::move(origin));
}

KvScaleBinder::Side KvScaleBinder::find_side(const std::string& attention, char side,
                                             int64_t kv_heads) {
  for (const std::string& name : names_of(attention, side)) {
    if (!binder_.has(name, {1})) continue;
    std::vector<float> values = binder_.host_values(name, kv_heads);
    const bool negative = std::ranges::any_of(values, [](float x) { return x < 0.0f; });
    if (negative) {
      if (not_loaded_.empty()) not_loaded_ = name;
      continue;
    }
    for (const float value : values) {
      if (value >= kLeastScale && value <= kMostScale) continue;
      throw Error({.what = "a scale of the KV cache is not a positive number of FP32's range",
                   .where = fmt::format("tensor '{}' in {}", name, binder_.locate(name)),
                   .value = fmt::format("{}", value),
                   .accepted = fmt::format("{:.3g} to {:.3g}, or a negative one for \"none\"",
                                           kLeastScale, kMostScale),
                   .fix = "calibrate the checkpoint again, or take its KV scales out"});
    }
    all_ones_ &= std::ranges::all_of(values, [](float x) { return x == 1.0f; });
    return {name, std::move(values)};
  }
  return {};
}

ChannelScales KvScaleBinder::channels(const std::string& name, int64_t heads, int64_t dim) {
  std::vector<float> scales = binder_.host_values(name, heads * dim);
  for (const float scale : scales) {
    int exponent = 0;
    if (scale >= kLeastScale && scale <= kMostScale && std::frexp(scale, &exponent) == 0.5f) {
      continue;
    }
    throw Error(
        {.what = "a scale of the KV cache's channels is no power of two",
         .where = fmt::format("tensor '{}' in {}", name, binder_.locate(name)),
         .value = fmt::format("{}", scale),
         .accepted = fmt::format("powers of two from {:.3g} to {:.3g}", kLeastScale, kMostScale),
         .fix = "calibrate the checkpoint again, or take these scales out"});
  }
  std::vector<float> inverse = scales;
  for (float& scale : inverse) scale = 1.0f / scale;
  return {binder_.device_values(std::move(scales)).reshape({heads, dim}),
          binder_.device_values(std::move(inverse)).reshape({heads, dim})};
}

void KvScaleBinder::bind_latent(const std::string& attention, int64_t kv_lora) {
  ++layers_;
  const std::string name = attention + kLatentChannels;
  if (!binder_.has(name, {kv_lora})) return;
  scales_.channels.push_back({.k = channels(name, 1, kv_lora), .v = {}});
}

void KvScaleBinder::bind(const std::string& attention, int64_t kv_heads, int64_t head_dim) {
  ++layers_;
  const std::string k_name = channels_of(attention, 'k'), v_name = channels_of(attention, 'v');
  const Shape shape{kv_heads, head_dim};
  if (binder_.has(k_name, shape) || binder_.has(v_name, shape)) {
    scales_.channels.push_back(
        {channels(k_name, kv_heads, head_dim), channels(v_name, kv_heads, head_dim)});
  }
  const Side k = find_side(attention, 'k', kv_heads), v = find_side(attention, 'v', kv_heads);
  if (!k && !v) return;
  if ((!k || !v) && one_sided_.empty()) one_sided_ = k ? k.name : v.name;
  scales_.k.push_back(binder_.device_values(k ? k.values : v.values));
  scales_.v.push_back(binder_.device_values(v ? v.values : k.values));
}

KvScales KvScaleBinder::finish(std::vector<std::string>& notices) {
  if (!not_loaded_.empty()) {
    notices.push_back(fmt::format(
        "KV scales below zero mean \"not loaded\" and are passed over: '{}' is the first",
        not_loaded_));
  }
  if (const auto channels = static_cast<int64_t>(scales_.channels.size());
      channels != 0 && channels != layers_) {
    notices.push_back(
        fmt::format("scales of the KV cache's channels are stored for {} of {} layers: ignored",
                    channels, layers_));
    scales_.channels.clear();
  }
  const auto found = static_cast<int64_t>(scales_.k.size());
  const bool modelopt =
      binder_.config().quant && binder_.config().quant->schema == QuantConfig::Schema::modelopt;
  if (found == 0) return std::move(scales_);
  if (found != layers_) {
    notices.push_back(fmt::format(
        "KV scales are stored for {} of {} layers: ignored, block groups choose the scales", found,
        layers_));
    scales_.k.clear();
    scales_.v.clear();
    return std::move(scales_);
  }
  if (!one_sided_.empty()) {
    notices.push_back(fmt::format(
        "only one of K and V has a stored scale, which is used for both: '{}' is the first",
        one_sided_));
  }
  if (all_ones_) {
    notices.emplace_back(
        modelopt ? "all KV scales are 1: ModelOpt lets none fall below 1, so this is a calibrated "
                   "value"
                 : "all KV scales are 1, as exports without calibration write them: if K or V "
                   "exceeds 448, it saturates; `octet eval compare` shows what that costs");
  }
  return std::move(scales_);
}

}  // namespace octet::model
