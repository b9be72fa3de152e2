// The experts of a mixture: tokens are sorted by expert, each expert runs once over its own, and
// the results are added in FP32 in ascending order of the expert. An expert without tokens costs
// nothing.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "backends/cpu/kernels/exact_gemm.h"
#include "backends/cpu/kernels/exact_ops.h"
#include "backends/cpu/kernels/input_form.h"

namespace octet::cpu {
namespace {

// Scratch slots; 0 to 2 belong to the ops that are called.
enum Slot : size_t {
  kInput = 3,
  kDown = 5,
  kPlain = 8,
  kCodes,
  kScales,
  kGate,
  kUp,
  kHidden,
  kResult,
  kSum
};

// One token of an expert, and its weight.
struct Assigned {
  int64_t token;
  float weight;
};

std::vector<std::vector<Assigned>> by_expert(const ops::Routing& routing, int64_t experts) {
  std::vector<std::vector<Assigned>> lists(static_cast<size_t>(experts));
  const Rows ids(routing.experts), weights(routing.weights);
  for (int64_t token = 0; token < routing.experts.rows(); ++token) {
    for (int64_t i = 0; i < routing.experts.cols(); ++i) {
      const int32_t expert = reinterpret_cast<const int32_t*>(ids[token])[i];
      if (expert < 0 || expert >= experts) {
        throw Fault(
            fmt::format("moe_experts: token {} goes to expert {} of {}", token, expert, experts));
      }
      lists[static_cast<size_t>(expert)].push_back(
          {token, reinterpret_cast<const float*>(weights[token])[i]});
    }
  }
  return lists;
}

class Experts {
 public:
  Experts(const KernelContext& context, const ops::Activation& x,
          std::span<const ops::GatedMlp> mlps, int64_t hidden)
      : context_(context), x_(x), rows_(x.rows()), hidden_(hidden) {
    // One quantization for all experts, where their inputs are scaled by the values themselves.
    for (const ops::GatedMlp& mlp : mlps) {
      if (!mlp.gate.input || mlp.gate.when != InputScale::dynamic) continue;
      x_ = input_form(context, x, mlp.gate, kInput);
      break;
    }
  }

  // The expert's outputs for its tokens, f32 [tokens, hidden].
  const float* run(const ops::GatedMlp& mlp, const std::vector<Assigned>& tokens) {
    const auto n = static_cast<int64_t>(tokens.size());
    const Tensor gate = take(kGate, n, mlp.gate.out), up = take(kUp, n, mlp.up.out);
    const Tensor hidden = take(kHidden, n, mlp.down.in), result = take(kResult, n, hidden_);
    exact_linear(context_, gather(tokens, mlp.gate), mlp.gate, gate);
    exact_linear(context_, gather(tokens, mlp.up), mlp.up, up);
    silu_mul(context_, gate, up, hidden);
    exact_linear(context_, input_form(context_, hidden, mlp.down, kDown), mlp.down, result);
    return result.as<const float>();
  }

 private:
  Tensor take(Slot slot, int64_t rows, int64_t cols) {
    return Tensor(context_.scratch.take<float>(slot, static_cast<size_t>(rows_ * cols)), DType::f32,
                  {rows, cols});
  }

  static Tensor gather_rows_of(const Tensor& from, const std::vector<Assigned>& tokens,
                               void* place) {
    const int64_t cols = from.cols();
    const Tensor to(place, from.type, {static_cast<int64_t>(tokens.size()), cols});
    const Rows from_rows(from), to_rows(to);
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::memcpy(to_rows[static_cast<int64_t>(i)], from_rows[tokens[i].token],
                  static_cast<size_t>(cols) * size_of(from.type));
    }
    return to;
  }

  // The expert's rows of x, in the form that `w` wants.
  ops::Activation gather(const std::vector<Assigned>& tokens, const ops::Linear& w) {
    const bool ready = w.input && w.when == InputScale::dynamic && x_.quant &&
                       x_.quant.format == *w.input && w.input->grid.rows <= 1;
    if (ready) {
      QuantTensor q = x_.quant;
      q.codes = gather_rows_of(
          q.codes, tokens,
          context_.scratch.take(kCodes, static_cast<size_t>(rows_ * q.codes.cols())));
      if (w.input->grid.rows == 1) {
        // Row by row, as their strides may be anything.
        const ScaleView scales(q);
        const ScaleShape cells = scale_shape(w.input->grid, rows_, q.codes.cols());
        auto* const to = context_.scratch.take<float>(kScales, static_cast<size_t>(cells.count()));
        for (size_t i = 0; i < tokens.size(); ++i) {
          for (int64_t c = 0; c < cells.cols; ++c) {
            to[static_cast<int64_t>(i) * cells.cols + c] = scales.cell(tokens[i].token, c);
          }
        }
        q.scales = Tensor(to, DType::f32, {static_cast<int64_t>(tokens.size()), cells.cols});
      }
      return q;
    }
    if (!x_.plain) {
      unsupported("moe_experts " + w.name, "needs a plain input", {{"x", x_.quant.codes}});
    }
    const auto bytes = static_cast<size_t>(rows_ * x_.plain.cols()) * size_of(x_.plain.type);
    const Tensor plain = gather_rows_of(x_.plain, tokens, context_.scratch.take(kPlain, bytes));
    return input_form(context_, plain, w, kDown);
  }

  const KernelContext& context_;
  ops::Activation x_;
  int64_t rows_, hidden_;
};

void exact_moe(const KernelContext& context, const ops::Activation& x, const ops::Routing& routing,
               std::span<const ops::GatedMlp> experts, const Tensor& out) {
  const int64_t rows = x.rows(), hidden = out.cols();
  const auto lists = by_expert(routing, static_cast<int64_t>(experts.size()));
  Experts run(context, x, experts, hidden);
  float* const sum = context.scratch.take<float>(kSum, static_cast<size_t>(rows * hidden));
  std::fill(sum, sum + rows * hidden, 0.0f);
  for (size_t e = 0; e < experts.size(); ++e) {
    if (lists[e].empty()) continue;
    const float* const result = run.run(experts[e], lists[e]);
    context.threads.parallel_for(static_cast<int64_t>(lists[e].size()), 8,
                                 [&](int64_t begin, int64_t end, int) {
                                   for (int64_t i = begin; i < end; ++i) {
                                     const Assigned& assigned = lists[e][static_cast<size_t>(i)];
                                     float* const to = sum + assigned.token * hidden;
                                     const float* const from = result + i * hidden;
                                     for (int64_t d = 0; d < hidden; ++d)
                                       to[d] += assigned.weight * from[d];
                                   }
                                 });
  }
  const Rows out_rows(out);
  for (int64_t row = 0; row < rows; ++row) {
    store_floats(out.type, sum + row * hidden, hidden, out_rows[row]);
  }
}

double estimate_us(const ops::OpDesc& desc, const CpuCaps& caps) {
  const double weights = 3.0 * static_cast<double>(desc.n) * static_cast<double>(desc.k);
  return (weights * 2.0 * static_cast<double>(desc.m) / 8e3 + weights / 1e3) / caps.threads + 20.0;
}

constexpr MoeRow kRows[] = {
    {"exact", "blocks128_lanes16", refuses_nothing, estimate_us, exact_moe},
};

}  // namespace

std::span<const MoeRow> exact_moe_rows() {
  return kRows;
}

}  // namespace octet::cpu
