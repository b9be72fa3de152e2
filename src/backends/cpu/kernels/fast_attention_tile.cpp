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

// Bytes of V, before which other parts pass through the same memory, a row of BF16 values a token.
size_t row_bytes(const TileShape& shape) {
  const int dims = std::max({shape.padded_k(), shape.padded_rope(), shape.v_stride()});
  return static_cast<size_t>(kTile) * static_cast<size_t>(dims) * (shape.wide ? 4 : 2);
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

constexpr int kBatch = 8;  // tokens whose codes are loaded before the first is converted

// The least code without its sign that is no finite value.
template <Code F>
constexpr uint8_t kNotFinite = F == Code::e4m3 ? 0x7F : 0x7C;

// `dims` codes of up to kBatch tokens -> BF16 rows, `padded` (a multiple of 32) each, zero behind
// `dims`. Returns whether all are finite. All loads come before the stores: a load that a store
// still in flight seems to overlap (it compares 12 bits of the address) waits for it, and then
// cache misses queue up one behind another.
template <Code F>
OCTET_AVX512 bool widen_codes(const uint8_t* const* tokens, int count, int dims, int padded,
                              uint16_t* out) {
  const simd::Fp8Table table = simd::load_fp8_table<F>();
  const __m512i order = simd::in_order();
  __m512i most = _mm512_setzero_si512();
  for (int d = 0; d < padded; d += 64) {
    const __mmask64 mask = simd::first_lanes(dims - d, 64);
    __m512i codes[kBatch];
#pragma GCC unroll 8
    for (int t = 0; t < kBatch; ++t) {
      codes[t] = _mm512_maskz_loadu_epi8(mask, tokens[t < count ? t : 0] + d);
    }
#pragma GCC unroll 8
    for (int t = 0; t < kBatch; ++t) {
      if (t >= count) break;
      most = _mm512_max_epu8(most, _mm512_andnot_si512(table.sign, codes[t]));
      __m512i first, second;
      simd::decode_fp8(table, _mm512_permutexvar_epi64(order, codes[t]), first, second);
      _mm512_store_si512(out + t * padded + d, first);
      if (d + 32 < padded) _mm512_store_si512(out + t * padded + d + 32, second);
    }
  }
  const __m512i limit = _mm512_set1_epi8(static_cast<char>(kNotFinite<F>));
  return _mm512_cmpge_epu8_mask(most, limit) == 0;
}

OCTET_AVX512 bool copy_bf16(const uint16_t* in, int dims, int padded, uint16_t* out) {
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
  __m512i most = _mm512_setzero_si512();
  for (int d = 0; d < padded; d += 32) {
    const auto mask = static_cast<__mmask32>(simd::first_lanes(dims - d, 32));
    const __m512i x = _mm512_maskz_loadu_epi16(mask, in + d);
    most = _mm512_max_epu16(most, _mm512_and_si512(x, magnitude));
    _mm512_store_si512(out + d, x);
  }
  return _mm512_cmpge_epu16_mask(most, _mm512_set1_epi16(0x7F80)) == 0;
}

// BF16 rows [64][padded] -> [padded / 2][64 tokens] two dims, for the groups of 16 tokens that hold
// any of [begin, end).
OCTET_AVX512 void transpose_bf16(const uint16_t* rows, int padded, int begin, int end,
                                 uint32_t* out) {
  for (int t = begin / 16 * 16; t < end; t += 16) {
    for (int d = 0; d < padded; d += 32) {
      __m512i r[16];
      simd::load_transposed16(rows + t * padded + d, 2 * padded, r);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) _mm512_store_si512(out + (d / 2 + i) * kTile + t, r[i]);
    }
  }
}

// FP32 rows, which lie in the cache itself, -> [padded][64 tokens].
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

// Where the tokens of a tile lie: block and slot of each.
struct Place {
  int64_t block, slot;
};
using Places = std::array<Place, kTile>;

void find_places(const TileSource& source, int64_t first, int begin, int end, Places& places) {
  int64_t entry = (first + begin) / source.block_tokens;
  int64_t slot = (first + begin) % source.block_tokens;
  for (int t = begin; t < end; ++t) {
    places[static_cast<size_t>(t)] = {source.blocks[entry], slot};
    if (++slot == source.block_tokens) {
      slot = 0;
      ++entry;
    }
  }
}

