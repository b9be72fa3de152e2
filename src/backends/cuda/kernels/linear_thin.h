// Linears of few rows (at most 32): as fast as the weights can be read.
//
// One launch computes the outputs of up to four weights of one input. Outputs are cut into tiles of
// 16, which a block takes one after another; the tensor core multiplies a tile with all rows of x
// (mma.m16n8k16: 16 outputs, 8 rows of x, so one row costs what eight do; or wgmma, which takes
// codes as they lie in shared memory, see linear_thin_codes.cuh):
//
//        k ->   0     128 B  ...                       stage: one unit of each warp, 16 rows of W
//   w  16 rows | warp 0 | warp 1 | ... | warp 15 | warp 0 | warp 1 | ...      unit: 128 bytes of k
//      16 rows | ...
//
// One more warp lets the copy engine bring the stages into a ring in shared memory, and begins with
// it before the kernel before has ended (launch.cuh): the ring is full when x comes. A block has a
// slice of the inputs; where x would take too much shared memory, a cluster of blocks shares its
// tiles, each with its own slice, and sums in the order of the slices in the end. Blocks that have
// all of the inputs take further tiles as they get done with those before: SMs are not equally
// fast.
//
// x may be the RMS norm of a residual stream that the kernel computes by itself, each block for
// itself: what that costs is less than the time between two kernels. Outputs may be added to a
// residual stream; the tile's sum of squares and absmax are left for the norm after it, which then
// needs one pass over the stream and no meeting of its warps:
//
//   o, down      stream += y;  (sum of squares, absmax of stream · weight) of 16 columns -> moments
//   next linear  moments -> factor and scale;  stream · factor · weight / scale -> codes
//
// Gate and up may be one launch whose tiles have eight rows of each: silu(gate) · up is made where
// both sums are, as BF16, and the absmax of each eight columns with it, so that down finds the
// scale of its input in one pass.
//
// The order of summation: units of a warp in ascending order, then warps, then slices. By codes: of
// each 1,024 of k eight interleaved parts of 128 in the tensor core (linear_thin_codes.cuh), which
// keeps some 14 bits; each part in FP32, in ascending order of k; then the parts, then slices. It
// depends on the split alone, so a row's bits are the same for all m that have the same split.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "backends/cuda/kernels/context.h"
#include "backends/cuda/kernels/linear_parts.h"

