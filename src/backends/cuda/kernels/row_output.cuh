// Rows of activations as the element-wise kernels read and write them.
//
// A thread owns parts of 8 consecutive columns: `Items` of them, as far apart as the block is wide.
// All of a row's values stay in registers between the passes over it.
//
//   column   0..7   8..15  ...          | 8n..     ...           n = threads of the block
//   thread   0      1      ...   n - 1  | 0      1      ...
//            item 0                       item 1
#pragma once

#include "backends/cuda/kernels/device_math.cuh"
#include "backends/cuda/kernels/launch.cuh"

namespace octet::cuda {

inline constexpr int kPart = 8;
inline constexpr int64_t kMostThreads = 1024;

// --- on the device -------------------------------------------------------------------------------

// A part of a row from column `col`; zeros beyond `cols`. `aligned`: all rows start at multiples of
// a vector and `cols` is a multiple of a part.
template <typename T>
__device__ __forceinline__ Vector<T, kPart> load_part(const T* row, int col, int cols,
                                                      bool aligned) {
  Vector<T, kPart> part{};
  if (aligned) {
    if (col < cols) part = load_vector<kPart>(row + col);
  } else {
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
      if (col + i < cols) part.v[i] = row[col + i];
    }
  }
  return part;
}

template <typename T>
__device__ __forceinline__ void store_part(T* row, int col, int cols, bool aligned,
                                           const Vector<T, kPart>& part) {
  if (aligned) {
    if (col < cols) store_vector(row + col, part);
  } else {
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
      if (col + i < cols) row[col + i] = part.v[i];
    }
  }
}

template <typename T>
__device__ __forceinline__ Vector<T, kPart> round_part(const float (&x)[kPart]) {
  Vector<T, kPart> part;
#pragma unroll
  for (int i = 0; i < kPart; ++i) part.v[i] = from_float<T>(x[i]);
  return part;
}

__device__ __forceinline__ uint32_t part_absmax(const float (&x)[kPart]) {
  uint32_t absmax = 0;
#pragma unroll
  for (int i = 0; i < kPart; ++i) absmax = max(absmax, finite_magnitude(x[i]));
  return absmax;
}

__device__ __forceinline__ Vector<uint8_t, kPart> quantize_part(const float (&x)[kPart], Code type,
                                                                float inv) {
  return type == Code::e4m3 ? quantize_vector<Code::e4m3>(x, inv)
                            : quantize_vector<Code::e5m2>(x, inv);
}

