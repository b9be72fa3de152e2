// The plan and the launch of linear_thin.h, and its rows for the table.
#include <algorithm>

#include "backends/cuda/kernels/device_math.cuh"
#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/kernels/linear_rows.h"
#include "backends/cuda/kernels/linear_thin.h"

namespace octet::cuda {
namespace {

constexpr int kMostSplit = 8;  // the largest cluster that every GPU of this kind can place
// On their way to each SM: enough to keep memory busy. Measured on an H200, 48 KiB are too few and
// 160 KiB no better.
constexpr int kRingBytes = 96 * 1024;
// Of q, k and v, where they are few tiles: attention, which comes next, begins beside them if there
// is room, in shared memory and in registers. So those that multiply codes are one block an SM.
constexpr int kFewTilesRingBytes = 52 * 1024, kFewTilesCodesRingBytes = 128 * 1024;
constexpr int kFewTilesOfSm = 4;  // at most, with which they are few
constexpr int kLeastRingBytes = 48 * 1024;
// Of them, while the kernel before may still run: what drains its ring faster has less use for
// more.
constexpr int kFlyingBytes = 96 * 1024, kFlyingCodesBytes = 64 * 1024;
constexpr int kLeastTilesToTake = 4;
constexpr int kMostHalvesBytes = 32 * 1024;  // of x as FP16, beside a ring in half an SM

template <typename T>
T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}
int round_up(int64_t value, int64_t step) {
  return static_cast<int>(ceil_div(value, step) * step);
}

// Whether the lanes of a block hold what becomes x: rows that are not long, which its warps share
// evenly. They fit as halves, too.
bool holds(int64_t m, int64_t k) {
  constexpr int64_t warps = thin_warps(kThinHalvesRows);
  return m > 0 && m <= kThinHalvesRows && warps % m == 0 &&
         k <= kThinMostHeld * (warps / m) * kWarp * 8;
}
// Rows that the tensor core is told of, where it multiplies codes.
int codes_columns(int m) {
  return m <= 2 ? std::max(m, 1) : kThinCodesRows;
}
bool fits_as_halves(int64_t m, int64_t k) {
  return m <= kThinHalvesRows && m * k * 2 <= kMostHalvesBytes;
}

[[noreturn]] void refuse(const std::string& why, const ops::Activation& x, const ops::Linear& w,
                         const Tensor& out) {
  unsupported("linear (thin) " + w.name, why,
              {{"x", x.plain ? x.plain : x.quant.codes},
               {"w", w.quant ? w.quant.codes : w.plain},
               {"scales", w.quant.scales},
               {"bias", w.bias},
               {"out", out}});
}

// A launch in the making: arguments, and what decides which kernel runs.
struct Plan {
  ThinArgs args{};
  ThinForm form = ThinForm::e4m3;
  bool blocked() const { return args.w_blocked || args.x_blocked; }
  bool by_codes() const { return form == ThinForm::e4m3_wgmma; }
  bool wide_x() const { return form == ThinForm::e4m3_bf16 || form == ThinForm::e4m3_halves; }
  int x_unit() const { return wide_x() ? 2 * kThinUnit : kThinUnit; }
};

void set_matrices(Plan& plan, const ops::Activation& x, std::span<const ops::Linear* const> ws,
                  std::span<const Tensor> outs) {
  ThinArgs& a = plan.args;
  const ops::Linear& first = *ws[0];
  a.k = static_cast<int>(first.in);
  a.k_bytes = static_cast<int>(first.in) * (first.quant ? 1 : 2);
  a.units = ceil_div(a.k_bytes, kThinUnit);
  a.out_bf16 = outs[0].type == DType::bf16;
  const ScaleView scales = scale_view(first.quant);
  a.w_blocked = scales.data && scales.cell_cols < static_cast<uint32_t>(a.k);
  a.w_cell_rows = scales.cell_rows;
  a.w_scale_row = scales.row_stride;
  a.w_scale_unit = scales.col_stride;
  const Tensor* bias = nullptr;
  for (size_t i = 0; i < ws.size(); ++i) {
    const ops::Linear& w = *ws[i];
    const Tensor& codes = w.quant ? w.quant.codes : w.plain;
    const ScaleView view = scale_view(w.quant);
    if (w.in != first.in || codes.type != (first.quant ? first.quant.codes : first.plain).type ||
        outs[i].type != outs[0].type || view.cell_rows != scales.cell_rows ||
        view.cell_cols != scales.cell_cols || view.col_stride != scales.col_stride ||
        view.row_stride != scales.row_stride || !view.data != !scales.data) {
      refuse("weights of one launch differ in more than their outputs", x, w, outs[i]);
    }
    if (!rows_aligned(codes, 16)) refuse("rows of weights begin at multiples of 16", x, w, outs[i]);
    if (w.bias) {
      if (bias && bias->type != w.bias.type) refuse("biases of two types", x, w, outs[i]);
      bias = &w.bias;
    }
    ThinMatrix& matrix = a.matrix[a.matrices++];
    matrix.weight = codes.as<const uint8_t>();
    matrix.weight_stride = codes.row_stride() * static_cast<int64_t>(size_of(codes.type));
    matrix.scale = view.data;
    matrix.bias = w.bias.data;
    matrix.out = outs[i].data;
    matrix.out_stride = outs[i].row_stride();
    matrix.n = static_cast<int>(w.out);
    matrix.first_tile = a.tiles;
    a.tiles += ceil_div(matrix.n, kThinTile);
  }
  a.bias_bf16 = bias && bias->type == DType::bf16;
  a.bias_f16 = bias && bias->type == DType::f16;
}

// Tiles of gate and up together, whose silu(gate) · up is the output.
void set_gated(ThinArgs& a, const ThinHidden& out) {
  a.gated_peaks = out.peaks.as<__nv_bfloat16>();
  a.matrix[1].first_tile = 0;
  a.tiles = a.matrix[0].n / kGatedColumns;
}

// x in the form that it is multiplied in, or as it is, to be quantized in the kernel.
void set_input(Plan& plan, const ops::Activation& x, const ops::Linear& w) {
  ThinArgs& a = plan.args;
  if (w.input && x.quant) {
    const ScaleView scales = scale_view(x.quant);
    a.x = x.quant.codes.as<const uint8_t>();
    a.x_stride = x.quant.codes.row_stride();
    a.x_vector = rows_aligned(x.quant.codes, 16);
    a.x_scale = scales.data;
    a.x_scale_row = scales.cell_rows == 1 ? scales.row_stride : 0;
    a.x_scale_unit = scales.col_stride;
    a.x_blocked = scales.data && scales.cell_cols < static_cast<uint32_t>(a.k);
    return;
  }
  a.x = x.plain.as<const uint8_t>();
  a.x_stride = x.plain.row_stride() * static_cast<int64_t>(size_of(x.plain.type));
  a.x_vector = rows_aligned(x.plain, 16);
  if (!w.input) return;
  a.quantize = true;
  a.x_format = *w.input;
  a.x_blocked = w.input->grid.cols > 0 && w.input->grid.cols < a.k;
  a.x_tensor = w.input->grid == grids::tensor;
  if (w.when == InputScale::calibrated) a.fixed_scale = w.input_scale.as<const float>();
}

// Tiles and slices of the blocks, and where things lie in shared memory. A block has all of k if x
// leaves room for the ring: every split costs a join. Returns false if x does not fit.
bool set_shape(Plan& plan, const DeviceCaps& caps, int plan_m, const ThinTuning& tuning) {
  ThinArgs& a = plan.args;
  const int warps = tuning.warps > 0  ? tuning.warps
                    : plan.by_codes() ? kThinCodesWarps
                                      : thin_warps(plan_m);
  a.warps = warps;
  for (int i = 0; i < warps; i += std::max(a.m, 1)) a.row_mates |= 1u << i;
  const int x_pad = plan.wide_x() ? 16 : 64;  // rows g and g + 1: other banks
  const int stage = kThinTile * (warps * kThinUnit + (plan.by_codes() ? 0 : kThinRowPad));
  const int stage_scales = a.w_blocked ? kThinTile * warps * 4 : 0;
  const int barriers = 16;  // of a stage, which also has the number of its tile
  const int each = stage + stage_scales + barriers + 4;
  int blocks = tuning.blocks_per_sm > 0 ? tuning.blocks_per_sm
               : plan.by_codes()        ? kThinCodesBlocks
                                        : thin_blocks_per_sm(plan_m);
  int x_bytes = 0, x_scales = 0, sums = 0, alone = 0;
  const bool few = plan.by_codes() && a.norm && a.tiles <= kFewTilesOfSm * caps.sms;
  if (few && tuning.blocks_per_sm == 0) blocks = 1;
  // What m rows of x and `split` slices leave of shared memory, in stages.
  const auto lay_out = [&](int m, int split) {
    a.split = split;
    a.slice_units = round_up(ceil_div(a.units, split), plan.by_codes() ? 2 : 1);
    a.x_pitch = a.slice_units * plan.x_unit() + x_pad;
    const int rows = plan.by_codes() ? codes_columns(m) : m;
    x_bytes = round_up(int64_t{rows} * a.x_pitch, 128);
    x_scales = round_up(int64_t{4} * m * (a.x_blocked ? a.slice_units : 1), 128);
    sums = 2 * warps * m * kThinTile * 4;  // the kernel's quantizer uses them for its peaks
    // A kibibyte of each block is the system's.
    const int shared = (caps.shared_bytes_per_block + 1024) / blocks - 1024;
    alone = (shared - x_bytes - x_scales - sums - 128 - barriers) / each;
  };
  // Too few tiles for the SMs, and yet two stages for each half.
  const auto idle = [&] {
    return 10 * a.tiles * a.split <= 7 * caps.sms && a.units >= 4 * a.split * warps;
  };
  const auto cramped = [&] { return alone * each < kLeastRingBytes; };
  lay_out(plan_m, 1);
  if (cramped() && tuning.blocks_per_sm == 0) blocks = 1;
  // The split is that of plan_m rows, so that it can be the same for all m. A norm is made by
  // blocks that have all of the inputs.
  for (int split = 1;; split *= 2) {
    lay_out(plan_m, split);
    if (split == kMostSplit || a.norm || !(cramped() || idle())) break;
  }
  lay_out(a.m, tuning.split > 0 ? tuning.split : a.split);
  const bool few_widened =
      !plan.by_codes() && a.norm && a.split == 1 && a.tiles <= 2 * caps.sms * blocks;
  const int ring = few ? kFewTilesCodesRingBytes : few_widened ? kFewTilesRingBytes : kRingBytes;
  const int flying = (plan.by_codes() ? kFlyingCodesBytes : kFlyingBytes) / blocks;
  a.stages = std::min(tuning.stages > 0 ? tuning.stages : std::max(2, ring / stage), alone);
  // The parts of an H200 that clusters must lie in have 16 or 18 SMs.
  const int usable = a.split >= 4 ? caps.sms / 16 * 16 : caps.sms;
  const int clusters = std::max(1, usable * blocks / a.split);
  a.tiles_each = ceil_div(a.tiles, clusters);
  // No more than there is to read.
  if (a.tiles_each < kLeastTilesToTake) {
    a.stages = std::min(a.stages, std::max(2, a.tiles_each * ceil_div(a.slice_units, warps)));
  }
  if (a.stages < 2) return false;
  a.flying = tuning.flying > 0 ? tuning.flying : std::max(2, flying / stage);
  a.flying = std::min(a.flying, a.stages);

  a.blocks = std::min(a.tiles, clusters);
  a.tile_step = a.split > 1 ? 1 : a.blocks;
  const int last = a.split > 1 ? 0 : a.tiles % a.blocks;
  a.last_round = a.tiles - last;
  a.last_spread = ceil_div(last << kLastSpreadBits, a.blocks);

  a.ring_scales_at = a.stages * stage;
  a.x_at = a.ring_scales_at + a.stages * stage_scales;
  a.x_scales_at = a.x_at + x_bytes;
  a.sums_at = a.x_scales_at + x_scales;
  a.barriers_at = a.sums_at + round_up(sums, 128);
  a.tile_ids_at = a.barriers_at + (a.stages + 1) * barriers;
  a.shared = a.tile_ids_at + a.stages * 4;
  return true;
}

// `args` as set_shape left them, with all tensors.
void launch_thin(const KernelContext& context, ThinKernel kernel, ThinArgs& args) {
  // Blocks that would have several tiles, and all of their inputs, take them one by one. Where
  // there are few, those that begin first would take too many before any has been multiplied.
  const bool takes = args.split == 1 && args.tiles_each >= kLeastTilesToTake;
  if (takes) args.next = context.counters->take();
  const int blocks =
      args.split > 1 ? ceil_div(args.tiles, args.tiles_each) * args.split : args.blocks;
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, args.shared),
        "cudaFuncSetAttribute");
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(args.split);
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>((args.warps + 1) * kWarp));
  config.dynamicSmemBytes = static_cast<size_t>(args.shared);
  config.stream = context.stream;
  config.attrs = attributes;
  config.numAttrs = args.split > 1 ? 2 : 1;
  check(cudaLaunchKernelEx(&config, kernel, args), "cudaLaunchKernelEx");
}