namespace octet::cuda {

inline constexpr int kThinMostRows = 32;      // of x
inline constexpr int kThinMostMatrices = 4;   // weights of one launch
inline constexpr int kThinTile = 16;          // outputs
inline constexpr int kThinUnit = 128;         // bytes of a row of W that a warp takes from a stage
inline constexpr int kThinRowPad = 64;        // bytes: rows g and g + 1 of a stage use other banks
inline constexpr int kThinQuantizedRows = 4;  // at most, that the kernel quantizes by itself
inline constexpr int kThinHalvesRows = 4;     // at most, with ThinForm::e4m3_halves
inline constexpr int kThinCodesRows = 4;      // at most, with ThinForm::e4m3_wgmma
inline constexpr int kGatedColumns = 8;       // of a tile of gate and up together
inline constexpr int kLastSpreadBits = 20;    // of the point in ThinArgs::last_spread
inline constexpr int kThinMostHeld = 2;       // vectors of eight of what becomes x, in a lane

// Warps of a block that multiply, for m rows. An SM needs sixteen to keep up with memory, at two
// instructions a byte of codes (with 8 a product took 1.4 times as long at m = 1): in two blocks
// while x is small, else in one; more than 16 rows need too many registers for that.
constexpr int thin_warps(int64_t m) {
  return m > 4 && m <= 16 ? 16 : 8;
}
constexpr int thin_blocks_per_sm(int64_t m) {
  return m <= 4 ? 2 : 1;
}

// How codes are multiplied, which are two rows of the table.
enum class ThinProducts : uint8_t {
  widened,  // as FP16 or BF16, with FP32 sums
  codes,    // as they are, by wgmma: few instructions, and the sums of FP8 tensor cores
};

// Two warpgroups, each with half of a tile's rows, and two blocks an SM.
inline constexpr int kThinCodesWarps = 8, kThinCodesBlocks = 2;

// What W and x are in memory.
enum class ThinForm : uint8_t {
  e4m3,         // E4M3 codes both: multiplied as FP16, which holds every E4M3 value
  e4m3_halves,  // the same, and x becomes FP16 as it arrives: a third less to convert
  e4m3_wgmma,   // E4M3 codes both, multiplied as codes; no scales inside the sum
  e4m3_bf16,    // W codes, x BF16
  bf16,         // BF16 both
};

// What x is made of, and what becomes of the sums. By codes each has a kernel of its own, which is
// short and takes few registers: blocks of the next kernel find room beside it.
enum class ThinTask : uint8_t {
  any,         // as the arguments say
  norm,        // x is a norm of known moments
  norm_gated,  // the same, and the outputs are silu(gate) · up
  held,        // x is BF16, which registers hold
  hidden,      // x is BF16 of known absmax, as norm_gated leaves it
};

struct ThinMatrix {
  const uint8_t* weight;              // [n, k], 16-byte aligned rows `weight_stride` bytes apart
  const float* scale;                 // or null: 1
  const void* bias;                   // or null
  void* out;                          // [m, n]
  int64_t weight_stride, out_stride;  // bytes; elements
  int n, first_tile;
};

// A kernel's only parameter. Sizes are in bytes unless they say otherwise.
struct ThinArgs {
  ThinMatrix matrix[kThinMostMatrices];
  int matrices, tiles;           // tiles of all matrices
  int warps, split, tiles_each;  // that multiply; blocks of a cluster; tiles of a cluster, at most
  int blocks;                    // that there is room for, where all have all inputs
  // Without a split block i begins with tile i, and goes on with every tile_step-th below
  // last_round or, if there are counters, takes further ones (context.h, LaunchCounters): `next`
  // [2], zero. The tiles from last_round on are fewer than blocks: each that makes
  // i * last_spread / 2^20 pass a whole number has one, so that neighbours, which tend to share an
  // SM, do not both.
  int* next;
  int tile_step, last_round, last_spread;
  int units, slice_units;             // of a row of W; of the slice of a block, at most
  int k_bytes;                        // of a row of W
  int m, k;                           // rows of x, elements of a row
  uint32_t w_cell_rows;               // outputs that share a scale
  int64_t w_scale_row, w_scale_unit;  // floats from scale to scale, down and along k
  bool w_blocked, x_blocked;          // a scale for each 128 of k
  bool bias_bf16, bias_f16, out_bf16;

  // x as it is multiplied, rows `x_stride` bytes apart...
  const uint8_t* x;
  const float* x_scale;  // or null: 1
  int64_t x_stride, x_scale_row, x_scale_unit;
  bool x_vector;  // rows are 16-byte aligned
  // ... or, if `quantize`, as BF16 with aligned rows, to be quantized.
  bool quantize, x_tensor;  // x_tensor: one scale for all rows
  QuantFormat x_format;
  const float* fixed_scale;  // [1], or null
  // ... or, if `norm` as well, as the residual stream before this addition: x = rms_norm(sum), with
  // sum = x + delta, rounded. Rows of delta and sum are k elements.
  bool norm;
  const float* norm_weight;  // [k]
  float norm_eps, inverse_k;
  const __nv_bfloat16* delta;  // [m, k], or null: sum = x, and is not written
  __nv_bfloat16* sum;
  const float* moments;  // [m, k / kMomentColumns, 2] of x, which has no delta then, or null

  // Outputs [m, n] of one weight are added to a residual stream, and the moments of its next norm
  // are left, a pair a tile; or null.
  __nv_bfloat16* stream;
  const float* stream_norm;  // [n]
  float* stream_moments;     // [m, tiles, 2]
  // A tile has eight rows of each of two weights, gate and up, and becomes silu(gate) · up, as the
  // out of the first; their absmax are left, one a tile.
  __nv_bfloat16* gated_peaks;    // [m, tiles], or null
  const __nv_bfloat16* x_peaks;  // such of x: [m, k / kGatedColumns], or null
  bool held;                     // lanes hold all of what becomes x
  uint32_t row_mates;            // warps 0, m, 2 m, ..., by bits: those that make row 0 of x