// block_reduce of device_math.cuh for a number of threads that is known at run time. `shared` has
// 32 values, which no other reduction of the kernel uses: so one barrier is enough.
template <typename T, typename Reduce>
__device__ __forceinline__ T block_reduce_once(T x, T* shared, Reduce reduce) {
  x = reduce(x);
  if (blockDim.x == kWarp) return x;
  const unsigned lane = threadIdx.x % kWarp;
  if (lane == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  return reduce(lane < blockDim.x / kWarp ? shared[lane] : T{});
}
__device__ __forceinline__ float block_sum_once(float x, float* shared) {
  return block_reduce_once(x, shared, [](float y) { return warp_sum(y); });
}
__device__ __forceinline__ uint32_t block_max_once(uint32_t x, uint32_t* shared) {
  return block_reduce_once(x, shared, [](uint32_t y) { return warp_max(y); });
}

// Where an op that produces activations puts a row's FP32 results: in every form that is present.
// Codes are rounded from the FP32 values, not from the plain form: once.
template <typename T>
struct RowOutput {
  Matrix<T> plain{};      // data null: absent
  Matrix<float> whole{};  // for scales that reach over several rows: quantized by another kernel
  Matrix<uint8_t> codes{};
  float* scales = nullptr;
  int64_t scale_row = 0, scale_col = 0;  // strides
  QuantFormat format;
  int group = 0;         // columns that share a scale: 32, 64, 128 or 256; 0 = the row
  bool aligned = false;  // as of load_part, for inputs and outputs
};

// Writes the parts of a row that this thread holds, from column `first_col` of the block. All
// threads of the block call it. `row_max` turns a thread's absmax into that of the row.
template <int Items, typename T, typename RowMax>
__device__ __forceinline__ void write_row(const RowOutput<T>& out, int64_t row, int first_col,
                                          int cols, const float (&x)[Items][kPart],
                                          RowMax row_max) {
  const auto col_of = [&](int item) {
    return first_col + static_cast<int>(item * blockDim.x + threadIdx.x) * kPart;
  };
  if (out.plain.data) {
#pragma unroll
    for (int i = 0; i < Items; ++i) {
      store_part(out.plain.row(row), col_of(i), cols, out.aligned, round_part<T>(x[i]));
    }
  }
  if (out.whole.data) {
#pragma unroll
    for (int i = 0; i < Items; ++i) {
      store_part(out.whole.row(row), col_of(i), cols, out.aligned, round_part<float>(x[i]));
    }
  }
  if (!out.codes.data) return;
  if (out.group == 0) {
    uint32_t absmax = 0;
#pragma unroll
    for (int i = 0; i < Items; ++i) absmax = max(absmax, part_absmax(x[i]));
    const float scale = choose_scale(__uint_as_float(row_max(absmax)), out.format);
    const float inv = inverse_scale(scale);
    if (first_col == 0 && threadIdx.x == 0) out.scales[row * out.scale_row] = scale;
#pragma unroll
    for (int i = 0; i < Items; ++i) {
      store_part(out.codes.row(row), col_of(i), cols, out.aligned,
                 quantize_part(x[i], out.format.code, inv));
    }
    return;
  }
  const int lanes = out.group / kPart;  // neighbours that share a scale
#pragma unroll
  for (int i = 0; i < Items; ++i) {
    uint32_t absmax = part_absmax(x[i]);
    for (int apart = 1; apart < lanes; apart *= 2) {
      absmax = max(absmax, __shfl_xor_sync(~0u, absmax, apart));
    }
    const float scale = choose_scale(__uint_as_float(absmax), out.format);
    const int col = col_of(i);
    if (threadIdx.x % lanes == 0 && col < cols) {
      out.scales[row * out.scale_row + col / out.group * out.scale_col] = scale;
    }
    store_part(out.codes.row(row), col, cols, out.aligned,
               quantize_part(x[i], out.format.code, inverse_scale(scale)));
  }
}

// --- on the host ---------------------------------------------------------------------------------

template <typename T>
Matrix<T> matrix(const Tensor& tensor) {
  return {tensor.as<T>(), tensor.row_stride()};
}

// Scales by row and column of cells; one scale may come as a scalar, a column of them as a vector.
inline int64_t scale_stride(const Tensor& scales, int axis) {
  return axis < scales.shape.rank ? scales.strides[static_cast<size_t>(axis)] : 0;
}

// A block of at most `most` threads for `cols` columns, `items` parts a thread.
inline unsigned threads_for(int64_t cols, int64_t items, int64_t most = kMostThreads) {
  const int64_t needed = (cols + kPart * items - 1) / (kPart * items);
  return static_cast<unsigned>(std::min(most, (needed + kWarp - 1) / kWarp * kWarp));
}

// True if a kernel that holds whole rows writes codes and scales of this grid itself.
inline bool scales_within_rows(const QuantFormat& format, int64_t cols) {
  const int group = format.grid.cols;
  return format.grid.rows == 1 && (group == 0 || group >= cols || group == 32 || group == 64 ||
                                   group == 128 || group == 256);
}

// Fault unless codes and scales fit a [rows, cols] matrix: quantize.cu.
void check_quant(const char* op, const QuantTensor& out, int64_t rows, int64_t cols);

// Codes and scales of x (f32, bf16 or f16) for any grid. Uses the workspace from `offset` on.
void quantize_cells(const KernelContext& context, const Tensor& x, const QuantTensor& out,
                    size_t offset);

// The quantized form of a row output. x.data is null where cells reach over rows.
template <typename T>
void set_quant(RowOutput<T>& out, const QuantTensor& quant, int64_t cols) {
  out.codes = matrix<uint8_t>(quant.codes);
  out.scales = quant.scales.as<float>();
  out.scale_row = scale_stride(quant.scales, 0);
  out.scale_col = scale_stride(quant.scales, 1);
  out.format = quant.format;
  out.group = quant.format.grid.cols >= cols ? 0 : quant.format.grid.cols;
}

// What an op writes, for a kernel whose inputs have type T. finish() is called after the launch.
template <typename T>
class ActivationOutput {
 public:
  // `inputs` are checked for alignment alone; absent ones are passed over.
  ActivationOutput(const KernelContext& context, const char* op, const ops::Activation& out,
                   int64_t rows, int64_t cols, std::initializer_list<Tensor> inputs)
      : context_(context), quant_(out.quant) {
    if (!out.plain && !out.quant) unsupported(op, "the output has neither form", {});
    const bool bf16 = std::is_same_v<T, __nv_bfloat16>;
    if (out.plain && (out.plain.rows() != rows || out.plain.cols() != cols ||
                      out.plain.type != (bf16 ? DType::bf16 : DType::f32))) {
      unsupported(op, "the plain output must be of the input's shape and type",
                  {{"out", out.plain}, {"in", *inputs.begin()}});
    }
    bool aligned = cols % kPart == 0;
    for (const Tensor& input : inputs) aligned &= !input || rows_aligned(input, 16);
    if (out.plain) {
      rows_.plain = matrix<T>(out.plain);
      aligned &= rows_aligned(out.plain, 16);
    }
    if (out.quant) {
      check_quant(op, out.quant, rows, cols);
      if (scales_within_rows(out.quant.format, cols)) {
        set_quant(rows_, out.quant, cols);
        aligned &= rows_aligned(out.quant.codes, kPart);
      } else {
        float* const values = context.workspace.template take<float>(used_, rows * cols);
        rows_.whole = {values, cols};
        whole_ = Tensor(values, DType::f32, {rows, cols});
      }
    }
    rows_.aligned = aligned;
  }
  const RowOutput<T>& rows() const { return rows_; }
  // True if one scale spans a row, so that one block (or cluster) must see all of it.
  bool scale_per_row() const { return rows_.codes.data && rows_.group == 0; }
  void finish() const {
    if (whole_) quantize_cells(context_, whole_, quant_, used_);
  }

 private:
  const KernelContext& context_;
  QuantTensor quant_;
  RowOutput<T> rows_;
  Tensor whole_;  // f32 [rows, cols], only if scales reach over several rows
  size_t used_ = 0;
};

}  // namespace octet::cuda
