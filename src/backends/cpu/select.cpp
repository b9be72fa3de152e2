#include "backends/cpu/select.h"

#include "base/error.h"

namespace octet::cpu {
namespace {

template <typename Row>
void append(std::vector<Row>& rows, std::span<const Row> more) {
  rows.insert(rows.end(), more.begin(), more.end());
}

}  // namespace

CpuCaps detect_caps() {
  CpuCaps caps;
#if defined(__x86_64__)
  __builtin_cpu_init();
  caps.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("f16c");
  caps.avx512_bf16 = caps.avx2 && __builtin_cpu_supports("avx512f") &&
                     __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi") &&
                     __builtin_cpu_supports("avx512bf16");
#endif
  return caps;
}

std::string name_of(const CpuCaps& caps) {
  return caps.avx512_bf16 ? "avx512_bf16" : caps.avx2 ? "avx2" : "portable";
}

CpuCaps caps_for(const CpuOptions& options, CpuCaps found) {
  CpuCaps caps = found;
  const std::string& wanted = options.kernels;
  if (wanted == "portable") {
    caps.avx2 = caps.avx512_bf16 = false;
  } else if (wanted == "avx2") {
    caps.avx512_bf16 = false;
  } else if (wanted != "auto" && wanted != "exact" && wanted != "avx512") {
    throw Error({.what = "unknown set of CPU kernels",
                 .where = "--cpu-kernels",
                 .value = wanted,
                 .accepted = "auto, exact, portable, avx2, avx512"});
  }
  if ((wanted == "avx512" && !caps.avx512_bf16) || (wanted == "avx2" && !caps.avx2)) {
    throw Error({.what = "this processor cannot run the kernels asked for",
                 .where = "--cpu-kernels",
                 .value = wanted,
                 .accepted = fmt::format("this processor has {}", name_of(found)),
                 .fix = "use auto"});
  }
  return caps;
}

Tables kernel_tables(bool exact_only) {
  Tables tables;
  // Fast rows first: ties go to them.
  if (!exact_only) {
    append(tables.linear, fast_linear_rows());
    append(tables.head_linear, fast_head_rows());
    append(tables.moe, fast_moe_rows());
    append(tables.attention, fast_attention_rows());
    append(tables.mla_attention, fast_mla_attention_rows());
  }
  append(tables.linear, exact_linear_rows());
  append(tables.head_linear, exact_linear_rows());
  append(tables.moe, exact_moe_rows());
  append(tables.attention, exact_attention_rows());
  append(tables.mla_attention, exact_mla_attention_rows());
  return tables;
}

}  // namespace octet::cpu
