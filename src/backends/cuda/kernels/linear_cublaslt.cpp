// Linears by cuBLASLt: what there is beyond the few rows that are bound by reading weights.
//
//   row               scales of W and x      how
//   cublaslt_outer    row, row               the library scales; as fast as without, from m = 512
//   cublaslt_scalar   tensor or row, each    unscaled sums in FP32, scaled by a kernel of our own:
//                                            far faster kernels below m = 256; where both are one
//                                            a tensor, the library scales
//   cublaslt_block    128x128, 1x128         the library scales
//   cublaslt_bf16     none                   plain weights and input
//
// FP8 sums are of the slow kind (gemm_library.h); with context.fast_accumulation those of the fast
// kind where they may be. Ways to the output, by what it allows:
//
//   x, in rows of `chunk`  --product-->  out                              the library writes it
//                          --product-->  f32 sums --finish_linear-->  out  scales, bias, padding
//
// With context.deterministic all products of a linear are one problem to the library, which chooses
// its kernel by all of it: the same m (the last is padded), types and strides. So a row's bits do
// not depend on how many there are.
#include <fmt/format.h>

#include <algorithm>

#include "backends/cuda/kernels/gemm_library.h"
#include "backends/cuda/kernels/linear_parts.h"
#include "backends/cuda/kernels/linear_rows.h"

