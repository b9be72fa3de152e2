// The paged KV cache as the operations see it.
//
// A block holds `block_tokens` consecutive positions of one sequence, in every layer. Codes are
// never rewritten, and scales live with the block, so a block can be shared, freed or filled again
// without touching another. Freed blocks may hold any bytes, NaN included: ops select masked
// positions away and never multiply by them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace octet::ops {

// Tokens that share a scale where block groups choose it, unless another number is asked for.
inline constexpr int64_t kGroupTokens = 1024;

// Who chooses the scales of a GQA cache of codes.
enum class KvScaling : uint8_t {
  fixed,        // the checkpoint or a calibration, one a KV head
  groups,       // block groups, one a group and KV head
  token_heads,  // every token and KV head its own, by numerics/quantize.h
};

// GQA: K and V of every KV head.
//
// The scale in force is stored with each block, one a KV head, or one a token and KV head where
// each has its own. A calibrated model fixes it (`fixed_*`). Where groups choose, tokens are
// grouped by `group_tokens`, and a group's power-of-two scale is frozen when the group starts:
//
//   positions  0 ........ 1023 | 1024 ...... 2047 | 2048 ...
//   scale      1.0             | s1 = f(absmax of | s2 = f(absmax of
//                              |   0..1023)       |   0..2047)
//
//   f(a) = 2^(ceil(log2(a / 448)) + 1), one bit of headroom; at least FLT_MIN, 1.0 when a is 0.
//
// `*_absmax` is the running absmax of the sequence up to and including the block, so that the next
// group's scale needs one look-up. It depends on the tokens alone: never on chunking or sharing.
struct GqaCache {
  // [blocks, block_tokens, kv_heads, head_dim]: e4m3, e5m2, bf16, f32; i8 with token_heads.
  Tensor k, v;
  // f32 [blocks, kv_heads], or [blocks, block_tokens, kv_heads]; absent unless k, v are codes.
  Tensor k_scale, v_scale;
  Tensor k_absmax, v_absmax;  // f32 [blocks, kv_heads]; absent unless block groups choose scales
  Tensor fixed_k_scale, fixed_v_scale;  // f32 [kv_heads], or absent
  int64_t group_tokens = kGroupTokens;  // a multiple of block_tokens

  bool token_heads() const { return k_scale.shape.rank == 3; }
};

// MLA: one latent vector (the first `kv_lora` of K, and V itself) and one rope vector a token,
// shared by all heads. The latent is quantized a token and 128 values at a time, or not scaled at
// all (`format.scale == unit`: its channels have fixed scales, or for comparison). The rope part
// stays 16-bit: its products carry the phase of the position, and an error in it shifts every
// head's scores alike.
struct MlaCache {
  Tensor latent;        // [blocks, block_tokens, kv_lora]: e4m3, e5m2, i8, bf16, f32
  Tensor latent_scale;  // f32 [blocks, block_tokens, ceil(kv_lora / 128)]; absent unless scaled
  Tensor rope;          // [blocks, block_tokens, rope_dim]: bf16 or f32, rotated
  QuantFormat format;   // of the latent, when it is codes
};

// What the cache of one layer holds. Layers may differ.
struct KvLayerFormat {
  enum class Kind : uint8_t { gqa, mla } kind = Kind::gqa;
  int64_t kv_heads = 0, head_dim = 0;    // gqa
  int64_t kv_lora = 0, rope_dim = 0;     // mla
  DType type = DType::bf16;              // of K, V or the latent
  DType rope_type = DType::bf16;         // mla
  ScaleType scale = ScaleType::f32;      // mla of codes: f32 or unit
  KvScaling scaling = KvScaling::fixed;  // gqa of codes
  bool channels = false;  // what becomes codes is divided by fixed scales of channels before
};

struct KvLayout {
  int64_t block_tokens = 16;
  int64_t group_tokens = kGroupTokens;  // of layers with block groups: a multiple of block_tokens
  std::vector<KvLayerFormat> layers;

  // Bytes of one block over all layers, scales included. Ledger and allocator both use this.
  int64_t bytes_per_block() const;
  int64_t bytes_per_token() const { return bytes_per_block() / block_tokens; }
};

}  // namespace octet::ops
