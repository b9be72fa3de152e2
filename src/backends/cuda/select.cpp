#include "backends/cuda/select.h"

#include <algorithm>

#include "backends/cuda/kernels/linear_rows.h"
#include "ops/kernel_table.h"

namespace octet::cuda {
namespace {

std::vector<LinearRow> joined(std::initializer_list<std::span<const LinearRow>> tables) {
  std::vector<LinearRow> rows;
  for (const auto& table : tables) rows.insert(rows.end(), table.begin(), table.end());
  return rows;
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
  const LinearRow* const best = ops::fastest_row(one, desc, caps, {});
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
  const auto able = ops::able_rows("CUDA", rows, desc, caps, pin, picked.rejected);
  // Under --deterministic, the order of summation; it depends on everything but m.
  const std::string_view order =
      deterministic && pin.empty() ? order_for_every_m(rows, desc, caps) : std::string_view();
  picked.row = ops::fastest_row(able, desc, caps, order);
  invariant(picked.row, "no kernel for this number of rows sums in the order of the others");
  picked.estimate_us = picked.row->estimate_us(desc, caps);
  ops::reject_others(able, picked.row, desc, caps, order, picked.rejected);
  return picked;
}

}  // namespace octet::cuda
