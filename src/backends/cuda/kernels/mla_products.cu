// MLA's two products with kv_b, head by head: absorbing W_UK into the query, and expanding latents
// by W_UV. Weights may be quantized, activations are not; everything is FP32 FMAs.
//
//             lora                                      q~ [T, lora]  = q [T, nope] * W_UK
//   head h  | W_UK |  nope rows from h * per_head       out [T, v]    = o~ [T, lora] * W_UV^T
//           | W_UV |  v rows
//
// For one token both read every weight once and are bound by memory; for many, a block keeps a few
// tokens in registers and weights come from L2. The order of a sum does not depend on the tokens.
//
// Where rows can be read in pieces of 16 bytes under one scale each (all models), all weights of a
// block are on their way before it waits for the kernel before. Other weights are read as they
// come.
#include <algorithm>
#include <bit>

#include "backends/cuda/kernels/attention_memory.cuh"
#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/kernels/ops.h"

namespace octet::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;

// A plain or quantized matrix, row by row. Scales: as numerics/quant_format.h says, any strides.
struct Weights {
  const uint8_t* data = nullptr;
  int64_t row_bytes = 0;
  DType type = DType::bf16;
  const float* scales = nullptr;         // null = 1
  int64_t scale_row = 0, scale_col = 0;  // strides
  int grid_rows = 0, grid_cols = 0;      // elements that share a scale; 0 = all
  int row_shift = -1, col_shift = -1;    // log2 of those that are powers of two
  int cols = 0;
  bool vectors = false;  // rows begin at multiples of 16 bytes

  __device__ __forceinline__ float scale(int row, int col) const {
    if (!scales) return 1.0f;
    const int64_t r = cell(row, grid_rows, row_shift), c = cell(col, grid_cols, col_shift);
    return scales[r * scale_row + c * scale_col];
  }

  // N values from column `col`, a multiple of N; zeros beyond the row. N * size <= 64 bytes.
  template <typename W, int N>
  __device__ __forceinline__ void load(int row, int col, float (&to)[N]) const {
    const W* const from = reinterpret_cast<const W*>(data + row * row_bytes);
    if (vectors && col + N <= cols) {
      const Vector<W, N> x = load_vector<N>(from + col);
#pragma unroll
      for (int i = 0; i < N; ++i) to[i] = value(x.v[i]);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) to[i] = col + i < cols ? value(from[col + i]) : 0.0f;
    }
    if (!scales) return;
    if (grid_cols % N == 0) {
      const float s = col < cols ? scale(row, col) : 1.0f;
#pragma unroll
      for (int i = 0; i < N; ++i) to[i] = __fmul_rn(to[i], s);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (col + i < cols) to[i] = __fmul_rn(to[i], scale(row, col + i));
      }
    }
  }

 private:
  __device__ __forceinline__ static int cell(int at, int grid, int shift) {
    return grid == 0 ? 0 : shift >= 0 ? at >> shift : at / grid;
  }
  template <typename W>
  __device__ __forceinline__ float value(W x) const {
    if constexpr (std::is_same_v<W, uint8_t>) {
      return type == DType::e4m3 ? decode_e4m3(x) : decode_e5m2(x);
    } else {
      return to_float(x);
    }
  }
};

