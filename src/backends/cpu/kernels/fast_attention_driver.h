// Cuts an attention problem into tasks for the threads, and walks each over its tiles and splits in
// the order of attention_rule.h. GQA and MLA differ only in how they fill in a Problem.
#pragma once

#include <cstdint>

#include "backends/cpu/kernels/fast_attention_core.h"
#include "backends/cpu/kernels/kernel.h"

namespace octet::cpu::attention {

struct Problem {
  TileShape shape;
  Math math;
  bool quantize_q = false;
  int64_t kv_heads = 1;
  int64_t group = 1;  // query heads that share a KV head

  Tensor q;     // [T, heads, k_dims]
  Tensor q_pe;  // [T, heads, rope_dims]; absent for GQA
  Tensor out;   // [T, heads, v_dims]
  Tensor lse;   // f32 [T, heads], or absent

  TileSource source;  // its `blocks` is set for every sequence
  int64_t blocks = 0;
  const ops::Batch* batch = nullptr;
};

void run(const KernelContext& context, const Problem& problem);

// Why the vector code cannot run this: the processor, or a type.
std::optional<std::string> refuses(const ops::OpDesc& desc, const CpuCaps& caps);
// For a context of 1,024 tokens: the description does not tell the context.
double estimate_us(const ops::OpDesc& desc, const CpuCaps& caps);

// The same for the code that multiplies by AMX (TileShape::amx). Its operands are BF16: P is
// rounded to it at least, as queries are BF16.
std::optional<std::string> amx_refuses(const ops::OpDesc& desc, const CpuCaps& caps);
double amx_estimate_us(const ops::OpDesc& desc, const CpuCaps& caps);

// Step 5 of the rule.
RoundP round_of(const ops::AttentionSpec& spec, DType activation, DType cache);

}  // namespace octet::cpu::attention
