#include "backends/cpu/kernels/fast_attention_tile.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "backends/cpu/kernels/fast_attention_amx.h"
#include "backends/cpu/kernels/fast_attention_simd.h"

namespace octet::cpu::attention {
namespace {

size_t aligned(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

using RowAddresses = std::array<const std::byte*, kTile>;

size_t row_bytes(const TileShape& shape) {
  return static_cast<size_t>(kTile) * static_cast<size_t>(shape.v_stride()) * (shape.wide ? 4 : 2);
}

// Bytes of K or rope, transposed.
size_t column_bytes(int padded, bool wide) {
  return static_cast<size_t>(kTile) * static_cast<size_t>(padded) * (wide ? 4 : 2);
}

}  // namespace

size_t Tile::bytes(const TileShape& shape) {
  const size_t scales = static_cast<size_t>(shape.groups) * kTile * 4;
  return column_bytes(shape.padded_k(), shape.wide) +
         column_bytes(shape.padded_rope(), shape.wide_rope) + row_bytes(shape) + 3 * scales +
         aligned(static_cast<size_t>(shape.groups) * 4);
}

Tile Tile::place(const TileShape& shape, std::byte* memory) {
  Tile tile;
  const auto cut = [&](size_t bytes) {
    std::byte* piece = memory;
    memory += aligned(bytes);
    return piece;
  };
  const auto floats = [&](int count) {
    return reinterpret_cast<float*>(cut(static_cast<size_t>(count) * 4));
  };
  tile.k = cut(column_bytes(shape.padded_k(), shape.wide));
  tile.rope = cut(column_bytes(shape.padded_rope(), shape.wide_rope));
  tile.v = cut(row_bytes(shape));
  tile.k_scale = floats(shape.groups * kTile);
  tile.v_scale = shape.mla ? tile.k_scale : floats(shape.groups * kTile);
  tile.weight = floats(shape.groups * kTile);
  tile.factor = floats(shape.groups);
  return tile;
}

#if defined(__x86_64__)
namespace {

constexpr int kBatch = 8;   // tokens whose V is loaded before the first is converted
constexpr int kLanes = 16;  // tokens that are transposed at once
constexpr int kPiece = 16;  // bytes of K that are transposed at once

// The least code without its sign that is no finite value.
template <Code F>
constexpr uint8_t kNotFinite = F == Code::e4m3 ? 0x7F : 0x7C;

// Dims [d, d + 32) of two tokens as BF16, into rows of `padded` each; or as Pairs of their values,
// those of even dims first.
template <bool Pairs>
OCTET_AVX512_INLINE void store_tokens(const __m512i (&x)[2], int padded, uint16_t* out, int d) {
  if constexpr (Pairs) {
    const __m512i low = _mm512_set1_epi32(0x0000FFFF);
    // low ? a : b
    _mm512_store_si512(out + 2 * d,
                       _mm512_ternarylogic_epi32(low, x[0], _mm512_slli_epi32(x[1], 16), 0xCA));
    _mm512_store_si512(out + 2 * d + 32,
                       _mm512_ternarylogic_epi32(low, _mm512_srli_epi32(x[0], 16), x[1], 0xCA));
  } else {
    _mm512_store_si512(out + d, x[0]);
    _mm512_store_si512(out + padded + d, x[1]);
  }
}

// `dims` codes, `offset` bytes into each of kBatch rows -> BF16 rows, `padded` (a multiple of 32)
// each, zero behind `dims`; or as Pairs. Returns whether all are finite. All loads come before the
// stores: a load that a store still in flight seems to overlap (it compares 12 bits of the address)
// waits for it, and then cache misses queue up one behind another.
template <Code F, bool Pairs>
OCTET_AVX512 bool widen_codes(const std::byte* const* rows, int64_t offset, int dims, int padded,
                              uint16_t* out) {
  const simd::Fp8Table table = simd::load_fp8_table<F>();
  const __m512i order = simd::in_order();
  __m512i most = _mm512_setzero_si512();
  for (int d = 0; d < padded; d += 64) {
    const __mmask64 mask = simd::first_lanes(dims - d, 64);
    __m512i codes[kBatch];
#pragma GCC unroll 8
    for (int t = 0; t < kBatch; ++t) {
      codes[t] = _mm512_maskz_loadu_epi8(mask, rows[t] + offset + d);
    }
#pragma GCC unroll 4
    for (int t = 0; t < kBatch; t += 2) {
      __m512i first[2], second[2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        most = _mm512_max_epu8(most, _mm512_andnot_si512(table.sign, codes[t + i]));
        simd::decode_fp8(table, _mm512_permutexvar_epi64(order, codes[t + i]), first[i], second[i]);
      }
      store_tokens<Pairs>(first, padded, out + t * padded, d);
      if (d + 32 < padded) store_tokens<Pairs>(second, padded, out + t * padded, d + 32);
    }
  }
  const __m512i limit = _mm512_set1_epi8(static_cast<char>(kNotFinite<F>));
  return _mm512_cmpge_epu8_mask(most, limit) == 0;
}

template <bool Pairs>
OCTET_AVX512 bool copy_bf16(const std::byte* const* rows, int64_t offset, int dims, int padded,
                            uint16_t* out) {
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
  __m512i most = _mm512_setzero_si512();
  for (int d = 0; d < padded; d += 32) {
    const auto mask = static_cast<__mmask32>(simd::first_lanes(dims - d, 32));
    __m512i x[kBatch];
#pragma GCC unroll 8
    for (int t = 0; t < kBatch; ++t) {
      x[t] = _mm512_maskz_loadu_epi16(mask, rows[t] + offset + 2 * d);
    }
#pragma GCC unroll 4
    for (int t = 0; t < kBatch; t += 2) {
      most = _mm512_max_epu16(most, _mm512_and_si512(x[t], magnitude));
      most = _mm512_max_epu16(most, _mm512_and_si512(x[t + 1], magnitude));
      const __m512i two[2] = {x[t], x[t + 1]};
      store_tokens<Pairs>(two, padded, out + t * padded, d);
    }
  }
  return _mm512_cmpge_epu16_mask(most, _mm512_set1_epi16(0x7F80)) == 0;
}

// A piece of K of 16 tokens, transposed: register i holds bytes 4i .. 4i + 3 of all of them.
OCTET_AVX512_INLINE void load_piece(const std::byte* const* rows, int64_t offset, __m512i (&r)[4]) {
  __m512i t[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const auto piece = [rows, offset, i](int row) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row + i] + offset));
    };
    t[i] = _mm512_zextsi128_si512(piece(0));
    t[i] = _mm512_mask_broadcast_i32x4(t[i], 0x00F0, piece(4));
    t[i] = _mm512_mask_broadcast_i32x4(t[i], 0x0F00, piece(8));
    t[i] = _mm512_mask_broadcast_i32x4(t[i], 0xF000, piece(12));
  }
  simd::transpose_quads(t, r);
}

