// What a CPU kernel is given, and what a row of a kernel table is.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "backends/cpu/kernels/workspace.h"
#include "base/thread_pool.h"
#include "ops/kernel_choice.h"
#include "ops/kv_layout.h"
#include "ops/op_types.h"

namespace octet::cpu {

// What this processor can do. Detected once (select.h), or lowered by a flag to test other paths.
struct CpuCaps {
  bool avx2 = false;         // with FMA and F16C
  bool avx512_bf16 = false;  // with F, BW, VL, DQ, VBMI and VNNI
  int threads = 1;
  bool fast_dot = false;  // vdpbf16ps issues as fast as FMA: AMD; elsewhere it does half its work
  bool amx_bf16 = false;  // avx512_bf16, and tiles of BF16 that the system lets us use
};

// One a backend, kept as long as it lives: the scratch grows once and is reused from then on.
struct KernelContext {
  ThreadPool& threads;
  const CpuCaps& caps;
  mutable Workspace scratch{};  // contents never outlive one kernel's call
};

// One row of a table. `refuses` gives the reason why the row cannot run a problem, nullopt if it
// can; the table takes the accepted row with the least estimate, ties by order. Rows that share a
// reduction_id sum in the same order, so that for one linear every M gets the same bits.
template <typename Launch>
struct KernelRow {
  std::string_view name;
  std::string_view reduction_id;
  std::optional<std::string> (*refuses)(const ops::OpDesc&, const CpuCaps&);
  double (*estimate_us)(const ops::OpDesc&, const CpuCaps&);
  Launch* launch;
};

// For rows that run every problem of their op: the exact ones, so that a table is never empty.
inline std::optional<std::string> refuses_nothing(const ops::OpDesc&, const CpuCaps&) {
  return std::nullopt;
}

// x has the form that all of the linears want already (quantized iff their `input` is set); each
// writes the tensor of `outs` in its place.
using LinearLaunch = void(const KernelContext&, const ops::Activation& x,
                          std::span<const ops::Linear* const> ws, std::span<const Tensor> outs);
// The expert MLPs, routing included: see Backend::moe_experts.
using MoeLaunch = void(const KernelContext&, const ops::Activation& x, const ops::Routing& routing,
                       std::span<const ops::GatedMlp> experts, const Tensor& out);
// See Backend::attention and Backend::mla_attention.
using AttentionLaunch = void(const KernelContext&, const Tensor& q, const ops::GqaCache& cache,
                             const ops::Batch& batch, const ops::AttentionSpec& spec,
                             const Tensor& out, const Tensor& lse);
using MlaAttentionLaunch = void(const KernelContext&, const Tensor& q_latent, const Tensor& q_pe,
                                const ops::MlaCache& cache, const ops::Batch& batch,
                                const ops::AttentionSpec& spec, const Tensor& out,
                                const Tensor& lse);

using LinearRow = KernelRow<LinearLaunch>;

// One linear by a row of the table.
inline void launch(const LinearRow& row, const KernelContext& context, const ops::Activation& x,
                   const ops::Linear& w, const Tensor& out) {
  const ops::Linear* const ws[] = {&w};
  row.launch(context, x, {ws, 1}, {&out, 1});
}

using MoeRow = KernelRow<MoeLaunch>;
using AttentionRow = KernelRow<AttentionLaunch>;
using MlaAttentionRow = KernelRow<MlaAttentionLaunch>;

// The tables, each in its own file: exact rows are the reference, fast rows are held to them.
std::span<const LinearRow> exact_linear_rows();        // kernels/exact_linear.cpp
std::span<const MoeRow> exact_moe_rows();              // kernels/exact_moe.cpp
std::span<const AttentionRow> exact_attention_rows();  // kernels/exact_attention.cpp
std::span<const MlaAttentionRow> exact_mla_attention_rows();
std::span<const LinearRow> fast_linear_rows();        // kernels/fast_linear.cpp
std::span<const LinearRow> fast_head_rows();          // kernels/fast_head.cpp: 16-bit head, f32 out
std::span<const MoeRow> fast_moe_rows();              // kernels/fast_moe.cpp
std::span<const AttentionRow> fast_attention_rows();  // kernels/fast_attention.cpp
std::span<const MlaAttentionRow> fast_mla_attention_rows();  // kernels/fast_mla_attention.cpp

}  // namespace octet::cpu
