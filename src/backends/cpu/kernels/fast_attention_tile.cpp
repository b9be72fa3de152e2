#include "backends/cpu/kernels/fast_attention_tile.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "backends/cpu/kernels/fast_attention_simd.h"

namespace octet::cpu::attention {
namespace {

size_t aligned(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// The widest row of one token that is converted at a time, in elements.
int scratch_dims(const TileShape& shape) {
  return std::max({shape.padded_k(), shape.padded_rope(), (shape.v_dims + 31) / 32 * 32});
}

}  // namespace

size_t Tile::bytes(const TileShape& shape) {
  const size_t k = static_cast<size_t>(shape.padded_k() + shape.padded_rope()) * kTile * 4;
  const size_t v = static_cast<size_t>(shape.chunks()) * kTile * kChunk * 4;
  const size_t scales = static_cast<size_t>(shape.groups) * kTile * 4;
  return k + v + 3 * scales + aligned(static_cast<size_t>(shape.groups) * 4) +
         static_cast<size_t>(scratch_dims(shape)) * kTile * 2;
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
  tile.k = floats((shape.padded_k() + shape.padded_rope()) * kTile);
  tile.v = floats(shape.chunks() * kTile * kChunk);
  tile.k_scale = floats(shape.groups * kTile);
  tile.v_scale = floats(shape.groups * kTile);
  tile.weight = floats(shape.groups * kTile);
  tile.factor = floats(shape.groups);
  tile.rows = memory;
  return tile;
}

#if defined(__x86_64__)
namespace {

// `dims` codes -> BF16, `padded` (a multiple of 32) written, zero behind `dims`.
template <Fp8 F>
OCTET_AVX512 void widen_codes(const uint8_t* codes, int dims, int padded, uint16_t* out) {
  const simd::Fp8Table table = simd::load_fp8_table<F>();
  // decode_fp8 takes the lower 8 bytes of each 16-byte lane, then the upper: with the 8-byte pieces
  // in this order, codes 0..31 end in the first result and 32..63 in the second.
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  for (int d = 0; d < padded; d += 64) {
    const __mmask64 mask = simd::first_lanes(dims - d, 64);
    __m512i first, second;
    simd::decode_fp8(table,
                     _mm512_permutexvar_epi64(order, _mm512_maskz_loadu_epi8(mask, codes + d)),
                     first, second);
    _mm512_store_si512(out + d, first);
    if (d + 32 < padded) _mm512_store_si512(out + d + 32, second);
  }
}

OCTET_AVX512 void copy_bf16(const uint16_t* in, int dims, int padded, uint16_t* out) {
  for (int d = 0; d < padded; d += 32) {
    const auto mask = static_cast<__mmask32>(simd::first_lanes(dims - d, 32));
    _mm512_store_si512(out + d, _mm512_maskz_loadu_epi16(mask, in + d));
  }
}

// BF16 rows [64][padded] -> FP32 [padded][64 tokens], for the groups of 16 tokens that hold any of
// [begin, end). Pairs of dims travel through the transposition as one 32-bit element.
OCTET_AVX512 void transpose_bf16(const uint16_t* rows, int padded, int begin, int end, float* out) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  for (int t = begin / 16 * 16; t < end; t += 16) {
    for (int d = 0; d < padded; d += 32) {
      __m512i r[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) r[i] = _mm512_load_si512(rows + (t + i) * padded + d);
      simd::transpose16(r);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        _mm512_store_si512(out + (d + 2 * i) * kTile + t, _mm512_slli_epi32(r[i], 16));
        _mm512_store_si512(out + (d + 2 * i + 1) * kTile + t, _mm512_and_si512(r[i], upper));
      }
    }
  }
}

// The same from FP32 rows, which lie in the cache itself.
OCTET_AVX512 void transpose_f32(const float* const* rows, int dims, int begin, int end,
                                float* out) {
  for (int t = begin / 16 * 16; t < end; t += 16) {
    for (int d = 0; d < dims; d += 16) {
      const auto mask = static_cast<__mmask16>(simd::first_lanes(dims - d, 16));
      __m512i r[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        const bool loaded = t + i >= begin && t + i < end;
        r[i] = loaded ? _mm512_maskz_loadu_epi32(mask, rows[t + i] + d) : _mm512_setzero_si512();
      }
      simd::transpose16(r);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) _mm512_store_si512(out + (d + i) * kTile + t, r[i]);
    }
  }
}

// One token's V into its place in every chunk. Returns whether all of it is finite.
OCTET_AVX512 bool spread_bf16(const uint16_t* row, int dims, int token, float* v) {
  const __m512i exponent = _mm512_set1_epi32(0x7F800000);
  __mmask16 bad = 0;
  for (int d = 0; d < dims; d += 16) {
    const __m512 x = simd::widen_bf16(_mm256_load_si256(reinterpret_cast<const __m256i*>(row + d)));
    const __m512i e = _mm512_and_si512(_mm512_castps_si512(x), exponent);
    bad = static_cast<__mmask16>(bad | _mm512_cmpeq_epi32_mask(e, exponent));
    _mm512_store_ps(v + ((d / kChunk) * kTile + token) * kChunk + d % kChunk, x);
  }
  return bad == 0;
}

