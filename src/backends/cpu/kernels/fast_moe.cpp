// The experts of a mixture. Rows of x are grouped by expert. Where the rows are spread over enough
// experts, a thread takes an expert at a time from its input to its rows of the result, so that
// nothing travels between threads before the sum:
//
//   expert 3   pack x, gate, up, silu(gate) * up, quantize, pack, down        1. by experts
//   expert 9   ...
//   token 0    weighted sum of its rows, by ascending expert                  2. by tokens
//
// Otherwise (one token on two experts and four threads, say, or most tokens on one expert) every
// thread takes a contiguous range of columns of *every* expert that has rows, which keeps all
// threads equally busy without counting the work:
//
//               columns:  thread 0 | thread 1 | ...
//   expert 3   gate, up   ======== | ======== |        1. pack x                      by groups
//   expert 9   gate, up   ======== | ======== |        2. gate, up, silu(gate) * up   by columns
//   ...                                                3. quantize, pack the product  by groups
//   expert 3   down       ======== | ======== |        4. down, weighted sum          by columns
//   expert 9   down       ======== | ======== |
//
// Two or four barriers, however many experts. A token's experts are added in ascending order either
// way; experts without rows are never touched.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "backends/cpu/kernels/exact_loops.h"
#include "backends/cpu/kernels/fast_linear.h"
#include "backends/cpu/kernels/input_form.h"
#include "numerics/exact_math.h"

namespace octet::cpu {
namespace fast {
namespace {

constexpr int64_t kMaxAssigned = 4096;  // rows over all experts in a turn: bounds the scratch

// Scales stand right after what they scale.
enum MoeSlot : size_t {
  kXSlot = kMoeSlots,
  kXScalesSlot,
  kGatherSlot,
  kGateCodesSlot,
  kGateScalesSlot,
  kUpCodesSlot,
  kUpScalesSlot,
  kDownCodesSlot,
  kDownScalesSlot,
  kPackedGateSlot,
  kPackedGateScalesSlot,
  kPackedUpSlot,
  kPackedUpScalesSlot,
  kPackedDownSlot,
  kPackedDownScalesSlot,
  kGateSlot,
  kUpSlot,
  kHiddenSlot,
  kResultSlot,
  kSumSlot,
  kThreadsSlot,
  kApartSlot,
};

// The rows of one expert: positions [first, first + tokens.size()) of all assigned rows.
struct Batch {
  const ops::GatedMlp* mlp;
  int64_t first;
  std::vector<int32_t> tokens;
  std::vector<float> weights;
  Matrix gate_w, up_w, down_w;
  Matrix gate_x, up_x, down_x;
  const int32_t* gate_index;  // rows of gate_x, or null if it holds just this expert's
  const int32_t* up_index;
  Packed gate_packed, up_packed, down_packed;