namespace octet::cuda {
namespace {

using Scaling = GemmProblem::Scaling;
using Refusal = std::optional<std::string>;

constexpr int64_t kDeterministicRows = 128;
constexpr int64_t kGroup = 128;  // elements of k that share a scale, under block scaling

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

cudaDataType_t library_type(DType type) {
  switch (type) {
    case DType::e4m3:
      return CUDA_R_8F_E4M3;
    case DType::e5m2:
      return CUDA_R_8F_E5M2;
    case DType::bf16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

bool is_aligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

// --- a launch -----------------------------------------------------------------------------------

// A matrix where the library can read it.
struct Readable {
  const char* data;
  int64_t stride;  // elements
};

// `tensor` [rows, cols], with rows that start at multiples of 16 bytes, `stride` elements apart if
// that is not 0, and memory up to row `room`: itself, or a copy in the workspace.
Readable readable(const KernelContext& context, size_t& offset, const Tensor& tensor, int64_t room,
                  bool has_room, int64_t stride) {
  const auto element = static_cast<int64_t>(size_of(tensor.type));
  const int64_t rows = tensor.rows(), cols = tensor.cols(), own = tensor.row_stride();
  const bool fits = is_aligned(tensor.data) && own * element % 16 == 0 &&
                    (stride == 0 || own == stride) && (rows == room || has_room);
  if (fits) return {static_cast<const char*>(tensor.data), own};
  char* const copy = context.workspace.take<char>(offset, room * cols * element);
  const auto width = static_cast<size_t>(cols * element);
  check(cudaMemcpy2DAsync(copy, width, tensor.data, static_cast<size_t>(own * element), width,
                          static_cast<size_t>(rows), cudaMemcpyDeviceToDevice, context.stream),
        "cudaMemcpy2DAsync");
  return {copy, cols};
}

// The scales of `rows` rows as a vector at a multiple of 16 bytes, with memory up to `room`.
const float* readable_scales(const KernelContext& context, size_t& offset, const QuantTensor& q,
                             int64_t room) {
  const ScaleView view = scale_view(q);
  const int64_t rows = q.codes.rows();
  if (view.row_stride == 1 && is_aligned(view.data) && rows == room) return view.data;
  float* const copy = context.workspace.take<float>(offset, room);
  pack_scales(context, view, rows, 1, copy, 1, 0);
  return copy;
}

// The rows [first, first + count) of a view.
ScaleView from_row(ScaleView view, int64_t first) {
  if (view.data && view.cell_rows == 1) view.data += first * view.row_stride;
  return view;
}
Tensor rows_of(const Tensor& matrix, int64_t first, int64_t count) {
  Tensor view = matrix;
  const int64_t stride = matrix.row_stride(), cols = matrix.cols();
  view.data =
      static_cast<char*>(matrix.data) + first * stride * static_cast<int64_t>(size_of(matrix.type));
  view.shape = {count, cols};
  view.strides = {stride, 1};
  return view;
}

// Down projections have inputs of one sign here and there, where fast sums lose most; block scaling
// has no fast sums.
bool sums_fast(const KernelContext& context, const ops::Linear& w, Scaling scaling) {
  const bool down =
      w.role == Role::mlp_down || w.role == Role::expert_down || w.role == Role::shared_down;
  return context.fast_accumulation && w.quant && scaling != Scaling::block && !down;
}

bool one_scale(const ScaleView& view) {
  return !view.data || (view.cell_rows == ~0u && is_aligned(view.data));
}

// x of a launch, prepared for products of `chunk` rows.
struct Input {
  ops::Activation form;  // as the weights want it
  Tensor matrix;         // its codes or plain values [m, k]
  ScaleView scales;      // of codes
  int64_t padded = 0;    // rows that can be read
  Readable values{};
  const float* row_scales = nullptr;  // outer: [padded]
};

template <Scaling Mode>
Input prepare_input(const KernelContext& context, size_t& offset, const ops::Activation& x,
                    const ops::Linear& w) {
  const int64_t m = x.rows();
  Input input;
  input.padded = round_up(m, context.deterministic    ? kDeterministicRows
                             : Mode == Scaling::block ? 4
                                                      : 1);
  input.form = linear_input(context, offset, x, w, input.padded);
  const QuantTensor& quant = input.form.quant;
  const bool quantized_here = quant && quant.codes.data != x.quant.codes.data;
  input.matrix = quant ? quant.codes : input.form.plain;
  input.scales = scale_view(quant);
  input.values = readable(context, offset, input.matrix, input.padded, quantized_here,
                          context.deterministic ? w.in : 0);
  if constexpr (Mode == Scaling::outer) {
    input.row_scales = readable_scales(context, offset, quant, input.padded);
  }
  return input;
}

// The scales of W for the library; null where it does not scale.
template <Scaling Mode>
const float* prepare_weight_scales(const KernelContext& context, size_t& offset,
                                   const QuantTensor& w) {
  if constexpr (Mode == Scaling::outer) {
    return readable_scales(context, offset, w, w.codes.rows());
  } else if constexpr (Mode == Scaling::block) {
    const ScaleView view = scale_view(w);
    const ScaleShape cells = scale_shape(w.format.grid, w.codes.rows(), w.codes.cols());
    const int64_t pitch = round_up(cells.cols, 4);
    if (view.col_stride == 1 && view.row_stride == pitch && is_aligned(view.data)) return view.data;
    float* const packed = context.workspace.take<float>(offset, cells.rows * pitch);
    pack_scales(context, view, cells.rows, cells.cols, packed, pitch, 1);
    return packed;
  } else {
    return nullptr;
  }
}

// outs[i] = x · ws[i]ᵀ (+ bias), for FP8 operands scaled as Mode says, or for plain ones (scalar).
template <Scaling Mode>
void run(const KernelContext& context, const ops::Activation& x,
         std::span<const ops::Linear* const> ws, std::span<const Tensor> outs) {
  const int64_t m = x.rows();
  if (ws.empty() || m == 0) return;
  size_t offset = 0;
  const Input input = prepare_input<Mode>(context, offset, x, *ws[0]);
  const int64_t groups = (ws[0]->in + kGroup - 1) / kGroup;

  for (size_t i = 0; i < ws.size(); ++i) {
    const ops::Linear& w = *ws[i];
    const Tensor& out = outs[i];
    check_linear(input.form, w, out);
    size_t end = offset;  // each product has the rest of the workspace
    const Tensor& weight = w.quant ? w.quant.codes : w.plain;
    const Readable values = readable(context, end, weight, w.out, false, w.in);
    GemmOperands operands{.w = values.data};
    operands.w_scale = prepare_weight_scales<Mode>(context, end, w.quant);
    const ScaleView w_scales = scale_view(w.quant);
    // One scale each: no need for a kernel of our own.
    const bool tensor_scales =
        Mode == Scaling::scalar && one_scale(input.scales) && one_scale(w_scales);
    if (tensor_scales) {
      operands.w_scale = w_scales.data;
      operands.x_scale = input.scales.data;
    }
    const int64_t element = static_cast<int64_t>(size_of(out.type)), stride = out.row_stride();
    const bool plain_store = (Mode != Scaling::scalar || tensor_scales) && !w.bias &&
                             input.padded == m && is_aligned(out.data) &&
                             stride * element % 16 == 0;
    // The other way's products have contiguous FP32 outputs.
    const bool same_problem = out.type == DType::f32 && stride == w.out;
    const bool direct = plain_store && (!context.deterministic || same_problem);

    // Rows of a product: all, unless the sums of fewer fit into the workspace.
    int64_t chunk = context.deterministic ? kDeterministicRows : input.padded;
    if (!direct || Mode == Scaling::block) {
      const int64_t row_bytes =
          (direct ? 0 : w.out * 4) + (Mode == Scaling::block ? groups * 4 : 0);
      const auto left = static_cast<int64_t>(context.workspace.bytes - end) - 1024;
      const int64_t most = std::max<int64_t>(left / row_bytes / 128 * 128, 128);
      chunk = std::min(chunk, most);
    }
    float* const sums = direct ? nullptr : context.workspace.take<float>(end, chunk * w.out);
    float* const group_scales =
        Mode == Scaling::block ? context.workspace.take<float>(end, chunk * groups) : nullptr;

    for (int64_t first = 0; first < input.padded; first += chunk) {
      const int64_t rows = std::min(chunk, input.padded - first), real = std::min(rows, m - first);
      GemmProblem problem{.m = rows, .n = w.out, .k = w.in, .x_stride = input.values.stride};
      problem.x_type = library_type(input.matrix.type);
      problem.w_type = library_type(weight.type);
      problem.y_type = direct ? library_type(out.type) : CUDA_R_32F;
      problem.y_stride = direct ? stride : w.out;
      problem.scaling = Mode;
      problem.fast = sums_fast(context, w, Mode);
      operands.x = input.values.data +
                   first * input.values.stride * static_cast<int64_t>(size_of(input.matrix.type));
      operands.y = direct ? static_cast<char*>(out.data) + first * stride * element
                          : static_cast<void*>(sums);
      if constexpr (Mode == Scaling::outer) operands.x_scale = input.row_scales + first;
      if constexpr (Mode == Scaling::block) {
        const ScaleView scales = from_row(input.scales, first);
        const bool token_fastest = scales.row_stride == 1 && scales.col_stride == rows &&
                                   real == rows && is_aligned(scales.data);
        operands.x_scale = token_fastest ? scales.data : group_scales;
        if (!token_fastest) pack_scales(context, scales, real, groups, group_scales, 1, rows);
      }
      context.gemm->multiply(problem, operands);
      if (direct) continue;
      const bool scale = Mode == Scaling::scalar && !tensor_scales;
      finish_linear(context, sums, scale ? from_row(input.scales, first) : ScaleView{},
                    scale ? w_scales : ScaleView{}, w.bias, rows_of(out, first, real));
    }
  }
}

// --- what the library refuses -------------------------------------------------------------------

Refusal refuses_shape(const ops::OpDesc& desc, int64_t k_multiple) {
  if (desc.k % k_multiple != 0) {
    return fmt::format("K = {} is no multiple of {}", desc.k, k_multiple);
  }
  if (desc.n % 8 != 0) return fmt::format("N = {} is no multiple of 8", desc.n);
  return {};
}

Refusal refuses_fp8(const ops::OpDesc& desc) {
  if (!desc.weight_format) return fmt::format("weights are {}, not FP8", name_of(desc.weight));
  if (!desc.input_format) return fmt::format("the input is {}, not FP8", name_of(desc.activation));
  if (!is_fp8(desc.weight_format->code) || !is_fp8(desc.input_format->code)) {
    return "weights or input are integers, not FP8";
  }
  if (desc.weight_format->code == Code::e5m2 && desc.input_format->code == Code::e5m2) {
    return "weights and input are both E5M2";
  }
  return refuses_shape(desc, 16);
}

bool has_grid(const QuantFormat& format, ScaleGrid grid) {
  return format.scale != ScaleType::unit && format.grid == grid;
}
bool is_tensor(const QuantFormat& format) {
  return format.scale == ScaleType::unit || format.grid == grids::tensor;
}

Refusal scales_are(const ops::OpDesc& desc, const char* wanted) {
  return fmt::format("scales are {} and {}, not {}", octet::to_string(*desc.weight_format),
                     octet::to_string(*desc.input_format), wanted);
}

Refusal outer_refuses(const ops::OpDesc& desc, const DeviceCaps&) {
  if (auto reason = refuses_fp8(desc)) return reason;
  if (!has_grid(*desc.weight_format, grids::row) || !has_grid(*desc.input_format, grids::row)) {
    return scales_are(desc, "one a row of each");
  }
  return {};
}

Refusal scalar_refuses(const ops::OpDesc& desc, const DeviceCaps&) {
  if (auto reason = refuses_fp8(desc)) return reason;
  for (const QuantFormat& format : {*desc.weight_format, *desc.input_format}) {
    if (!is_tensor(format) && format.grid != grids::row) {
      return scales_are(desc, "one a row or one in all");
    }
  }
  return {};
}

Refusal block_refuses(const ops::OpDesc& desc, const DeviceCaps&) {
  if (auto reason = refuses_fp8(desc)) return reason;
  if (!has_grid(*desc.weight_format, grids::block128) ||
      !has_grid(*desc.input_format, grids::group128)) {
    return scales_are(desc, "128x128 of W and 1x128 of x");
  }
  return {};
}

Refusal bf16_refuses(const ops::OpDesc& desc, const DeviceCaps&) {
  if (desc.weight_format || desc.input_format) return "weights or input are FP8, not BF16";
  if (desc.weight != DType::bf16 || desc.activation != DType::bf16) {
    return fmt::format("weights are {} and the input is {}, not both bf16", name_of(desc.weight),
                       name_of(desc.activation));
  }
  return refuses_shape(desc, 8);
}

// --- estimates ----------------------------------------------------------------------------------
// On an H200, in graphs, over buffers beyond the L2: bytes or FLOPs at the rate seen, whichever
// takes longer, and a fixed part. Outputs count as BF16.

double bytes_of(const ops::OpDesc& d, double element) {
  const auto m = static_cast<double>(d.m), n = static_cast<double>(d.n),
             k = static_cast<double>(d.k);
  return element * (n * k + m * k) + 2.0 * m * n;
}
// Microseconds at `gbps` GB/s, or at `tflops` TFLOP/s.
double read_us(double bytes, double gbps) {
  return bytes / gbps / 1e3;
}
double product_us(const ops::OpDesc& d, double tflops) {
  return 2.0 * static_cast<double>(d.m) * static_cast<double>(d.n) * static_cast<double>(d.k) /
         tflops / 1e6;
}
// Rounds of 128x128 tiles that each SM computes, times the steps of 128 in k: these kernels do not
// split k, so that few tiles leave SMs idle and each step waits for memory.
double serial_steps(const ops::OpDesc& d, const DeviceCaps& caps) {
  const int64_t tiles = ((d.m + 127) / 128) * ((d.n + 127) / 128), sms = std::max(caps.sms, 1);
  const int64_t rounds = (tiles + sms - 1) / sms, steps = (d.k + 127) / 128;
  return static_cast<double>(rounds * steps);
}

double outer_us(const ops::OpDesc& d, const DeviceCaps& caps) {
  return 4.1 + std::max({read_us(bytes_of(d, 1), 3800), product_us(d, 1350),
                         0.294 * serial_steps(d, caps)});
}

double scalar_us(const ops::OpDesc& d, const DeviceCaps&) {
  const double product =
      3.7 + std::max(read_us(bytes_of(d, 1), 4450), product_us(d, d.m <= 256 ? 1250 : 1400));
  if (is_tensor(*d.weight_format) && is_tensor(*d.input_format)) return product;
  // Sums out, in again, outputs out; mostly in the L2.
  return product + 2.0 + read_us(10.0 * static_cast<double>(d.m) * static_cast<double>(d.n), 4000);
}

double block_us(const ops::OpDesc& d, const DeviceCaps& caps) {
  return 9.8 + 2.0 +
         std::max(
             {read_us(bytes_of(d, 1), 4600), product_us(d, 1300), 0.1375 * serial_steps(d, caps)});
}

double bf16_us(const ops::OpDesc& d, const DeviceCaps&) {
  return 5.4 + std::max(read_us(bytes_of(d, 2), 4630), product_us(d, 790));
}

// --- rows ---------------------------------------------------------------------------------------

constexpr LinearRow kRows[] = {
    {"cublaslt_scalar", "fp8_mma_scalar", scalar_refuses, scalar_us, run<Scaling::scalar>},
    {"cublaslt_outer", "fp8_mma_outer", outer_refuses, outer_us, run<Scaling::outer>},
    {"cublaslt_block", "fp8_mma_block", block_refuses, block_us, run<Scaling::block>},
    {"cublaslt_bf16", "bf16_mma", bf16_refuses, bf16_us, run<Scaling::scalar>},
};
constexpr LinearRow kHeadRows[] = {
    {"cublaslt_bf16", "bf16_mma", bf16_refuses, bf16_us, run<Scaling::scalar>},
};

}  // namespace

std::span<const LinearRow> cublaslt_rows() {
  return kRows;
}

std::span<const LinearRow> cublaslt_head_rows() {
  return kHeadRows;
}

}  // namespace octet::cuda