// One part of the cache (K, V or rope): the addresses of its rows.
struct Part {
  const std::byte* data;
  int64_t block, token;
  const std::byte* at(const Place& place) const {
    return data + place.block * block + place.slot * token;
  }
};

// Inlined by force, as those of its callers that do nothing else: g++ takes a function that only
// prefetches for one without effect, and drops its calls.
__attribute__((always_inline)) inline void prefetch_bytes(const void* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(static_cast<const std::byte*>(from) + i);
  }
}

// What is loaded now and what comes next: a row lies far from its neighbours (other KV heads are
// between them), so the processor does not guess where the next tile is.
struct Slots {
  Places now{}, next{};
  int begin = 0, end = 0;  // of now
  int next_end = 0;        // next has slots [0, next_end)

  __attribute__((always_inline)) void prefetch(const Part& part, int t, int64_t bytes) const {
    if (t < next_end) prefetch_bytes(part.at(next[static_cast<size_t>(t)]), bytes);
  }
};

// The scales of slots [begin, end), which lie together for the tokens of a block.
__attribute__((always_inline)) inline void prefetch_scales(const TileSource& source,
                                                           const TileShape& shape,
                                                           const Places& places, int begin,
                                                           int end) {
  if (!source.k_scale) return;
  int64_t previous = -1;
  for (int t = begin; t < end; ++t) {
    const Place& place = places[static_cast<size_t>(t)];
    if (place.block == previous) continue;
    previous = place.block;
    const int64_t bytes = 4 * (shape.groups + (source.block_tokens - 1) * source.scale_token);
    prefetch_bytes(source.k_scale + place.block * source.k_scale_block, bytes);
    if (!shape.mla) prefetch_bytes(source.v_scale + place.block * source.v_scale_block, bytes);
  }
}

// Rows of 8-bit and 16-bit types as BF16. Returns whether all values are finite.
bool widen_rows(const Part& part, DType type, int dims, int padded, const Slots& slots,
                uint16_t* rows) {
  const int64_t bytes = dims * static_cast<int64_t>(size_of(type));
  bool finite = true;
  for (int t = slots.begin; t < slots.end; t += kBatch) {
    const int count = std::min(kBatch, slots.end - t);
    std::array<const uint8_t*, kBatch> tokens{};
    for (int i = 0; i < count; ++i) {
      const int slot = t + i;
      slots.prefetch(part, slot, bytes);
      const std::byte* row = part.at(slots.now[static_cast<size_t>(slot)]);
      tokens[static_cast<size_t>(i)] = reinterpret_cast<const uint8_t*>(row);
      if (type == DType::bf16) {
        const auto* values = reinterpret_cast<const uint16_t*>(row);
        finite &= copy_bf16(values, dims, padded, rows + slot * padded);
      }
    }
    uint16_t* out = rows + t * padded;
    if (type == DType::e4m3) {
      finite &= widen_codes<Code::e4m3>(tokens.data(), count, dims, padded, out);
    } else if (type == DType::e5m2) {
      finite &= widen_codes<Code::e5m2>(tokens.data(), count, dims, padded, out);
    }
  }
  return finite;
}

// K (or rope) of `type`, transposed into `out`. `rows` keeps the BF16 rows where the type has them.
// Returns whether these are finite.
bool load_k(const Part& part, DType type, int dims, int padded, const Slots& slots, std::byte* rows,
            std::byte* out) {
  if (type == DType::f32) {
    std::array<const float*, kTile> addresses{};
    for (int t = slots.begin; t < slots.end; ++t) {
      const auto i = static_cast<size_t>(t);
      slots.prefetch(part, t, int64_t{dims} * 4);
      addresses[i] = reinterpret_cast<const float*>(part.at(slots.now[i]));
    }
    transpose_f32(addresses.data(), dims, slots.begin, slots.end, reinterpret_cast<float*>(out));
    return true;
  }
  auto* const narrow = reinterpret_cast<uint16_t*>(rows);
  const bool finite = widen_rows(part, type, dims, padded, slots, narrow);
  transpose_bf16(narrow, padded, slots.begin, slots.end, reinterpret_cast<uint32_t*>(out));
  return finite;
}

