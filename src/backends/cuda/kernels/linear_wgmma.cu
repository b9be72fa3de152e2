// The plan and the launch of linear_wgmma.h, and its row for the table.
#include <cudaTypedefs.h>

#include <algorithm>

#include "backends/cuda/kernels/device_math.cuh"
#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/kernels/linear_rows.h"
#include "backends/cuda/kernels/linear_wgmma.h"

namespace octet::cuda {
namespace {

constexpr int kLeastHeight = 8;        // a swizzled group of lines
constexpr int kSmallBlock = 8 * 1024;  // of W: more than two of them make a stage
constexpr int kLeastRing = 48 * 1024;  // beside another block of the SM, else the block is alone
// Two blocks that take no more than this are on an SM together: the next kernel's ring fills while
// this one still runs. Measured on an H200, that is worth more than a deeper ring for up to 8 rows;
// beyond, x takes its part of the ring, and a block alone was faster by up to a fifth.
constexpr int kHalfOfSm = 113 * 1024;
constexpr int kMostSharedRows = 8;
constexpr int kMostRing = 160 * 1024;

template <typename T>
T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}
int round_up(int64_t value, int64_t step) {
  return static_cast<int>(ceil_div(value, step) * step);
}

int columns_of(int m) {
  return m <= 8 ? 8 : m <= 16 ? 16 : m <= 32 ? 32 : 64;
}
int halves_of(int height) {
  return height <= 64 ? 1 : 2;
}

[[noreturn]] void refuse(const std::string& why, const ops::Activation& x, const ops::Linear& w,
                         const Tensor& out) {
  unsupported("linear (wgmma) " + w.name, why,
              {{"x", x.plain ? x.plain : x.quant.codes},
               {"w", w.quant ? w.quant.codes : w.plain},
               {"scales", w.quant.scales},
               {"bias", w.bias},
               {"out", out}});
}

// --- the plan --------------------------------------------------------------------------

// Tiles of `height` outputs of all weights.
int count_tiles(std::span<const int> outputs, int height) {
  int tiles = 0;
  for (const int n : outputs) tiles += ceil_div(n, height);
  return tiles;
}
// The least height of which there are no more than `most` tiles; 0 if there is none.
int least_height(std::span<const int> outputs, int most) {
  if (count_tiles(outputs, kWgmmaMostHeight) > most) return 0;
  int low = kLeastHeight, high = kWgmmaMostHeight;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (count_tiles(outputs, middle) <= most) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// Clusters of `split` blocks that are on the device at a time, one block an SM. The parts of an
// H200 that clusters must lie in have 16 or 18 SMs.
int clusters_of(const DeviceCaps& caps, int split) {
  return std::max(1, (split >= 4 ? caps.sms / 16 * 16 : caps.sms) / split);
}

// Microseconds of the block with the most work: its share of W comes from memory and its x from the
// L2; a tile has an end, and that of a cluster's more. Rates are those of an H200, per SM.
double block_us(int split, int tiles_each, int height, int blocks, int m) {
  const double lines = static_cast<double>(tiles_each) * ceil_div(blocks, split) * kWgmmaBlock;
  const double memory = lines * height / 35600.0, cache = lines * (height + m) / 50000.0;
  return std::max(memory, cache) + 0.15 * tiles_each + (split > 1 ? 0.8 : 0.0);
}

// Chooses split, tiles_each and height. Returns false if no tiling fits.
bool set_tiles(WgmmaArgs& a, std::span<const int> outputs, const DeviceCaps& caps, int plan_m,
               const WgmmaTuning& tuning) {
  double least = 0;
  a.height = 0;
  // Joins of more than two cost more than they save (8b.down, 32 rows: 20 us in two, 25 in four).
  for (const int split : {1, 2, 4, 8}) {
    if (tuning.split > 0 ? split != tuning.split : split > std::min(a.blocks, 2)) continue;
    const int clusters = clusters_of(caps, split);
    const int fewest = std::max(1, ceil_div(count_tiles(outputs, kWgmmaMostHeight), clusters));
    for (int each = fewest; each <= (split == 1 ? fewest + 2 : 1); ++each) {
      if (tuning.tiles_each > 0 && each != tuning.tiles_each) continue;
      const int height = least_height(outputs, clusters * each);
      if (height == 0) continue;
      const double us = block_us(split, each, height, a.blocks, plan_m);
      if (a.height > 0 && us >= least) continue;
      least = us;
      a.split = split;
      a.tiles_each = each;
      a.height = height;
    }
  }
  if (a.height == 0) return false;
  a.tiles = count_tiles(outputs, a.height);
  a.slice_blocks = ceil_div(a.blocks, a.split);
  return true;
}

// The ring, and where things lie in shared memory. Returns false if they do not fit.
bool set_memory(WgmmaArgs& a, const DeviceCaps& caps, const WgmmaTuning& tuning) {
  const int columns = columns_of(a.m), halves = halves_of(a.height);
  a.w_block = round_up(a.height, 8) * kWgmmaBlock;
  a.x_block = round_up(a.m, 8) * kWgmmaBlock;
  // Two products a stage at least, which are multiplied at a time.
  a.depth = halves == 2 ? 1 : a.w_block > kSmallBlock ? 2 : 4;
  if (tuning.depth > 0) a.depth = tuning.depth;
  a.depth = std::min(a.depth, a.slice_blocks);
  // Lines of sums begin 4 banks apart, modulo 16: the lanes of a warp write 32 banks.
  a.sums_pitch = round_up(a.height, 16) + 4;
  const int sums = round_up(int64_t{4} * a.m * a.sums_pitch, 128);
  const int64_t constants = round_up(int64_t{8} * a.tiles_each * a.height, 128);
  const int64_t w_scales =
      a.w_blocked ? round_up(int64_t{8} * a.tiles_each * a.slice_blocks, 128) : 0;
  const int64_t x_scales = round_up(int64_t{4} * columns * (a.x_blocked ? a.slice_blocks : 1), 128);
  const int64_t fixed = (a.tiles_each > 1 ? sums : 0) + constants + w_scales + x_scales;
  if (fixed > caps.shared_bytes_per_block) return false;

  const int stage = a.depth * (a.w_block + a.x_block);
  const int most = a.tiles_each * ceil_div(a.slice_blocks, a.depth);
  const auto set_stages = [&](int64_t room) {
    room = std::min<int64_t>(room, fixed + (tuning.ring_bytes > 0 ? tuning.ring_bytes : kMostRing));
    a.stages = static_cast<int>(std::clamp<int64_t>((room - fixed) / (stage + 16), 0, most));
    a.x_ring_at = a.stages * a.depth * a.w_block;
    const int rings = a.stages * stage;
    a.sums_at = a.tiles_each > 1 ? rings : 0;
    a.constants_at = std::max(rings, a.sums_at + sums);
    a.w_scales_at = a.constants_at + static_cast<int>(constants);
    a.x_scales_at = a.w_scales_at + static_cast<int>(w_scales);
    a.barriers_at = a.x_scales_at + static_cast<int>(x_scales);
    // Multiplications read whole tiles of 64 lines, and `columns` lines of x, also where the last
    // block of a ring has less.
    a.shared = std::max({a.barriers_at + a.stages * 16,
                         a.x_ring_at - a.w_block + halves * 64 * kWgmmaBlock,
                         rings - a.x_block + columns * kWgmmaBlock});
  };
  if (tuning.ring_bytes <= kHalfOfSm) set_stages(kHalfOfSm);
  const bool shares = tuning.ring_bytes > 0 || a.m <= kMostSharedRows;
  const bool good = a.stages == most || (shares && a.stages * stage >= kLeastRing);
  if (!good || a.shared > kHalfOfSm) set_stages(caps.shared_bytes_per_block - 16 * 1024);
  return a.stages >= 1 && a.shared <= caps.shared_bytes_per_block;
}

// --- arguments -------------------------------------------------------------------------

using EncodeTiled = PFN_cuTensorMapEncodeTiled_v12000;
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                           cudaEnableDefault, &found),
          "cudaGetDriverEntryPointByVersion");
    invariant(found == cudaDriverEntryPointSuccess, "the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<EncodeTiled>(entry);
  }();
  return function;
}

