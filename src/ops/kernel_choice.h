// Kernel choice is a pure table: filter by accepts(), take the least estimate, ties by order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "numerics/quant_format.h"

namespace octet::ops {

// A problem, completely: two equal descriptions always get the same kernel.
struct OpDesc {
  std::string op;  // "linear", "head_linear", "attention", "mla_attention", "moe_experts", ...
  int64_t m = 0, n = 0,
          k = 0;  // rows, outputs, inputs (linear); heads, head_dim in n, k (attention)
  DType weight = DType::bf16;
  std::optional<QuantFormat> weight_format;
  std::optional<QuantFormat> input_format;
  DType activation = DType::bf16;
};
std::string to_string(
    const OpDesc& desc);  // "linear m=1 n=2048 k=2048 w=e4m3[1x*]f32 x=e4m3[1x*]f32"

// Why a row of the table was not taken.
struct Rejected {
  std::string kernel, reason;  // reason: "needs avx512_bf16; this CPU has avx2"
};

struct Choice {
  std::string kernel;        // name of the row that runs
  std::string reduction_id;  // the order in which it sums; equal ids give equal bits
  double estimate_us = 0;
  int64_t bytes = 0;  // bytes that one call moves: weights, scales, input, output
  std::vector<Rejected> rejected;
};

}  // namespace octet::ops