// V as rows. Returns whether all of it is finite.
bool load_v(const Part& part, DType type, const TileShape& shape, const Slots& slots,
            std::byte* rows) {
  const int padded = shape.v_stride();
  if (type != DType::f32) {
    return widen_rows(part, type, shape.v_dims, padded, slots, reinterpret_cast<uint16_t*>(rows));
  }
  bool finite = true;
  for (int t = slots.begin; t < slots.end; ++t) {
    slots.prefetch(part, t, int64_t{shape.v_dims} * 4);
    const std::byte* row = part.at(slots.now[static_cast<size_t>(t)]);
    finite &= copy_f32(reinterpret_cast<const float*>(row), shape.v_dims, padded,
                       reinterpret_cast<float*>(rows) + t * padded);
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

void load_scales(const TileSource& source, const TileShape& shape, const Slots& slots, Tile& tile) {
  const auto fill = [&](const float* scales, int64_t block, float* out) {
    const float* at = nullptr;
    int64_t previous = -1;
    for (int t = slots.begin; t < slots.end; ++t) {
      const Place& place = slots.now[static_cast<size_t>(t)];
      // GQA has one scale a block: most tokens take that of the token before.
      if (scales && (source.scale_token != 0 || place.block != previous)) {
        at = scales + place.block * block + place.slot * source.scale_token;
        previous = place.block;
      }
      for (int g = 0; g < shape.groups; ++g) out[g * kTile + t] = at ? at[g] : 1.0f;
    }
  };
  fill(source.k_scale, source.k_scale_block, tile.k_scale);
  if (!shape.mla) fill(source.v_scale, source.v_scale_block, tile.v_scale);

  const uint64_t loaded =
      simd::first_lanes(slots.end, kTile) & ~simd::first_lanes(slots.begin, kTile);
  tile.equal_scales = true;
  for (int g = 0; g < shape.groups; ++g) {
    const float* scales = tile.v_scale + g * kTile;
    tile.equal_scales = tile.equal_scales && equal_scales(shape.mla, scales, slots.begin, loaded);
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

void prefetch_tile(const TileSource& source, const TileShape& shape, int64_t first, int begin,
                   int end) {
  Places places;
  find_places(source, first, begin, end, places);
  prefetch_scales(source, shape, places, begin, end);
  const auto size = static_cast<int64_t>(size_of(source.type));
  const auto rope_size = static_cast<int64_t>(size_of(source.rope_type));
  for (int t = begin; t < end; ++t) {
    const Place& place = places[static_cast<size_t>(t)];
    const Part k{source.k, source.k_block, source.k_token};
    const Part rope{source.rope, source.rope_block, source.rope_token};
    const Part v{source.v, source.v_block, source.v_token};
    prefetch_bytes(k.at(place), shape.k_dims * size);
    if (rope.data) prefetch_bytes(rope.at(place), shape.rope_dims * rope_size);
    if (v.data) prefetch_bytes(v.at(place), shape.v_dims * size);
  }
}

void load_tile(const TileSource& source, const TileShape& shape, int64_t first, int begin, int end,
               int64_t last, Tile& tile) {
  Slots slots;
  slots.begin = begin;
  slots.end = end;
  slots.next_end = static_cast<int>(std::clamp<int64_t>(last - first - kTile, 0, kTile));
  find_places(source, first, begin, end, slots.now);
  find_places(source, first + kTile, 0, slots.next_end, slots.next);
  prefetch_scales(source, shape, slots.next, 0, slots.next_end);
  load_scales(source, shape, slots, tile);

  if (shape.rope_dims > 0) {
    load_k({source.rope, source.rope_block, source.rope_token}, source.rope_type, shape.rope_dims,
           shape.padded_rope(), slots, tile.v, tile.rope);
  }
  const Part k{source.k, source.k_block, source.k_token};
  tile.finite_v = load_k(k, source.type, shape.k_dims, shape.padded_k(), slots, tile.v, tile.k);
  // MLA's V is K, whose BF16 rows are there already.
  if (shape.mla && source.type != DType::f32) return;
  const Part v{source.v, source.v_block, source.v_token};
  tile.finite_v = load_v(shape.mla ? k : v, source.type, shape, slots, tile.v);
}

#else
float value_weights(bool, const float*, uint64_t, float*) {
  return 1.0f;
}
void prefetch_tile(const TileSource&, const TileShape&, int64_t, int, int) {}
void load_tile(const TileSource&, const TileShape&, int64_t, int, int, int64_t, Tile&) {}
#endif

}  // namespace octet::cpu::attention