// Four codes a lane -> two elements of two BF16 values: codes 0 and 2, then 1 and 3.
OCTET_AVX512_INLINE void decode_lanes(const simd::Fp8Table& table, __m512i codes, __m512i& first,
                                      __m512i& second) {
  const __m512i even = _mm512_set1_epi32(0x00FF00FF);
  const __m512i low = _mm512_permutex2var_epi8(table.low0, codes, table.low1);
  const __m512i magnitude = _mm512_permutex2var_epi8(table.high0, codes, table.high1);
  const __m512i high = _mm512_ternarylogic_epi32(magnitude, codes, table.sign, 0xF8);  // a | b & c
  // even ? low bytes : high bytes
  first = _mm512_ternarylogic_epi32(even, low, _mm512_slli_epi16(high, 8), 0xCA);
  second = _mm512_ternarylogic_epi32(even, _mm512_srli_epi16(low, 8), high, 0xCA);
}

// A piece of K, its 16 bytes as decoded elements [8][64 tokens] (codes) or [4][64 tokens] (BF16).
struct Bf16Piece {
  static constexpr int elements = 4;
  OCTET_AVX512_INLINE static Bf16Piece make() { return {}; }
  OCTET_AVX512_INLINE void store(const __m512i (&r)[4], uint32_t* out) const {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) _mm512_store_si512(out + i * kTile, r[i]);
  }
};
template <Code F>
struct CodePiece {
  static constexpr int elements = 8;
  simd::Fp8Table table;
  OCTET_AVX512_INLINE static CodePiece make() { return {simd::load_fp8_table<F>()}; }
  OCTET_AVX512_INLINE void store(const __m512i (&r)[4], uint32_t* out) const {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      __m512i first, second;
      decode_lanes(table, r[i], first, second);
      _mm512_store_si512(out + 2 * i * kTile, first);
      _mm512_store_si512(out + (2 * i + 1) * kTile, second);
    }
  }
};