  int64_t rows() const { return static_cast<int64_t>(tokens.size()); }
};

// Tokens [first, first + rows) by expert: a counting sort, tokens ascending within an expert.
std::vector<Batch> group(const ops::Routing& routing, std::span<const ops::GatedMlp> experts,
                         int64_t first, int64_t rows) {
  const Rows ids(routing.experts), weights(routing.weights);
  const int64_t top_k = routing.experts.cols();
  std::vector<int32_t> slot(experts.size(), -1);
  const auto visit = [&](auto body) {
    for (int64_t token = first; token < first + rows; ++token) {
      for (int64_t i = 0; i < top_k; ++i) {
        const int32_t expert = reinterpret_cast<const int32_t*>(ids[token])[i];
        if (expert < 0 || expert >= static_cast<int64_t>(experts.size())) {
          throw Fault(fmt::format("moe_experts: token {} goes to expert {} of {}", token, expert,
                                  experts.size()));
        }
        body(token, static_cast<size_t>(expert), reinterpret_cast<const float*>(weights[token])[i]);
      }
    }
  };
  visit([&](int64_t, size_t expert, float) { slot[expert] = 0; });
  std::vector<Batch> batches;
  for (size_t e = 0; e < experts.size(); ++e) {
    if (slot[e] < 0) continue;
    slot[e] = static_cast<int32_t>(batches.size());
    Batch& batch = batches.emplace_back();
    const ops::GatedMlp& mlp = experts[e];
    batch.mlp = &mlp;
    batch.gate_w = matrix_of(mlp.gate);
    batch.up_w = matrix_of(mlp.up);
    batch.down_w = matrix_of(mlp.down);
  }
  visit([&](int64_t token, size_t expert, float weight) {
    Batch& batch = batches[static_cast<size_t>(slot[expert])];
    batch.tokens.push_back(static_cast<int32_t>(token - first));
    batch.weights.push_back(weight);
  });
  int64_t at = 0;
  for (Batch& batch : batches) {
    batch.first = at;
    at += batch.rows();
  }
  return batches;
}

class Moe {
 public:
  Moe(const KernelContext& context, const Kernels& kernels, const ops::Activation& x,
      std::vector<Batch> batches)
      : context_(context), kernels_(kernels), batches_(std::move(batches)) {
    assigned_ = batches_.back().first + batches_.back().rows();
    for (const Batch& batch : batches_) {
      most_rows_ = std::max(most_rows_, batch.rows());
      inner_ = std::max({inner_, batch.gate_w.rows, batch.down_w.k});
      width_ = std::max(width_, batch.gate_w.k);
      hidden_ = std::max(hidden_, batch.down_w.rows);
      for (const Matrix* w : {&batch.gate_w, &batch.up_w, &batch.down_w}) {
        thread_bytes_ = std::max(thread_bytes_, kernels_.scratch_bytes(*w, batch.rows()));
      }
    }
    thread_bytes_ = static_cast<size_t>(round_up(static_cast<int64_t>(thread_bytes_), 4096));
    threads_ = context_.scratch.take(kThreadsSlot,
                                     thread_bytes_ * static_cast<size_t>(context_.threads.size()));
    choose_inputs(x);
  }

  void run(const Tensor& out, int64_t first_token, int64_t tokens) {
    if (by_experts()) {
      run_experts();
      add_experts(out, first_token, tokens);
      return;
    }
    pack_inputs();
    float* const hidden = floats(kHiddenSlot, assigned_, inner_);
    gate_and_up(hidden);
    pack_hidden(hidden);
    down(out, first_token, tokens);
  }

 private:
  float* floats(MoeSlot slot, int64_t rows, int64_t cols) {
    return context_.scratch.take<float>(slot, static_cast<size_t>(rows * cols));
  }
  std::byte* scratch_of(int thread) const {
    return threads_ + thread_bytes_ * static_cast<size_t>(thread);
  }

  // Where gate and up read x: all rows by index, if x is plain or one quantization serves all;
  // otherwise the expert's own codes, in rows of their own.
  void choose_inputs(const ops::Activation& x) {
    x_ = x;
    for (const Batch& batch : batches_) {
      if (!shared(batch.mlp->gate)) continue;
      x_ = input_form(context_, x, batch.mlp->gate, kXSlot);
      break;
    }
    for (Batch& batch : batches_) {
      const ops::GatedMlp& mlp = *batch.mlp;
      batch.gate_index = batch.up_index = batch.tokens.data();
      batch.gate_x = input(batch, mlp.gate, kGateCodesSlot, batch.gate_index);
      if (same_input(mlp.gate, mlp.up)) {
        batch.up_x = batch.gate_x;
        batch.up_index = batch.gate_index;
      } else {
        batch.up_x = input(batch, mlp.up, kUpCodesSlot, batch.up_index);
      }
    }
  }
  static bool shared(const ops::Linear& w) {
    return w.input && w.when == InputScale::dynamic && w.input->grid.rows == 1;
  }
  Matrix input(const Batch& batch, const ops::Linear& w, MoeSlot slot, const int32_t*& index) {
    if (!w.input) return matrix_of(x_.plain);
    if (shared(w) && x_.quant && x_.quant.format == *w.input) return matrix_of(x_.quant);
    if (!x_.plain) {
      unsupported("moe_experts " + w.name, "needs a plain input", {{"x", x_.quant.codes}});
    }
    const Tensor& plain = x_.plain;
    const auto row_bytes = static_cast<size_t>(plain.cols()) * size_of(plain.type);
    std::byte* rows = context_.scratch.take(kGatherSlot, row_bytes * batch.tokens.size());
    for (size_t i = 0; i < batch.tokens.size(); ++i) {
      std::memcpy(rows + i * row_bytes, Rows(plain)[batch.tokens[i]], row_bytes);
    }
    const Tensor gathered(rows, plain.type, {batch.rows(), plain.cols()});
    index = nullptr;
    return matrix_of(quantized(batch, gathered, w, slot));
  }
  // --- by experts -------------------------------------------------------------------------------