OCTET_AVX512 bool spread_f32(const float* row, int dims, int token, float* v) {
  const __m512i exponent = _mm512_set1_epi32(0x7F800000);
  __mmask16 bad = 0;
  for (int d = 0; d < dims; d += 16) {
    const auto mask = static_cast<__mmask16>(simd::first_lanes(dims - d, 16));
    const __m512 x = _mm512_maskz_loadu_ps(mask, row + d);
    const __m512i e = _mm512_and_si512(_mm512_castps_si512(x), exponent);
    bad = static_cast<__mmask16>(bad | _mm512_cmpeq_epi32_mask(e, exponent));
    _mm512_store_ps(v + ((d / kChunk) * kTile + token) * kChunk + d % kChunk, x);
  }
  return bad == 0;
}

// Where the tokens of a tile lie: block and slot of each.
struct Place {
  int64_t block, slot;
};

// One part of the cache (K, V or rope): the addresses of its rows.
struct Part {
  const std::byte* data;
  int64_t block, token;
  const std::byte* at(const Place& place) const {
    return data + place.block * block + place.slot * token;
  }
};

// Rows of 8-bit and 16-bit types, converted to BF16 in scratch.
void widen_rows(const Part& part, DType type, int dims, int padded, const Place* places, int begin,
                int end, uint16_t* rows) {
  for (int t = begin; t < end; ++t) {
    const std::byte* row = part.at(places[t]);
    uint16_t* out = rows + t * padded;
    if (type == DType::bf16) {
      copy_bf16(reinterpret_cast<const uint16_t*>(row), dims, padded, out);
    } else {
      const auto* codes = reinterpret_cast<const uint8_t*>(row);
      if (type == DType::e4m3) widen_codes<Fp8::e4m3>(codes, dims, padded, out);
      if (type == DType::e5m2) widen_codes<Fp8::e5m2>(codes, dims, padded, out);
    }
  }
}

// K (or rope) of `type` into FP32, dims-major. `rows` keeps the BF16 rows where the type has them.
void load_k(const Part& part, DType type, int dims, int padded, const Place* places, int begin,
            int end, uint16_t* rows, float* out) {
  if (type == DType::f32) {
    std::array<const float*, kTile> addresses{};
    for (int t = begin; t < end; ++t) {
      addresses[static_cast<size_t>(t)] = reinterpret_cast<const float*>(part.at(places[t]));
    }
    transpose_f32(addresses.data(), dims, begin, end, out);
    return;
  }
  widen_rows(part, type, dims, padded, places, begin, end, rows);
  transpose_bf16(rows, padded, begin, end, out);
}

void load_scales(const TileSource& source, const TileShape& shape, const Place* places, int begin,
                 int end, Tile& tile) {
  const auto fill = [&](const float* scales, int64_t block, float* out) {
    for (int g = 0; g < shape.groups; ++g) {
      for (int t = begin; t < end; ++t) {
        const Place& place = places[t];
        out[g * kTile + t] =
            scales ? scales[place.block * block + place.slot * source.scale_token + g] : 1.0f;
      }
    }
  };
  fill(source.k_scale, source.k_scale_block, tile.k_scale);
  fill(source.v_scale, source.v_scale_block, tile.v_scale);

  tile.equal_scales = true;
  for (int g = 0; g < shape.groups; ++g) {
    const float* scales = tile.v_scale + g * kTile;
    float largest = 0.0f;
    for (int t = begin; t < end; ++t) {
      largest = std::max(largest, scales[t]);
      tile.equal_scales = tile.equal_scales && scales[t] == scales[begin];
    }
    const float s = attention_rule::value_scale(largest, shape.mla);
    tile.factor[g] = s;
    for (int t = begin; t < end; ++t) tile.weight[g * kTile + t] = scales[t] / s;
    tile.equal_scales = tile.equal_scales && tile.weight[g * kTile + begin] == 1.0f;
  }
}

}  // namespace

void load_tile(const TileSource& source, const TileShape& shape, int64_t first, int begin, int end,
               Tile& tile) {
  std::array<Place, kTile> places{};
  for (int t = begin; t < end; ++t) {
    const int64_t position = first + t;
    places[static_cast<size_t>(t)] = {source.blocks[position / source.block_tokens],
                                      position % source.block_tokens};
  }
  load_scales(source, shape, places.data(), begin, end, tile);

  auto* rows = reinterpret_cast<uint16_t*>(tile.rows);
  if (shape.rope_dims > 0) {
    load_k({source.rope, source.rope_block, source.rope_token}, source.rope_type, shape.rope_dims,
           shape.padded_rope(), places.data(), begin, end, rows, tile.k + shape.padded_k() * kTile);
  }
  const Part k{source.k, source.k_block, source.k_token};
  load_k(k, source.type, shape.k_dims, shape.padded_k(), places.data(), begin, end, rows, tile.k);

  // MLA's V is K, whose BF16 rows are in scratch still.
  const Part v = shape.mla ? k : Part{source.v, source.v_block, source.v_token};
  const int padded = (shape.v_dims + 31) / 32 * 32;
  if (!shape.mla && source.type != DType::f32) {
    widen_rows(v, source.type, shape.v_dims, padded, places.data(), begin, end, rows);
  }
  tile.finite_v = true;
  for (int t = begin; t < end; ++t) {
    const bool finite =
        source.type == DType::f32
            ? spread_f32(reinterpret_cast<const float*>(v.at(places[static_cast<size_t>(t)])),
                         shape.v_dims, t, tile.v)
            : spread_bf16(rows + t * padded, shape.v_dims, t, tile.v);
    tile.finite_v = tile.finite_v && finite;
  }
}

#else
void load_tile(const TileSource&, const TileShape&, int64_t, int, int, Tile&) {}
#endif

}  // namespace octet::cpu::attention
