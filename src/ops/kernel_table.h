// What the kernel tables of all devices share: how a linear is described, and the first half of the
// choice, which rows are able. Which of those runs is each device's own rule.
//
// A Row has a name, a reduction_id, refuses(desc, caps) and estimate_us(desc, caps).
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "ops/kernel_choice.h"
#include "ops/op_types.h"

namespace octet::ops {

// `linear` with m rows of inputs of type `activation`, as the tables see it. A head takes its
// inputs as they are.
OpDesc describe(std::string op, const Linear& linear, int64_t m, DType activation);

// The rows that can run `desc`; the others go to `rejected` with their reasons. `pin` is empty or
// the name of the row that runs whatever it can: where it refuses, the others are asked, since a
// kernel for few rows is no reason to do without prefill. Fault, with every reason, if there is
// none; `device` ("CUDA") is for its text.
template <typename Row, typename Caps>
std::vector<const Row*> able_rows(std::string_view device, const std::vector<Row>& rows,
                                  const OpDesc& desc, const Caps& caps, const std::string& pin,
                                  std::vector<Rejected>& rejected) {
  std::vector<const Row*> able;
  const Row* pinned = nullptr;
  for (const Row& row : rows) {
    if (auto reason = row.refuses(desc, caps)) {
      rejected.push_back({std::string(row.name), *reason});
    } else {
      able.push_back(&row);
      if (row.name == pin) pinned = &row;
    }
  }
  if (pinned) {
    for (const Row* row : able) {
      if (row != pinned) rejected.push_back({std::string(row->name), "another kernel is pinned"});
    }
    return {pinned};
  }
  if (!able.empty()) return able;
  std::string text = fmt::format("no {} kernel runs {}", device, to_string(desc));
  for (const auto& [kernel, reason] : rejected) text += fmt::format("; {}: {}", kernel, reason);
  throw Fault(text);
}

// The row with the least estimate, the first of equals; of those that sum as `id` says, unless it
// is empty. Null if there is none.
template <typename Row, typename Caps>
const Row* fastest_row(const std::vector<const Row*>& able, const OpDesc& desc, const Caps& caps,
                       std::string_view id) {
  const Row* best = nullptr;
  double least = 0;
  for (const Row* row : able) {
    if (!id.empty() && row->reduction_id != id) continue;
    const double estimate = row->estimate_us(desc, caps);
    if (best && estimate >= least) continue;
    best = row;
    least = estimate;
  }
  return best;
}

// Why `picked` runs and not another able row; an empty `id` lets rows sum as they like.
template <typename Row, typename Caps>
void reject_others(const std::vector<const Row*>& able, const Row* picked, const OpDesc& desc,
                   const Caps& caps, std::string_view id, std::vector<Rejected>& rejected) {
  for (const Row* row : able) {
    if (row == picked) continue;
    const bool fits = id.empty() || row->reduction_id == id;
    rejected.push_back({std::string(row->name),
                        fits ? fmt::format("slower: {:.1f} us", row->estimate_us(desc, caps))
                             : fmt::format("sums in another order: {}", row->reduction_id)});
  }
}

}  // namespace octet::ops
