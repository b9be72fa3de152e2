// The experts of a mixture: the plan of a chunk of tokens, the quantization between the linears,
// and the sum at the end. The picture is in moe_parts.cuh. Nothing is read on the host: grids are
// bounds, and blocks beyond the tiles in use return at once.
#include <algorithm>

#include "backends/cuda/kernels/moe_parts.cuh"
#include "backends/cuda/kernels/ops.h"

namespace octet::cuda {
namespace {

using moe::Input;
using moe::Plan;
using moe::Tile;

constexpr int kMostExperts = 1024;
constexpr int kMostTopK = 64;
constexpr int kThreads = 256;

// --- plan
// -----------------------------------------------------------------------------------------

// ids [rows, top_k] -> order [rows * top_k] and tiles [most_tiles], by one block. The order of the
// pairs of one expert is any: no result depends on it.
__global__ void __launch_bounds__(kThreads)
    plan_kernel(Matrix<const int32_t> ids, int top_k, int pairs, int experts, int tile_tokens,
                int32_t* order, Tile* tiles, int most_tiles) {
  constexpr int own = kMostExperts / kThreads;  // experts of a thread, side by side
  __shared__ int counts[kMostExperts], next[kMostExperts];
  __shared__ uint64_t warp_totals[kThreads / kWarp];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  allow_next();
  for (int e = thread; e < kMostExperts; e += kThreads) counts[e] = 0;
  wait_for_previous();
  __syncthreads();
  // Rows that are padding have an id, too; a wild one must not write elsewhere.
  const auto expert_of = [&](int pair) {
    return min(max(ids.row(pair / top_k)[pair % top_k], 0), experts - 1);
  };
  for (int pair = thread; pair < pairs; pair += kThreads) atomicAdd(&counts[expert_of(pair)], 1);
  __syncthreads();

  // Exclusive sums over the experts: pairs in the upper half, tiles in the lower.
  const auto amount = [&](int e) {
    const int count = counts[e];
    return uint64_t(count) << 32 | uint64_t((count + tile_tokens - 1) / tile_tokens);
  };
  uint64_t mine = 0;
  for (int i = 0; i < own; ++i) mine += amount(thread * own + i);
  uint64_t upto = mine;
#pragma unroll
  for (int apart = 1; apart < kWarp; apart *= 2) {
    const uint64_t other = __shfl_up_sync(~0u, upto, apart);
    if (lane >= apart) upto += other;
  }
  if (lane == kWarp - 1) warp_totals[warp] = upto;
  __syncthreads();
  uint64_t before = upto - mine, total = 0;
  for (int w = 0; w < kThreads / kWarp; ++w) {
    if (w < warp) before += warp_totals[w];
    total += warp_totals[w];
  }
  for (int i = 0; i < own; ++i) {
    const int e = thread * own + i, count = counts[e], first = static_cast<int>(before >> 32);
    int tile = static_cast<int>(before & 0xFFFFFFFFu);
    next[e] = first;
    for (int done = 0; done < count; done += tile_tokens, ++tile) {
      tiles[tile] = {e, first + done, min(tile_tokens, count - done), 0};
    }
    before += amount(e);
  }
  for (int i = static_cast<int>(total & 0xFFFFFFFFu) + thread; i < most_tiles; i += kThreads) {
    tiles[i] = {0, 0, 0, 0};
  }
  __syncthreads();
  for (int pair = thread; pair < pairs; pair += kThreads) {
    order[atomicAdd(&next[expert_of(pair)], 1)] = pair;
  }
}

// --- quantize
// -------------------------------------------------------------------------------------

// x [rows, cols] -> codes [rows, code_stride] and scales f32 [rows, cells], a block for each row.
// Cells are `step` columns long.
template <typename T, Code F>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(Matrix<const T> x, int cols, int step, QuantFormat format,
                    Matrix<uint8_t> codes, float* scales) {
  __shared__ uint32_t shared[33];
  wait_for_previous();
  // After the wait: fast_down relies on it.
  allow_next();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  const T* const from = x.row(blockIdx.x);
  uint8_t* const to = codes.row(blockIdx.x);
  const int cells = (cols + step - 1) / step;
  // One cell is worked on by all threads, several by a warp each.
  const bool together = cells == 1;
  const int workers = together ? kThreads : kWarp, worker = together ? thread : lane;
  for (int cell = together ? 0 : thread / kWarp; cell < cells; cell += kThreads / kWarp) {
    const int begin = cell * step, end = min(begin + step, cols);
    uint32_t absmax = 0;
    for (int k = begin + worker; k < end; k += workers) {
      absmax = max(absmax, finite_magnitude(to_float(from[k])));
    }
    absmax = together ? block_max<kThreads>(absmax, shared) : warp_max(absmax);
    const float scale = choose_scale_device(__uint_as_float(absmax), format);
    const float inverse = inverse_scale(scale);
    for (int k = begin + worker; k < end; k += workers) {
      to[k] = encode_fp8<F>(to_float(from[k]) * inverse);
    }
    if (worker == 0) scales[blockIdx.x * static_cast<int64_t>(cells) + cell] = scale;
  }
}

// What quantizing [rows, cols] to `format` takes.
struct QuantShape {
  int step, cells;
  int64_t stride;
};
QuantShape quant_shape(const QuantFormat& format, int64_t cols) {
  const bool whole = format.grid.cols == 0 || format.grid.cols >= cols;
  const int step = std::max(static_cast<int>(whole ? cols : format.grid.cols), 1);
  return {.step = step,
          .cells = static_cast<int>((cols + step - 1) / step),
          .stride = (cols + 15) / 16 * 16};
}

Input quantize_rows(const KernelContext& context, const void* x, DType type, int64_t stride,
                    int64_t rows, int64_t cols, const QuantFormat& format, uint8_t* codes,
                    float* scales) {
  const QuantShape shape = quant_shape(format, cols);
  visit_activation_type(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    visit_fp8(format.code, [&](auto fp8) {
      launch(context, quantize_kernel<T, decltype(fp8)::value>, dim3(static_cast<unsigned>(rows)),
             dim3(kThreads), 0, Matrix<const T>{static_cast<const T*>(x), stride},
             static_cast<int>(cols), shape.step, format, Matrix<uint8_t>{codes, shape.stride},
             scales);
    });
  });
  return {.data = codes,
          .type = dtype_of(format.code),
          .stride = shape.stride,
          .scales = scales,
          .scale_row = shape.cells,
          .scale_col = shape.cells > 1 ? 1 : 0,
          .step = shape.step,
          .pairs_per_row = 1};
}

// --- combine
// --------------------------------------------------------------------------------------

// out[token] = Σ weight · results[pair] over the token's pairs in ascending order of the expert,
// one FP32 sum a value. Grid: tokens, columns / kThreads.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const float* results, Matrix<const int32_t> ids, Matrix<const float> weights,
                   int top_k, int cols, Matrix<T> out) {
  __shared__ int pair_at[kMostTopK];
  __shared__ float weight_at[kMostTopK];
  const int64_t token = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  wait_for_previous();
  allow_next();
  if (thread < top_k) {
    const int32_t* const row = ids.row(token);
    const int id = row[thread];
    int place = 0;
    for (int i = 0; i < top_k; ++i) place += row[i] < id || (row[i] == id && i < thread);
    pair_at[place] = thread;
    weight_at[place] = weights.row(token)[thread];
  }
  __syncthreads();
  const int col = static_cast<int>(blockIdx.y) * kThreads + thread;
  if (col >= cols) return;
  const float* const mine = results + token * top_k * cols + col;
  float sum = 0.0f;
#pragma unroll 8
  for (int i = 0; i < top_k; ++i) {
    sum = fmaf(weight_at[i], mine[static_cast<int64_t>(pair_at[i]) * cols], sum);
  }
  out.row(token)[col] = from_float<T>(sum);
}