__device__ __forceinline__ void prefetch(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

// --- pieces of 16 bytes --------------------------------------------------------------------------

constexpr int kPieceWarps = 8;
constexpr int kPieceThreads = kPieceWarps * kWarp;
constexpr int kPieces = 4;  // of a thread at a time
template <typename W>
constexpr int kPieceWeights = 16 / static_cast<int>(sizeof(W));

// Four pieces and their scales, all under way at once.
template <typename W>
struct WeightPieces {
  static constexpr int K = kPieceWeights<W>;
  uint4 raw[kPieces];
  float scale[kPieces];

  // Rows row, row + step, ..., as long as they are below `end`; from column `col`.
  __device__ __forceinline__ void load(const Weights& w, int row, int step, int end, int col) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      raw[i] = make_uint4(0, 0, 0, 0);
      scale[i] = 1.0f;
      if (row + i * step >= end || col >= w.cols) continue;
      raw[i] = *reinterpret_cast<const uint4*>(w.data + (row + i * step) * w.row_bytes +
                                               col * static_cast<int64_t>(sizeof(W)));
    }
    if (!w.scales) return;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (row + i * step < end && col < w.cols) scale[i] = w.scale(row + i * step, col);
    }
  }

  // The weights of piece i.
  __device__ __forceinline__ void values(int i, DType type, float (&to)[K]) const {
    const uint32_t words[4] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w};
    if constexpr (std::is_same_v<W, uint8_t>) {
      type == DType::e4m3 ? decode<Code::e4m3>(words, to) : decode<Code::e5m2>(words, to);
    } else if constexpr (std::is_same_v<W, float>) {
#pragma unroll
      for (int k = 0; k < K; ++k) to[k] = __uint_as_float(words[k]);
    } else {
#pragma unroll
      for (int k = 0; k < K; k += 2) {
        if constexpr (std::is_same_v<W, __half>) {
          const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words[k / 2]));
          to[k] = pair.x;
          to[k + 1] = pair.y;
        } else {
          to[k] = __uint_as_float(words[k / 2] << 16);
          to[k + 1] = __uint_as_float(words[k / 2] & 0xFFFF0000u);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < K; ++k) to[k] = __fmul_rn(to[k], scale[i]);
  }

 private:
  template <Code F>
  __device__ __forceinline__ static void decode(const uint32_t (&words)[4], float (&to)[K]) {
#pragma unroll
    for (int k = 0; k < K; k += 2) {
      const float2 pair =
          __half22float2(decode_fp8x2<F>(static_cast<uint16_t>(words[k / 4] >> k % 4 / 2 * 16)));
      to[k] = pair.x;
      to[k + 1] = pair.y;
    }
  }
};

// A step of a sum over lanes: of 2 N sums, a lane keeps those N that its bit of `apart` chooses,
// and adds those of the other lane.
template <int N>
__device__ __forceinline__ void add_half(float* sums, int apart) {
  const bool upper = (threadIdx.x & static_cast<unsigned>(apart)) != 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float sent = upper ? sums[i] : sums[i + N], kept = upper ? sums[i + N] : sums[i];
    sums[i] = __fadd_rn(kept, __shfl_xor_sync(~0u, sent, apart));
  }
}

// --- absorb --------------------------------------------------------------------------------------

struct AbsorbParams {
  HeadsView q, out;
  Weights w;
  int tokens = 0, nope = 0, per_head = 0;
};

constexpr int kAbsorbColumns = 4;  // of a lane
constexpr int kAbsorbBlock = kWarp * kAbsorbColumns;

