#include "model/kv_store.h"

#include <fmt/format.h>

namespace octet::model {
namespace {

[[noreturn]] void lacks_kernels(const ops::Backend& backend, const char* of, const char* accepted,
                                const char* fix) {
  throw Error({.what = fmt::format("this device has no kernels for {}", of),
               .where = "--kv-cache-dtype",
               .value = backend.info().name,
               .accepted = accepted,
               .fix = fix});
}

constexpr const char* kEveryDevice = "auto, fp32, bf16, fp8, fp8_e4m3, fp8_e5m2";
constexpr const char* kOtherType = "pass --device cpu, or another --kv-cache-dtype";

void require_token_heads(const ops::Backend& backend) {
  if (backend.info().kv_token_heads) return;
  lacks_kernels(backend, "a KV cache with a scale for each token and head", kEveryDevice,
                kOtherType);
}

void require_int8_latent(const ops::Backend& backend) {
  if (backend.info().int8) return;
  lacks_kernels(backend, "a latent in INT8", kEveryDevice, kOtherType);
}

void require_channels(const ops::Backend& backend) {
  if (backend.info().kv_channels) return;
  lacks_kernels(backend, "the scales that the checkpoint has for each channel of the KV cache",
                "auto or bf16 with --attention bf16; a checkpoint of `octet quantize "
                "--kv-scale-granularity head` or tensor",
                "pass --device cpu, or --attention bf16 --kv-cache-dtype bf16");
}

}  // namespace

KvType parse_kv_type(std::string_view text) {
  if (text == "auto") return KvType::automatic;
  if (text == "fp32" || text == "float32") return KvType::fp32;
  if (text == "bf16" || text == "bfloat16") return KvType::bf16;
  if (text == "fp8" || text == "fp8_e4m3") return KvType::fp8_e4m3;
  if (text == "fp8_e5m2") return KvType::fp8_e5m2;
  if (text == "fp8_per_token_head") return KvType::fp8_token_heads;
  if (text == "int8_per_token_head") return KvType::int8_token_heads;
  if (text == "int8_per_token_group") return KvType::int8_token_groups;
  throw Error({.what = "unknown KV cache type",
               .where = "--kv-cache-dtype",
               .value = std::string(text),
               .accepted = "auto, fp32, bf16, fp8 (= fp8_e4m3), fp8_e4m3, fp8_e5m2, "
                           "fp8_per_token_head, int8_per_token_head, int8_per_token_group"});
}

bool is_fp8(KvType type) {
  return type == KvType::fp8_e4m3 || type == KvType::fp8_e5m2 || type == KvType::fp8_token_heads;
}

bool has_token_heads(KvType type) {
  return type == KvType::fp8_token_heads || type == KvType::int8_token_heads;
}

ops::KvLayout kv_layout(const ModelConfig& config, const KvOptions& options) {
  ops::KvLayout layout;
  layout.block_tokens = options.block_tokens;
  layout.group_tokens = options.group_tokens;
  ops::KvLayerFormat layer;
  layer.type = options.type;
  if (const auto* gqa = std::get_if<Gqa>(&config.attention)) {
    layer.kind = ops::KvLayerFormat::Kind::gqa;
    layer.kv_heads = gqa->kv_heads;
    layer.head_dim = gqa->head_dim;
    layer.scaling = options.scaling;
    layer.channels = options.channels;
    if (options.type == DType::i8 && options.scaling != ops::KvScaling::token_heads) {
      throw Error({.what = "K and V have heads, and no groups as a latent has",
                   .where = "--kv-cache-dtype",
                   .value = fmt::format("int8_per_token_group, {}", config.architecture),
                   .accepted = "auto, fp32, bf16, fp8, fp8_e4m3, fp8_e5m2, fp8_per_token_head, "
                               "int8_per_token_head",
                   .fix = "pass --kv-cache-dtype int8_per_token_head"});
    }
    if (octet::is_fp8(options.type) && options.scaling == ops::KvScaling::groups &&
        options.group_tokens % options.block_tokens != 0) {
      throw Error({.what = "tokens of the KV cache that share a scale are whole blocks",
                   .where = "--block-size",
                   .value = fmt::format("{} with --kv-group-tokens {}", options.block_tokens,
                                        options.group_tokens),
                   .accepted = "a divisor of --kv-group-tokens",
                   .fix = "change one of the two, or calibrate the scales (octet calibrate)"});
    }
  } else {
    if (options.scaling == ops::KvScaling::token_heads) {
      throw Error(
          {.what = "a latent has no heads that could have scales of their own",
           .where = "--kv-cache-dtype",
           .value = fmt::format("{}_per_token_head, {}", options.type == DType::i8 ? "int8" : "fp8",
                                config.architecture),
           .accepted = "auto, fp32, bf16, fp8, fp8_e4m3, fp8_e5m2, int8_per_token_group",
           .fix = "pass --kv-cache-dtype fp8 or int8_per_token_group: a latent's scales are by "
                  "token already, one for every 128 values"});
    }
    const auto& mla = std::get<Mla>(config.attention);
    layer.kind = ops::KvLayerFormat::Kind::mla;
    layer.kv_lora = mla.kv_lora;
    layer.rope_dim = mla.rope;
    layer.rope_type = options.activation;
    layer.scale = options.unit_scale ? ScaleType::unit : ScaleType::f32;
    layer.channels = options.channels;
  }
  layout.layers.assign(static_cast<size_t>(config.layers), layer);
  return layout;
}

KvStore::KvStore(ops::Backend& backend, const ops::KvLayout& layout, int64_t blocks,
                 const KvScales& scales)
    : layout_(layout),
      blocks_(blocks),
      gqa_(layout.layers.size()),
      mla_(layout.layers.size()),
      channels_(scales.channels) {
  const auto allocate = [&](DType type, Shape shape) {
    const auto bytes = static_cast<size_t>(shape.count()) * size_of(type);
    buffers_.push_back(backend.alloc(bytes, "KV cache"));
    return buffers_.back().tensor(type, shape);
  };
  const int64_t tokens = layout.block_tokens;
  for (size_t i = 0; i < layout.layers.size(); ++i) {
    const ops::KvLayerFormat& format = layout.layers[i];
    invariant(!format.channels || i < channels_.size(), "channels of a cache have their scales");
    if (format.channels) require_channels(backend);
    if (format.kind == ops::KvLayerFormat::Kind::gqa) {
      ops::GqaCache& cache = gqa_[i];
      cache.k = allocate(format.type, {blocks, tokens, format.kv_heads, format.head_dim});
      cache.v = allocate(format.type, {blocks, tokens, format.kv_heads, format.head_dim});
      if (!is_code(format.type)) continue;
      if (format.scaling == ops::KvScaling::token_heads) {
        require_token_heads(backend);
        cache.k_scale = allocate(DType::f32, {blocks, tokens, format.kv_heads});
        cache.v_scale = allocate(DType::f32, {blocks, tokens, format.kv_heads});
        continue;
      }
      cache.group_tokens = layout.group_tokens;
      cache.k_scale = allocate(DType::f32, {blocks, format.kv_heads});
      cache.v_scale = allocate(DType::f32, {blocks, format.kv_heads});
      if (format.scaling == ops::KvScaling::groups) {
        cache.k_absmax = allocate(DType::f32, {blocks, format.kv_heads});
        cache.v_absmax = allocate(DType::f32, {blocks, format.kv_heads});
      } else {
        invariant(i < scales.k.size() && scales.k[i] && scales.v[i],
                  "an FP8 cache without block groups needs fixed scales");
        cache.fixed_k_scale = scales.k[i];
        cache.fixed_v_scale = scales.v[i];
      }
    } else {
      ops::MlaCache& cache = mla_[i];
      cache.latent = allocate(format.type, {blocks, tokens, format.kv_lora});
      cache.rope = allocate(format.rope_type, {blocks, tokens, format.rope_dim});
      if (!is_code(format.type)) continue;
      if (format.type == DType::i8) require_int8_latent(backend);
      cache.format = QuantFormat{code_of(format.type), grids::group128, format.scale};
      if (format.scale != ScaleType::unit) {
        cache.latent_scale = allocate(DType::f32, {blocks, tokens, (format.kv_lora + 127) / 128});
      }
    }
  }
}

void KvStore::poison(ops::Backend& backend, uint8_t byte) const {
  for (const Buffer& buffer : buffers_) {
    backend.fill(buffer.tensor(DType::u8, {static_cast<int64_t>(buffer.bytes())}), byte);
  }
}

}  // namespace octet::model
