#include "backends/cuda/select.h"

#include <fmt/format.h>

#include <algorithm>

#include "backends/cuda/kernels/linear_rows.h"

namespace octet::cuda {
namespace {

std::vector<LinearRow> joined(std::initializer_list<std::span<const LinearRow>> tables) {
  std::vector<LinearRow> rows;
  for (const auto& table : tables) rows.insert(rows.end(), table.begin(), table.end());
  return rows;
}

// The able row with the least estimate for `desc`, the first of equals; of those that sum as `id`
// says, unless it is empty.
const LinearRow* fastest(const std::vector<const LinearRow*>& able, const ops::OpDesc& desc,
                         const DeviceCaps& caps, std::string_view id) {
  const LinearRow* best = nullptr;
  double least = 0;
  for (const LinearRow* row : able) {
    if (!id.empty() && row->reduction_id != id) continue;
    const double estimate = row->estimate_us(desc, caps);
    if (best && estimate >= least) continue;
    best = row;
    least = estimate;
  }
  return best;
}

// The order of summation that is fastest for one row, of those in which any number of rows can be
// summed.
std::string_view order_for_every_m(const std::vector<LinearRow>& rows, ops::OpDesc desc,
                                   const DeviceCaps& caps) {
  const auto able = [&](int64_t m) {
    desc.m = m;
    std::vector<const LinearRow*> found;
    for (const LinearRow& row : rows) {
      if (!row.refuses(desc, caps)) found.push_back(&row);
    }
    return found;
  };
  const std::vector<const LinearRow*> many = able(int64_t{1} << 20);
  std::vector<const LinearRow*> one = able(1);
  std::erase_if(one, [&](const LinearRow* row) {
    return std::ranges::none_of(
        many, [&](const LinearRow* other) { return other->reduction_id == row->reduction_id; });
  });
  const LinearRow* const best = fastest(one, desc, caps, {});
  return best ? best->reduction_id : std::string_view();
}

}  // namespace

const std::vector<LinearRow>& linear_rows() {
  static const std::vector<LinearRow> rows =
      joined({thin_rows(), wgmma_rows(), cublaslt_rows(), generic_rows()});
  return rows;
}

const std::vector<LinearRow>& head_rows() {
  static const std::vector<LinearRow> rows =
      joined({thin_head_rows(), cublaslt_head_rows(), generic_head_rows()});
  return rows;
}

PickedLinear pick_linear(const std::vector<LinearRow>& rows, const ops::OpDesc& desc,
                         const DeviceCaps& caps, bool deterministic, const std::string& pin) {
  PickedLinear picked;
  std::vector<const LinearRow*> able;
  for (const LinearRow& row : rows) {
    if (!pin.empty() && row.name != pin) {
      picked.rejected.push_back({std::string(row.name), "another kernel is pinned"});
    } else if (auto reason = row.refuses(desc, caps)) {
      picked.rejected.push_back({std::string(row.name), *reason});
    } else {
      able.push_back(&row);
    }
  }
  if (able.empty()) {
    std::string text = fmt::format("no CUDA kernel runs {}", ops::to_string(desc));
    for (const auto& [kernel, reason] : picked.rejected) {
      text += fmt::format("; {}: {}", kernel, reason);
    }
    throw Fault(text);
  }
  // Under --deterministic, the order of summation; it depends on everything but m.
  const std::string_view order =
      deterministic && pin.empty() ? order_for_every_m(rows, desc, caps) : std::string_view();
  picked.row = fastest(able, desc, caps, order);
  invariant(picked.row, "no kernel for this number of rows sums in the order of the others");
  picked.estimate_us = picked.row->estimate_us(desc, caps);
  for (const LinearRow* row : able) {
    if (row == picked.row) continue;
    const bool fits = order.empty() || row->reduction_id == order;
    picked.rejected.push_back({std::string(row->name),
                               fits ? fmt::format("slower: {:.1f} us", row->estimate_us(desc, caps))
                                    : fmt::format("sums in another order: {}", row->reduction_id)});
  }
  return picked;
}

ops::OpDesc describe(std::string op, const ops::Linear& linear, int64_t m, DType activation) {
  ops::OpDesc desc;
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

}  // namespace octet::cuda
