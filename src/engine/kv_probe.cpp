#include "engine/kv_probe.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "numerics/fp8.h"
#include "numerics/half.h"

namespace octet::engine {
namespace {

struct Count {
  uint64_t saturated = 0, zeros = 0, not_finite = 0;
  double absmax = 0;  // of the finite ones, without their scale
};

template <Code F>
Count count_codes(const Tensor& codes) {
  std::array<uint64_t, 256> seen{};
  const auto* code = codes.as<uint8_t>();
  for (int64_t i = 0; i < codes.count(); ++i) ++seen[code[i]];
  Count count;
  for (int sign : {0x00, 0x80}) {
    for (int magnitude = 0; magnitude < 0x80; ++magnitude) {
      const uint64_t n = seen[static_cast<size_t>(sign | magnitude)];
      if (n == 0) continue;
      if (magnitude > Fp8Traits<F>::max_code) {
        count.not_finite += n;
        continue;
      }
      if (magnitude == 0) count.zeros += n;
      if (magnitude == Fp8Traits<F>::max_code) count.saturated += n;
      count.absmax = std::max<double>(count.absmax, fp8_decode<F>(static_cast<uint8_t>(magnitude)));
    }
  }
  return count;
}

template <class Value>
Count count_values(int64_t size, Value value) {
  Count count;
  for (int64_t i = 0; i < size; ++i) {
    const float x = value(i);
    if (!std::isfinite(x)) {
      ++count.not_finite;
      continue;
    }
    count.zeros += x == 0;
    count.absmax = std::max<double>(count.absmax, std::fabs(x));
  }
  return count;
}

Count count_of(const Tensor& codes) {
  switch (codes.type) {
    case DType::e4m3:
      return count_codes<Code::e4m3>(codes);
    case DType::e5m2:
      return count_codes<Code::e5m2>(codes);
    case DType::i8:
      return count_values(codes.count(),
                          [&](int64_t i) { return static_cast<float>(codes.as<int8_t>()[i]); });
    case DType::bf16:
      return count_values(codes.count(), [&](int64_t i) { return to_float(codes.as<bf16>()[i]); });
    default:
      return count_values(codes.count(), [&](int64_t i) { return codes.as<float>()[i]; });
  }
}

double largest(DType type) {
  if (type == DType::e4m3) return Fp8Traits<Code::e4m3>::max;
  if (type == DType::e5m2) return Fp8Traits<Code::e5m2>::max;
  if (type == DType::i8) return max_of(Code::i8);
  return 0;  // a range that nobody fills
}

// What one layer has: codes and scales of all blocks.
struct Source {
  const char* part;
  Tensor codes, scales;
};

std::vector<Source> sources_of(const model::KvStore& kv, int32_t layer) {
  const ops::KvLayerFormat& format = kv.layout().layers[static_cast<size_t>(layer)];
  if (format.kind == ops::KvLayerFormat::Kind::gqa) {
    const ops::GqaCache& cache = kv.gqa(layer);
    return {{"k", cache.k, cache.k_scale}, {"v", cache.v, cache.v_scale}};
  }
  const ops::MlaCache& cache = kv.mla(layer);
  return {{"latent", cache.latent, cache.latent_scale}};
}

size_t block_bytes(const Tensor& of_all) {
  return of_all ? static_cast<size_t>(of_all.slice(0, 1).bytes()) : 0;
}

}  // namespace

KvProbe::KvProbe(ops::Backend& backend, const model::KvStore& kv) : backend_(backend), kv_(kv) {
  const auto layers = static_cast<int32_t>(kv.layout().layers.size());
  group_layers_ = (layers + kGroups - 1) / kGroups;
  size_t bytes = 0;
  for (int32_t layer = 0; layer < layers; ++layer) {
    size_t of_layer = 0;
    for (const Source& source : sources_of(kv, layer)) {
      of_layer += block_bytes(source.codes) + block_bytes(source.scales);
      newest_.emplace_back();
      if (layer % group_layers_ == 0) {
        groups_.push_back({.first_layer = layer,
                           .last_layer = std::min(layers, layer + group_layers_) - 1,
                           .part = source.part});
      }
    }
    bytes = std::max(bytes, of_layer);
  }
  host_ = backend.alloc_host(bytes, "samples of the KV cache");
}

bool KvProbe::is_fp8() const {
  return octet::is_fp8(kv_.layout().layers.front().type);
}

void KvProbe::after(const sched::StepPlan& plan) {
  if (++steps_ % kSteps != 0) return;
  if (!copied_.empty()) {
    backend_.wait(point_);  // long done
    for (const Part& part : copied_) count(part);
    copied_.clear();
  }
  // A block that is full: of one that is being filled, the rest holds what was there before.
  for (const sched::Slice& slice : plan.slices) {
    const int64_t full = (slice.first + slice.count) / kv_.layout().block_tokens;
    if (full == 0) continue;
    enqueue(slice.blocks[static_cast<size_t>(full - 1)]);
    return;
  }
}

void KvProbe::enqueue(int32_t block) {
  size_t offset = 0;
  const auto take = [&](const Tensor& of_all) {
    if (!of_all) return Tensor();
    const Tensor device = of_all.slice(block, 1);
    const Tensor host = host_.tensor(device.type, device.shape, offset);
    offset += static_cast<size_t>(device.bytes());
    backend_.copy(device, host);
    return host;
  };
  const int32_t layer = next_layer_;
  next_layer_ = (layer + 1) % static_cast<int32_t>(kv_.layout().layers.size());
  int32_t index = 0;
  // Scales first: what comes before them would leave them unaligned.
  for (const Source& source : sources_of(kv_, layer)) {
    const Tensor scales = take(source.scales);
    copied_.push_back({.codes = {}, .scales = scales, .layer = layer, .index = index++});
  }
  index = 0;
  for (const Source& source : sources_of(kv_, layer)) {
    copied_[static_cast<size_t>(index++)].codes = take(source.codes);
  }
  point_ = backend_.record();
}

void KvProbe::count(const Part& part) {
  const Count found = count_of(part.codes);
  double scale = 1;
  if (part.scales) {
    const auto* begin = part.scales.as<float>();
    scale = *std::max_element(begin, begin + part.scales.count());
  }
  const std::scoped_lock lock(mutex_);
  const auto parts = static_cast<int32_t>(newest_.size() / kv_.layout().layers.size());
  KvNumbers& group = groups_[static_cast<size_t>(part.layer / group_layers_ * parts + part.index)];
  group.values += static_cast<uint64_t>(part.codes.count());
  group.saturated += found.saturated;
  group.zeros += found.zeros;
  group.not_finite += found.not_finite;
  Layer& newest = newest_[static_cast<size_t>(part.layer * parts + part.index)];
  newest.scale = scale;
  const double most = largest(part.codes.type);
  newest.range_used = most > 0 ? found.absmax / most : 0;
  group.scale = group.range_used = 0;
  for (int32_t layer = group.first_layer; layer <= group.last_layer; ++layer) {
    const Layer& one = newest_[static_cast<size_t>(layer * parts + part.index)];
    group.scale = std::max(group.scale, one.scale);
    group.range_used = std::max(group.range_used, one.range_used);
  }
}

std::vector<KvNumbers> KvProbe::numbers() const {
  const std::scoped_lock lock(mutex_);
  return groups_;
}

}  // namespace octet::engine
