// The two products of attention on tiles of AMX. One tdpbf16ps multiplies up to sixteen rows by
// sixteen tokens (or value dims) over 32 dims (or tokens):
//
//           32 dims                  16 tokens                     16 dims
//        +----------+              +-----------+                 +-----------+
//   rows |    q     |  x  16 pairs |     K     |  -> P  x     16 |  V, pairs |  -> O
//        +----------+      of dims +-----------+           pairs | of tokens |
//
// The tile of the cache lies in memory as these operands want it: K as it always does
// (fast_attention_tile.h), V in pairs of tokens.
#include "backends/cpu/kernels/fast_attention_amx.h"

#if defined(__x86_64__)
#include <array>
#include <vector>

#include "backends/cpu/kernels/fast_attention_steps.h"
#include "backends/cpu/kernels/simd_amx.h"
#endif

namespace octet::cpu::attention {

#if defined(__x86_64__)
namespace {

namespace rule = attention_rule;

constexpr int kSide = 16;  // rows of a tile, and its columns
constexpr int kHalf = 32;  // dims or tokens of one product

// For every number of rows: tiles 0 to 3 are sums [rows][16], 4 the rows' operand, 5 and 6 the
// other one. Constants, for one that is built on the spot has to wait for all stores on their way.
constexpr auto kConfigs = [] {
  std::array<simd::TileConfig, kSide + 1> configs{};
  for (int rows = 1; rows <= kSide; ++rows) {
    auto& config = configs[static_cast<size_t>(rows)];
    for (const int tile : {0, 1, 2, 3, 4}) config.set(tile, rows, kSide);
    for (const int tile : {5, 6}) config.set(tile, kSide, kSide);
  }
  return configs;
}();

OCTET_AMX_INLINE void configure(int rows) {
  kConfigs[static_cast<size_t>(rows)].load();
}

OCTET_AMX_INLINE void clear_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// sums[0 .. columns) += a b, where b's next sixteen columns are 64 bytes on.
OCTET_AMX_INLINE void add_product(const void* a, int64_t a_step, const std::byte* b, int64_t b_step,
                                  int columns) {
  _tile_loadd(4, a, a_step);
  _tile_loadd(5, b, b_step);
  _tile_dpbf16ps(0, 4, 5);
  if (columns > 1) {
    _tile_loadd(6, b + 64, b_step);
    _tile_dpbf16ps(1, 4, 6);
  }
  if (columns > 2) {
    _tile_loadd(5, b + 128, b_step);
    _tile_dpbf16ps(2, 4, 5);
  }
  if (columns > 3) {
    _tile_loadd(6, b + 192, b_step);
    _tile_dpbf16ps(3, 4, 6);
  }
}

// Into [rows][64].
OCTET_AMX_INLINE void store_sums(float* out, int columns) {
  simd::tile_barrier(out);
  _tile_stored(0, out, kTile * 4);
  if (columns > 1) _tile_stored(1, out + 16, kTile * 4);
  if (columns > 2) _tile_stored(2, out + 32, kTile * 4);
  if (columns > 3) _tile_stored(3, out + 48, kTile * 4);
  simd::tile_barrier(out);
}

// Up to sixteen rows on their way through a tile.
struct Group {
  int row = 0, count = 0;
  Seen slots[kSide];
  uint64_t masks[kSide];
  int begin = kTile, end = 0;  // of what any of them sees
  alignas(64) float p[kSide][kTile];
  alignas(64) float sums[kSide][kTile];
  alignas(64) uint16_t rounded[kSide][kTile];
};

// Step 1 of the rule. Slots in columns behind the last that is seen get 0.
OCTET_AMX void score(const TileShape& shape, const Math& math, const Tile& tile, const Rows& rows,
                     Group& g) {
  const int columns = (g.end + kSide - 1) / kSide;
  const uint16_t* const q = rows.q16 + int64_t{g.row} * rows.q_stride;
  const int64_t q_step = 2 * int64_t{rows.q_stride}, k_step = kTile * 4;
  const auto dot = [&](const uint16_t* from, const std::byte* k, int begin, int end) OCTET_AMX {
    simd::tile_barrier(from);
    clear_sums();
    for (int d = begin; d < end; d += kHalf) {
      add_product(from + d, q_step, k + d / 2 * k_step, k_step, columns);
    }
    store_sums(g.sums[0], columns);
  };
  for (int part = 0; part < shape.groups; ++part) {
    const int begin = part * shape.group_dims;
    const int end = part + 1 == shape.groups ? shape.padded_k() : begin + shape.group_dims;
    dot(q, tile.k, begin, end);
    const float* const scales = tile.k_scale + part * kTile;
    for (int r = 0; r < g.count; ++r) {
      for (int t = 0; t < columns * kSide; t += kSide) {
        const __m512 sum = _mm512_load_ps(&g.sums[r][t]), s = _mm512_load_ps(scales + t);
        _mm512_store_ps(&g.p[r][t], part == 0
                                        ? _mm512_mul_ps(sum, s)
                                        : _mm512_fmadd_ps(sum, s, _mm512_load_ps(&g.p[r][t])));
      }
    }
  }
  const bool rope = shape.rope_dims > 0;
  if (rope) dot(q + shape.padded_k(), tile.rope, 0, shape.padded_rope());
  const __m512 c = _mm512_set1_ps(math.scale);
  for (int r = 0; r < g.count; ++r) {
    const __m512 q_scale = _mm512_set1_ps(rows.q_scale[g.row + r]);
    for (int t = 0; t < kTile; t += kSide) {
      __m512 x = _mm512_setzero_ps();
      if (t < columns * kSide) {
        const __m512 added = rope ? _mm512_load_ps(&g.sums[r][t]) : x;
        x = _mm512_mul_ps(_mm512_fmadd_ps(_mm512_load_ps(&g.p[r][t]), q_scale, added), c);
      }
      _mm512_store_ps(&g.p[r][t], x);
    }
  }
}

// Step 5 for a row and value group. Returns S.
OCTET_AVX512 float round_row(const TileShape& shape, const Math& math, const Tile& tile, int part,
                             Group& g, int r) {
  alignas(64) float weight[kTile], p[kTile];
  const float* weights = tile.equal_scales ? nullptr : tile.weight + part * kTile;
  float s = tile.factor[part];
  if (!tile.equal_scales && g.masks[r] != ~uint64_t{0} && g.masks[r] != 0) {
    s = value_weights(shape.mla, tile.v_scale + part * kTile, g.masks[r], weight);
    weights = weight;
  }
  round_p(math.round, g.masks[r], g.p[r], weights, p);
  narrow_query(kTile, kTile, p, g.rounded[r]);
  return math.round == RoundP::e4m3 ? s * (1.0f / rule::kPScale) : s;
}

// Step 6 for rows [r, r + count) of the group, whose P is rounded, for value dims [from, to).
OCTET_AMX void add_values(const TileShape& shape, const std::byte* v, const Rows& rows, int from,
                          int to, Group& g, int r, int count, const float* scale_o,
                          const float* scale_v) {
  const int64_t v_step = 4 * int64_t{shape.v_stride()};  // bytes of a pair of tokens
  simd::tile_barrier(g.rounded[r]);
  for (int d = from; d < to; d += kChunk) {
    const int columns = to - d > kHalf ? 4 : 2;
    clear_sums();
    for (int t = g.begin / kHalf * kHalf; t < g.end; t += kHalf) {
      add_product(g.rounded[r] + t, kTile * 2, v + t / 2 * v_step + 4 * d, v_step, columns);
    }
    store_sums(g.sums[r], columns);
    for (int i = r; i < r + count; ++i) {
      if (g.masks[i] == 0) continue;
      float* const value = rows.value + int64_t{g.row + i} * shape.v_stride() + d;
      const __m512 a = _mm512_set1_ps(scale_o[i]), b = _mm512_set1_ps(scale_v[i]);
      for (int c = 0; c < columns * kSide; c += kSide) {
        _mm512_store_ps(value + c, _mm512_fmadd_ps(_mm512_load_ps(&g.sums[i][c]), b,
                                                   _mm512_mul_ps(_mm512_load_ps(value + c), a)));
      }
    }
  }
}

// V with zeros in place of what a row does not see: a P of zero must meet nothing that is not
// finite.
std::vector<uint16_t> seen_values(const TileShape& shape, const Tile& tile, const Seen& slots) {
  const auto stride = static_cast<size_t>(2 * shape.v_stride());
  std::vector<uint16_t> values(stride * (kTile / 2));
  const auto* const v = reinterpret_cast<const uint16_t*>(tile.v);
  for (auto t = static_cast<size_t>(slots.begin); t < static_cast<size_t>(slots.end); ++t) {
    for (size_t d = t % 2; d < stride; d += 2) {
      values[t / 2 * stride + d] = v[t / 2 * stride + d];
    }
  }
  return values;
}

OCTET_AMX void attend(const TileShape& shape, const Math& math, const Tile& tile, int64_t first,
                      const Rows& rows, Group& g) {
  float scale_o[kSide] = {}, scale_v[kSide] = {};
  for (int r = 0; r < g.count; ++r) {
    g.slots[r] = seen_slots(rows.position[g.row + r], math.window, first);
    g.masks[r] = g.slots[r].mask();
    if (g.masks[r] == 0) continue;
    g.begin = std::min(g.begin, g.slots[r].begin);
    g.end = std::max(g.end, g.slots[r].end);
  }
  if (g.begin >= g.end) return;
  score(shape, math, tile, rows, g);
  for (int r = 0; r < g.count; ++r) {
    const int row = g.row + r;
    if (g.masks[r] == 0) {
      std::fill_n(g.p[r], kTile, 0.0f);
    } else {
      scale_o[r] = soften(g.masks[r], g.p[r], rows.max[row], rows.sum + int64_t{row} * 16);
    }
  }
  for (int part = 0; part < shape.groups; ++part) {
    const int from = part * shape.group_dims;
    const int to = std::min(from + shape.group_dims, shape.v_dims);
    for (int r = 0; r < g.count; ++r) scale_v[r] = round_row(shape, math, tile, part, g, r);
    if (tile.finite_v) {
      add_values(shape, tile.v, rows, from, to, g, 0, g.count, scale_o, scale_v);
      continue;
    }
    configure(1);
    for (int r = 0; r < g.count; ++r) {
      const std::vector<uint16_t> v = seen_values(shape, tile, g.slots[r]);
      add_values(shape, reinterpret_cast<const std::byte*>(v.data()), rows, from, to, g, r, 1,
                 scale_o, scale_v);
    }
  }
}

OCTET_AMX void attend_groups(const TileShape& shape, const Math& math, const Tile& tile,
                             int64_t first, const Rows& rows, int begin, int end) {
  int configured = 0;
  for (int row = begin; row < end; row += kSide) {
    Group group;
    group.row = row;
    group.count = std::min(kSide, end - row);
    if (group.count != configured || !tile.finite_v) configure(group.count);
    configured = group.count;
    attend(shape, math, tile, first, rows, group);
  }
  _tile_release();
}

}  // namespace

void attend_tile_amx(const TileShape& shape, const Math& math, const Tile& tile, int64_t first,
                     const Rows& rows, int begin, int end) {
  attend_groups(shape, math, tile, first, rows, begin, end);
}

#else
void attend_tile_amx(const TileShape&, const Math&, const Tile&, int64_t, const Rows&, int, int) {}
#endif

}  // namespace octet::cpu::attention
