// The experts' linears on E4M3 codes, as fast as the weights can be read: tensor cores (mma.sync on
// FP16, to which E4M3 converts exactly) with the weights as the 16-row operand and up to 8 tokens
// as the 8-column one.
//
// A block owns two strips of 16 weight rows (16 of gate and the same 16 of up, or 32 of down) for
// the tokens of one tile, and its 8 warps split the columns in steps of 64:
//
//              k 0      64     128        512
//   strip 0    | warp 0 | warp 1 | ... 7 | warp 0 | ...      each lane: 16 bytes of 4 rows
//   strip 1    | warp 0 | warp 1 | ... 7 | warp 0 | ...      and of each group of 8 tokens
//
// mma wants column pairs 2t and 2t + 8 of a step of 16 in lane t of a quad. Here lane t holds 16
// columns that lie side by side, 16t to 16t + 15 of 64, and the i-th of four steps takes its bytes
// 4i to 4i + 3: another order of the columns, the same for both operands, and so the same product.
// A token's sum never depends on the other columns of the tile.
#include "backends/cuda/kernels/moe_parts.cuh"

namespace octet::cuda::moe {
namespace {

constexpr int kWarps = 8;
constexpr int kStrip = 16;          // weight rows of an mma
constexpr int kColumns = 8;         // tokens of an mma
constexpr int kStep = 64;           // columns of a step of a warp
constexpr int kScaleColumns = 128;  // columns that share a scale, where rows have several
constexpr int kPitch = kStrip + 4;  // floats between the sums of two tokens: no bank conflicts

struct FastArgs {
  const Expert* experts;
  Plan plan;
  const uint8_t* x;       // codes
  const float* x_scales;  // or null
  int x_stride, x_scale_row, x_scale_col;
  int pairs_per_row;
  // Both strips' weights are of one form.
  int out, in, stride, scale_row, scale_col;
  int grid_rows;
  DType bias;
  float* result;
};

// 16 bytes of weights, which are read once: past L1.
__device__ __forceinline__ uint4 load_weights(const uint8_t* from) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from));
  return x;
}

// Codes 0, 1 and 2, 3 of a word as two pairs of halves.
__device__ __forceinline__ void decode(uint32_t codes, uint32_t& low, uint32_t& high) {
  asm("{\n"
      ".reg .b16 l, h;\n"
      "mov.b32 {l, h}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, l;\n"
      "cvt.rn.f16x2.e4m3x2 %1, h;\n"
      "}\n"
      : "=r"(low), "=r"(high)
      : "r"(codes));
}

__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ uint32_t word(const uint4& x, int i) {
  return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

// What a lane holds of one step: rows g and g + 8 of both strips, and token g of each group.
template <int Groups>
struct Fragment {
  uint4 weights[2][2];
  uint4 x[Groups];
};

// sums[strip][group] += this step's product.
template <int Groups>
__device__ __forceinline__ void multiply(const Fragment<Groups>& f, float (&sums)[2][Groups][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t a[2][4];
#pragma unroll
    for (int strip = 0; strip < 2; ++strip) {
      decode(word(f.weights[strip][0], i), a[strip][0], a[strip][2]);
      decode(word(f.weights[strip][1], i), a[strip][1], a[strip][3]);
    }
#pragma unroll
    for (int group = 0; group < Groups; ++group) {
      uint32_t b[2];
      decode(word(f.x[group], i), b[0], b[1]);
      mma(sums[0][group], a[0], b);
      mma(sums[1][group], a[1], b);
    }
  }
}

// GateUp: result[pair] = silu(gate) * up; else result[pair] = down. `Stepped`: weights or x have a
// scale for every 128 columns. Grid: outputs / 16 (or 32), tiles.
template <bool GateUp, bool Stepped, int Groups>
__global__ void __launch_bounds__(kWarps* kWarp, Groups == 1 ? 3 : 1) fast_kernel(FastArgs args) {
  constexpr int tokens = Groups * kColumns;
  // Sums of each warp: [strip][token][row].
  __shared__ float shared[kWarps][2][tokens][kPitch];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int g = lane / 4, t = lane % 4;
  const int origin = static_cast<int>(blockIdx.x) * (GateUp ? kStrip : 2 * kStrip);

  // Down may look at the plan at once: the kernel before waited for the one that wrote it before it
  // let this one start. So its first weights are on their way while `hidden` is being quantized.
  if constexpr (GateUp) wait_for_previous();
  allow_next();
  // From L2: nothing that an L1 may still hold of the plan before.
  const int4 tile = __ldcg(reinterpret_cast<const int4*>(args.plan.tiles + blockIdx.y));
  const int first = tile.y, count = tile.z;
  if (count == 0) return;
  const Expert& expert = args.experts[tile.x];
  const ExpertLinear strips[2] = {GateUp ? expert.gate : expert.down,
                                  GateUp ? expert.up : expert.down};
  // Rows beyond the last are computed as the last one, and not stored.
  uint32_t weights[2][2];  // offsets of this lane's bytes of its rows
  int weight_scale[2][2];  // offsets of the rows' first scales
#pragma unroll
  for (int strip = 0; strip < 2; ++strip) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = min(origin + (GateUp ? 0 : strip * kStrip) + g + 8 * half, args.out - 1);
      weights[strip][half] = static_cast<uint32_t>(r) * static_cast<uint32_t>(args.stride) +
                             static_cast<uint32_t>(t * 16);
      weight_scale[strip][half] = r / args.grid_rows * args.scale_row;
    }
  }

  Fragment<Groups> fragments[2];
  const auto load_w = [&](Fragment<Groups>& f, int step) {
    const uint32_t k = static_cast<uint32_t>(step * kStep);
    const bool inside = k + t * 16 < args.in;
#pragma unroll
    for (int strip = 0; strip < 2; ++strip) {
      const auto* const base = static_cast<const uint8_t*>(strips[strip].weight);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        f.weights[strip][half] =
            inside ? load_weights(base + (weights[strip][half] + k)) : make_uint4(0, 0, 0, 0);
      }
    }
  };
  load_w(fragments[0], warp);
  load_w(fragments[1], warp + kWarps);
  if constexpr (!GateUp) wait_for_previous();

  // Tokens beyond the last are computed as the last one, and not stored.
  uint32_t x[Groups];