// A block: 128 columns of one head, for Tokens tokens. A warp sums a quarter of the rows,
// ascending, and the quarters are added in order. Grid: (ceil(lora / 128), heads, ceil(tokens /
// Tokens)).
template <typename W, int Tokens>
__global__ void __launch_bounds__(kThreads) absorb_kernel(const __grid_constant__ AbsorbParams p) {
  extern __shared__ float shared[];  // q [Tokens, nope], then quarters [kWarps, Tokens, 128]
  float* const q = shared;
  float* const quarters = shared + Tokens * p.nope;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int column = static_cast<int>(blockIdx.x) * kAbsorbBlock + lane * kAbsorbColumns;
  const int head = static_cast<int>(blockIdx.y), first = static_cast<int>(blockIdx.z) * Tokens;
  const int row0 = head * p.per_head;
  allow_next();
  for (int n = static_cast<int>(threadIdx.x); n < p.nope; n += kThreads) {
    prefetch(p.w.data + (row0 + n) * p.w.row_bytes +
             static_cast<int64_t>(blockIdx.x) * kAbsorbBlock * static_cast<int64_t>(sizeof(W)));
  }
  wait_for_previous();
  for (int i = static_cast<int>(threadIdx.x); i < Tokens * p.nope; i += kThreads) {
    const int token = first + i / p.nope;
    q[i] = token < p.tokens ? load_element(p.q.type, p.q.at(token, head), i % p.nope) : 0.0f;
  }
  __syncthreads();

  float sum[Tokens][kAbsorbColumns] = {};
  const int quarter = (p.nope + kWarps - 1) / kWarps;
  const int end = min(p.nope, (warp + 1) * quarter);
  if (column < p.w.cols) {
#pragma unroll 8
    for (int n = warp * quarter; n < end; ++n) {
      float w[kAbsorbColumns];
      p.w.load<W>(row0 + n, column, w);
#pragma unroll
      for (int t = 0; t < Tokens; ++t) {
#pragma unroll
        for (int c = 0; c < kAbsorbColumns; ++c)
          sum[t][c] = __fmaf_rn(q[t * p.nope + n], w[c], sum[t][c]);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < Tokens; ++t) {
#pragma unroll
    for (int c = 0; c < kAbsorbColumns; ++c)
      quarters[(warp * Tokens + t) * kAbsorbBlock + lane * kAbsorbColumns + c] = sum[t][c];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < Tokens * kAbsorbBlock; i += kThreads) {
    const int token = first + i / kAbsorbBlock;
    const int c = static_cast<int>(blockIdx.x) * kAbsorbBlock + i % kAbsorbBlock;
    if (token >= p.tokens || c >= p.w.cols) continue;
    float total = quarters[i];
#pragma unroll
    for (int w = 1; w < kWarps; ++w)
      total = __fadd_rn(total, quarters[w * Tokens * kAbsorbBlock + i]);
    store_element(p.out.type, p.out.at(token, head), c, total);
  }
}

// The same by pieces. A block: 8 pieces of a row (128 columns of FP8), which 32 groups of 8 threads
// sum over every 32nd row; then the four groups of a warp are added, then the warps in order. Grid:
// (ceil(lora / (8 K)), heads, ceil(tokens / Tokens)).
template <typename W, int Tokens>
__global__ void __launch_bounds__(kPieceThreads, Tokens == 1 ? 4 : 2)
    absorb_pieces_kernel(const __grid_constant__ AbsorbParams p) {
  constexpr int K = kPieceWeights<W>, kBlock = 8 * K, kGroups = kPieceThreads / 8;
  extern __shared__ float shared[];  // q [Tokens, nope], then sums [kPieceWarps, Tokens, kBlock]
  float* const q = shared;
  float* const sums = shared + Tokens * p.nope;
  const int tid = static_cast<int>(threadIdx.x), group = tid / 8, warp = tid / kWarp;
  const int column = static_cast<int>(blockIdx.x) * kBlock + tid % 8 * K;
  const int head = static_cast<int>(blockIdx.y), first = static_cast<int>(blockIdx.z) * Tokens;
  const int row0 = head * p.per_head, end = row0 + p.nope;
  allow_next();
  WeightPieces<W> pieces;
  pieces.load(p.w, row0 + group, kGroups, end, column);
  wait_for_previous();
  for (int i = tid; i < Tokens * p.nope; i += kPieceThreads) {
    const int token = first + i / p.nope;
    q[i] = token < p.tokens ? load_element(p.q.type, p.q.at(token, head), i % p.nope) : 0.0f;
  }
  __syncthreads();

  float sum[Tokens][K] = {};
  for (int n = group; n < p.nope; n += kPieces * kGroups) {
    if (n > group) pieces.load(p.w, row0 + n, kGroups, end, column);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (n + i * kGroups >= p.nope) continue;
      float w[K];
      pieces.values(i, p.w.type, w);
#pragma unroll
      for (int t = 0; t < Tokens; ++t) {
        const float x = q[t * p.nope + n + i * kGroups];
#pragma unroll
        for (int k = 0; k < K; ++k) sum[t][k] = __fmaf_rn(x, w[k], sum[t][k]);
      }
    }
  }
  // Lanes 8 and 16 apart have the same columns: each keeps a quarter of them.
  const int own = tid % 8 * K + tid / 8 % 2 * (K / 2) + tid / 16 % 2 * (K / 4);
#pragma unroll
  for (int t = 0; t < Tokens; ++t) {
    add_half<K / 2>(sum[t], 8);
    add_half<K / 4>(sum[t], 16);
#pragma unroll
    for (int k = 0; k < K / 4; ++k) sums[(warp * Tokens + t) * kBlock + own + k] = sum[t][k];
  }
  __syncthreads();
  for (int i = tid; i < Tokens * kBlock; i += kPieceThreads) {
    const int token = first + i / kBlock;
    const int c = static_cast<int>(blockIdx.x) * kBlock + i % kBlock;
    if (token >= p.tokens || c >= p.w.cols) continue;
    float total = sums[i];
#pragma unroll
    for (int w = 1; w < kPieceWarps; ++w) total = __fadd_rn(total, sums[w * Tokens * kBlock + i]);
    store_element(p.out.type, p.out.at(token, head), c, total);
  }
}

// --- expand --------------------------------------------------------------------------------------

struct ExpandParams {
  HeadsView x, out;
  Weights w;
  int tokens = 0, nope = 0, per_head = 0;
};

constexpr int kExpandColumns = 16;  // of a lane at a time
constexpr int kExpandRows = 8;      // of a warp
constexpr int kExpandBlock = kWarps * kExpandRows;

// A block: 32 outputs of one head, for Tokens tokens; a warp has 8 of them. A lane sums 16 of every
// 512 latents, ascending, and the lanes are added as a tree. Grid: (ceil(v / 32), heads,
// ceil(tokens / Tokens)).
template <typename W, int Tokens>
__global__ void __launch_bounds__(kThreads) expand_kernel(const __grid_constant__ ExpandParams p) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int head = static_cast<int>(blockIdx.y), first = static_cast<int>(blockIdx.z) * Tokens;
  const int v = p.per_head - p.nope;
  const int j0 = static_cast<int>(blockIdx.x) * kExpandBlock + warp * kExpandRows;
  const int row0 = head * p.per_head + p.nope + j0;
  allow_next();
#pragma unroll
  for (int r = 0; r < kExpandRows; ++r) {
    if (j0 + r < v && lane * kExpandColumns < p.w.cols)
      prefetch(p.w.data + (row0 + r) * p.w.row_bytes +
               lane * kExpandColumns * static_cast<int64_t>(sizeof(W)));
  }
  wait_for_previous();

  float sum[kExpandRows][Tokens] = {};
  for (int column = lane * kExpandColumns; column < p.w.cols; column += kWarp * kExpandColumns) {
    float x[Tokens][kExpandColumns];
#pragma unroll
    for (int t = 0; t < Tokens; ++t) {
      const void* const from = p.x.at(min(first + t, p.tokens - 1), head);
#pragma unroll
      for (int c = 0; c < kExpandColumns; ++c) {
        const bool inside = first + t < p.tokens && column + c < p.w.cols;
        x[t][c] = inside ? load_element(p.x.type, from, column + c) : 0.0f;
      }
    }
#pragma unroll
    for (int r = 0; r < kExpandRows; ++r) {
      if (j0 + r >= v) continue;
      float w[kExpandColumns];
      p.w.load<W>(row0 + r, column, w);
#pragma unroll
      for (int t = 0; t < Tokens; ++t) {
#pragma unroll
        for (int c = 0; c < kExpandColumns; ++c) sum[r][t] = __fmaf_rn(x[t][c], w[c], sum[r][t]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kExpandRows; ++r) {
#pragma unroll
    for (int t = 0; t < Tokens; ++t) {
      const float total = warp_sum(sum[r][t]);
      if (lane == 0 && j0 + r < v && first + t < p.tokens)
        store_element(p.out.type, p.out.at(first + t, head), j0 + r, total);
    }
  }
}

// K elements from `d` on as floats, zeros beyond `dim`: all loads before the first is converted.
template <int K>
__device__ __forceinline__ void load_run(const HeadsView& view, const void* from, int d, int dim,
                                         float (&to)[K]) {
#pragma unroll
  for (int k = 0; k < K; ++k) to[k] = 0.0f;
  if (view.vectors && view.type == DType::f32) {
    if (d < dim) load_floats<K>(static_cast<const float*>(from) + d, to);
  } else if (view.vectors && view.type == DType::bf16) {
    Vector<__nv_bfloat16, 4> runs[K / 4];
#pragma unroll
    for (int k = 0; k < K / 4; ++k) {
      runs[k] = {};
      if (d < dim) runs[k] = load_vector<4>(static_cast<const __nv_bfloat16*>(from) + d + 4 * k);
    }
#pragma unroll
    for (int k = 0; k < K; ++k) to[k] = to_float(runs[k / 4].v[k % 4]);
  } else {
    for (int k = 0; k < K; ++k)
      if (d + k < dim) to[k] = load_element(view.type, from, d + k);
  }
}

// The same by pieces. A block: 32 outputs of one head, four of each warp. A lane sums K of every
// 32 K latents, ascending, and the lanes are added as a tree. Grid as above.
template <typename W, int Tokens>
__global__ void __launch_bounds__(kPieceThreads, Tokens == 1 ? 4 : 2)
    expand_pieces_kernel(const __grid_constant__ ExpandParams p) {
  constexpr int K = kPieceWeights<W>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int head = static_cast<int>(blockIdx.y), first = static_cast<int>(blockIdx.z) * Tokens;
  const int v = p.per_head - p.nope;
  const int j0 =
      (static_cast<int>(blockIdx.x) * kPieceWarps + static_cast<int>(threadIdx.x) / kWarp) *
      kPieces;
  const int row0 = head * p.per_head + p.nope, end = row0 + v;
  allow_next();
  WeightPieces<W> pieces;
  pieces.load(p.w, row0 + j0, 1, end, lane * K);
  wait_for_previous();

  float sum[Tokens][kPieces] = {};
  for (int column = lane * K; column < p.w.cols; column += kWarp * K) {
    if (column > lane * K) pieces.load(p.w, row0 + j0, 1, end, column);
    float x[Tokens][K];
#pragma unroll
    for (int t = 0; t < Tokens; ++t) {
      load_run(p.x, p.x.at(min(first + t, p.tokens - 1), head), column, p.w.cols, x[t]);
    }
#pragma unroll
    for (int r = 0; r < kPieces; ++r) {
      float w[K];
      pieces.values(r, p.w.type, w);
#pragma unroll
      for (int t = 0; t < Tokens; ++t) {
#pragma unroll
        for (int k = 0; k < K; ++k) sum[t][r] = __fmaf_rn(x[t][k], w[k], sum[t][r]);
      }
    }
  }
  const int j = j0 + lane / 16 * 2 + lane / 8 % 2;  // the output that the lane keeps
#pragma unroll
  for (int t = 0; t < Tokens; ++t) {
    add_half<2>(sum[t], 16);
    add_half<1>(sum[t], 8);
    float total = sum[t][0];
#pragma unroll
    for (int apart = 4; apart > 0; apart /= 2)
      total = __fadd_rn(total, __shfl_xor_sync(~0u, total, apart));
    if (lane % 8 == 0 && j < v && first + t < p.tokens)
      store_element(p.out.type, p.out.at(first + t, head), j, total);
  }
}

// --- host ----------------------------------------------------------------------------------------

const Tensor& matrix_of(const ops::Linear& w) {
  return w.quant ? w.quant.codes : w.plain;
}

Weights weights_of(const ops::Linear& kv_b) {
  const Tensor& matrix = matrix_of(kv_b);
  Weights w;
  w.data = matrix.as<const uint8_t>();
  w.row_bytes = matrix.row_stride() * static_cast<int64_t>(size_of(matrix.type));
  w.type = matrix.type;
  w.cols = static_cast<int>(matrix.cols());
  w.vectors = rows_aligned(matrix, 16);
  if (kv_b.quant && kv_b.quant.format.scale != ScaleType::unit) {
    // One scale may come as a scalar, and a column of scales as a vector.
    const Tensor& scales = kv_b.quant.scales;
    w.scales = scales.as<const float>();
    if (scales.shape.rank >= 1) w.scale_row = scales.strides[0];
    if (scales.shape.rank >= 2) w.scale_col = scales.strides[1];
    w.grid_rows = kv_b.quant.format.grid.rows;
    w.grid_cols = kv_b.quant.format.grid.cols;
    const auto shift_of = [](int n) {
      return std::has_single_bit(static_cast<unsigned>(n))
                 ? std::countr_zero(static_cast<unsigned>(n))
                 : -1;
    };
    w.row_shift = shift_of(w.grid_rows);
    w.col_shift = shift_of(w.grid_cols);
  }
  return w;
}

// The weights can be read by pieces of 16 bytes, each under one scale.
bool by_pieces(const Weights& w, DType type) {
  const auto piece = static_cast<int>(16 / size_of(type));
  return w.vectors && w.cols % piece == 0 && (!w.scales || w.grid_cols % piece == 0);
}

void check_product(const char* op, const Tensor& x, const ops::Linear& kv_b, int64_t nope,
                   const Tensor& out) {
  const bool absorb = std::string_view(op) == "mla_absorb";
  const Tensor& w = matrix_of(kv_b);
  bool shapes = x && out && w && x.shape.rank == 3 && out.shape.rank == 3 &&
                x.shape[0] == out.shape[0] && x.shape[1] == out.shape[1] && out.shape[1] > 0 &&
                w.rows() == kv_b.out && w.cols() == kv_b.in && kv_b.out % out.shape[1] == 0;
  if (shapes) {
    const int64_t per_head = kv_b.out / out.shape[1];
    shapes = nope > 0 && per_head >= nope &&
             (absorb ? x.shape[2] >= nope && out.shape[2] == kv_b.in
                     : x.shape[2] == kv_b.in && out.shape[2] == per_head - nope);
  }
  const QuantTensor& q = kv_b.quant;
  const bool scales =
      !q || q.format.scale == ScaleType::unit ||
      (q.scales && q.scales.type == DType::f32 &&
       q.scales.count() == scale_shape(q.format.grid, q.codes.rows(), q.codes.cols()).count());
  const bool types = shapes && is_float_type(x.type) &&
                     (out.type == DType::f32 || out.type == DType::bf16) &&
                     (q ? is_fp8(w.type) : is_float_type(w.type)) && !kv_b.bias;
  if (types && scales) return;
  unsupported(op, shapes ? "unsupported types or scales" : "shapes do not fit",
              {{"x", x}, {"kv_b", w}, {"scales", q.scales}, {"out", out}});
}

// use(TypeTag<W>{}, std::integral_constant<int, Tokens>{}): the element type of the weights, and
// how many tokens a block takes.
template <int Many, typename Use>
void visit_product(DType weight, int64_t tokens, Use use) {
  const auto with_type = [&](auto tag) {
    if (tokens == 1) return use(tag, std::integral_constant<int, 1>{});
    use(tag, std::integral_constant<int, Many>{});
  };
  if (is_fp8(weight)) return with_type(TypeTag<uint8_t>{});
  visit_float_type(weight, with_type);
}

unsigned blocks_of(int64_t count, int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

}  // namespace

void mla_absorb(const KernelContext& context, const Tensor& q, const ops::Linear& kv_b,
                int64_t nope, const Tensor& out) {
  check_product("mla_absorb", q, kv_b, nope, out);
  const int64_t tokens = q.shape[0], heads = out.shape[1];
  if (tokens == 0) return;
  AbsorbParams p;
  p.q = HeadsView(q);
  p.out = HeadsView(out);
  p.w = weights_of(kv_b);
  p.tokens = static_cast<int>(tokens);
  p.nope = static_cast<int>(nope);
  p.per_head = static_cast<int>(kv_b.out / heads);
  visit_product<8>(matrix_of(kv_b).type, tokens, [&](auto tag, auto count) {
    using W = typename decltype(tag)::type;
    if (by_pieces(p.w, matrix_of(kv_b).type)) {
      constexpr int kSome = std::min(decltype(count)::value, 4), kBlock = 8 * kPieceWeights<W>;
      return launch(
          context, absorb_pieces_kernel<W, kSome>,
          dim3(blocks_of(kv_b.in, kBlock), static_cast<unsigned>(heads), blocks_of(tokens, kSome)),
          dim3(kPieceThreads),
          static_cast<size_t>(kSome * (nope + kPieceWarps * kBlock)) * sizeof(float), p);
    }
    constexpr int kTokens = decltype(count)::value;
    const size_t shared =
        static_cast<size_t>(kTokens * (nope + kWarps * kAbsorbBlock)) * sizeof(float);
    launch(context, absorb_kernel<W, kTokens>,
           dim3(blocks_of(kv_b.in, kAbsorbBlock), static_cast<unsigned>(heads),
                blocks_of(tokens, kTokens)),
           dim3(kThreads), shared, p);
  });
}

void mla_expand(const KernelContext& context, const Tensor& o_latent, const ops::Linear& kv_b,
                int64_t nope, const Tensor& out) {
  check_product("mla_expand", o_latent, kv_b, nope, out);
  const int64_t tokens = o_latent.shape[0], heads = out.shape[1];
  if (tokens == 0 || out.shape[2] == 0) return;
  ExpandParams p;
  p.x = HeadsView(o_latent);
  p.out = HeadsView(out);
  p.w = weights_of(kv_b);
  p.tokens = static_cast<int>(tokens);
  p.nope = static_cast<int>(nope);
  p.per_head = static_cast<int>(kv_b.out / heads);
  visit_product<4>(matrix_of(kv_b).type, tokens, [&](auto tag, auto count) {
    using W = typename decltype(tag)::type;
    constexpr int kTokens = decltype(count)::value;
    if (by_pieces(p.w, matrix_of(kv_b).type)) {
      return launch(context, expand_pieces_kernel<W, kTokens>,
                    dim3(blocks_of(out.shape[2], kPieceWarps * kPieces),
                         static_cast<unsigned>(heads), blocks_of(tokens, kTokens)),
                    dim3(kPieceThreads), 0, p);
    }
    launch(context, expand_kernel<W, kTokens>,
           dim3(blocks_of(out.shape[2], kExpandBlock), static_cast<unsigned>(heads),
                blocks_of(tokens, kTokens)),
           dim3(kThreads), 0, p);
  });
}

}  // namespace octet::cuda