  // The work is even if no expert has more than half of a thread's share. Up to five rows an expert
  // takes as long as with one, since its weights cost more than its products: then it is even if
  // threads that take one expert after another end together, but for an eighth. And a thread by
  // itself cannot quantize what needs other rows or the pool.
  bool by_experts() const {
    constexpr int64_t few_rows = 5;
    const int64_t threads = context_.threads.size(), experts = std::ssize(batches_);
    const bool even =
        2 * most_rows_ * threads <= assigned_ ||
        (most_rows_ <= few_rows && 8 * (round_up(experts, threads) - experts) <= experts);
    const auto alone = [](const ops::Linear& w) { return !w.input || shared(w); };
    return (threads == 1 || even) && std::ranges::all_of(batches_, [&](const Batch& batch) {
             const ops::GatedMlp& mlp = *batch.mlp;
             return alone(mlp.gate) && alone(mlp.up) && alone(mlp.down);
           });
  }

  // What a thread needs for one expert.
  struct Apart {
    float *gate = nullptr, *up = nullptr;  // [most_rows_, inner_]; gate becomes the product
    std::byte* codes = nullptr;            // of the product: [most_rows_, inner_]
    float* code_scales = nullptr;
    Packed packed;  // of any matrix, in turn
  };
  // Cuts it out of `memory`, or with null counts its bytes.
  size_t place_apart(std::byte* memory, Apart& apart) const {
    size_t used = 0;
    const auto cut = [&](int64_t bytes) {
      std::byte* const piece = memory ? memory + used : nullptr;
      used += static_cast<size_t>(round_up(bytes, 64));
      return piece;
    };
    const auto floats = [&](int64_t count) { return reinterpret_cast<float*>(cut(count * 4)); };
    const int64_t most_k = std::max(width_, inner_);
    apart.gate = floats(most_rows_ * inner_);
    apart.up = floats(most_rows_ * inner_);
    apart.codes = cut(most_rows_ * inner_);
    apart.code_scales = floats(most_rows_ * cells_of(inner_));
    apart.packed.data = cut(most_rows_ * kernels_.packed_row_bytes(most_k));
    const int64_t row_scales = kernels_.scales_per_row(most_k);
    if (row_scales > 0) apart.packed.scales = floats(most_rows_ * row_scales);
    return static_cast<size_t>(round_up(static_cast<int64_t>(used), 4096));
  }

  void run_experts() {
    float* const result = floats(kResultSlot, assigned_, hidden_);
    Apart sizes;
    const size_t each = place_apart(nullptr, sizes);
    std::byte* const memory =
        context_.scratch.take(kApartSlot, each * static_cast<size_t>(context_.threads.size()));
    std::atomic<size_t> next{0};
    context_.threads.run([&](int thread) {
      Apart mine;
      place_apart(memory + each * static_cast<size_t>(thread), mine);
      for (size_t i = next++; i < batches_.size(); i = next++) {
        run_expert(batches_[i], mine, scratch_of(thread), result + batches_[i].first * hidden_);
      }
    });
  }