#pragma unroll
  for (int group = 0; group < Groups; ++group) {
    const int i = min(group * kColumns + g, count - 1);
    const int row = args.plan.order[first + i] / args.pairs_per_row;
    x[group] = static_cast<uint32_t>(row) * static_cast<uint32_t>(args.x_stride) +
               static_cast<uint32_t>(t * 16);
  }
  const auto load_x = [&](Fragment<Groups>& f, int step) {
    const uint32_t k = static_cast<uint32_t>(step * kStep);
    const bool inside = k + t * 16 < args.in;
#pragma unroll
    for (int group = 0; group < Groups; ++group) {
      f.x[group] = inside ? *reinterpret_cast<const uint4*>(args.x + (x[group] + k))
                          : make_uint4(0, 0, 0, 0);
    }
  };
  load_x(fragments[0], warp);
  load_x(fragments[1], warp + kWarps);
  // Scales of the tokens whose sums this lane holds: 2t and 2t + 1 of each group.
  int x_scale[Groups][2];
  if constexpr (Stepped) {
#pragma unroll
    for (int group = 0; group < Groups; ++group) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = min(group * kColumns + 2 * t + i, count - 1);
        x_scale[group][i] = args.plan.order[first + token] / args.pairs_per_row * args.x_scale_row;
      }
    }
  }

  float sums[2][Groups][4] = {};
  const auto add = [&](const Fragment<Groups>& f, int step) {
    if constexpr (!Stepped) {
      multiply(f, sums);
    } else {
      const int cell = step * kStep / kScaleColumns;
      float ws[2][2], xs[Groups][2], part[2][Groups][4] = {};
#pragma unroll
      for (int strip = 0; strip < 2; ++strip) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          ws[strip][half] =
              strips[strip].scales
                  ? strips[strip].scales[weight_scale[strip][half] + cell * args.scale_col]
                  : 1.0f;
        }
      }
#pragma unroll
      for (int group = 0; group < Groups; ++group) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          xs[group][i] =
              args.x_scales ? args.x_scales[x_scale[group][i] + cell * args.x_scale_col] : 1.0f;
        }
      }
      multiply(f, part);
#pragma unroll
      for (int strip = 0; strip < 2; ++strip) {
#pragma unroll
        for (int group = 0; group < Groups; ++group) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            sums[strip][group][i] = fmaf(part[strip][group][i], ws[strip][i / 2] * xs[group][i % 2],
                                         sums[strip][group][i]);
          }
        }
      }
    }
  };
  // Two steps ahead of the tensor cores.
  const int steps = (args.in + kStep - 1) / kStep;
  for (int step = warp; step < steps; step += 2 * kWarps) {
    add(fragments[0], step);
    load_w(fragments[0], step + 2 * kWarps);
    load_x(fragments[0], step + 2 * kWarps);
    if (step + kWarps < steps) add(fragments[1], step + kWarps);
    load_w(fragments[1], step + 3 * kWarps);
    load_x(fragments[1], step + 3 * kWarps);
  }

  // The warps' parts are added in their order.