template <ThinProducts Products>
void run(const KernelContext& context, const ops::Activation& x,
         std::span<const ops::Linear* const> ws, std::span<const Tensor> outs) {
  for (size_t begin = 0; begin < ws.size(); begin += kThinMostMatrices) {
    const size_t count = std::min<size_t>(kThinMostMatrices, ws.size() - begin);
    linear_thin(context, Products, x, ws.subspan(begin, count), outs.subspan(begin, count));
  }
}

// The arguments without tensors: enough to know whether x fits, for the table.
bool fits(const ops::OpDesc& desc, ThinForm form, const DeviceCaps& caps) {
  Plan plan;
  plan.form = form;
  plan.args.m = static_cast<int>(desc.m);
  plan.args.k = static_cast<int>(desc.k);
  plan.args.k_bytes = plan.args.k * (form == ThinForm::bf16 ? 2 : 1);
  plan.args.units = ceil_div(plan.args.k_bytes, kThinUnit);
  plan.args.tiles = static_cast<int>(ceil_div<int64_t>(desc.n, kThinTile));
  plan.args.w_blocked = desc.weight_format && desc.weight_format->grid.cols > 0;
  plan.args.x_blocked = desc.input_format && desc.input_format->grid.cols > 0;
  return set_shape(plan, caps, plan.args.m, {});
}

