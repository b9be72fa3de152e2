#include "ops/kernel_table.h"

#include <utility>

namespace octet::ops {

OpDesc describe(std::string op, const Linear& linear, int64_t m, DType activation) {
  OpDesc desc;
  desc.op = std::move(op);
  desc.m = m;
  desc.n = linear.out;
  desc.k = linear.in;
  desc.weight = linear.quant ? linear.quant.codes.type : linear.plain.type;
  if (linear.quant) desc.weight_format = linear.quant.format;
  if (desc.op != "head_linear") desc.input_format = linear.input;
  desc.activation = activation;
  return desc;
}

}  // namespace octet::ops