// Boxes of `lines` lines of 128 codes of a matrix [rows, k] with rows `stride` bytes apart.
CUtensorMap tensor_map(const uint8_t* codes, int64_t rows, int64_t k, int64_t stride, int lines) {
  CUtensorMap map;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(rows > 1 ? stride : round_up(k, 16))};
  const cuuint32_t box[2] = {kWgmmaBlock, static_cast<cuuint32_t>(lines)}, step[2] = {1, 1};
  const CUresult status =
      encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<uint8_t*>(codes), sizes,
                     strides, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw Fault("cuTensorMapEncodeTiled: error " + std::to_string(static_cast<int>(status)) +
                " for [" + std::to_string(rows) + ", " + std::to_string(k) + "], stride " +
                std::to_string(stride));
  }
  return map;
}

// What does not depend on the tiling.
void set_weights(WgmmaArgs& a, const ops::Activation& x, std::span<const ops::Linear* const> ws,
                 std::span<const Tensor> outs) {
  const ops::Linear& first = *ws[0];
  const ScaleView scales = scale_view(first.quant);
  a.blocks = static_cast<int>(ceil_div<int64_t>(first.in, kWgmmaBlock));
  a.out_bf16 = outs[0].type == DType::bf16;
  a.w_blocked = scales.data && scales.cell_cols < static_cast<uint32_t>(first.in);
  a.w_cell_rows = scales.cell_rows;
  a.w_scale_row = scales.row_stride;
  a.w_scale_unit = scales.col_stride;
  if (a.w_blocked && (scales.cell_cols != kWgmmaBlock || scales.cell_rows % 128 != 0)) {
    refuse("needs weight scales by output, by 128x128 or one", x, first, outs[0]);
  }
  const Tensor* bias = nullptr;
  for (size_t i = 0; i < ws.size(); ++i) {
    const ops::Linear& w = *ws[i];
    const ScaleView view = scale_view(w.quant);
    if (!w.quant || w.quant.codes.type != DType::e4m3) {
      refuse("needs weights in E4M3", x, w, outs[i]);
    }
    if (w.in != first.in || w.input != first.input || outs[i].type != outs[0].type ||
        view.cell_rows != scales.cell_rows || view.cell_cols != scales.cell_cols ||
        view.col_stride != scales.col_stride || view.row_stride != scales.row_stride ||
        !view.data != !scales.data) {
      refuse("weights of one launch differ in more than their outputs", x, w, outs[i]);
    }
    if (!rows_aligned(w.quant.codes, 16)) {
      refuse("rows of weights begin at multiples of 16", x, w, outs[i]);
    }
    if (w.bias) {
      if (bias && bias->type != w.bias.type) refuse("biases of two types", x, w, outs[i]);
      bias = &w.bias;
    }
    WgmmaMatrix& matrix = a.matrix[a.matrices++];
    matrix.scale = view.data;
    matrix.bias = w.bias.data;
    matrix.out = outs[i].data;
    matrix.out_stride = outs[i].row_stride();
    matrix.n = static_cast<int>(w.out);
  }
  a.bias_bf16 = bias && bias->type == DType::bf16;
  a.bias_f16 = bias && bias->type == DType::f16;
}