std::optional<std::string> refuses(const ops::OpDesc& desc, const DeviceCaps& caps) {
  if (desc.m > kThinMostRows) return "takes at most " + std::to_string(kThinMostRows) + " rows";
  if (desc.k % 16 != 0) return "needs inputs in multiples of 16";
  if (desc.k >= 1 << 24 || desc.n >= 1 << 30) return "counts inputs in 24 bits, outputs in 30";
  const auto& w = desc.weight_format;
  const auto& x = desc.input_format;
  ThinForm form = ThinForm::e4m3;
  if (w) {
    if (w->code != Code::e4m3) return "needs weights in E4M3 or BF16";
    if (w->grid.cols != 0 && w->grid.cols != 128) return "needs weight scales by 128 inputs or all";
    if (!x) form = ThinForm::e4m3_bf16;
  } else {
    if (desc.weight != DType::bf16) return "needs weights in E4M3 or BF16";
    if (x) return "multiplies BF16 weights with BF16 inputs alone";
    form = ThinForm::bf16;
  }
  if (x) {
    if (x->code != Code::e4m3) return "needs inputs in E4M3 or BF16";
    if (x->grid != grids::row && x->grid != grids::tensor && x->grid != grids::group128) {
      return "needs input scales by token, by 128 of it, or one";
    }
  } else if (desc.activation != DType::bf16) {
    return "needs inputs in E4M3 or BF16";
  }
  if (!fits(desc, form, caps)) return "the input does not fit in shared memory";
  return std::nullopt;
}

