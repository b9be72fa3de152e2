// The linear that runs every problem: FP32 arithmetic on values that are decoded and scaled as they
// are read, whatever their types, scales, sizes and strides. About 100 times slower than tensor
// cores; what matters is not left to it.
//
//            k, 32 at a time                     A block computes 64 x 64 outputs, a thread 4 x 4
//         +-----------+                          of them. While one tile of x and W is multiplied
//   x 64  |  |  |  |  |      x_tile [32][64]     out of shared memory, each thread holds the next
//         +-----------+                          in registers: 8 neighbours of one row of each.
//         +-----------+
//   W 64  |  |  |  |  |      w_tile [32][64]
//         +-----------+
//
// Order of summation: ascending in a tile of 32 from 0, tiles added in ascending order; so a row's
// bits depend on nothing but that row and W.
#include <algorithm>

#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/kernels/linear_parts.cuh"
#include "backends/cuda/kernels/linear_rows.h"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 64;          // rows of x, and of W
constexpr int kDepth = 32;         // k
constexpr int kRun = 8;            // neighbours that a thread loads: kTile * kDepth / kThreads
constexpr int kOutputs = 4;        // by kOutputs of a thread
constexpr int kPitch = kTile + 4;  // keeps rows at multiples of 16 bytes
constexpr int64_t kMostGridY = 65535;
static_assert(kTile * kDepth == kThreads * kRun && kTile == 16 * kOutputs);

// A matrix [rows, cols] of any element type, with its scales.
struct Operand {
  const void* data;
  int64_t rows, cols, stride;  // elements
  DType type;
  bool vectors;  // runs of kRun elements lie at multiples of their size, up to 16 bytes
  ScaleView scales;
};

template <typename T>
__device__ __forceinline__ void load_run_of(const T* from, int count, bool vectors,
                                            float (&to)[kRun]) {
  if (vectors && count == kRun) {
    load_floats(from, to);
  } else {
    for (int i = 0; i < kRun; ++i) to[i] = i < count ? to_float(from[i]) : 0.0f;
  }
}

template <Code F>
__device__ __forceinline__ void load_run_of_codes(const uint8_t* from, int count, bool vectors,
                                                  float (&to)[kRun]) {
  Vector<uint8_t, kRun> codes;
  if (vectors && count == kRun) {
    codes = load_vector<kRun>(from);
  } else {
#pragma unroll
    for (int i = 0; i < kRun; ++i) codes.v[i] = i < count ? from[i] : 0;
  }
#pragma unroll
  for (int i = 0; i < kRun; ++i) to[i] = decode_fp8<F>(codes.v[i]);
}

// Values [r, k .. k + kRun) of the matrix, zeros beyond its edges.
__device__ __forceinline__ void load_run(const Operand& m, int64_t r, int64_t k,
                                         float (&to)[kRun]) {
  const int count =
      r < m.rows && k < m.cols ? static_cast<int>(m.cols - k < kRun ? m.cols - k : kRun) : 0;
  if (count == 0) {
#pragma unroll
    for (int i = 0; i < kRun; ++i) to[i] = 0.0f;
    return;
  }
  const int64_t at = r * m.stride + k;
  switch (m.type) {
    case DType::bf16:
      load_run_of(static_cast<const __nv_bfloat16*>(m.data) + at, count, m.vectors, to);
      break;
    case DType::f16:
      load_run_of(static_cast<const __half*>(m.data) + at, count, m.vectors, to);
      break;
    case DType::e4m3:
      load_run_of_codes<Code::e4m3>(static_cast<const uint8_t*>(m.data) + at, count, m.vectors, to);
      break;
    case DType::e5m2:
      load_run_of_codes<Code::e5m2>(static_cast<const uint8_t*>(m.data) + at, count, m.vectors, to);
      break;
    default:
      load_run_of(static_cast<const float*>(m.data) + at, count, m.vectors, to);
  }
  if (!m.scales.data) return;
  // Cells are a multiple of kRun wide, so a run has one scale.
  const float scale = scale_at(m.scales, static_cast<uint32_t>(r), static_cast<uint32_t>(k));
#pragma unroll
  for (int i = 0; i < kRun; ++i) to[i] *= scale;
}

