// Inside the fast linear kernels: what fast_linear, fast_head and fast_moe share.
//
// A call has two phases. First x is *packed*: decoded, scaled, and laid out as the inner loops read
// it; little of it is packed by every thread for itself, which costs less than to wait for others
// and to fetch what they wrote. Then every thread takes a contiguous range of output columns (rows
// of W), streams those rows of W once, straight from the checkpoint's mapping, and writes its
// columns of out.
//
//                 k                        Lanes run along k, so that GEMV and GEMM can add in the
//        +-----------------+               same order without W being repacked: output (m, n) has
//   x  m | ======> 16 lanes|               one accumulator of 16 lanes, chunks of 64 values enter
//   it
//        +-----------------+               in ascending order, and one fixed tree adds the lanes.
//        +-----------------+               What runs beside it (other rows, panels, threads) only
//   W  n | ======> 16 lanes|               changes when this happens, never the order.
//        +-----------------+
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backends/cpu/kernels/kernel.h"
#include "backends/cpu/kernels/load.h"

namespace octet::cpu::fast {

inline constexpr int64_t kChunk = 64;  // values of k that inner loops handle at once
inline constexpr int64_t kCell = 128;  // values of k under one scale, where scales vary along k

// Up to so many rows of x wait for memory alone, which is fastest where few long streams of W are
// read.
inline constexpr int64_t kStreamedRows = 2;

inline constexpr int64_t round_up(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}
// Scales along k values, where they vary.
inline constexpr int64_t cells_of(int64_t k) {
  return (k + kCell - 1) / kCell;
}

// A scale grid, by position. Scales may be mapped from a file at any alignment.
struct Scales {
  const std::byte* data = nullptr;  // null: 1 everywhere
  int64_t cell_rows = 0;            // rows under one scale; 0 = all
  int64_t row_bytes = 0, col_bytes = 0;
  bool varies = false;  // along k, every kCell values

  const std::byte* row(int64_t r) const {
    if (cell_rows == 1) return data + r * row_bytes;  // most often, and without a division
    return data + (cell_rows == 0 ? 0 : r / cell_rows) * row_bytes;
  }
  float at(int64_t r, int64_t cell) const { return load_f32(row(r) + cell * col_bytes); }
};

// One matrix of values: weights, or activations.
struct Matrix {
  const std::byte* data = nullptr;
  DType type = DType::f32;
  int64_t rows = 0, k = 0, row_bytes = 0;
  Scales scales;

  const std::byte* row(int64_t r) const { return data + r * row_bytes; }
};

// Faults if the tensor has a type or grid that the row of the table refuses.
Matrix matrix_of(const Tensor& plain);
Matrix matrix_of(const QuantTensor& quant);
inline Matrix matrix_of(const ops::Linear& w) {
  return w.quant ? matrix_of(w.quant) : matrix_of(w.plain);
}
// The form of x that the linear wants: quantized iff w.input is set.
inline Matrix input_of(const ops::Activation& x, const ops::Linear& w) {
  return w.input ? matrix_of(x.quant) : matrix_of(x.plain);
}

// Where column n of row m goes: f32 or bf16.
struct Output {
  std::byte* data = nullptr;
  DType type = DType::f32;
  int64_t row_bytes = 0;
  const std::byte* bias = nullptr;  // [n], or null
  DType bias_type = DType::f32;
};
Output output_of(const Tensor& out, const Tensor& bias);

// Packed x: groups of at most `Kernels::group_rows` rows, all about equally large. Within a group
// the vectors of its rows take turns, so that a tile reads x front to back:
//
//   group of 3 rows:  r0[0..16) r1[0..16) r2[0..16) r0[16..32) r1[16..32) ...
struct Packed {
  std::byte* data = nullptr;
  int64_t rows = 0, groups = 0;
  int64_t row_bytes = 0;    // of one packed row
  float* scales = nullptr;  // of kernels that do not scale x while they pack it
  bool varies = false;      // those scales, along k