#pragma unroll
  for (int strip = 0; strip < 2; ++strip) {
#pragma unroll
    for (int group = 0; group < Groups; ++group) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        shared[warp][strip][group * kColumns + 2 * t + i % 2][g + 8 * (i / 2)] =
            sums[strip][group][i];
      }
    }
  }
  __syncthreads();
  const auto sum_of = [&](int strip, int token, int row) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += shared[w][strip][token][row];
    return sum;
  };
  // ((sum * weight's scale) * x's scale) + bias, where the scales are those of whole rows.
  // No fused multiply-add, so that every tile width gives the same bits.
  const auto finish = [&](int strip, float sum, int r, int x_row) {
    const ExpertLinear& linear = strips[strip];
    if constexpr (!Stepped) {
      if (linear.scales) {
        sum = __fmul_rn(sum, linear.scales[r / args.grid_rows * args.scale_row]);
      }
      if (args.x_scales) sum = __fmul_rn(sum, args.x_scales[x_row * args.x_scale_row]);
    }
    return linear.bias ? __fadd_rn(sum, bias_at(linear.bias, args.bias, r)) : sum;
  };
  constexpr int rows = GateUp ? kStrip : 2 * kStrip;
  for (int i = static_cast<int>(threadIdx.x); i < rows * tokens; i += kWarps * kWarp) {
    const int token = i / rows, row = i % rows, r = origin + row;
    if (token >= count || r >= args.out) continue;
    const int64_t pair = args.plan.order[first + token];
    const int x_row = static_cast<int>(pair) / args.pairs_per_row;
    float value;
    if constexpr (GateUp) {
      value = silu(finish(0, sum_of(0, token, row), r, x_row)) *
              finish(1, sum_of(1, token, row), r, x_row);
    } else {
      value = finish(0, sum_of(row / kStrip, token, row % kStrip), r, x_row);
    }
    args.result[pair * args.out + r] = value;
  }
}

template <bool GateUp>
void launch_fast(const KernelContext& context, const ExpertTable& table, const ExpertForm& w,
                 const Plan& plan, const Input& x, float* result) {
  const FastArgs args{
      .experts = table.data(),
      .plan = plan,
      .x = static_cast<const uint8_t*>(x.data),
      .x_scales = x.scales,
      .x_stride = static_cast<int>(x.stride),
      .x_scale_row = static_cast<int>(x.scale_row),
      .x_scale_col = static_cast<int>(x.scale_col),
      .pairs_per_row = x.pairs_per_row,
      .out = static_cast<int>(w.out),
      .in = static_cast<int>(w.in),
      .stride = static_cast<int>(w.stride),
      .scale_row = static_cast<int>(w.scale_row),
      .scale_col = static_cast<int>(w.scale_col),
      .grid_rows = w.format->grid.rows == 0 ? static_cast<int>(w.out) : w.format->grid.rows,
      .bias = w.bias,
      .result = result};
  const bool stepped = w.scale_col != 0 || x.scale_col != 0;
  constexpr int rows = GateUp ? kStrip : 2 * kStrip;
  const dim3 grid(static_cast<unsigned>((w.out + rows - 1) / rows),
                  static_cast<unsigned>(plan.most_tiles));
  const auto run = [&](auto kernel) {
    launch(context, kernel, grid, dim3(kWarps * kWarp), 0, args);
  };
  if (plan.tile_tokens == kColumns) {
    run(stepped ? fast_kernel<GateUp, true, 1> : fast_kernel<GateUp, false, 1>);
  } else {
    invariant(plan.tile_tokens == 4 * kColumns, "the tiles are of another kernel");
    run(stepped ? fast_kernel<GateUp, true, 4> : fast_kernel<GateUp, false, 4>);
  }
}

// A row of scales has one for every 128 columns, or one.
bool fits(const QuantFormat& format, int64_t columns, int64_t stride) {
  return stride == 0 || format.grid.cols == kScaleColumns || format.grid.cols >= columns;
}

}  // namespace

bool fast_accepts(const ExpertForm& w, const Input& x) {
  return w.format && w.type == DType::e4m3 && x.type == DType::e4m3 && w.aligned &&
         w.in % 16 == 0 && x.stride % 16 == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
         fits(*w.format, w.in, w.scale_col) && (x.scale_col == 0 || x.step == kScaleColumns);
}

void fast_gate_up(const KernelContext& context, const ExpertTable& table, const Plan& plan,
                  const Input& x, float* hidden) {
  launch_fast<true>(context, table, table.gate, plan, x, hidden);
}

void fast_down(const KernelContext& context, const ExpertTable& table, const Plan& plan,
               const Input& hidden, float* result) {
  launch_fast<false>(context, table, table.down, plan, hidden, result);
}

}  // namespace octet::cuda::moe