template <typename Out>
__global__ void __launch_bounds__(kThreads)
    generic_kernel(Operand x, Operand w, BiasView bias, Matrix<Out> out) {
  __shared__ float x_tile[kDepth][kPitch], w_tile[kDepth][kPitch];
  allow_next();
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread % kTile, run = thread / kTile * kRun;               // what it loads
  const int across = thread % 16 * kOutputs, down = thread / 16 * kOutputs;  // what it computes
  const int64_t n0 = int64_t{blockIdx.x} * kTile;
  wait_for_previous();
  for (int64_t m0 = int64_t{blockIdx.y} * kTile; m0 < x.rows; m0 += int64_t{gridDim.y} * kTile) {
    float sums[kOutputs][kOutputs] = {};
    float next_x[kRun], next_w[kRun];
    load_run(x, m0 + row, run, next_x);
    load_run(w, n0 + row, run, next_w);
    for (int64_t k0 = 0; k0 < x.cols; k0 += kDepth) {
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        x_tile[run + i][row] = next_x[i];
        w_tile[run + i][row] = next_w[i];
      }
      __syncthreads();
      load_run(x, m0 + row, k0 + kDepth + run, next_x);
      load_run(w, n0 + row, k0 + kDepth + run, next_w);
      float part[kOutputs][kOutputs] = {};
#pragma unroll 8
      for (int k = 0; k < kDepth; ++k) {
        float a[kOutputs], b[kOutputs];
        load_floats(&x_tile[k][down], a);
        load_floats(&w_tile[k][across], b);
#pragma unroll
        for (int i = 0; i < kOutputs; ++i) {
#pragma unroll
          for (int j = 0; j < kOutputs; ++j) part[i][j] = fmaf(a[i], b[j], part[i][j]);
        }
      }
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) {
#pragma unroll
        for (int j = 0; j < kOutputs; ++j) sums[i][j] += part[i][j];
      }
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      const int64_t m = m0 + down + i;
#pragma unroll
      for (int j = 0; j < kOutputs; ++j) {
        const int64_t n = n0 + across + j;
        if (m < x.rows && n < w.rows) {
          out.row(m)[n] = from_float<Out>(sums[i][j] + bias.at(n));
        }
      }
    }
  }
}

Operand operand(const Tensor& plain, const QuantTensor& quant) {
  const Tensor& matrix = quant ? quant.codes : plain;
  const size_t bytes = std::min<size_t>(kRun * size_of(matrix.type), 16);
  return {matrix.data,         matrix.rows(), matrix.cols(),
          matrix.row_stride(), matrix.type,   rows_aligned(matrix, bytes),
          scale_view(quant)};
}

// Elements lie at multiples of their size, as all of the GPU's memory does.
bool naturally_aligned(const Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.data) % size_of(tensor.type) == 0;
}

void run(const KernelContext& context, const ops::Activation& x,
         std::span<const ops::Linear* const> ws, std::span<const Tensor> outs) {
  if (ws.empty() || x.rows() == 0) return;
  size_t offset = 0;
  const ops::Activation form = linear_input(context, offset, x, *ws[0], x.rows());
  const Operand input = operand(form.plain, form.quant);
  for (size_t i = 0; i < ws.size(); ++i) {
    const ops::Linear& w = *ws[i];
    const Tensor& out = outs[i];
    check_linear(form, w, out);
    const Tensor& weight = w.quant ? w.quant.codes : w.plain;
    if (!naturally_aligned(weight) || !naturally_aligned(out) ||
        (w.bias && !naturally_aligned(w.bias)) ||
        !naturally_aligned(form.quant ? form.quant.codes : form.plain)) {
      unsupported("linear " + w.name, "elements lie between their addresses",
                  {{"w", weight}, {"bias", w.bias}, {"out", out}});
    }
    const int64_t down = (input.rows + kTile - 1) / kTile;
    const dim3 grid(static_cast<unsigned>((w.out + kTile - 1) / kTile),
                    static_cast<unsigned>(std::min(down, kMostGridY)));
    visit_activation_type(out.type, [&](auto tag) {
      using Out = typename decltype(tag)::type;
      launch(context, generic_kernel<Out>, grid, dim3(kThreads), 0, input,
             operand(w.plain, w.quant), BiasView{w.bias.data, w.bias.type},
             Matrix<Out>{out.as<Out>(), out.row_stride()});
    });
  }
}

std::optional<std::string> refuses(const ops::OpDesc& desc, const DeviceCaps&) {
  for (const auto& format : {desc.weight_format, desc.input_format}) {
    if (format && !is_fp8(format->code)) return to_string(*format) + ": codes that are no FP8";
    if (format && format->grid.cols % kRun != 0) {
      return to_string(*format) + ": scales of fewer than " + std::to_string(kRun) + " columns";
    }
  }
  return {};
}

// A tile of 32 in k takes a block about 1.2 us alone on an SM, and 2.5 us among three, which is
// what an SM holds.
double estimate_us(const ops::OpDesc& d, const DeviceCaps& caps) {
  const int64_t tiles = ((d.m + kTile - 1) / kTile) * ((d.n + kTile - 1) / kTile);
  const int64_t sms = std::max(caps.sms, 1);
  const double step = tiles <= sms ? 1.2 : 2.5 * static_cast<double>((tiles - 1) / (3 * sms) + 1);
  return 5.0 + step * static_cast<double>((d.k + kDepth - 1) / kDepth);
}

constexpr LinearRow kRows[] = {{"generic", "fma_tiles32", refuses, estimate_us, run}};

}  // namespace

std::span<const LinearRow> generic_rows() {
  return kRows;
}

std::span<const LinearRow> generic_head_rows() {
  return kRows;
}

}  // namespace octet::cuda
