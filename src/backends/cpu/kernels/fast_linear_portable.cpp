// The fast linear in plain C++: 8 lanes along k in FP32, compiled for the baseline, AVX2 and
// AVX-512 and picked by the loader. Multiplies and adds stay apart, so all of them give the same
// bits.
//
//   x: up to 2 rows       A tile is 2 rows of x by 4 rows of W: 8 accumulators of 8 lanes. Four
//   rows W: 4 rows, decoded    of W are decoded, a block of k at a time, into L1, and used for
//   every row
//      block by block     of x before the next.
#include <algorithm>
#include <cstring>

#include "backends/cpu/kernels/exact_loops.h"
#include "backends/cpu/kernels/fast_linear.h"

namespace octet::cpu::fast {
namespace {

constexpr int kLanes = 8, kGroup = 2;
constexpr int64_t kBlock = 1024;             // values of k decoded at once
constexpr int64_t kSteps = kChunk / kLanes;  // vectors in a chunk

// GCC and Clang vectors: the compiler makes one AVX register or two SSE registers of each.
using Lanes = float __attribute__((vector_size(32)));

inline void load(Lanes& lanes, const float* from) {
  std::memcpy(&lanes, from, sizeof lanes);
}
inline void store(const Lanes& lanes, float* to) {
  std::memcpy(to, &lanes, sizeof lanes);
}

// total [M][4][8] += x · W over `steps` vectors of k; x is [step][M][8], W [step][4][8]. `scale` is
// null, or [cell][4] where scales vary along k.
OCTET_EXACT_CLONES void tile1(const float* w, const float* x, int64_t steps, const float* scale,
                              float* total) {
  const int64_t cell = scale ? kCell / kLanes : steps;
  Lanes sum[4];
  for (int r = 0; r < 4; ++r) load(sum[r], total + r * kLanes);
  for (int64_t begin = 0; begin < steps; begin += cell) {
    Lanes a0{}, a1{}, a2{}, a3{};
    if (!scale) a0 = sum[0], a1 = sum[1], a2 = sum[2], a3 = sum[3];
    for (int64_t s = begin; s < std::min(begin + cell, steps); ++s, w += 4 * kLanes, x += kLanes) {
      Lanes v, w0, w1, w2, w3;
      load(v, x), load(w0, w), load(w1, w + 8), load(w2, w + 16), load(w3, w + 24);
      a0 += w0 * v, a1 += w1 * v, a2 += w2 * v, a3 += w3 * v;
    }
    if (scale) {
      sum[0] += a0 * scale[0], sum[1] += a1 * scale[1];
      sum[2] += a2 * scale[2], sum[3] += a3 * scale[3];
      scale += 4;
    } else {
      sum[0] = a0, sum[1] = a1, sum[2] = a2, sum[3] = a3;
    }
  }
  for (int r = 0; r < 4; ++r) store(sum[r], total + r * kLanes);
}

OCTET_EXACT_CLONES void tile2(const float* w, const float* x, int64_t steps, const float* scale,
                              float* total) {
  const int64_t cell = scale ? kCell / kLanes : steps;
  Lanes sum[8];
  for (int r = 0; r < 8; ++r) load(sum[r], total + r * kLanes);
  for (int64_t begin = 0; begin < steps; begin += cell) {
    Lanes a0{}, a1{}, a2{}, a3{}, b0{}, b1{}, b2{}, b3{};
    if (!scale) {
      a0 = sum[0], a1 = sum[1], a2 = sum[2], a3 = sum[3];
      b0 = sum[4], b1 = sum[5], b2 = sum[6], b3 = sum[7];
    }
    for (int64_t s = begin; s < std::min(begin + cell, steps);
         ++s, w += 4 * kLanes, x += 2 * kLanes) {
      Lanes v, u, row;
      load(v, x), load(u, x + 8);
      load(row, w), a0 += row * v, b0 += row * u;
      load(row, w + 8), a1 += row * v, b1 += row * u;
      load(row, w + 16), a2 += row * v, b2 += row * u;
      load(row, w + 24), a3 += row * v, b3 += row * u;
    }
    if (scale) {
      sum[0] += a0 * scale[0], sum[1] += a1 * scale[1];
      sum[2] += a2 * scale[2], sum[3] += a3 * scale[3];
      sum[4] += b0 * scale[0], sum[5] += b1 * scale[1];
      sum[6] += b2 * scale[2], sum[7] += b3 * scale[3];
      scale += 4;
    } else {
      sum[0] = a0, sum[1] = a1, sum[2] = a2, sum[3] = a3;
      sum[4] = b0, sum[5] = b1, sum[6] = b2, sum[7] = b3;
    }
  }
  for (int r = 0; r < 8; ++r) store(sum[r], total + r * kLanes);
}

// --- packing and decoding ---------------------------------------------------------------------

// `valid` values of a row, then zeros up to a whole chunk.
void decode(DType type, const std::byte* from, int64_t valid, float* out) {
  load_floats(type, from, valid, out);
  if (valid < kChunk) std::fill(out + valid, out + kChunk, 0.0f);
}

// Chunks [first, first + chunks) of rows n .. n+3: [step][4][8].
void decode_rows4(const Matrix& w, int64_t n, int64_t first, int64_t chunks, float* out) {
  const auto size = static_cast<int64_t>(size_of(w.type));
  float values[kChunk];
  for (int r = 0; r < 4; ++r) {
    const std::byte* row = w.row(std::min(n + r, w.rows - 1));
    for (int64_t c = 0; c < chunks; ++c) {
      const int64_t k = (first + c) * kChunk;
      decode(w.type, row + k * size, std::min(kChunk, w.k - k), values);
      for (int64_t s = 0; s < kSteps; ++s) {
        std::memcpy(out + ((c * kSteps + s) * 4 + r) * kLanes, values + s * kLanes,
                    sizeof(float) * kLanes);
      }
    }
  }
}

void pack(const Matrix& x, const int32_t* index, const Matrix&, const Packed& packed, int64_t begin,
          int64_t end) {
  const auto size = static_cast<int64_t>(size_of(x.type));
  float values[kChunk];
  for (int64_t group = begin; group < end; ++group) {
    const int64_t first = packed.first_row(group), rows = packed.first_row(group + 1) - first;
    auto* out = reinterpret_cast<float*>(packed.data + first * packed.row_bytes);
    for (int64_t m = 0; m < rows; ++m) {
      const int64_t row = index ? index[first + m] : first + m;
      for (int64_t k = 0; k < x.k; k += kChunk) {
        decode(x.type, x.row(row) + k * size, std::min(kChunk, x.k - k), values);
        if (x.scales.data) {
          const float scale = x.scales.at(row, x.scales.varies ? k / kCell : 0);
          for (float& value : values) value *= scale;
        }
        for (int64_t s = 0; s < kSteps; ++s) {
          std::memcpy(out + ((k / kLanes + s) * rows + m) * kLanes, values + s * kLanes,
                      sizeof(float) * kLanes);
        }
      }
    }
  }
}

float add_lanes(const float* v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

void finish(const float* totals, const Packed& packed, const Matrix& w, int64_t n, int64_t last,
            const Output& out) {
  const auto size = static_cast<int64_t>(size_of(out.type));
  for (int64_t col = n; col < std::min(n + 4, last); ++col) {
    const float scale = w.scales.data && !w.scales.varies ? w.scales.at(col, 0) : 1.0f;
    float bias = 0;
    if (out.bias) {
      load_floats(out.bias_type, out.bias + col * static_cast<int64_t>(size_of(out.bias_type)), 1,
                  &bias);
    }
    for (int64_t m = 0; m < packed.rows; ++m) {
      const float sum = add_lanes(totals + (m * 4 + col - n) * kLanes) * scale;
      const float value = out.bias ? sum + bias : sum;
      store_floats(out.type, &value, 1, out.data + m * out.row_bytes + col * size);
    }
  }
}

size_t scratch_bytes(const Matrix& w, int64_t rows) {
  return static_cast<size_t>(4 * kBlock + 4 * cells_of(w.k) + rows * 4 * kLanes) * sizeof(float);
}

void columns(const Matrix& w, const Packed& packed, int64_t begin, int64_t end, const Output& out,
             std::byte* scratch) {
  auto* panel = reinterpret_cast<float*>(scratch);
  float* scales = panel + 4 * kBlock;
  float* totals = scales + 4 * cells_of(w.k);
  const int64_t chunks = (w.k + kChunk - 1) / kChunk, block = kBlock / kChunk;
  for (int64_t n = begin; n < end; n += 4) {
    for (int r = 0; w.scales.varies && r < 4; ++r) {
      for (int64_t c = 0; c < cells_of(w.k); ++c) {
        scales[c * 4 + r] = w.scales.at(std::min(n + r, w.rows - 1), c);
      }
    }
    std::fill_n(totals, packed.rows * 4 * kLanes, 0.0f);
    for (int64_t c = 0; c < chunks; c += block) {
      const int64_t count = std::min(block, chunks - c);
      decode_rows4(w, n, c, count, panel);
      const float* scale = w.scales.varies ? scales + c * kChunk / kCell * 4 : nullptr;
      for (int64_t g = 0; g < packed.groups; ++g) {
        const int64_t first = packed.first_row(g), m = packed.first_row(g + 1) - first;
        const auto* x = reinterpret_cast<const float*>(packed.data + first * packed.row_bytes);
        (m == 1 ? tile1 : tile2)(panel, x + c * kChunk * m, count * kSteps, scale,
                                 totals + first * 4 * kLanes);
      }
    }
    finish(totals, packed, w, n, end, out);
  }
}

constexpr Kernels kernels = {
    .group_rows = kGroup,
    .max_rows = 240,
    .packed_row_bytes = [](int64_t k) { return round_up(k, kChunk) * 4; },
    .scales_per_row = [](int64_t) { return int64_t{0}; },
    .pack = pack,
    .scratch_bytes = scratch_bytes,
    .columns = columns,
};

}  // namespace

const Kernels& portable_kernels() {
  return kernels;
}

#if !defined(__x86_64__)
// Their rows refuse to run without AVX-512.
const Kernels& fma_kernels() {
  return kernels;
}
const Kernels& dot_kernels() {
  return kernels;
}
const Kernels& vnni_kernels() {
  return kernels;
}
#endif

}  // namespace octet::cpu::fast