// `bytes` of each of 16 rows -> [elements][64 tokens], zero behind the last value.
template <class Piece>
OCTET_AVX512 void transpose_rows(const std::byte* const* rows, int64_t offset, int bytes,
                                 int padded, uint32_t* out) {
  const Piece piece = Piece::make();
  __m512i r[4];
  const int whole = bytes / kPiece * kPiece;
  uint32_t* const end = out + padded / 2 * kTile;
  for (int b = 0; b < whole; b += kPiece, out += Piece::elements * kTile) {
    load_piece(rows, offset + b, r);
    piece.store(r, out);
  }
  if (whole < bytes) {
    std::array<std::byte, kLanes * kPiece> copy{};
    std::array<const std::byte*, kLanes> copied{};
    for (size_t i = 0; i < kLanes; ++i) {
      copied[i] = copy.data() + i * kPiece;
      std::memcpy(copy.data() + i * kPiece, rows[i] + offset + whole,
                  static_cast<size_t>(bytes - whole));
    }
    load_piece(copied.data(), 0, r);
    piece.store(r, out);
    out += Piece::elements * kTile;
  }
  for (; out < end; out += kTile) _mm512_store_si512(out, _mm512_setzero_si512());
}

// FP32 rows, which lie in the cache itself, -> [dims][64 tokens].
OCTET_AVX512 void transpose_f32(const std::byte* const* rows, int64_t offset, int dims,
                                float* out) {
  for (int d = 0; d < dims; d += 16) {
    const auto mask = static_cast<__mmask16>(simd::first_lanes(dims - d, 16));
    __m512i r[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r[i] = _mm512_maskz_loadu_epi32(mask, rows[i] + offset + 4 * d);
    simd::transpose16(r);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) _mm512_store_si512(out + (d + i) * kTile, r[i]);
  }
}

// One token's V in FP32, in the order of TileShape::v_stride. Returns whether all of it is finite.
OCTET_AVX512 bool copy_f32(const float* in, int dims, int padded, float* out) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
  const __m512i exponent = _mm512_set1_epi32(0x7F800000);
  __mmask16 bad = 0;
  for (int d = 0; d < padded; d += 32) {
    __m512 x[2];
    for (int i = 0; i < 2; ++i) {
      const auto mask = static_cast<__mmask16>(simd::first_lanes(dims - d - 16 * i, 16));
      x[i] = _mm512_maskz_loadu_ps(mask, in + d + 16 * i);
      const __m512i e = _mm512_and_si512(_mm512_castps_si512(x[i]), exponent);
      bad = static_cast<__mmask16>(bad | _mm512_cmpeq_epi32_mask(e, exponent));
    }
    _mm512_store_ps(out + d, _mm512_permutex2var_ps(x[0], even, x[1]));
    _mm512_store_ps(out + d + 16, _mm512_permutex2var_ps(x[0], odd, x[1]));
  }
  return bad == 0;
}

// Inlined by force, as those of its callers that do nothing else: g++ takes a function that only
// prefetches for one without effect, and drops its calls.
template <bool Far>
__attribute__((always_inline)) inline void prefetch_bytes(const std::byte* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, Far ? 2 : 3);
}

// One part of the cache (K, V or rope) of a KV head: where its rows are, and those of the next
// tile.
struct Part {
  const RowAddresses* rows;
  const RowAddresses* next;  // null if there is none
  int64_t offset;            // of the head
  int64_t bytes;             // of a row
  bool far;

  const std::byte* const* from(int t) const { return rows->data() + t; }
  __attribute__((always_inline)) void prefetch(int begin, int count) const {
    if (!next) return;
    for (int t = begin; t < begin + count; ++t) {
      const std::byte* const row = (*next)[static_cast<size_t>(t)] + offset;
      far ? prefetch_bytes<true>(row, bytes) : prefetch_bytes<false>(row, bytes);
    }
  }
};

