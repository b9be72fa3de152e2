// The two products of attention on tiles of AMX. One tdpbf16ps multiplies sixteen tokens by up to
// sixteen rows of queries over 32 dims, or up to sixteen rows by sixteen value dims over 32 tokens:
//
//           32 dims              rows                      32 tokens               16 dims
//        +----------+         +-------+                   +----------+          +-----------+
//     16 |    K     |  x   16 |   q,  |  -> scores   rows |    P     |  x    16 |  V, pairs |  -> O
//  tokens|          |    pairs| pairs |                   |          |     pairs| of tokens |
//        +----------+         +-------+                   +----------+          +-----------+
//
// So K needs no transposition, which would cost more than its products with few rows; scores do,
// and there are fewer of them.
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

// For every number of rows: 0 and 1 are scores [16 tokens][rows], 2 the queries, 3 and 4 operands
// of the cache, 5 and 6 sums [rows][16 dims], 7 is P. Constants, for one that is built on the spot
// has to wait for all stores on their way.
constexpr auto kConfigs = [] {
  std::array<simd::TileConfig, kSide + 1> configs{};
  for (int rows = 1; rows <= kSide; ++rows) {
    auto& config = configs[static_cast<size_t>(rows)];
    for (const int tile : {0, 1, 2}) config.set(tile, kSide, rows);
    for (const int tile : {3, 4}) config.set(tile, kSide, kSide);
    for (const int tile : {5, 6, 7}) config.set(tile, rows, kSide);
  }
  return configs;
}();

OCTET_AMX_INLINE void configure(const Rows& rows, int count) {
  if (*rows.tiles == count) return;
  kConfigs[static_cast<size_t>(count)].load();
  *rows.tiles = count;
}

// Up to sixteen rows on their way through a tile.
struct Group {
  int row = 0, count = 0;
  Seen slots[kSide];
  uint64_t masks[kSide];
  int begin = kTile, end = 0;  // of what any of them sees
  alignas(64) float p[kSide][kTile];
  alignas(64) float scores[kTile * kSide];  // as products leave them: [tokens][few() ? 4 : 16 rows]
  alignas(64) float sums[kSide][2 * kSide];
  alignas(64) uint16_t rounded[kSide][kTile];
  bool few() const { return count <= 4; }
};

// Dims [begin, end) of up to 64 tokens, whose rows of K are k_bytes long, times those of the
// group's queries, which begin at `q`: to g.scores.
OCTET_AMX_INLINE void multiply_keys(const uint32_t* q, int64_t q_bytes, const std::byte* k,
                                    int64_t k_bytes, int begin, int end, int columns, Group& g) {
  const int64_t step = g.few() ? 16 : 64;  // bytes of a token's scores
  auto* const out = reinterpret_cast<std::byte*>(g.scores);
  simd::tile_barrier(k);
  for (int c = 0; c < columns; c += 2) {
    const std::byte* const tokens = k + c * kSide * k_bytes;
    _tile_zero(0);
    _tile_zero(1);
    for (int d = begin; d < end; d += kHalf) {
      _tile_loadd(2, reinterpret_cast<const std::byte*>(q) + d / 2 * q_bytes, q_bytes);
      _tile_loadd(3, tokens + 2 * d, k_bytes);
      _tile_dpbf16ps(0, 3, 2);
      if (c + 1 == columns) continue;
      _tile_loadd(4, tokens + kSide * k_bytes + 2 * d, k_bytes);
      _tile_dpbf16ps(1, 4, 2);
    }
    _tile_stored(0, out + c * kSide * step, step);
    if (c + 1 < columns) _tile_stored(1, out + (c + 1) * kSide * step, step);
  }
  simd::tile_barrier(out);
}

// Scores of sixteen tokens, one register a row of the group.
OCTET_AVX512_INLINE void turn_scores(const Group& g, int column, __m512i (&r)[kSide]) {
  if (!g.few()) {
#pragma GCC unroll 16
    for (int t = 0; t < kSide; ++t) {
      r[t] = _mm512_load_si512(g.scores + (column * kSide + t) * kSide);
    }
    simd::transpose16(r);
    return;
  }
  __m512i x[4];  // lane i: token i of each four, all of its rows
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) x[i] = _mm512_load_si512(g.scores + (column * kSide + 4 * i) * 4);
  simd::transpose_quads(x, r);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) r[i] = _mm512_permutexvar_epi32(order, r[i]);
}

