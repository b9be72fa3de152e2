#include "backends/cpu/kernels/fast_linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <vector>

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

namespace {

constexpr int64_t kPackAlone = 32 << 10;  // values of x that each thread packs for itself
constexpr int64_t kRunAlone = 128 << 10;  // multiply-adds that are done before others wake

// Work of one thread, in multiply-adds; below five rows a weight costs more than its products.
int64_t cost_of(std::span<const Product> products, int64_t rows) {
  int64_t weights = 0;
  for (const Product& product : products) weights += product.w.rows * product.w.k;
  return weights * std::max<int64_t>(rows, 5);
}

// The columns of the last product from `begin` on, which threads take `step` at a time, as equal
// shares of the work do not end together where others run. A fifth of all columns, where there are
// enough; none for few rows of x, whose long streams of W gain more than the end loses.
struct Rest {
  int64_t begin, step;
};
Rest rest_of(std::span<const Product> products, int64_t rows, int threads) {
  constexpr int64_t least = 32;  // columns in a step
  const int64_t end = products.back().w.rows;
  int64_t all = 0;
  for (const Product& product : products) all += product.w.rows;
  const int64_t rest = std::min(end, all / 5) / least * least;
  if (rows <= kStreamedRows || threads == 1 || rest < least * threads) return {end, least};
  const int64_t step = std::clamp(rest / (8 * threads) / least * least, least, 8 * least);
  return {(end - rest) / 4 * 4, step};
}

// Rows [first, first + x.rows) of every product; x is these rows.
void run_turn(const KernelContext& context, const Kernels& kernels, const Matrix& x, int64_t first,
              std::span<const Product> products) {
  const bool alone = cost_of(products, x.rows) <= kRunAlone;
  const int threads = alone ? 1 : context.threads.size();
  const bool apart = x.rows * x.k <= kPackAlone;
  const auto copies = static_cast<size_t>(apart ? threads : 1);
  const int64_t row_scales = kernels.scales_per_row(x.k);
  Packed packed{.rows = x.rows,
                .groups = (x.rows + kernels.group_rows - 1) / kernels.group_rows,
                .row_bytes = kernels.packed_row_bytes(x.k),
                .varies = row_scales > 0 && x.scales.varies};
  const auto data_bytes = static_cast<size_t>(round_up(x.rows * packed.row_bytes, 64));
  const auto scales = static_cast<size_t>(round_up(x.rows * row_scales, 16));
  std::byte* const data = context.scratch.take(kPackedSlot, copies * data_bytes);
  float* const x_scales = context.scratch.take<float>(kPackedScalesSlot, copies * scales);
  size_t each = 0;
  for (const Product& product : products) {
    each = std::max(each, kernels.scratch_bytes(product.w, x.rows));
  }
  each = static_cast<size_t>(round_up(static_cast<int64_t>(each), 4096));
  std::byte* const scratch = context.scratch.take(kThreadSlot, each * static_cast<size_t>(threads));

  const auto packing_of = [&](int thread) {
    const size_t copy = apart ? static_cast<size_t>(thread) : 0;
    Packed mine = packed;
    mine.data = data + copy * data_bytes;
    if (row_scales > 0) mine.scales = x_scales + copy * scales;
    return mine;
  };
  const auto pack = [&](const Packed& to, int64_t begin, int64_t end) {
    kernels.pack(x, nullptr, products[0].w, to, begin, end);
  };
  if (!apart) {
    context.threads.parallel_for(packed.groups, 1, [&](int64_t begin, int64_t end, int) {
      pack(packing_of(0), begin, end);
    });
  }
  const Rest rest = rest_of(products, x.rows, threads);
  std::atomic<int64_t> next{rest.begin};
  const auto work = [&](int thread) {
    const Packed mine = packing_of(thread);
    if (apart) pack(mine, 0, mine.groups);
    const auto columns = [&](const Product& product, int64_t begin, int64_t end) {
      Output rows = product.out;
      rows.data += first * rows.row_bytes;
      kernels.columns(product.w, mine, begin, end, rows,
                      scratch + each * static_cast<size_t>(thread));
    };
    for (const Product& product : products) {
      const bool last = &product == &products.back();
      const Range range = columns_of(last ? rest.begin : product.w.rows, thread, threads);
      if (range.begin < range.end) columns(product, range.begin, range.end);
    }
    const int64_t end = products.back().w.rows;
    for (int64_t n = next.fetch_add(rest.step); n < end; n = next.fetch_add(rest.step)) {
      columns(products.back(), n, std::min(end, n + rest.step));
    }
  };
  if (alone) return work(0);
  context.threads.run(work);
}

}  // namespace

