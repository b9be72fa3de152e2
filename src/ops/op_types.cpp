#include "ops/op_types.h"

#include <fmt/format.h>

#include "ops/kernel_choice.h"
#include "ops/kv_layout.h"

namespace octet::ops {

int64_t Linear::bytes() const {
  const int64_t weight = quant ? quant.codes.bytes() + quant.scales.bytes() : plain.bytes();
  return weight + (bias ? bias.bytes() : 0);
}

ResidualStream ResidualStream::in(Arena& arena, DType type, int64_t rows, int64_t hidden) {
  const auto take = [&] { return arena.take(type, {rows, hidden}); };
  ResidualStream stream{.sum = take(), .spare = take(), .room = take()};
  if (rows <= kMostMomentRows && hidden % kMomentColumns == 0) {
    stream.moments = arena.take(DType::f32, {rows, hidden / kMomentColumns, 2});
  }
  return stream;
}

int64_t KvLayout::bytes_per_block() const {
  int64_t bytes = 0;
  for (const KvLayerFormat& layer : layers) {
    const auto element = static_cast<int64_t>(size_of(layer.type));
    if (layer.kind == KvLayerFormat::Kind::gqa) {
      bytes += 2 * block_tokens * layer.kv_heads * layer.head_dim * element;
      // One scale a block and head for K and V each, as many again for the running absmax; or one
      // a token and head.
      const int64_t scales = layer.scaling == KvScaling::token_heads ? block_tokens
                             : layer.scaling == KvScaling::groups    ? 2
                                                                     : 1;
      if (is_code(layer.type)) bytes += 2 * layer.kv_heads * 4 * scales;
    } else {
      bytes += block_tokens * layer.kv_lora * element;
      bytes += block_tokens * layer.rope_dim * static_cast<int64_t>(size_of(layer.rope_type));
      if (is_code(layer.type) && layer.scale != ScaleType::unit) {
        bytes += block_tokens * ((layer.kv_lora + 127) / 128) * 4;
      }
    }
  }
  return bytes;
}

std::string to_string(const OpDesc& desc) {
  return fmt::format("{} m={} n={} k={} w={} x={}", desc.op, desc.m, desc.n, desc.k,
                     desc.weight_format ? octet::to_string(*desc.weight_format)
                                        : std::string(name_of(desc.weight)),
                     desc.input_format ? octet::to_string(*desc.input_format)
                                       : std::string(name_of(desc.activation)));
}

}  // namespace octet::ops