  // result [rows, hidden_]: what the expert makes of its rows, not weighted yet.
  void run_expert(const Batch& batch, Apart& mine, std::byte* scratch, float* result) const {
    const ops::GatedMlp& mlp = *batch.mlp;
    const int64_t rows = batch.rows();
    const auto pack = [&](const Matrix& x, const int32_t* index, const Matrix& w) {
      Packed& packed = mine.packed;
      packed.rows = rows;
      packed.groups = (rows + kernels_.group_rows - 1) / kernels_.group_rows;
      packed.row_bytes = kernels_.packed_row_bytes(x.k);
      packed.varies = kernels_.scales_per_row(x.k) > 0 && x.scales.varies;
      kernels_.pack(x, index, w, packed, 0, packed.groups);
    };
    const auto multiply = [&](const ops::Linear& linear, const Matrix& w, float* out,
                              int64_t width) {
      const Tensor to(out, DType::f32, {rows, width});
      kernels_.columns(w, mine.packed, 0, w.rows, output_of(to, linear.bias), scratch);
    };
    pack(batch.gate_x, batch.gate_index, batch.gate_w);
    multiply(mlp.gate, batch.gate_w, mine.gate, inner_);
    if (!same_packing(batch)) pack(batch.up_x, batch.up_index, batch.up_w);
    multiply(mlp.up, batch.up_w, mine.up, inner_);
    const int64_t inner = mlp.down.in;
    for (int64_t row = 0; row < rows; ++row) {
      float* const gate = mine.gate + row * inner_;
      silu_mul_row(gate, mine.up + row * inner_, inner, gate);
    }
    Matrix product = matrix_of(Tensor(mine.gate, DType::f32, {rows, inner_}).columns(0, inner));
    if (mlp.down.input) {
      const QuantTensor codes = quant_at(mine.codes, mine.code_scales, rows, mlp.down);
      for (int64_t row = 0; row < rows; ++row) quantize_row(mine.gate + row * inner_, codes, row);
      product = matrix_of(codes);
    }
    pack(product, nullptr, batch.down_w);
    multiply(mlp.down, batch.down_w, result, hidden_);
  }

  // A token's experts, weighted, in ascending order.
  void add_experts(const Tensor& out, int64_t first_token, int64_t tokens) {
    struct Part {
      int64_t row;
      float weight;
    };
    const int64_t top_k = assigned_ / tokens;
    std::vector<Part> parts(static_cast<size_t>(assigned_));
    std::vector<int64_t> found(static_cast<size_t>(tokens));
    for (const Batch& batch : batches_) {
      for (size_t i = 0; i < batch.tokens.size(); ++i) {
        const int64_t token = batch.tokens[i];
        const int64_t place = token * top_k + found[static_cast<size_t>(token)]++;
        parts[static_cast<size_t>(place)] = {batch.first + static_cast<int64_t>(i),
                                             batch.weights[i]};
      }
    }
    const float* const result = floats(kResultSlot, assigned_, hidden_);
    float* const sums = floats(kSumSlot, context_.threads.size(), hidden_);
    const Rows out_rows(out);
    context_.threads.parallel_for(tokens, 8, [&](int64_t begin, int64_t end, int thread) {
      float* const sum = sums + thread * hidden_;
      for (int64_t token = begin; token < end; ++token) {
        std::fill_n(sum, hidden_, 0.0f);
        for (int64_t i = token * top_k; i < (token + 1) * top_k; ++i) {
          const Part& part = parts[static_cast<size_t>(i)];
          add_weighted(result + part.row * hidden_, part.weight, hidden_, sum);
        }
        store_floats(out.type, sum, hidden_, out_rows[first_token + token]);
      }
    });
  }

  // --- by columns -------------------------------------------------------------------------------