void run_linears(const KernelContext& context, const Kernels& kernels, const Matrix& x,
                 std::span<const Product> products) {
  for (const Product& product : products) {
    invariant(x.k == product.w.k && product.w.type == products[0].w.type,
              "fast linears: x and W differ in k, or the weights in type");
  }
  for (int64_t first = 0; first < x.rows; first += kernels.max_rows) {
    Matrix part = x;
    part.rows = std::min(kernels.max_rows, x.rows - first);
    part.data = x.row(first);
    if (part.scales.data) part.scales.data = x.scales.row(first);
    run_turn(context, kernels, part, first, products);
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

constexpr int64_t kVnniInputs = (int64_t{1} << 17) - 1;  // of 2^14 each: their sum fits 32 bits

bool vnni_takes(const std::optional<QuantFormat>& format) {
  return format && format->code == Code::i8 && format->grid.cols == 0;
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

Refusal refuses_amx(const ops::OpDesc& desc, const CpuCaps& caps) {
  if (!caps.amx_bf16) return "needs AMX with BF16";
  return refuses_dot(desc, caps);
}

Refusal refuses_vnni(const ops::OpDesc& desc, const CpuCaps& caps) {
  if (!vnni_takes(desc.weight_format) || !vnni_takes(desc.input_format)) {
    return "needs INT8 weights and inputs whose scales cover all inputs";
  }
  if (desc.k > kVnniInputs) return fmt::format("sums at most {} products", kVnniInputs);
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

// One row of x streams W as fast as by FMA, or a little slower; but the order that is chosen for it
// is that of all others, which gain far more.
double estimate_amx(const ops::OpDesc& desc, const CpuCaps& caps) {
  return estimate(desc, caps, 800, 12.9);
}

double estimate_vnni(const ops::OpDesc& desc, const CpuCaps& caps) {
  return estimate(desc, caps, 400, 13);
}

namespace {

using Weights = std::span<const ops::Linear* const>;
using Outputs = std::span<const Tensor>;

// Runs of weights of one type together.
void launch(const KernelContext& context, const Kernels& kernels, const ops::Activation& x,
            Weights ws, Outputs outs) {
  std::vector<Product> products;
  for (size_t i = 0; i < ws.size(); ++i) {
    products.push_back({matrix_of(*ws[i]), output_of(outs[i], ws[i]->bias)});
    if (i + 1 < ws.size() && matrix_of(*ws[i + 1]).type == products[0].w.type) continue;
    run_linears(context, kernels, input_of(x, *ws[i]), products);
    products.clear();
  }
}

}  // namespace

void launch_portable(const KernelContext& context, const ops::Activation& x, Weights ws,
                     Outputs outs) {
  launch(context, portable_kernels(), x, ws, outs);
}

void launch_fma(const KernelContext& context, const ops::Activation& x, Weights ws, Outputs outs) {
  launch(context, fma_kernels(), x, ws, outs);
}

namespace {

// Routers choose experts by small differences: their products are FP32 on every path.
const Kernels& unless_router(const Kernels& kernels, Weights ws) {
  const auto is_router = [](const ops::Linear* w) { return w->role == Role::router; };
  return std::ranges::any_of(ws, is_router) ? fma_kernels() : kernels;
}

}  // namespace

void launch_dot(const KernelContext& context, const ops::Activation& x, Weights ws, Outputs outs) {
  launch(context, unless_router(dot_kernels(), ws), x, ws, outs);
}

void launch_amx(const KernelContext& context, const ops::Activation& x, Weights ws, Outputs outs) {
  launch(context, unless_router(amx_kernels(), ws), x, ws, outs);
}

void launch_vnni(const KernelContext& context, const ops::Activation& x, Weights ws, Outputs outs) {
  launch(context, vnni_kernels(), x, ws, outs);
}

namespace {

constexpr LinearRow rows[] = {
    {"fast_avx512_vnni", "int32", refuses_vnni, estimate_vnni, launch_vnni},
    {"fast_amx", "amx k%32", refuses_amx, estimate_amx, launch_amx},
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