// Measured shares of 4.7 TB/s, and two microseconds of beginning and end.
double estimate_us(const ops::OpDesc& desc, const DeviceCaps&) {
  const double bytes = static_cast<double>(desc.n) * static_cast<double>(desc.k) *
                       static_cast<double>(size_of(desc.weight));
  const double share = desc.m <= 8 ? 0.90 : desc.m <= 16 ? 0.82 : 0.74;
  return bytes / (share * 4.7e6) + 2.0;
}

std::optional<std::string> codes_refuse(const ops::OpDesc& desc, const DeviceCaps& caps) {
  if (desc.m > kThinCodesRows) return "takes at most " + std::to_string(kThinCodesRows) + " rows";
  if (desc.k % (2 * kThinUnit) != 0) return "needs inputs in multiples of 256";
  if (desc.k >= 1 << 24 || desc.n >= 1 << 30) return "counts inputs in 24 bits, outputs in 30";
  const auto& w = desc.weight_format;
  const auto& x = desc.input_format;
  if (!w || w->code != Code::e4m3) return "needs weights in E4M3";
  if (!x || x->code != Code::e4m3) return "needs inputs in E4M3";
  if (w->grid.cols != 0) return "needs weight scales by output, or one";
  if (x->grid != grids::row && x->grid != grids::tensor) {
    return "needs input scales by token, or one";
  }
  if (!fits(desc, ThinForm::e4m3_wgmma, caps)) return "the input does not fit in shared memory";
  return std::nullopt;
}
// Before the rows that widen codes, by what it was measured to be faster.
double codes_us(const ops::OpDesc& desc, const DeviceCaps& caps) {
  return 0.97 * estimate_us(desc, caps);
}