// The scales of a tile, which lie together for the tokens of a block.
__attribute__((always_inline)) inline void prefetch_scales(const TileSource& source,
                                                           const TileShape& shape,
                                                           const TilePlaces& places) {
  if (!source.k_scale) return;
  const int64_t bytes = 4 * (shape.groups + (source.block_tokens - 1) * source.scale_token);
  for (int i = 0; i < places.count; ++i) {
    const int64_t block = places.runs[static_cast<size_t>(i)].block;
    const float* k = source.k_scale + block * source.k_scale_block;
    prefetch_bytes<false>(reinterpret_cast<const std::byte*>(k), bytes);
    if (shape.mla) continue;
    const float* v = source.v_scale + block * source.v_scale_block;
    prefetch_bytes<false>(reinterpret_cast<const std::byte*>(v), bytes);
  }
}

// kLanes rows of codes or BF16 values, transposed.
void load_columns(DType type, const std::byte* const* rows, int64_t offset, int dims, int padded,
                  uint32_t* out) {
  if (type == DType::e4m3) {
    transpose_rows<CodePiece<Code::e4m3>>(rows, offset, dims, padded, out);
  } else if (type == DType::e5m2) {
    transpose_rows<CodePiece<Code::e5m2>>(rows, offset, dims, padded, out);
  } else {
    transpose_rows<Bf16Piece>(rows, offset, 2 * dims, padded, out);
  }
}

// kBatch rows of codes or BF16 values, as rows or as pairs. Returns whether all are finite.
bool load_tokens(DType type, bool pairs, const std::byte* const* rows, int64_t offset, int dims,
                 int padded, uint16_t* out) {
  const auto load = type == DType::e4m3
                        ? (pairs ? widen_codes<Code::e4m3, true> : widen_codes<Code::e4m3, false>)
                    : type == DType::e5m2
                        ? (pairs ? widen_codes<Code::e5m2, true> : widen_codes<Code::e5m2, false>)
                        : (pairs ? copy_bf16<true> : copy_bf16<false>);
  return load(rows, offset, dims, padded, out);
}

// K (or rope) of `type` into `out`: transposed, or for AMX as rows.
void load_k(const Part& part, const TileShape& shape, DType type, int dims, int padded, int begin,
            int end, std::byte* out) {
  for (int t = begin / kLanes * kLanes; t < end; t += kLanes) {
    part.prefetch(t, kLanes);
    const std::byte* const* rows = part.from(t);
    auto* const to = reinterpret_cast<uint32_t*>(out) + t;
    if (shape.amx) {
      for (int i = 0; i < kLanes; i += kBatch) {
        keep_tiles_awake();
        load_tokens(type, false, rows + i, part.offset, dims, padded,
                    reinterpret_cast<uint16_t*>(out) + (t + i) * padded);
      }
    } else if (type == DType::f32) {
      transpose_f32(rows, part.offset, dims, reinterpret_cast<float*>(to));
    } else {
      load_columns(type, rows, part.offset, dims, padded, to);
    }
  }
}

// V as rows, or as pairs of tokens for AMX, whose products take 32 tokens at a time: zeros up to
// there. Returns whether all of it is finite.
bool load_v(const Part& part, const TileShape& shape, DType type, int begin, int end,
            std::byte* out) {
  const int dims = shape.v_dims, padded = shape.v_stride();
  const int first = begin / kBatch * kBatch;
  bool finite = true;
  for (int t = first; t < end; t += kBatch) {
    part.prefetch(t, kBatch);
    const std::byte* const* rows = part.from(t);
    uint16_t* const to = reinterpret_cast<uint16_t*>(out) + t * padded;
    if (type == DType::f32) {
      for (int i = 0; i < kBatch; ++i) {
        finite &= copy_f32(reinterpret_cast<const float*>(rows[i] + part.offset), dims, padded,
                           reinterpret_cast<float*>(out) + (t + i) * padded);
      }
      continue;
    }
    if (shape.amx) keep_tiles_awake();
    finite &= load_tokens(type, shape.amx, rows, part.offset, dims, padded, to);
  }
  if (shape.amx) {
    constexpr int step = 32;
    const auto clear = [&](int from, int to) {
      std::memset(out + 2 * from * padded, 0, static_cast<size_t>(2 * (to - from) * padded));
    };
    clear(begin / step * step, first);
    clear((end + kBatch - 1) / kBatch * kBatch, (end + step - 1) / step * step);
  }
  return finite;
}

