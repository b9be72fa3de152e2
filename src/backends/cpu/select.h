// Which CPU kernel runs a problem: the exact and fast tables as one, and the rule that picks a row.
//
// How the backend describes its problems, so that rows can refuse or estimate them:
//
//   op             m        n                  k            weight, weight_format  input_format
//   linear         rows     outputs            inputs       the weight's           w.input
//   head_linear    rows     vocabulary         hidden       the weight's           absent
//   moe_experts    rows     gate.out           gate.in      those of expert 0's gate
//   attention      rows     query heads        head_dim     the cache's type; its  present iff
//   mla_attention  rows     heads              kv_lora      format if it is FP8    spec.fp8
//   mla_absorb     rows     kv_b.out           kv_b.in      kv_b's                 absent
//   mla_expand     rows     kv_b.out           kv_b.in      kv_b's                 absent
//
// `activation` is the type of x.plain, or of q. m never decides which order of summation is used:
// the reduction_id is chosen once for each (n, k, formats), as the one of the row that is fastest
// for m = 1, and then the fastest row with that id runs. So a row's bits do not depend on how many
// rows are computed with it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "backends/cpu/kernels/kernel.h"
#include "ops/kernel_table.h"

namespace octet::cpu {

struct CpuOptions {
  int threads = 0;                          // 0 = one a physical core
  std::string kernels = "auto";             // auto | exact | portable | avx2 | avx512 | amx
  std::map<std::string, std::string> pins;  // op -> name of the row that runs what it can
};

// What this processor can do.
CpuCaps detect_caps();
// "amx_bf16", "avx512_bf16", "avx2" or "portable".
std::string name_of(const CpuCaps& caps);
// What `options.kernels` leaves of `found`. Error if it asks for what is not there.
CpuCaps caps_for(const CpuOptions& options, CpuCaps found);

// See Backend::mla_absorb and Backend::mla_expand.
using MlaProductLaunch = void(const KernelContext&, const Tensor& x, const ops::Linear& kv_b,
                              int64_t nope, const Tensor& out);
using MlaProductRow = KernelRow<MlaProductLaunch>;

// The rows that may run, exact ones included; `exact_only` leaves the exact ones.
struct Tables {
  std::vector<LinearRow> linear, head_linear;
  std::vector<MoeRow> moe;
  std::vector<AttentionRow> attention;
  std::vector<MlaAttentionRow> mla_attention;
  std::vector<MlaProductRow> mla_absorb, mla_expand;
};
Tables kernel_tables(bool exact_only);

template <typename Row>
struct Picked {
  const Row* row = nullptr;
  double estimate_us = 0;
  std::vector<ops::Rejected> rejected;
};

// The row that runs `desc`; `pin` is empty or the name of the row that does if it can. Fault, with
// the reason of every row, if none can.
template <typename Row>
Picked<Row> pick(const std::vector<Row>& rows, const ops::OpDesc& desc, const CpuCaps& caps,
                 const std::string& pin) {
  Picked<Row> picked;
  const auto able = ops::able_rows("CPU", rows, desc, caps, pin, picked.rejected);
  ops::OpDesc one = desc;
  one.m = 1;
  const std::string_view order = ops::fastest_row(able, one, caps, {})->reduction_id;
  picked.row = ops::fastest_row(able, desc, caps, order);
  picked.estimate_us = picked.row->estimate_us(desc, caps);
  ops::reject_others(able, picked.row, desc, caps, order, picked.rejected);
  return picked;
}

// Remembers what pick() said: it looks at every row and writes down every reason, which is too much
// for each op of each step. One a table and backend, as neither caps nor pins change.
template <typename Row>
class PickCache {
 public:
  const Row& operator()(const std::vector<Row>& rows, const ops::OpDesc& desc, const CpuCaps& caps,
                        const std::string& pin) {
    const Key key{desc.m,           desc.n,          desc.k,
                  desc.weight,      desc.activation, desc.weight_format,
                  desc.input_format};
    const auto found = picked_.find(key);
    if (found != picked_.end()) return *found->second;
    const Row* const row = pick(rows, desc, caps, pin).row;
    picked_.emplace(key, row);
    return *row;
  }

 private:
  using Key = std::tuple<int64_t, int64_t, int64_t, DType, DType, std::optional<QuantFormat>,
                         std::optional<QuantFormat>>;
  std::map<Key, const Row*> picked_;
};

}  // namespace octet::cpu