constexpr LinearRow kRows[] = {
    {"thin_codes", "fp8_mma_thin256", codes_refuse, codes_us, run<ThinProducts::codes>},
    {"thin", "thin_units128", refuses, estimate_us, run<ThinProducts::widened>}};

}  // namespace

namespace {

// x as it is multiplied, or as it is, if the kernel quantizes it.
ops::Activation thin_input(const KernelContext& context, size_t& offset, const ops::Activation& x,
                           std::span<const ops::Linear* const> ws, std::span<const Tensor> outs) {
  const ops::Linear& w = *ws[0];
  const bool coded = w.input && x.quant && x.quant.format == *w.input;
  const bool quantizes = w.input && !coded && x.rows() <= kThinQuantizedRows && x.plain &&
                         x.plain.type == DType::bf16 && rows_aligned(x.plain, 16);
  ops::Activation input = x;
  if (quantizes) {
    input.quant = {};
  } else if (!coded) {
    input = linear_input(context, offset, x, w, 0);
  }
  for (size_t i = 0; i < ws.size(); ++i) {
    ops::Linear seen = *ws[i];
    if (quantizes) seen.input.reset();  // as a plain input, since the codes are not there yet
    check_linear(input, seen, outs[i]);
  }
  if (!w.input && input.plain.type != DType::bf16) refuse("needs BF16 inputs", x, w, outs[0]);
  return input;
}

ThinTask task_of(const ThinArgs& a) {
  if (a.split > 1) return ThinTask::any;
  if (a.gated_peaks) return ThinTask::norm_gated;
  if (a.moments) return ThinTask::norm;
  if (a.norm) return ThinTask::any;
  if (a.x_peaks) return ThinTask::hidden;
  // A rehearsal frees no stage, so the ring must have room for a tile.
  return a.held && a.stages * a.warps >= a.slice_units ? ThinTask::held : ThinTask::any;
}

ThinKernel kernel_of(const Plan& plan, int plan_m) {
  switch (plan.form) {
    case ThinForm::bf16:
      return thin_kernel_bf16(plan_m);
    case ThinForm::e4m3:
      return thin_kernel_e4m3(plan.blocked(), plan_m);
    case ThinForm::e4m3_halves:
      return thin_kernel_e4m3_halves(plan.blocked());
    case ThinForm::e4m3_wgmma:
      return thin_kernel_e4m3_wgmma(task_of(plan.args), plan.args.m);
    default:
      return thin_kernel_e4m3_bf16(plan.blocked(), plan_m);
  }
}

// Where outputs are added, if they are, and the absmax of parts of the input, if they are known.
struct StreamOutput {
  const ops::ResidualStream& stream;
  const ops::NormWeight& next;
  const Tensor& x_peaks;
};

void set_stream(ThinArgs& a, const ops::ResidualStream& stream, const ops::NormWeight& next) {
  a.stream = stream.sum.as<__nv_bfloat16>();
  a.stream_norm = next.weight.as<const float>();
  a.stream_moments = stream.moments.as<float>();
}

void run_thin(const KernelContext& context, ThinProducts products, const ops::Activation& x,
              std::span<const ops::Linear* const> ws, std::span<const Tensor> outs,
              const ThinTuning& tuning, const StreamOutput* to) {
  if (ws.empty()) return;
  const ops::Linear& w = *ws[0];
  if (ws.size() > kThinMostMatrices || x.rows() > kThinMostRows || w.in % 16 != 0) {
    refuse("too many rows or weights, or inputs not in multiples of 16", x, w, outs[0]);
  }
  Plan plan;
  plan.form = !w.quant ? ThinForm::bf16 : w.input ? ThinForm::e4m3 : ThinForm::e4m3_bf16;
  ThinArgs& a = plan.args;
  a.m = static_cast<int>(x.rows());
  size_t offset = 0;
  const ops::Activation input = thin_input(context, offset, x, ws, outs);
  set_matrices(plan, x, ws, outs);
  set_input(plan, input, w);
  if (a.m == 0 || a.tiles == 0) return;
  if (a.k == 0) refuse("no inputs", x, w, outs[0]);
  if (to) set_stream(a, to->stream, to->next);
  // One split for all m, where bits must not depend on m.
  const int plan_m = context.deterministic ? kThinMostRows : a.m;
  if (products == ThinProducts::codes) {
    if (plan.form != ThinForm::e4m3 || plan.blocked() || a.m > kThinCodesRows ||
        w.in % (2 * kThinUnit) != 0) {
      refuse("multiplies no codes like these", x, w, outs[0]);
    }
    plan.form = ThinForm::e4m3_wgmma;
  } else if (plan.form == ThinForm::e4m3 && !tuning.kernel && fits_as_halves(plan_m, w.in)) {
    plan.form = ThinForm::e4m3_halves;
  }
  if (!set_shape(plan, context.caps, plan_m, tuning)) {
    refuse("the input does not fit in shared memory", x, w, outs[0]);
  }
  if (to && to->x_peaks && plan.by_codes() && a.quantize && a.split == 1 && !a.x_blocked) {
    a.x_peaks = to->x_peaks.as<const __nv_bfloat16>();
  }
  a.held = (plan.form == ThinForm::e4m3_halves || plan.by_codes()) && a.quantize && a.split == 1 &&
           holds(a.m, a.k);
  if (a.split > 1) {
    a.partial = context.workspace.take<float>(offset, int64_t{a.split} * a.m * a.tiles * kThinTile);
  }
  launch_thin(context, tuning.kernel ? tuning.kernel : kernel_of(plan, plan_m), a);
}

// Whether the norm's weight is as the kernels read it, for rows of `cols` elements.
bool norm_fits(const ops::NormWeight& norm, int64_t cols) {
  return norm.weight.count() == cols && norm.weight.contiguous() && rows_aligned(norm.weight, 16) &&
         norm.weight.type == DType::f32;
}
bool plain_rows(const Tensor& t, int64_t rows, int64_t cols) {
  return t.type == DType::bf16 && t.rows() == rows && t.cols() == cols && t.contiguous() &&
         rows_aligned(t, 16);
}
// Whether `stream` has memory for moments as the kernels leave them: pairs of pairs.
bool has_moments(const ops::ResidualStream& stream) {
  static_assert(kThinTile == ops::kMomentColumns);
  return stream.moments && stream.sum.cols() % (2 * kThinTile) == 0;
}
bool is_measured(const ops::ResidualStream& stream, const ops::NormWeight& norm) {
  return !stream.delta && has_moments(stream) && stream.measured == norm.weight.data;
}

}  // namespace