  // The expert's place in codes and scales of all assigned rows.
  QuantTensor place(const Batch& batch, const ops::Linear& w, int64_t cols, MoeSlot slot) {
    const ScaleShape cells = scale_shape(w.input->grid, batch.rows(), cols);
    std::byte* codes = context_.scratch.take(slot, static_cast<size_t>(assigned_ * cols));
    float* scales = floats(static_cast<MoeSlot>(slot + 1), assigned_, cells_of(cols));
    return quant_at(codes + batch.first * cols, scales + batch.first * cells.cols, batch.rows(), w);
  }
  // The input of w in the memory given.
  static QuantTensor quant_at(std::byte* codes, float* scales, int64_t rows, const ops::Linear& w) {
    const ScaleShape cells = scale_shape(w.input->grid, rows, w.in);
    return {Tensor(codes, dtype_of(w.input->code), {rows, w.in}),
            Tensor(scales, DType::f32, {cells.rows, cells.cols}), *w.input};
  }
  QuantTensor quantized(const Batch& batch, const Tensor& x, const ops::Linear& w, MoeSlot slot) {
    const QuantTensor q = place(batch, w, x.cols(), slot);
    quantize(context_, x, q, w.when == InputScale::calibrated ? w.input_scale : Tensor{});
    return q;
  }

  // A packing of the expert's rows within the memory of all assigned rows.
  Packed packing(const Batch& batch, const Matrix& x, MoeSlot slot, int64_t most_k) {
    const int64_t row_bytes = kernels_.packed_row_bytes(x.k);
    const int64_t row_scales = kernels_.scales_per_row(x.k);
    std::byte* data = context_.scratch.take(
        slot, static_cast<size_t>(assigned_ * kernels_.packed_row_bytes(most_k)));
    Packed packed{.data = data + batch.first * row_bytes,
                  .rows = batch.rows(),
                  .groups = (batch.rows() + kernels_.group_rows - 1) / kernels_.group_rows,
                  .row_bytes = row_bytes};
    if (row_scales > 0) {
      float* scales =
          floats(static_cast<MoeSlot>(slot + 1), assigned_, kernels_.scales_per_row(most_k));
      packed.scales = scales + batch.first * row_scales;
      packed.varies = x.scales.varies;
    }
    return packed;
  }

  // Calls body(batch, begin, end) for ranges of groups of `packed` that together cover all experts.
  template <class Body>
  void for_groups(Packed Batch::*packed, Body body) {
    int64_t total = 0;
    for (const Batch& batch : batches_) total += (batch.*packed).groups;
    context_.threads.parallel_for(total, 1, [&](int64_t begin, int64_t end, int) {
      int64_t first = 0;
      for (Batch& batch : batches_) {
        const int64_t groups = (batch.*packed).groups;
        const int64_t from = std::max(begin - first, int64_t{0});
        const int64_t to = std::min(end - first, groups);
        if (from < to) body(batch, from, to);
        first += groups;
      }
    });
  }

  void pack_inputs() {
    for (Batch& batch : batches_) {
      batch.gate_packed = packing(batch, batch.gate_x, kPackedGateSlot, width_);
      batch.up_packed = same_packing(batch) ? batch.gate_packed
                                            : packing(batch, batch.up_x, kPackedUpSlot, width_);
    }
    for_groups(&Batch::gate_packed, [&](const Batch& batch, int64_t begin, int64_t end) {
      kernels_.pack(batch.gate_x, batch.gate_index, batch.gate_w, batch.gate_packed, begin, end);
      if (same_packing(batch)) return;
      kernels_.pack(batch.up_x, batch.up_index, batch.up_w, batch.up_packed, begin, end);
    });
  }
  static bool same_packing(const Batch& batch) {
    return batch.gate_w.type == batch.up_w.type && batch.gate_x.data == batch.up_x.data &&
           batch.gate_index == batch.up_index;
  }

  void gate_and_up(float* hidden) {
    float* const gate = floats(kGateSlot, most_rows_, inner_);
    float* const up = floats(kUpSlot, most_rows_, inner_);
    const auto to = [&](float* data, const ops::Linear& w) {
      return output_of(Tensor(data, DType::f32, {most_rows_, inner_}), w.bias);
    };
    context_.threads.run([&](int thread) {
      for (const Batch& batch : batches_) {
        const Range range = columns_of(batch.gate_w.rows, thread, context_.threads.size());
        if (range.begin == range.end) continue;
        kernels_.columns(batch.gate_w, batch.gate_packed, range.begin, range.end,
                         to(gate, batch.mlp->gate), scratch_of(thread));
        kernels_.columns(batch.up_w, batch.up_packed, range.begin, range.end, to(up, batch.mlp->up),
                         scratch_of(thread));
        for (int64_t row = 0; row < batch.rows(); ++row) {
          const int64_t at = row * inner_ + range.begin;
          silu_mul_row(gate + at, up + at, range.end - range.begin,
                       hidden + batch.first * inner_ + at);
        }
      }
    });
  }