void set_maps(WgmmaArgs& a, const KernelContext& context, size_t& offset, const QuantTensor& x,
              std::span<const ops::Linear* const> ws) {
  const ScaleView scales = scale_view(x);
  a.x_scale = scales.data;
  a.x_scale_row = scales.cell_rows == 1 ? scales.row_stride : 0;
  a.x_scale_unit = scales.col_stride;
  const int64_t k = ws[0]->in;
  int tile = 0;
  for (size_t i = 0; i < ws.size(); ++i) {
    const Tensor& codes = ws[i]->quant.codes;
    a.matrix[i].first_tile = tile;
    tile += ceil_div(a.matrix[i].n, a.height);
    a.w_map[i] =
        tensor_map(codes.as<const uint8_t>(), a.matrix[i].n, k, codes.row_stride(), a.height);
  }
  const auto* codes = x.codes.as<const uint8_t>();
  int64_t stride = x.codes.row_stride();
  if (!rows_aligned(x.codes, 16)) {
    uint8_t* const copy = context.workspace.take<uint8_t>(offset, int64_t{a.m} * k);
    check(cudaMemcpy2DAsync(copy, static_cast<size_t>(k), codes, static_cast<size_t>(stride),
                            static_cast<size_t>(k), static_cast<size_t>(a.m),
                            cudaMemcpyDeviceToDevice, context.stream),
          "cudaMemcpy2DAsync");
    codes = copy;
    stride = k;
  }
  a.x_map = tensor_map(codes, a.m, k, stride, a.m);
}

void launch_wgmma(const KernelContext& context, WgmmaKernel kernel, const WgmmaArgs& args) {
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
  config.gridDim = dim3(static_cast<unsigned>(ceil_div(args.tiles, args.tiles_each) * args.split));
  config.blockDim = dim3(kWgmmaThreads);
  config.dynamicSmemBytes = static_cast<size_t>(args.shared);
  config.stream = context.stream;
  config.attrs = attributes;
  config.numAttrs = args.split > 1 ? 2 : 1;
  check(cudaLaunchKernelEx(&config, kernel, args), "cudaLaunchKernelEx");
}

void run(const KernelContext& context, const ops::Activation& x,
         std::span<const ops::Linear* const> ws, std::span<const Tensor> outs) {
  for (size_t begin = 0; begin < ws.size(); begin += kWgmmaMostMatrices) {
    const size_t count = std::min<size_t>(kWgmmaMostMatrices, ws.size() - begin);
    linear_wgmma(context, x, ws.subspan(begin, count), outs.subspan(begin, count));
  }
}