std::optional<ThinProducts> thin_products(std::string_view row_name) {
  if (row_name == kRows[0].name) return ThinProducts::codes;
  if (row_name == kRows[1].name) return ThinProducts::widened;
  return std::nullopt;
}

void linear_thin(const KernelContext& context, ThinProducts products, const ops::Activation& x,
                 std::span<const ops::Linear* const> ws, std::span<const Tensor> outs,
                 const ThinTuning& tuning) {
  run_thin(context, products, x, ws, outs, tuning, nullptr);
}

bool takes_stream(const KernelContext& context, const ops::Linear& w,
                  const ops::ResidualStream& stream, const ops::NormWeight& next) {
  const int64_t m = stream.sum.rows();
  return !context.deterministic && m > 0 && m <= kThinQuantizedRows && !stream.delta &&
         has_moments(stream) && w.quant && w.quant.codes.type == DType::e4m3 && w.input &&
         w.input->code == Code::e4m3 && plain_rows(stream.sum, m, w.out) && norm_fits(next, w.out);
}

void linear_thin_to_stream(const KernelContext& context, ThinProducts products,
                           const ops::Activation& x, const ops::Linear& w,
                           ops::ResidualStream& stream, const ops::NormWeight& next,
                           const Tensor& x_peaks) {
  if (!takes_stream(context, w, stream, next)) {
    refuse("does not add to this stream", x, w, stream.sum);
  }
  const ops::Linear* const one = &w;
  const StreamOutput to{stream, next, x_peaks};
  run_thin(context, products, x, {&one, 1}, {&stream.sum, 1}, {}, &to);
  stream.measured = next.weight.data;
}