  void pack_hidden(float* hidden) {
    for (Batch& batch : batches_) {
      const ops::Linear& w = batch.mlp->down;
      Tensor rows(hidden + batch.first * inner_, DType::f32, {batch.rows(), inner_});
      rows = rows.columns(0, w.in);
      if (!w.input) {
        batch.down_x = matrix_of(rows);
      } else if (shared(w)) {
        batch.down_x = matrix_of(place(batch, w, w.in, kDownCodesSlot));
      } else {
        batch.down_x = matrix_of(quantized(batch, rows, w, kDownCodesSlot));
      }
      batch.down_packed = packing(batch, batch.down_x, kPackedDownSlot, inner_);
    }
    for_groups(&Batch::down_packed, [&](const Batch& batch, int64_t begin, int64_t end) {
      const ops::Linear& w = batch.mlp->down;
      const Packed& packed = batch.down_packed;
      if (shared(w)) {
        for (int64_t m = packed.first_row(begin); m < packed.first_row(end); ++m) {
          quantize_row(hidden + (batch.first + m) * inner_, quant_of(batch), m);
        }
      }
      kernels_.pack(batch.down_x, nullptr, batch.down_w, packed, begin, end);
    });
  }
  // down_x again as the tensor that quantize_row writes.
  static QuantTensor quant_of(const Batch& batch) {
    const Matrix& x = batch.down_x;
    const QuantFormat& format = *batch.mlp->down.input;
    const ScaleShape cells = scale_shape(format.grid, x.rows, x.k);
    return {Tensor(const_cast<std::byte*>(x.data), x.type, {x.rows, x.k}),
            Tensor(const_cast<std::byte*>(x.scales.data), DType::f32, {cells.rows, cells.cols}),
            format};
  }

  void down(const Tensor& out, int64_t first_token, int64_t tokens) {
    float* const result = floats(kResultSlot, most_rows_, hidden_);
    float* const sum = floats(kSumSlot, tokens, hidden_);
    const Rows out_rows(out);
    const auto size = static_cast<int64_t>(size_of(out.type));
    context_.threads.run([&](int thread) {
      const Range range = columns_of(hidden_, thread, context_.threads.size());
      const int64_t n = range.end - range.begin;
      if (n == 0) return;
      for (int64_t token = 0; token < tokens; ++token) {
        std::fill_n(sum + token * hidden_ + range.begin, n, 0.0f);
      }
      for (const Batch& batch : batches_) {
        const Tensor to(result, DType::f32, {batch.rows(), hidden_});
        kernels_.columns(batch.down_w, batch.down_packed, range.begin, range.end,
                         output_of(to, batch.mlp->down.bias), scratch_of(thread));
        for (size_t i = 0; i < batch.tokens.size(); ++i) {
          add_weighted(result + static_cast<int64_t>(i) * hidden_ + range.begin, batch.weights[i],
                       n, sum + batch.tokens[i] * hidden_ + range.begin);
        }
      }
      for (int64_t token = 0; token < tokens; ++token) {
        store_floats(out.type, sum + token * hidden_ + range.begin, n,
                     out_rows[first_token + token] + range.begin * size);
      }
    });
  }