// The arguments without tensors: enough to know whether things fit, for the table.
bool fits(const ops::OpDesc& desc, const DeviceCaps& caps) {
  WgmmaArgs a{};
  a.m = static_cast<int>(desc.m);
  a.blocks = static_cast<int>(ceil_div<int64_t>(desc.k, kWgmmaBlock));
  a.w_blocked = desc.weight_format->grid.cols > 0;
  a.x_blocked = desc.input_format->grid.cols > 0;
  const int outputs[1] = {static_cast<int>(desc.n)};
  return set_tiles(a, outputs, caps, a.m, {}) && set_memory(a, caps, {});
}

std::optional<std::string> refuses(const ops::OpDesc& desc, const DeviceCaps& caps) {
  if (desc.m > kWgmmaMostRows) return "takes at most " + std::to_string(kWgmmaMostRows) + " rows";
  if (desc.k % 16 != 0) return "needs inputs in multiples of 16";
  if (desc.k >= 1 << 24 || desc.n >= 1 << 30) return "counts inputs in 24 bits, outputs in 30";
  const auto& w = desc.weight_format;
  const auto& x = desc.input_format;
  if (!w || w->code != Code::e4m3) return "needs weights in E4M3";
  if (!x || x->code != Code::e4m3) return "needs inputs in E4M3";
  if (w->grid != grids::row && w->grid != grids::tensor && w->grid != grids::block128) {
    return "needs weight scales by output, by 128x128 or one";
  }
  if (x->grid != grids::row && x->grid != grids::tensor && x->grid != grids::group128) {
    return "needs input scales by token, by 128 of it, or one";
  }
  if (desc.m > 0 && desc.n > 0 && desc.k > 0 && !fits(desc, caps)) {
    return "does not fit in shared memory";
  }
  return std::nullopt;
}

// Behind the thin kernels where those are as good, before them for more rows.
double estimate_us(const ops::OpDesc& desc, const DeviceCaps&) {
  const double bytes = static_cast<double>(desc.n) * static_cast<double>(desc.k);
  const double share = desc.m <= 8 ? 0.85 : 0.84;
  return bytes / (share * 4.7e6) + 2.0;
}

constexpr LinearRow kRows[] = {{"wgmma", "fp8_mma_wgmma128", refuses, estimate_us, run}};

}  // namespace

void linear_wgmma(const KernelContext& context, const ops::Activation& x,
                  std::span<const ops::Linear* const> ws, std::span<const Tensor> outs,
                  const WgmmaTuning& tuning) {
  if (ws.empty()) return;
  const ops::Linear& w = *ws[0];
  if (ws.size() > kWgmmaMostMatrices || x.rows() > kWgmmaMostRows || w.in % 16 != 0) {
    refuse("too many rows or weights, or inputs not in multiples of 16", x, w, outs[0]);
  }
  if (!w.input || w.input->code != Code::e4m3) refuse("needs inputs in E4M3", x, w, outs[0]);
  size_t offset = 0;
  const ops::Activation input = linear_input(context, offset, x, w, 0);
  for (size_t i = 0; i < ws.size(); ++i) check_linear(input, *ws[i], outs[i]);
  WgmmaArgs a{};
  a.m = static_cast<int>(input.rows());
  if (a.m == 0) return;
  if (w.in == 0) refuse("no inputs", x, w, outs[0]);
  set_weights(a, x, ws, outs);
  const ScaleView scales = scale_view(input.quant);
  a.x_blocked = scales.data && scales.cell_cols < static_cast<uint32_t>(w.in);
  if (a.x_blocked && scales.cell_cols != kWgmmaBlock) {
    refuse("needs input scales by token, by 128 of it, or one", x, w, outs[0]);
  }
  int outputs[kWgmmaMostMatrices];
  for (int i = 0; i < a.matrices; ++i) {
    outputs[i] = a.matrix[i].n;
    if (outputs[i] == 0) refuse("no outputs", x, *ws[static_cast<size_t>(i)], outs[0]);
  }
  // One split for all m, where bits must not depend on m.
  const int plan_m = context.deterministic ? kWgmmaMostRows : a.m;
  if (!set_tiles(a, std::span(outputs, static_cast<size_t>(a.matrices)), context.caps, plan_m,
                 tuning) ||
      !set_memory(a, context.caps, tuning)) {
    refuse("does not fit in shared memory", x, w, outs[0]);
  }
  set_maps(a, context, offset, input.quant, ws);
  const bool blocked = a.w_blocked || a.x_blocked;
  const int columns = columns_of(a.m), halves = halves_of(a.height);
  launch_wgmma(context,
               blocked ? wgmma_kernel_blocked(columns, halves) : wgmma_kernel(columns, halves), a);
}

std::span<const LinearRow> wgmma_rows() {
  return kRows;
}

}  // namespace octet::cuda