// Step 1 of the rule. Slots in columns behind the last that is seen get 0.
OCTET_AMX void score(const TileShape& shape, const Math& math, const Tile& tile, const Rows& rows,
                     Group& g) {
  const int columns = (g.end + kSide - 1) / kSide;
  const uint32_t* const q = rows.q16 + g.row;
  const int64_t q_bytes = 4 * int64_t{rows.q16_rows};
  __m512i r[kSide];
  for (int part = 0; part < shape.groups; ++part) {
    const int begin = part * shape.group_dims;
    const int end = part + 1 == shape.groups ? shape.padded_k() : begin + shape.group_dims;
    multiply_keys(q, q_bytes, tile.k, 2 * int64_t{shape.padded_k()}, begin, end, columns, g);
    for (int c = 0; c < columns; ++c) {
      turn_scores(g, c, r);
      const __m512 s = _mm512_load_ps(tile.k_scale + part * kTile + c * kSide);
      for (int i = 0; i < g.count; ++i) {
        float* const p = g.p[i] + c * kSide;
        const __m512 sum = _mm512_castsi512_ps(r[i]);
        _mm512_store_ps(
            p, part == 0 ? _mm512_mul_ps(sum, s) : _mm512_fmadd_ps(sum, s, _mm512_load_ps(p)));
      }
    }
  }
  const bool rope = shape.rope_dims > 0;
  if (rope) {
    multiply_keys(q + shape.padded_k() / 2 * rows.q16_rows, q_bytes, tile.rope,
                  2 * int64_t{shape.padded_rope()}, 0, shape.padded_rope(), columns, g);
  }
  const __m512 factor = _mm512_set1_ps(math.scale);
  for (int c = 0; c < kTile / kSide; ++c) {
    if (rope && c < columns) turn_scores(g, c, r);
    for (int i = 0; i < g.count; ++i) {
      float* const p = g.p[i] + c * kSide;
      __m512 x = _mm512_setzero_ps();
      if (c < columns) {
        const __m512 q_scale = _mm512_set1_ps(rows.q_scale[g.row + i]);
        const __m512 added = rope ? _mm512_castsi512_ps(r[i]) : x;
        x = _mm512_mul_ps(_mm512_fmadd_ps(_mm512_load_ps(p), q_scale, added), factor);
      }
      _mm512_store_ps(p, x);
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
  for (int t = 0; t < kTile; t += 16) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(&g.rounded[r][t]),
                       _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_load_si512(p + t), 16)));
  }
  return math.round == RoundP::e4m3 ? s * (1.0f / rule::kPScale) : s;
}

// Step 6 for rows [r, r + count) of the group, whose P is rounded, for value dims [from, to).
OCTET_AMX void add_values(const TileShape& shape, const std::byte* v, const Rows& rows, int from,
                          int to, Group& g, int r, int count, const float* scale_o,
                          const float* scale_v) {
  const int64_t v_step = 4 * int64_t{shape.v_stride()};  // bytes of a pair of tokens
  constexpr int64_t sums_step = 4 * 2 * kSide;
  simd::tile_barrier(g.rounded[r]);
  for (int d = from; d < to; d += 2 * kSide) {
    _tile_zero(5);
    _tile_zero(6);
    for (int t = g.begin / kHalf * kHalf; t < g.end; t += kHalf) {
      const std::byte* const pairs = v + t / 2 * v_step + 4 * d;
      _tile_loadd(7, g.rounded[r] + t, kTile * 2);
      _tile_loadd(3, pairs, v_step);
      _tile_dpbf16ps(5, 7, 3);
      _tile_loadd(4, pairs + 64, v_step);
      _tile_dpbf16ps(6, 7, 4);
    }
    _tile_stored(5, g.sums[r], sums_step);
    _tile_stored(6, g.sums[r] + kSide, sums_step);
    simd::tile_barrier(g.sums[r]);
    for (int i = r; i < r + count; ++i) {
      if (g.masks[i] == 0) continue;
      float* const value = rows.value + int64_t{g.row + i} * shape.v_stride() + d;
      const __m512 a = _mm512_set1_ps(scale_o[i]), b = _mm512_set1_ps(scale_v[i]);
      for (int c = 0; c < 2 * kSide; c += kSide) {
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
      if (r % 2 != 0) simd::keep_awake();
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
    configure(rows, 1);
    for (int r = 0; r < g.count; ++r) {
      const std::vector<uint16_t> v = seen_values(shape, tile, g.slots[r]);
      add_values(shape, reinterpret_cast<const std::byte*>(v.data()), rows, from, to, g, r, 1,
                 scale_o, scale_v);
    }
  }
}

OCTET_AMX void attend_groups(const TileShape& shape, const Math& math, const Tile& tile,
                             int64_t first, const Rows& rows, int begin, int end) {
  for (int row = begin; row < end; row += kSide) {
    Group group;
    group.row = row;
    group.count = std::min(kSide, end - row);
    configure(rows, group.count);
    attend(shape, math, tile, first, rows, group);
  }
}

OCTET_AMX void prepare(const Rows& rows) {
  configure(rows, kSide);
}
OCTET_AMX void release(const Rows& rows) {
  _tile_release();
  *rows.tiles = 0;
}
OCTET_AMX void product() {
  simd::keep_awake();
}

}  // namespace

void attend_tile_amx(const TileShape& shape, const Math& math, const Tile& tile, int64_t first,
                     const Rows& rows, int begin, int end) {
  attend_groups(shape, math, tile, first, rows, begin, end);
}
void prepare_tiles(const Rows& rows) {
  prepare(rows);
}
void release_tiles(const Rows& rows) {
  release(rows);
}
void keep_tiles_awake() {
  product();
}

#else
void prepare_tiles(const Rows&) {}
void release_tiles(const Rows&) {}
void keep_tiles_awake() {}
void attend_tile_amx(const TileShape&, const Math&, const Tile&, int64_t, const Rows&, int, int) {}
#endif

}  // namespace octet::cpu::attention