bool takes_norm(const KernelContext& context, const ops::ResidualStream& stream,
                const ops::NormWeight& norm, std::span<const ops::Linear* const> ws,
                std::span<const Tensor> outs) {
  const ops::Linear& w = *ws[0];
  const int64_t m = stream.sum.rows();
  if (context.deterministic || ws.size() > kThinMostMatrices || m == 0) return false;
  if (!w.quant || w.quant.codes.type != DType::e4m3 || !w.input || w.input->code != Code::e4m3 ||
      (w.input->grid != grids::row && w.input->grid != grids::group128 &&
       !(w.input->grid == grids::tensor && (m == 1 || w.when == InputScale::calibrated)))) {
    return false;
  }
  const bool measured = is_measured(stream, norm) && fits_as_halves(m, w.in) &&
                        thin_warps(kThinHalvesRows) % static_cast<int>(m) == 0;
  return w.in % 16 == 0 && (measured || holds(m, w.in)) && plain_rows(stream.sum, m, w.in) &&
         (!stream.delta || plain_rows(stream.delta, m, w.in)) && norm_fits(norm, w.in) &&
         outs.size() == ws.size();
}

namespace {

void run_norm(const KernelContext& context, ThinProducts products, ops::ResidualStream& stream,
              const ops::NormWeight& norm, std::span<const ops::Linear* const> ws,
              std::span<const Tensor> outs, const ThinHidden* gated) {
  const ops::Linear& w = *ws[0];
  const ops::Activation x = stream.sum;
  const Tensor& sum = stream.spare;
  if (!takes_norm(context, stream, norm, ws, outs) || sum.shape != stream.sum.shape ||
      sum.type != stream.sum.type || !sum.contiguous() || !rows_aligned(sum, 16) ||
      sum.data == stream.sum.data) {
    refuse("does not take the norm of this", x, w, outs[0]);
  }
  for (size_t i = 0; i < ws.size(); ++i) {
    ops::Linear plain = *ws[i];  // the codes are not there yet
    plain.input.reset();
    check_linear(x, plain, outs[i]);
  }
  Plan plan;
  plan.form = products == ThinProducts::codes ? ThinForm::e4m3_wgmma : ThinForm::e4m3_halves;
  ThinArgs& a = plan.args;
  a.m = static_cast<int>(stream.sum.rows());
  set_matrices(plan, x, ws, outs);
  if (gated) set_gated(a, *gated);
  set_input(plan, x, w);
  a.norm = true;
  a.norm_weight = norm.weight.as<const float>();
  a.norm_eps = norm.eps;
  a.inverse_k = 1.0f / static_cast<float>(a.k);
  if (is_measured(stream, norm)) {
    a.moments = stream.moments.as<const float>();
  } else {
    a.held = true;
  }
  if (stream.delta) {
    a.delta = stream.delta.as<const __nv_bfloat16>();
    a.sum = sum.as<__nv_bfloat16>();
  }
  if (a.tiles == 0) refuse("no outputs", x, w, outs[0]);
  if (!set_shape(plan, context.caps, a.m, {}) || a.split > 1) {
    refuse("the input does not fit in shared memory", x, w, outs[0]);
  }
  launch_thin(context, kernel_of(plan, a.m), a);
  if (stream.delta) std::swap(stream.sum, stream.spare);
  stream.delta = {};
  stream.measured = nullptr;
}

}  // namespace

