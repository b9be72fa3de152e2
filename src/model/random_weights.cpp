#include "model/random_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/hash.h"
#include "base/json.h"
#include "base/philox.h"
#include "model/quant_schema.h"
#include "numerics/code.h"
#include "numerics/exact_math.h"
#include "numerics/half.h"

namespace octet::model {
namespace {

// A tensor is filled with slices of a table, from random places: drawing every value would take
// minutes for a model of tens of gigabytes, copying runs at the speed of memory. The table fits a
// second-level cache and is large enough that no two rows of a matrix are alike.
constexpr size_t kTableValues = size_t{1} << 20;
constexpr size_t kSlice = size_t{64} << 10;
constexpr size_t kSliceAlignment = 64;  // of its place in the table: a multiple of every type

// Blocks of normal weights have their largest value near four deviations, which the quantizer puts
// at the largest code.
constexpr float code_deviation(Code code) {
  return max_of(code) / 4.0f;
}
constexpr float kCut = 4.0f;

constexpr size_t kSlabBytes = size_t{256} << 20;

// Normal deviates by Box and Muller, with our own log and sine: the same bits on every machine.
std::vector<float> normal_values(uint64_t seed) {
  std::vector<float> values(kTableValues);
  for (size_t i = 0; i < values.size(); i += 2) {
    const Philox4 bits = philox(seed, /*stream=*/0, i);
    const double radius = std::sqrt(-2.0 * exact::log(double{uniform_from(bits[0])}));
    const exact::SinCos angle =
        exact::sin_cos(2.0 * std::numbers::pi * double{uniform_from(bits[1])});
    values[i] = std::clamp(static_cast<float>(radius * angle.cos), -kCut, kCut);
    values[i + 1] = std::clamp(static_cast<float>(radius * angle.sin), -kCut, kCut);
  }
  return values;
}

template <typename T, typename Convert>
std::vector<std::byte> make_table(const std::vector<float>& normal, float mean, float deviation,
                                  Convert convert) {
  std::vector<std::byte> table(normal.size() * sizeof(T));
  for (size_t i = 0; i < normal.size(); ++i) {
    const T value = convert(mean + deviation * normal[i]);
    std::memcpy(table.data() + i * sizeof(T), &value, sizeof(T));
  }
  return table;
}

uint64_t hash_of_name(std::string_view name) {
  Hash64 hash;
  hash.add(name);
  return hash.value();
}

// A number below `limit` from 64 random bits.
size_t below(size_t limit, const Philox4& bits, size_t which) {
  const uint64_t wide = uint64_t{bits[2 * which]} << 32 | bits[2 * which + 1];
  return static_cast<size_t>(wide % limit);
}

std::string_view module_of(std::string_view name, std::string_view suffix) {
  return name.substr(0, name.size() - suffix.size());
}

}  // namespace

ModelConfig with_scheme(ModelConfig config, const LinearFormat& format) {
  std::vector<std::string> ignored = {"lm_head"};
  const auto* moe = std::get_if<MoeFfn>(&config.ffn);
  for (int64_t i = 0; i < config.layers; ++i) {
    if (!config.is_moe_layer(i)) continue;
    ignored.push_back(fmt::format("model.layers.{}.{}", i, moe->router_name));
  }
  const Json written = parse_json(dump_json(write_quant_config(format, ignored)), "with_scheme");
  config.quant = read_quant_config(written, "with_scheme");
  return config;
}

RandomWeights::RandomWeights(const ModelConfig& config, RandomOptions options)
    : quant_(config.quant),
      tied_embeddings_(config.tied_embeddings),
      options_(options),
      normal_(normal_values(options.seed)) {}

// The linears of the FP8 data path, in the naming of all families: everything else that is called
// `.weight` (embedding, head, router, norms) stays high in every schema.
bool RandomWeights::is_quantized(std::string_view name) const {
  const std::string_view module = module_of(name, ".weight");
  const std::string_view last = module.substr(module.rfind('.') + 1);
  const bool linear =
      last.find("_proj") != last.npos || last == "w1" || last == "w2" || last == "w3";
  if (!quant_ || !linear || ignores(*quant_, module)) return false;
  const QuantGroup* group = group_of(*quant_, module);
  return group && group->format.weight;
}

std::optional<RandomWeights::Kind> RandomWeights::kind_of(std::string_view name,
                                                          const Shape& shape) const {
  if (tied_embeddings_ && name == "lm_head.weight") return std::nullopt;
  for (const char* suffix : {".k_scale", ".v_scale", ".kv_scale", ".q_scale", ".output_scale",
                             ".qweight", ".weight_packed", ".activation_scale", "_channel_scale"}) {
    if (name.ends_with(suffix)) return std::nullopt;
  }
  // Inputs of linears are normed: their largest value is near five.
  if (name.ends_with(".input_scale")) return Kind{DType::f32, 5.0f / 448.0f, 0};
  if (quant_ && name.ends_with(quant_->scale_suffix)) {
    const auto weight =
        tensors_.find(fmt::format("{}.weight", module_of(name, quant_->scale_suffix)));
    const int64_t in = weight == tensors_.end() ? 4096 : weight->second.cols();
    const QuantGroup* group = group_of(*quant_, module_of(name, quant_->scale_suffix));
    if (!group || !group->format.weight) return std::nullopt;
    const float scale =
        1.0f / (code_deviation(group->format.weight->code) * std::sqrt(static_cast<float>(in)));
    return Kind{DType::f32, scale, scale / 8};
  }
  if (name.ends_with("norm.weight")) return Kind{DType::bf16, 1, 0.1f};
  if (!name.ends_with(".weight")) return Kind{DType::f32, 0, 0.02f};  // biases
  if (is_quantized(name)) {
    const Code code = group_of(*quant_, module_of(name, ".weight"))->format.weight->code;
    return Kind{dtype_of(code), 0, code_deviation(code)};
  }
  return Kind{DType::bf16, 0,
              1.0f / std::sqrt(static_cast<float>(shape.rank ? shape[shape.rank - 1] : 1))};
}

const std::vector<std::byte>& RandomWeights::table(const Kind& kind) const {
  const auto found = tables_.find(kind);
  if (found != tables_.end()) return found->second;
  const auto make = [&]() -> std::vector<std::byte> {
    switch (kind.type) {
      case DType::e4m3:
        return make_table<uint8_t>(normal_, kind.mean, kind.deviation, fp8_encode<Code::e4m3>);
      case DType::e5m2:
        return make_table<uint8_t>(normal_, kind.mean, kind.deviation, fp8_encode<Code::e5m2>);
      case DType::i8:
        return make_table<uint8_t>(normal_, kind.mean, kind.deviation, int8_encode);
      case DType::bf16:
        return make_table<bf16>(normal_, kind.mean, kind.deviation, to_bf16);
      default:
        return make_table<float>(normal_, kind.mean, kind.deviation, [](float x) { return x; });
    }
  };
  return tables_.emplace(kind, make()).first->second;
}

void RandomWeights::fill(const Kind& kind, uint64_t stream, std::span<std::byte> out) const {
  const std::vector<std::byte>& values = table(kind);
  const size_t places = (values.size() - kSlice) / kSliceAlignment + 1;
  Philox4 bits{};
  for (size_t done = 0, slice = 0; done < out.size(); done += kSlice, ++slice) {
    if (slice % 2 == 0) bits = philox(options_.seed, stream, slice / 2);
    const std::byte* from = values.data() + below(places, bits, slice % 2) * kSliceAlignment;
    std::memcpy(out.data() + done, from, std::min(kSlice, out.size() - done));
  }
}

// Large slabs instead of one mapping a tensor: a process may have only 65,530 of them.
std::byte* RandomWeights::own_memory(size_t bytes) const {
  const size_t size = aligned(bytes);
  if (slabs_.empty() || slabs_.back().buffer.bytes() - slabs_.back().used < size) {
    slabs_.push_back({host_buffer(std::max(kSlabBytes, size)), 0});
  }
  Slab& slab = slabs_.back();
  auto* memory = static_cast<std::byte*>(slab.buffer.data()) + slab.used;
  slab.used += size;
  return memory;
}

std::byte* RandomWeights::shared_memory(const Kind& kind, uint64_t stream, size_t bytes) const {
  Slab& slab = shared_[kind];
  if (slab.buffer.bytes() < bytes) {
    // Earlier views stay where they are.
    if (slab.buffer.data()) slabs_.push_back(std::move(slab));
    slab = {allocate_shared_(std::max(aligned(bytes + bytes / 4), 4 * kSlice)), 0};
    fill(kind, hash_of_name("shared"),
         {static_cast<std::byte*>(slab.buffer.data()), slab.buffer.bytes()});
  }
  const size_t places = (slab.buffer.bytes() - bytes) / kTensorAlignment + 1;
  const Philox4 bits = philox(options_.seed, stream, 0);
  return static_cast<std::byte*>(slab.buffer.data()) + below(places, bits, 0) * kTensorAlignment;
}

const Tensor* RandomWeights::find(std::string_view name, const Shape& expected) const {
  const auto made = tensors_.find(name);
  if (made != tensors_.end()) return &made->second;
  const std::optional<Kind> kind = kind_of(name, expected);
  if (!kind) return nullptr;
  const uint64_t stream = hash_of_name(name);
  const size_t bytes = static_cast<size_t>(expected.count()) * size_of(kind->type);
  std::byte* memory = nullptr;
  if (options_.shared) {
    memory = shared_memory(*kind, stream, bytes);
  } else {
    memory = own_memory(bytes);
    fill(*kind, stream, {memory, bytes});
  }
  bytes_ += static_cast<int64_t>(bytes);
  return &tensors_.emplace(name, Tensor(memory, kind->type, expected)).first->second;
}

std::vector<std::string> RandomWeights::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

std::string RandomWeights::locate(std::string_view) const {
  return fmt::format("random weights (seed {})", options_.seed);
}

}  // namespace octet::model
