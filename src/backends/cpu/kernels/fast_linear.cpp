#include "backends/cpu/kernels/fast_linear.h"

#include <fmt/format.h>

#include <algorithm>

namespace octet::cpu {
namespace fast {

Matrix matrix_of(const Tensor& plain) {
  return {.data = plain.as<const std::byte>(),
          .type = plain.type,
          .rows = plain.rows(),
          .k = plain.cols(),
          .row_bytes = plain.row_stride() * static_cast<int64_t>(size_of(plain.type))};
}

Matrix matrix_of(const QuantTensor& quant) {
  Matrix matrix = matrix_of(quant.codes);
  if (quant.format.scale == ScaleType::unit) return matrix;
  const ScaleGrid grid = quant.format.grid;
  const Tensor& scales = quant.scales;
  invariant(scales.type == DType::f32 && (grid.cols == 0 || grid.cols == kCell),
            "fast linear: a scale grid that it refuses");
  const int rank = scales.shape.rank;
  Scales& to = matrix.scales;
  to.data = scales.as<const std::byte>();
  to.cell_rows = grid.rows;
  to.varies = grid.cols == kCell && matrix.k > kCell;
  // One scale may come as a scalar, and a column of scales as a vector.
  to.row_bytes = rank >= 1 ? 4 * scales.strides[0] : 0;
  to.col_bytes = rank >= 2 ? 4 * scales.strides[1] : 0;
  return matrix;
}

Output output_of(const Tensor& out, const Tensor& bias) {
  invariant(out.type == DType::f32 || out.type == DType::bf16, "fast linear: output type");
  Output to{.data = out.as<std::byte>(),
            .type = out.type,
            .row_bytes = out.row_stride() * static_cast<int64_t>(size_of(out.type))};
  if (bias) {
    invariant(bias.type == DType::f32 || bias.type == DType::bf16, "fast linear: bias type");
    to.bias = bias.as<const std::byte>();
    to.bias_type = bias.type;
  }
  return to;
}

void run_linear(const KernelContext& context, const Kernels& kernels, const Matrix& x,
                const Matrix& w, const Output& out) {
  invariant(x.k == w.k, "fast linear: x and W differ in k");
  const int64_t row_bytes = kernels.packed_row_bytes(x.k);
  const int64_t per_row = kernels.scales_per_row(x.k);
  for (int64_t first = 0; first < x.rows; first += kernels.max_rows) {
    Matrix part = x;
    part.rows = std::min(kernels.max_rows, x.rows - first);
    part.data = x.row(first);
    if (part.scales.data) part.scales.data = x.scales.row(first);
    Packed packed{.rows = part.rows,
                  .groups = (part.rows + kernels.group_rows - 1) / kernels.group_rows,
                  .row_bytes = row_bytes,
                  .varies = per_row > 0 && x.scales.varies};
    packed.data = context.scratch.take(kPackedSlot, static_cast<size_t>(part.rows * row_bytes));
    if (per_row > 0) {
      packed.scales =
          context.scratch.take<float>(kPackedScalesSlot, static_cast<size_t>(part.rows * per_row));
    }
    const size_t each = round_up(static_cast<int64_t>(kernels.scratch_bytes(w, part.rows)), 4096);
    std::byte* scratch =
        context.scratch.take(kThreadSlot, each * static_cast<size_t>(context.threads.size()));
    // One group is packed faster than a second thread wakes.
    context.threads.parallel_for(packed.groups, 1, [&](int64_t begin, int64_t end, int) {
      kernels.pack(part, nullptr, w, packed, begin, end);
    });
    Output rows = out;
    rows.data += first * out.row_bytes;
    context.threads.parallel_for(w.rows, 4, [&](int64_t begin, int64_t end, int thread) {
      kernels.columns(w, packed, begin, end, rows, scratch + each * static_cast<size_t>(thread));
    });
  }
}

namespace {

Refusal refuses_format(const ops::OpDesc& desc) {
  for (const auto& format : {desc.weight_format, desc.input_format}) {
    if (format && format->grid.cols != 0 && format->grid.cols != kCell) {
      return fmt::format("needs scales that cover 128 inputs or all; this is {}",
                         to_string(*format));
    }
  }
  if (desc.input_format && desc.input_format->grid.rows > 1) {
    return fmt::format("needs input scales a token or a tensor; this is {}",
                       to_string(*desc.input_format));
  }
  return std::nullopt;
}

// Bytes over the memory's rate, or FLOPs over the arithmetic's, whichever is longer; rates of one
// thread. Kernels that wait for memory alike differ a little, so that the better arithmetic wins.
double estimate(const ops::OpDesc& desc, const CpuCaps& caps, double gflops, double gbytes) {
  const double weight = desc.weight_format ? 1.0 : static_cast<double>(size_of(desc.weight));
  const double values = static_cast<double>(desc.n) * static_cast<double>(desc.k);
  const double threads = std::max(1, caps.threads);
  return 1.0 + std::max(2.0 * static_cast<double>(desc.m) * values / (gflops * 1e3 * threads),
                        weight * values / (gbytes * std::min(threads, 20.0) * 1e3));
}

}  // namespace

bool dot_takes(DType type) {
  return type == DType::bf16 || is_code(type);
}

Refusal refuses_portable(const ops::OpDesc& desc, const CpuCaps&) {
  return refuses_format(desc);
}

Refusal refuses_fma(const ops::OpDesc& desc, const CpuCaps& caps) {
  if (!caps.avx512_bf16) return "needs AVX-512 with BF16 and VBMI";
  return refuses_format(desc);
}

Refusal refuses_dot(const ops::OpDesc& desc, const CpuCaps& caps) {
  if (!dot_takes(desc.weight)) return "needs BF16, FP8 or INT8 weights";
  if (!desc.input_format && desc.activation != DType::bf16) return "needs BF16, FP8 or INT8 inputs";
  return refuses_fma(desc, caps);
}

double estimate_portable(const ops::OpDesc& desc, const CpuCaps& caps) {
  return caps.avx2 ? estimate(desc, caps, 30, 6) : estimate(desc, caps, 8, 1.5);
}

double estimate_fma(const ops::OpDesc& desc, const CpuCaps& caps) {
  return estimate(desc, caps, 110, 12);
}

double estimate_dot(const ops::OpDesc& desc, const CpuCaps& caps) {
  return caps.fast_dot ? estimate(desc, caps, 150, 12.5) : estimate(desc, caps, 60, 11.5);
}

void launch_portable(const KernelContext& context, const ops::Activation& x, const ops::Linear& w,
                     const Tensor& out) {
  const Kernels& kernels = portable_kernels();
  run_linear(context, kernels, input_of(x, w), matrix_of(w), output_of(out, w.bias));
}

void launch_fma(const KernelContext& context, const ops::Activation& x, const ops::Linear& w,
                const Tensor& out) {
  run_linear(context, fma_kernels(), input_of(x, w), matrix_of(w), output_of(out, w.bias));
}

void launch_dot(const KernelContext& context, const ops::Activation& x, const ops::Linear& w,
                const Tensor& out) {
  // Routers choose experts by small differences: their products are FP32 on every path.
  if (w.role == Role::router) return launch_fma(context, x, w, out);
  run_linear(context, dot_kernels(), input_of(x, w), matrix_of(w), output_of(out, w.bias));
}

namespace {

constexpr LinearRow rows[] = {
    {"fast_avx512_dot", "dot lanes k%64", refuses_dot, estimate_dot, launch_dot},
    {"fast_avx512_fma", "fma lanes k%64", refuses_fma, estimate_fma, launch_fma},
    {"fast_portable", "8 lanes", refuses_portable, estimate_portable, launch_portable},
};

}  // namespace
}  // namespace fast

std::span<const LinearRow> fast_linear_rows() {
  return fast::rows;
}

}  // namespace octet::cpu