  float* partial;  // [split, m, tiles * 16], if split > 1
  int flying;      // stages on their way at a time, until the ring is full
  // Shared memory: | ring | ring of scales | x | scales of x | sums of warps | barriers | tiles |
  int stages, ring_scales_at, x_at, x_pitch, x_scales_at, sums_at, barriers_at, tile_ids_at, shared;
};

using ThinKernel = void (*)(ThinArgs);
// The kernel for m rows. `blocked`: W or x has a scale for each 128 of k.
ThinKernel thin_kernel_e4m3(bool blocked, int64_t m);
ThinKernel thin_kernel_e4m3_halves(bool blocked);             // up to kThinHalvesRows
ThinKernel thin_kernel_e4m3_wgmma(ThinTask task, int64_t m);  // up to kThinCodesRows
ThinKernel thin_kernel_e4m3_bf16(bool blocked, int64_t m);
ThinKernel thin_kernel_bf16(int64_t m);

// By codes if the row of the table says so, or nothing if it is none of these kernels.
std::optional<ThinProducts> thin_products(std::string_view row_name);

// What may be tuned; 0 leaves it to the plan.
struct ThinTuning {
  int warps = 0;  // that the kernel was made for
  int stages = 0, split = 0, blocks_per_sm = 0, flying = 0;
  ThinKernel kernel = nullptr;
};

// outs[i] = x · ws[i]ᵀ (+ bias). All ws have one k, one weight format and one input format; outs
// one type. Fault for what it cannot take.
void linear_thin(const KernelContext& context, ThinProducts products, const ops::Activation& x,
                 std::span<const ops::Linear* const> ws, std::span<const Tensor> outs,
                 const ThinTuning& tuning = {});

// The same for x = rms_norm(stream), see Backend::norm_linear_group. Whether it is taken: by the
// weights of one launch, few rows, codes by row or by 128 of it as inputs, and a residual stream in
// BF16 that registers hold or whose moments are known.
bool takes_norm(const KernelContext& context, const ops::ResidualStream& stream,
                const ops::NormWeight& norm, std::span<const ops::Linear* const> ws,
                std::span<const Tensor> outs);
void norm_linear_thin(const KernelContext& context, ThinProducts products,
                      ops::ResidualStream& stream, const ops::NormWeight& norm,
                      std::span<const ops::Linear* const> ws, std::span<const Tensor> outs);

// The hidden rows of a gated MLP, as BF16, and the absmax of each kGatedColumns of their columns.
struct ThinHidden {
  Tensor rows, peaks;  // [m, n], [m, n / kGatedColumns]
};
// rows = silu(norm · gateᵀ) ⊙ (norm · upᵀ) of a stream's norm, by codes: what takes_norm() asks,
// and outputs in multiples of 256.
bool takes_gated(const KernelContext& context, const ops::ResidualStream& stream,
                 const ops::NormWeight& norm, const ops::Linear& gate, const ops::Linear& up,
                 const ThinHidden& out);
void norm_gated_thin(const KernelContext& context, ops::ResidualStream& stream,
                     const ops::NormWeight& norm, const ops::Linear& gate, const ops::Linear& up,
                     const ThinHidden& out);

// stream.sum += x · wᵀ, and the moments of the norm that reads it next: Backend::linear_to_stream.
// Whether it is taken: by few rows and a stream in BF16 that has memory for moments. `x_peaks`, if
// x is the rows of a ThinHidden: its peaks, which save a search.
bool takes_stream(const KernelContext& context, const ops::Linear& w,
                  const ops::ResidualStream& stream, const ops::NormWeight& next);
void linear_thin_to_stream(const KernelContext& context, ThinProducts products,
                           const ops::Activation& x, const ops::Linear& w,
                           ops::ResidualStream& stream, const ops::NormWeight& next,
                           const Tensor& x_peaks = {});

}  // namespace octet::cuda