  int64_t first_row(int64_t group) const {
    const int64_t each = rows / groups, extra = rows % groups;
    return group * each + (group < extra ? group : extra);
  }
};

// One instruction set's implementation. All functions are pure of state and may run in any thread.
struct Kernels {
  int group_rows;    // the most rows of x in a tile
  int64_t max_rows;  // rows that are packed at once; more are done in turns
  // Bytes of a packed row of k values, and floats of scales kept beside it (may be 0).
  int64_t (*packed_row_bytes)(int64_t k);
  int64_t (*scales_per_row)(int64_t k);
  // Packs the rows of groups [begin, end); row m of the packing is row index[m] of x, if given.
  void (*pack)(const Matrix& x, const int32_t* index, const Matrix& w, const Packed& packed,
               int64_t begin, int64_t end);
  // Scratch that one thread needs for `columns`.
  size_t (*scratch_bytes)(const Matrix& w, int64_t rows);
  // out[m, n] for all packed m and n in [begin, end); begin is a multiple of 4.
  void (*columns)(const Matrix& w, const Packed& packed, int64_t begin, int64_t end,
                  const Output& out, std::byte* scratch);
};

// Multiplies in FP32 with fused multiply-add, exactly, values of every type.
const Kernels& fma_kernels();
// vdpbf16ps, for BF16, FP8 and INT8 values. Twice the rate of FMA on AMD since Zen 4, but half of
// it on Intel (CpuCaps::fast_dot).
const Kernels& dot_kernels();
bool dot_takes(DType type);
// tdpbf16ps on tiles of 16 by 16, for the same values: many times the rate of both.
const Kernels& amx_kernels();
// vpdpbusd, for INT8 codes of both, with scales that do not vary along k. Exact sums.
const Kernels& vnni_kernels();
bool vnni_takes(const std::optional<QuantFormat>& format);
// Plain C++ on 8 lanes; the same bits on every processor.
const Kernels& portable_kernels();

// Why no fast kernel takes a problem, and estimates; the tables of linear, head and experts share
// them.
using Refusal = std::optional<std::string>;
Refusal refuses_portable(const ops::OpDesc& desc, const CpuCaps& caps);
Refusal refuses_fma(const ops::OpDesc& desc, const CpuCaps& caps);
Refusal refuses_dot(const ops::OpDesc& desc, const CpuCaps& caps);
Refusal refuses_amx(const ops::OpDesc& desc, const CpuCaps& caps);
Refusal refuses_vnni(const ops::OpDesc& desc, const CpuCaps& caps);
double estimate_portable(const ops::OpDesc& desc, const CpuCaps& caps);
double estimate_fma(const ops::OpDesc& desc, const CpuCaps& caps);
double estimate_dot(const ops::OpDesc& desc, const CpuCaps& caps);
double estimate_amx(const ops::OpDesc& desc, const CpuCaps& caps);
double estimate_vnni(const ops::OpDesc& desc, const CpuCaps& caps);
// Launches of linear and head.
LinearLaunch launch_portable, launch_fma, launch_dot, launch_amx, launch_vnni;

// Slots of the workspace. Inputs of a linear lie in slots below these.
enum Slot : size_t { kPackedSlot = 64, kPackedScalesSlot, kThreadSlot, kMoeSlots };

// One of the linears that share an input: out = x · Wᵀ (+ bias).
struct Product {
  Matrix w;
  Output out;
};

// All of them on all threads, each of which takes its part of the columns of every product; the
// last columns go to whoever is ready for them. The weights are of one type.
void run_linears(const KernelContext& context, const Kernels& kernels, const Matrix& x,
                 std::span<const Product> products);

// Columns of thread `thread` out of `threads`, in whole quads.
struct Range {
  int64_t begin, end;
};
inline Range columns_of(int64_t n, int thread, int threads) {
  const int64_t quads = (n + 3) / 4;
  return {std::min(n, quads * thread / threads * 4),
          std::min(n, quads * (thread + 1) / threads * 4)};
}

}  // namespace octet::cpu::fast