// Whether the scales under `mask` are one number that is its own S, so that all weights are 1.
OCTET_AVX512 bool equal_scales(bool mla, const float* scales, int first, uint64_t mask) {
  const __m512 one = _mm512_set1_ps(scales[first]);
  __mmask16 differ = 0;
  for (int v = 0; v < 4; ++v) {
    const auto m = static_cast<__mmask16>(mask >> (16 * v));
    const __m512 x = _mm512_load_ps(scales + 16 * v);
    differ = static_cast<__mmask16>(differ | _mm512_mask_cmp_ps_mask(m, x, one, _CMP_NEQ_UQ));
  }
  return differ == 0 && attention_rule::value_scale(scales[first], mla) == scales[first];
}

OCTET_AVX512 void fill_slots(float value, int begin, int end, float* out) {
  const uint64_t mask = simd::first_lanes(end, kTile) & ~simd::first_lanes(begin, kTile);
  for (int v = 0; v < kTile; v += 16) {
    _mm512_mask_store_ps(out + v, static_cast<__mmask16>(mask >> v), _mm512_set1_ps(value));
  }
}

// Fills [groups][64], by blocks or by tokens.
void fill_scales(const float* scales, int64_t block, int64_t token, int groups,
                 const TilePlaces& places, float* out) {
  for (int i = 0; i < places.count; ++i) {
    const TilePlaces::Run& run = places.runs[static_cast<size_t>(i)];
    if (!scales || token == 0) {
      const float scale = scales ? scales[run.block * block] : 1.0f;
      for (int g = 0; g < groups; ++g) fill_slots(scale, run.begin, run.end, out + g * kTile);
      continue;
    }
    const float* at = scales + run.block * block + run.slot * token;
    for (int t = run.begin; t < run.end; ++t, at += token) {
      for (int g = 0; g < groups; ++g) out[g * kTile + t] = at[g];
    }
  }
}

void load_scales(const TileSource& source, const TileShape& shape, const TilePlaces& places,
                 int64_t head, Tile& tile) {
  const auto fill = [&](const float* scales, int64_t block, float* out) {
    if (scales) scales += head * source.scale_head;
    fill_scales(scales, block, source.scale_token, shape.groups, places, out);
  };
  fill(source.k_scale, source.k_scale_block, tile.k_scale);
  if (!shape.mla) fill(source.v_scale, source.v_scale_block, tile.v_scale);

  const uint64_t loaded =
      simd::first_lanes(places.end, kTile) & ~simd::first_lanes(places.begin, kTile);
  tile.equal_scales = true;
  for (int g = 0; g < shape.groups; ++g) {
    const float* scales = tile.v_scale + g * kTile;
    tile.factor[g] = scales[places.begin];  // its own S if all are equal
    tile.equal_scales = tile.equal_scales && equal_scales(shape.mla, scales, places.begin, loaded);
  }
  for (int g = 0; !tile.equal_scales && g < shape.groups; ++g) {
    const float* scales = tile.v_scale + g * kTile;
    tile.factor[g] = value_weights(shape.mla, scales, loaded, tile.weight + g * kTile);
  }
}

}  // namespace

OCTET_AVX512 float value_weights(bool mla, const float* scales, uint64_t mask, float* weight) {
  __m512 largest = _mm512_setzero_ps();
  for (int v = 0; v < 4; ++v) {
    const auto m = static_cast<__mmask16>(mask >> (16 * v));
    largest = _mm512_mask_max_ps(largest, m, largest, _mm512_load_ps(scales + 16 * v));
  }
  const float s = attention_rule::value_scale(_mm512_cvtss_f32(simd::lane_max(largest)), mla);
  for (int v = 0; v < kTile; v += 16) {
    _mm512_store_ps(weight + v, _mm512_div_ps(_mm512_load_ps(scales + v), _mm512_set1_ps(s)));
  }
  return s;
}