void norm_linear_thin(const KernelContext& context, ThinProducts products,
                      ops::ResidualStream& stream, const ops::NormWeight& norm,
                      std::span<const ops::Linear* const> ws, std::span<const Tensor> outs) {
  run_norm(context, products, stream, norm, ws, outs, nullptr);
}

bool takes_gated(const KernelContext& context, const ops::ResidualStream& stream,
                 const ops::NormWeight& norm, const ops::Linear& gate, const ops::Linear& up,
                 const ThinHidden& out) {
  const ops::Linear* const ws[] = {&gate, &up};
  const Tensor outs[] = {out.rows, out.rows};
  const int64_t m = stream.sum.rows();
  return takes_norm(context, stream, norm, ws, outs) && is_measured(stream, norm) &&
         m <= kThinCodesRows && gate.out == up.out && gate.out % (2 * kThinUnit) == 0 &&
         plain_rows(out.rows, m, gate.out);
}

void norm_gated_thin(const KernelContext& context, ops::ResidualStream& stream,
                     const ops::NormWeight& norm, const ops::Linear& gate, const ops::Linear& up,
                     const ThinHidden& out) {
  const ops::Linear* const ws[] = {&gate, &up};
  const Tensor outs[] = {out.rows, out.rows};
  if (!takes_gated(context, stream, norm, gate, up, out)) {
    refuse("does not make hidden rows of this", stream.sum, gate, out.rows);
  }
  run_norm(context, ThinProducts::codes, stream, norm, ws, outs, &out);
}

std::span<const LinearRow> thin_rows() {
  return kRows;
}
std::span<const LinearRow> thin_head_rows() {
  return std::span(kRows).last(1);
}

}  // namespace octet::cuda