// --- host
// -----------------------------------------------------------------------------------------

bool is_activation(DType type) {
  return type == DType::f32 || type == DType::bf16;
}

// True where kernels read codes; else plain values, which a calibrated linear quantizes on the way.
bool takes_codes(const ExpertForm& form) {
  return form.input && form.when == InputScale::dynamic;
}

bool same_shape(const ExpertForm& a, const ExpertForm& b) {
  return a.out == b.out && a.in == b.in && a.type == b.type && a.stride == b.stride &&
         a.format == b.format && a.scale_row == b.scale_row && a.scale_col == b.scale_col &&
         a.bias == b.bias && a.aligned == b.aligned;
}

class Experts {
 public:
  Experts(const KernelContext& context, const ops::Activation& x, const ops::Routing& routing,
          const ExpertTable& table, const Tensor& out)
      : context_(context), x_(x), routing_(routing), table_(table), out_(out) {
    check_all();
    top_k_ = routing.experts.cols();
    given_ = takes_codes(table.gate) && x.quant && x.quant.format == *table.gate.input &&
             x.quant.format.grid.rows <= 1;
    if (!given_ && !(x.plain && is_activation(x.plain.type))) refuse("needs x in another form");
    for (const ExpertForm* const form : {&table.gate, &table.down}) {
      const bool quantized_here = takes_codes(*form) && !(form == &table.gate && given_);
      if (quantized_here && form->input->grid.rows != 1) {
        refuse("quantizes inputs by rows or groups of them, not as " + to_string(*form->input));
      }
    }
  }

