// RMS norm of rows, alone or after the residual's addition.
#include "backends/cuda/kernels/ops.h"
#include "backends/cuda/kernels/row_output.cuh"

namespace octet::cuda {
namespace {

// One block a row, which stays in registers. x and delta [rows, cols], weight [cols]. With `Add`,
// x + delta is rounded to T, written back to x, and normed.
template <typename T, typename W, int Items, bool Add>
__global__ void __launch_bounds__(kMostThreads)
    rms_norm_kernel(Matrix<T> x, Matrix<const T> delta, const W* weight, bool weight_aligned,
                    float eps, int cols, RowOutput<T> out) {
  __shared__ float sums[kWarp];
  __shared__ uint32_t maxima[kWarp];
  allow_next();
  const int64_t row = blockIdx.x;
  const auto col_of = [&](int item) {
    return static_cast<int>(item * blockDim.x + threadIdx.x) * kPart;
  };
  Vector<W, kPart> w[Items];
#pragma unroll
  for (int i = 0; i < Items; ++i) w[i] = load_part(weight, col_of(i), cols, weight_aligned);

  wait_for_previous();
  Vector<T, kPart> loaded[Items], added[Items];
#pragma unroll
  for (int i = 0; i < Items; ++i) {
    loaded[i] = load_part<T>(x.row(row), col_of(i), cols, out.aligned);
    if constexpr (Add) added[i] = load_part<T>(delta.row(row), col_of(i), cols, out.aligned);
  }
  float values[Items][kPart], squares = 0.0f;
#pragma unroll
  for (int i = 0; i < Items; ++i) {
#pragma unroll
    for (int j = 0; j < kPart; ++j) {
      if constexpr (Add) {
        loaded[i].v[j] = from_float<T>(to_float(loaded[i].v[j]) + to_float(added[i].v[j]));
      }
      values[i][j] = to_float(loaded[i].v[j]);
      squares = fmaf(values[i][j], values[i][j], squares);
    }
    if constexpr (Add) store_part(x.row(row), col_of(i), cols, out.aligned, loaded[i]);
  }
  const float mean = block_sum_once(squares, sums) / static_cast<float>(cols);
  const float scale = 1.0f / sqrtf(mean + eps);
#pragma unroll
  for (int i = 0; i < Items; ++i) {
#pragma unroll
    for (int j = 0; j < kPart; ++j) values[i][j] = (values[i][j] * scale) * to_float(w[i].v[j]);
  }
  write_row<Items>(out, row, 0, cols, values,
                   [&](uint32_t absmax) { return block_max_once(absmax, maxima); });
}

// rms_norm of x, or of x + delta if delta is present.
void norm_rows(const KernelContext& context, const char* op, const Tensor& x, const Tensor& delta,
               const ops::NormWeight& norm, const ops::Activation& out) {
  const int64_t rows = x.rows(), cols = x.cols();
  const auto is_activation = [](DType type) { return type == DType::f32 || type == DType::bf16; };
  if (!x || !is_activation(x.type) || cols > kMostThreads * kPart * 4 || !norm.weight ||
      norm.weight.count() != cols || !norm.weight.contiguous() ||
      !is_activation(norm.weight.type) ||
      (delta && (delta.type != x.type || delta.rows() != rows || delta.cols() != cols))) {
    unsupported(op, "shapes or types do not fit",
                {{"x", x}, {"delta", delta}, {"weight", norm.weight}});
  }
  visit_activation_type(x.type, [&](auto element) {
    using T = typename decltype(element)::type;
    const ActivationOutput<T> output(context, op, out, rows, cols, {x, delta});
    if (rows == 0 || cols == 0) return;
    visit_activation_type(norm.weight.type, [&](auto weight_element) {
      using W = typename decltype(weight_element)::type;
      const bool weight_aligned = cols % kPart == 0 && rows_aligned(norm.weight, 16);
      const auto start = [&](auto kernel, int items) {
        launch(context, kernel, dim3(static_cast<unsigned>(rows)), dim3(threads_for(cols, items)),
               0, matrix<T>(x), delta ? matrix<const T>(delta) : Matrix<const T>{},
               norm.weight.as<const W>(), weight_aligned, norm.eps, static_cast<int>(cols),
               output.rows());
      };
      const auto pick = [&](auto add) {
        constexpr bool Add = decltype(add)::value;
        if (cols <= kMostThreads * kPart) {
          start(rms_norm_kernel<T, W, 1, Add>, 1);
        } else if (cols <= kMostThreads * kPart * 2) {
          start(rms_norm_kernel<T, W, 2, Add>, 2);
        } else {
          start(rms_norm_kernel<T, W, 4, Add>, 4);
        }
      };
      delta ? pick(std::true_type{}) : pick(std::false_type{});
    });
    output.finish();
  });
}

}  // namespace

void rms_norm(const KernelContext& context, const Tensor& x, const ops::NormWeight& norm,
              const ops::Activation& out) {
  norm_rows(context, "rms_norm", x, {}, norm, out);
}

void add_rms_norm(const KernelContext& context, const Tensor& residual, const Tensor& delta,
                  const ops::NormWeight& norm, const ops::Activation& out) {
  if (!delta) unsupported("add_rms_norm", "there is nothing to add", {{"residual", residual}});
  norm_rows(context, "add_rms_norm", residual, delta, norm, out);
}

}  // namespace octet::cuda