  const KernelContext& context_;
  const Kernels& kernels_;
  std::vector<Batch> batches_;
  ops::Activation x_;
  int64_t assigned_ = 0, most_rows_ = 0, inner_ = 0, hidden_ = 0, width_ = 0;
  size_t thread_bytes_ = 0;
  std::byte* threads_ = nullptr;
};

void run_moe(const KernelContext& context, const Kernels& kernels, const ops::Activation& x,
             const ops::Routing& routing, std::span<const ops::GatedMlp> experts,
             const Tensor& out) {
  const int64_t top_k = std::max(int64_t{1}, routing.experts.cols());
  const int64_t turn = std::max(int64_t{1}, kMaxAssigned / top_k);
  for (int64_t first = 0; first < x.rows(); first += turn) {
    const int64_t rows = std::min(turn, x.rows() - first);
    ops::Activation part = x;
    if (part.plain) part.plain = part.plain.slice(first, rows);
    if (part.quant) part.quant = part.quant.slice_rows(first, rows);
    std::vector<Batch> batches = group(routing, experts, first, rows);
    if (batches.empty()) continue;
    Moe(context, kernels, part, std::move(batches)).run(out, first, rows);
  }
}

void launch_moe_fma(const KernelContext& context, const ops::Activation& x,
                    const ops::Routing& routing, std::span<const ops::GatedMlp> experts,
                    const Tensor& out) {
  run_moe(context, fma_kernels(), x, routing, experts, out);
}

void launch_moe_portable(const KernelContext& context, const ops::Activation& x,
                         const ops::Routing& routing, std::span<const ops::GatedMlp> experts,
                         const Tensor& out) {
  run_moe(context, portable_kernels(), x, routing, experts, out);
}

// Whether products of BF16 pairs are exact in all matrices: the product of gate and up is FP32
// where down does not quantize it.
bool pairs_take(const ops::Activation& x, std::span<const ops::GatedMlp> experts) {
  bool all = true;
  for (const ops::GatedMlp& mlp : experts) {
    for (const ops::Linear* w : {&mlp.gate, &mlp.up, &mlp.down}) {
      const bool plain_bf16 = w != &mlp.down && x.plain && x.plain.type == DType::bf16;
      all = all && (w->input || plain_bf16) &&
            dot_takes(w->quant ? w->quant.codes.type : w->plain.type);
    }
  }
  return all;
}

void launch_moe_dot(const KernelContext& context, const ops::Activation& x,
                    const ops::Routing& routing, std::span<const ops::GatedMlp> experts,
                    const Tensor& out) {
  const bool pairs = pairs_take(x, experts);
  run_moe(context, pairs ? dot_kernels() : fma_kernels(), x, routing, experts, out);
}

void launch_moe_amx(const KernelContext& context, const ops::Activation& x,
                    const ops::Routing& routing, std::span<const ops::GatedMlp> experts,
                    const Tensor& out) {
  const bool pairs = pairs_take(x, experts);
  run_moe(context, pairs ? amx_kernels() : fma_kernels(), x, routing, experts, out);
}

void launch_moe_vnni(const KernelContext& context, const ops::Activation& x,
                     const ops::Routing& routing, std::span<const ops::GatedMlp> experts,
                     const Tensor& out) {
  bool all = true;
  for (const ops::GatedMlp& mlp : experts) {
    for (const ops::Linear* w : {&mlp.gate, &mlp.up, &mlp.down}) {
      all = all && w->quant && vnni_takes(w->quant.format) && vnni_takes(w->input);
    }
  }
  run_moe(context, all ? vnni_kernels() : fma_kernels(), x, routing, experts, out);
}

constexpr MoeRow rows[] = {
    {"fast_moe_avx512_vnni", "int32", refuses_vnni, estimate_vnni, launch_moe_vnni},
    {"fast_moe_amx", "amx k%32", refuses_amx, estimate_amx, launch_moe_amx},
    {"fast_moe_avx512_dot", "dot lanes k%64", refuses_dot, estimate_dot, launch_moe_dot},
    {"fast_moe_avx512_fma", "fma lanes k%64", refuses_fma, estimate_fma, launch_moe_fma},
    {"fast_moe_portable", "8 lanes", refuses_portable, estimate_portable, launch_moe_portable},
};

}  // namespace
}  // namespace fast

std::span<const MoeRow> fast_moe_rows() {
  return fast::rows;
}

}  // namespace octet::cpu