void prefetch_tile(const TileSource& source, const TileShape& shape, const TilePlaces& places,
                   int64_t head) {
  prefetch_scales(source, shape, places);
  const auto size = static_cast<int64_t>(size_of(source.type));
  const auto rope_size = static_cast<int64_t>(size_of(source.rope_type));
  for (int t = places.begin; t < places.end; ++t) {
    const auto i = static_cast<size_t>(t);
    prefetch_bytes<false>(places.k[i] + head * source.k_head, shape.k_dims * size);
    if (source.rope) prefetch_bytes<false>(places.rope[i], shape.rope_dims * rope_size);
    if (source.v) prefetch_bytes<false>(places.v[i] + head * source.v_head, shape.v_dims * size);
  }
}

void load_tile(const TileSource& source, const TileShape& shape, const TilePlaces& places,
               const TilePlaces* next, bool far, int64_t head, Tile& tile) {
  if (next) prefetch_scales(source, shape, *next);
  load_scales(source, shape, places, head, tile);
  const auto part = [&](RowAddresses TilePlaces::*rows, int64_t head_bytes, int64_t bytes) {
    return Part{&(places.*rows), next ? &(next->*rows) : nullptr, head * head_bytes, bytes, far};
  };
  const auto size = static_cast<int64_t>(size_of(source.type));
  if (shape.rope_dims > 0) {
    const auto bytes = shape.rope_dims * static_cast<int64_t>(size_of(source.rope_type));
    load_k(part(&TilePlaces::rope, 0, bytes), shape, source.rope_type, shape.rope_dims,
           shape.padded_rope(), places.begin, places.end, tile.rope);
  }
  Part k = part(&TilePlaces::k, source.k_head, shape.k_dims * size);
  load_k(k, shape, source.type, shape.k_dims, shape.padded_k(), places.begin, places.end, tile.k);
  k.next = nullptr;  // MLA's V is K, which is fetched already
  const Part v = shape.mla ? k : part(&TilePlaces::v, source.v_head, shape.v_dims * size);
  tile.finite_v = load_v(v, shape, source.type, places.begin, places.end, tile.v);
}

bool pair_rows(DType type, const std::byte* const* rows, int dims, int padded, uint16_t* out) {
  return load_tokens(type, true, rows, 0, dims, padded, out);
}

void column_rows(DType type, const std::byte* const* rows, int dims, int padded, uint32_t* out) {
  load_columns(type, rows, 0, dims, padded, out);
}

#else
bool pair_rows(DType, const std::byte* const*, int, int, uint16_t*) {
  return true;
}
void column_rows(DType, const std::byte* const*, int, int, uint32_t*) {}
float value_weights(bool, const float*, uint64_t, float*) {
  return 1.0f;
}
void prefetch_tile(const TileSource&, const TileShape&, const TilePlaces&, int64_t) {}
void load_tile(const TileSource&, const TileShape&, const TilePlaces&, const TilePlaces*, bool,
               int64_t, Tile&) {}
#endif

void find_places(const TileSource& source, int64_t first, int begin, int end, TilePlaces& places) {
  places.begin = begin;
  places.end = end;
  places.count = 0;
  int64_t entry = (first + begin) / source.block_tokens;
  int64_t slot = (first + begin) % source.block_tokens;
  for (int t = begin; t < end; slot = 0, ++entry) {
    const int64_t block = source.blocks[entry];
    const int last = static_cast<int>(std::min<int64_t>(end, t + source.block_tokens - slot));
    places.runs[static_cast<size_t>(places.count++)] = {t, last, block, slot};
    const auto fill = [&](const std::byte* part, int64_t block_bytes, int64_t token_bytes,
                          RowAddresses& rows) {
      if (!part) return;
      const std::byte* row = part + block * block_bytes + slot * token_bytes;
      for (int i = t; i < last; ++i, row += token_bytes) rows[static_cast<size_t>(i)] = row;
    };
    fill(source.k, source.k_block, source.k_token, places.k);
    fill(source.v, source.v_block, source.v_token, places.v);
    fill(source.rope, source.rope_block, source.rope_token, places.rope);
    t = last;
  }
  for (RowAddresses* rows : {&places.k, &places.v, &places.rope}) {
    std::fill_n(rows->begin(), begin, (*rows)[static_cast<size_t>(begin)]);
    std::fill(rows->begin() + end, rows->end(), (*rows)[static_cast<size_t>(begin)]);
  }
}

}  // namespace octet::cpu::attention