  void run() {
    const int64_t rows = x_.rows();
    for (int64_t first = 0, chunk = tokens_at_once(); first < rows; first += chunk) {
      run_chunk(first, std::min(chunk, rows - first));
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    unsupported("moe_experts", why,
                {{"x", x_.plain},
                 {"x codes", x_.quant.codes},
                 {"experts", routing_.experts},
                 {"weights", routing_.weights},
                 {"out", out_}});
  }

  void check_all() const {
    const int64_t rows = x_.rows(), hidden = x_.cols();
    const ExpertForm &gate = table_.gate, &up = table_.up, &down = table_.down;
    const bool fits = out_ && is_activation(out_.type) && out_.rows() == rows &&
                      routing_.experts.type == DType::i32 && routing_.weights.type == DType::f32 &&
                      routing_.experts.rows() == rows && routing_.weights.rows() == rows &&
                      routing_.weights.cols() == routing_.experts.cols() && gate.in == hidden &&
                      up.in == hidden && up.out == gate.out && down.in == gate.out &&
                      down.out == out_.cols() && (!x_.plain || x_.plain.cols() == hidden);
    if (!fits) refuse("shapes or types do not fit");
    if (gate.input != up.input || gate.when != up.when) refuse("gate and up differ in their input");
    if (table_.count() > kMostExperts) refuse("takes at most 1024 experts");
    if (routing_.experts.cols() > kMostTopK) refuse("takes at most 64 experts a token");
  }

  // As many as the workspace holds.
  int64_t tokens_at_once() const {
    const auto codes = [](const ExpertForm& form) {
      if (!takes_codes(form)) return int64_t{0};
      const QuantShape shape = quant_shape(*form.input, form.in);
      return shape.stride + 4 * shape.cells;
    };
    const int64_t pair = 4 + static_cast<int64_t>(sizeof(Tile)) + codes(table_.down) +
                         4 * (table_.gate.out + table_.down.out);
    const int64_t token = top_k_ * pair + codes(table_.gate);
    const int64_t fixed =
        16 * 256 + static_cast<int64_t>(sizeof(Tile)) * static_cast<int64_t>(table_.count());
    const int64_t most = (static_cast<int64_t>(context_.workspace.bytes) - fixed) / token;
    invariant(most > 0, "moe_experts: the workspace cannot hold one token");
    return std::min<int64_t>(most, 4096);  // bounds the grid, too
  }

  // The input of gate and up for tokens [first, first + count).
  Input input_of(size_t& offset, int64_t first, int64_t count) const {
    const ExpertForm& gate = table_.gate;
    const auto pairs_per_row = static_cast<int>(top_k_);
    if (given_) {
      const QuantTensor& q = x_.quant;
      const bool scaled = q.format.scale != ScaleType::unit;
      const ScaleShape cells = scale_shape(q.format.grid, q.codes.rows(), q.codes.cols());
      if (scaled &&
          (!q.scales || q.scales.type != DType::f32 || q.scales.count() != cells.count())) {
        refuse("the scales of x do not fit");
      }
      Input x{.data = q.codes.as<const uint8_t>() + first * q.codes.row_stride(),
              .type = q.codes.type,
              .stride = q.codes.row_stride(),
              .scales = scaled ? q.scales.as<const float>() : nullptr,
              .scale_row = scaled && cells.rows > 1 ? q.scales.strides[0] : 0,
              .scale_col = scaled && cells.cols > 1 ? q.scales.strides[1] : 0,
              .step = quant_shape(q.format, q.codes.cols()).step,
              .pairs_per_row = pairs_per_row};
      if (x.scales) x.scales += first * x.scale_row;
      return x;
    }
    const Tensor& plain = x_.plain;
    const auto* const data = static_cast<const char*>(plain.data) +
                             first * plain.row_stride() * static_cast<int64_t>(size_of(plain.type));
    if (takes_codes(gate)) {
      const QuantShape shape = quant_shape(*gate.input, gate.in);
      auto* const codes = context_.workspace.take<uint8_t>(offset, count * shape.stride);
      auto* const scales = context_.workspace.take<float>(offset, count * shape.cells);
      Input x = quantize_rows(context_, data, plain.type, plain.row_stride(), count, gate.in,
                              *gate.input, codes, scales);
      x.pairs_per_row = pairs_per_row;
      return x;
    }
    return plain_input(data, plain.type, plain.row_stride(), pairs_per_row);
  }

  static Input plain_input(const void* data, DType type, int64_t stride, int pairs_per_row) {
    return {.data = data,
            .type = type,
            .stride = stride,
            .scales = nullptr,
            .scale_row = 0,
            .scale_col = 0,
            .step = 1,
            .pairs_per_row = pairs_per_row};
  }

  void run_chunk(int64_t first, int64_t count) const {
    const ExpertForm &gate = table_.gate, &down = table_.down;
    const Workspace& memory = context_.workspace;
    const int64_t pairs = count * top_k_, inner = gate.out, hidden = down.out;
    size_t offset = 0;
    const Input x = input_of(offset, first, count);
    float* const between = memory.take<float>(offset, pairs * inner);
    float* const results = memory.take<float>(offset, pairs * hidden);
    // The input of down: codes if it wants them, else the plain values.
    Input middle = plain_input(between, DType::f32, inner, 1);
    uint8_t* codes = nullptr;
    float* scales = nullptr;
    if (takes_codes(down)) {
      const QuantShape shape = quant_shape(*down.input, inner);
      codes = memory.take<uint8_t>(offset, pairs * shape.stride);
      scales = memory.take<float>(offset, pairs * shape.cells);
      middle = {.data = codes,
                .type = dtype_of(down.input->code),
                .stride = shape.stride,
                .scales = scales,
                .scale_row = shape.cells,
                .scale_col = shape.cells > 1 ? 1 : 0,
                .step = shape.step,
                .pairs_per_row = 1};
    }
    const bool fast = moe::fast_accepts(gate, x) && moe::fast_accepts(down, middle) &&
                      same_shape(gate, table_.up);
    // Wider tiles as soon as experts have more than 8 tokens on average.
    const int experts = table_.count();
    const int tile = !fast ? moe::kGenericTile : pairs > int64_t{8} * experts ? 32 : 8;
    const int64_t tiles = std::min(pairs, pairs / tile + std::min<int64_t>(experts, pairs));
    auto* const order = memory.take<int32_t>(offset, pairs);
    auto* const list = memory.take<Tile>(offset, tiles);
    const Plan plan{.order = order,
                    .tiles = list,
                    .pairs = static_cast<int>(pairs),
                    .most_tiles = static_cast<int>(tiles),
                    .tile_tokens = tile};
    const Matrix<const int32_t> ids{
        routing_.experts.as<const int32_t>() + first * routing_.experts.row_stride(),
        routing_.experts.row_stride()};
    launch(context_, plan_kernel, dim3(1), dim3(kThreads), 0, ids, static_cast<int>(top_k_),
           plan.pairs, experts, tile, order, list, plan.most_tiles);
    if (fast) {
      moe::fast_gate_up(context_, table_, plan, x, between);
    } else {
      moe::generic_gate_up(context_, table_, plan, x, between);
    }
    if (codes) {
      quantize_rows(context_, between, DType::f32, inner, pairs, inner, *down.input, codes, scales);
    }
    if (fast) {
      moe::fast_down(context_, table_, plan, middle, results);
    } else {
      moe::generic_down(context_, table_, plan, middle, results);
    }
    const Matrix<const float> weights{
        routing_.weights.as<const float>() + first * routing_.weights.row_stride(),
        routing_.weights.row_stride()};
    visit_activation_type(out_.type, [&](auto tag) {
      using T = typename decltype(tag)::type;
      launch(context_, combine_kernel<T>,
             dim3(static_cast<unsigned>(count),
                  static_cast<unsigned>((hidden + kThreads - 1) / kThreads)),
             dim3(kThreads), 0, results, ids, weights, static_cast<int>(top_k_),
             static_cast<int>(hidden),
             Matrix<T>{out_.as<T>() + first * out_.row_stride(), out_.row_stride()});
    });
  }

  const KernelContext& context_;
  const ops::Activation& x_;
  const ops::Routing& routing_;
  const ExpertTable& table_;
  const Tensor& out_;
  int64_t top_k_ = 0;
  bool given_ = false;  // x comes with the codes that gate and up want
};

}  // namespace

void moe_experts(const KernelContext& context, const ops::Activation& x,
                 const ops::Routing& routing, const ExpertTable& experts, const Tensor& out) {
  Experts run(context, x, routing, experts, out);
  if (x.rows() == 0 || out.count() == 0) return;
  run.run();
}

}  // namespace octet::cuda
