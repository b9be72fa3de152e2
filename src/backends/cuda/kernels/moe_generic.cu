// The experts' linears in any mix of types and scale grids, plainly: a warp computes one output of
// the tokens of a tile, its lanes striding over the columns, in FP32.
#include "backends/cuda/kernels/moe_parts.cuh"

namespace octet::cuda::moe {
namespace {

constexpr int kWarps = 8;

__device__ __forceinline__ float element(const void* data, DType type, int64_t i) {
  switch (type) {
    case DType::f32:
      return static_cast<const float*>(data)[i];
    case DType::bf16:
      return to_float(static_cast<const __nv_bfloat16*>(data)[i]);
    case DType::f16:
      return to_float(static_cast<const __half*>(data)[i]);
    case DType::e4m3:
      return decode_e4m3(static_cast<const uint8_t*>(data)[i]);
    default:
      return decode_e5m2(static_cast<const uint8_t*>(data)[i]);
  }
}

// The part of ExpertForm that the kernel needs.
struct Weights {
  DType type, bias;
  int64_t stride, scale_row, scale_col;
  int grid_rows, grid_cols;  // elements of a scale; the whole axis is given as such
  int out, in;
  bool calibrated;  // x is quantized here, by the expert's own scale
  Code input;
};

Weights weights_of(const ExpertForm& form) {
  const ScaleGrid grid = form.format ? form.format->grid : ScaleGrid{};
  const int out = static_cast<int>(form.out), in = static_cast<int>(form.in);
  return {.type = form.type,
          .bias = form.bias,
          .stride = form.stride,
          .scale_row = form.scale_row,
          .scale_col = form.scale_col,
          .grid_rows = grid.rows == 0 ? std::max(out, 1) : grid.rows,
          .grid_cols = grid.cols == 0 ? std::max(in, 1) : grid.cols,
          .out = out,
          .in = in,
          .calibrated = form.input && form.when == InputScale::calibrated,
          .input = form.input ? form.input->code : Code::e4m3};
}

// dots[i] = x of pair i of the tile · row `r` of w, in every lane. Each token is summed the same
// way whoever shares its tile.
__device__ void dot_rows(const Weights& w, const ExpertLinear& linear, int r, const Input& x,
                         const int64_t (&rows)[kGenericTile], int count,
                         float (&dots)[kGenericTile]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float fixed = 1.0f, inverse = 1.0f;
  if (w.calibrated) {
    fixed = *linear.input_scale;
    inverse = inverse_scale(fixed);
  }
#pragma unroll
  for (float& dot : dots) dot = 0.0f;
  const float* const scales =
      linear.scales ? linear.scales + r / w.grid_rows * w.scale_row : nullptr;
  for (int k = lane; k < w.in; k += kWarp) {
    float weight = element(linear.weight, w.type, r * w.stride + k);
    if (scales) weight *= scales[k / w.grid_cols * w.scale_col];
#pragma unroll
    for (int i = 0; i < kGenericTile; ++i) {
      if (i >= count) break;
      float value = element(x.data, x.type, rows[i] * x.stride + k);
      if (w.calibrated) {
        value = fp8_decode(w.input, quantize_value(w.input, value, inverse)) * fixed;
      } else if (x.scales) {
        value *= x.scales[rows[i] * x.scale_row + k / x.step * x.scale_col];
      }
      dots[i] = fmaf(weight, value, dots[i]);
    }
  }
#pragma unroll
  for (float& dot : dots) dot = warp_sum(dot);
  const float bias = bias_at(linear.bias, w.bias, r);
#pragma unroll
  for (float& dot : dots) dot += bias;
}

// GateUp: result[pair] = silu(gate) * up; else result[pair] = down. first and second are gate and
// up, or down twice. Grid: outputs / kWarps, tiles.
template <bool GateUp>
__global__ void __launch_bounds__(kWarps* kWarp)
    generic_kernel(const Expert* experts, Plan plan, Input x, Weights first, Weights second,
                   float* result) {
  wait_for_previous();
  allow_next();
  const Tile tile = plan.tiles[blockIdx.y];
  const int r = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (tile.count == 0 || r >= first.out) return;
  int64_t pairs[kGenericTile], rows[kGenericTile];
#pragma unroll
  for (int i = 0; i < kGenericTile; ++i) {
    pairs[i] = plan.order[tile.first + min(i, tile.count - 1)];
    rows[i] = pairs[i] / x.pairs_per_row;
  }
  const Expert& expert = experts[tile.expert];
  float dots[kGenericTile];
  dot_rows(first, GateUp ? expert.gate : expert.down, r, x, rows, tile.count, dots);
  if constexpr (GateUp) {
    float ups[kGenericTile];
    dot_rows(second, expert.up, r, x, rows, tile.count, ups);
#pragma unroll
    for (int i = 0; i < kGenericTile; ++i) dots[i] = silu(dots[i]) * ups[i];
  }
  if (threadIdx.x % kWarp != 0) return;
#pragma unroll
  for (int i = 0; i < kGenericTile; ++i) {
    if (i < tile.count) result[pairs[i] * first.out + r] = dots[i];
  }
}

dim3 grid_of(int64_t outputs, const Plan& plan) {
  invariant(plan.tile_tokens == kGenericTile, "the tiles are of another kernel");
  return dim3(static_cast<unsigned>((outputs + kWarps - 1) / kWarps),
              static_cast<unsigned>(plan.most_tiles));
}

}  // namespace

void generic_gate_up(const KernelContext& context, const ExpertTable& table, const Plan& plan,
                     const Input& x, float* hidden) {
  launch(context, generic_kernel<true>, grid_of(table.gate.out, plan), dim3(kWarps * kWarp), 0,
         table.data(), plan, x, weights_of(table.gate), weights_of(table.up), hidden);
}

void generic_down(const KernelContext& context, const ExpertTable& table, const Plan& plan,
                  const Input& hidden, float* result) {
  launch(context, generic_kernel<false>, grid_of(table.down.out, plan), dim3(kWarps * kWarp), 0,
         table.data(), plan, hidden, weights_of(table.down), weights_of(table.down), result);
}

}  // namespace octet::cuda::moe
