#include "backends/cpu/select.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "backends/cpu/kernels/exact_ops.h"
#include "backends/cpu/kernels/fast_mla_absorb.h"
#include "base/error.h"

namespace octet::cpu {
namespace {

template <typename Row>
void append(std::vector<Row>& rows, std::span<const Row> more) {
  rows.insert(rows.end(), more.begin(), more.end());
}

// MLA's products with kv_b: a pair of functions rather than a table, so the rows are made here.
std::optional<std::string> never_refuses(const ops::OpDesc&, const CpuCaps&) {
  return std::nullopt;
}

std::optional<std::string> fast_product_refuses(const ops::OpDesc& desc, const CpuCaps& caps) {
  Tensor x;
  x.type = desc.activation;
  ops::Linear kv_b;
  kv_b.plain.type = desc.weight;
  return fast_mla_absorb_refuses(x, kv_b, caps);
}

// Half of kv_b each, and every weight has to be decoded once.
template <int64_t MacsPerNs>
double product_us(const ops::OpDesc& desc, const CpuCaps& caps) {
  const double weights = 0.5 * static_cast<double>(desc.n) * static_cast<double>(desc.k);
  return weights * (static_cast<double>(desc.m) / MacsPerNs + 1.0) / 1e3 / caps.threads + 5.0;
}

constexpr MlaProductRow kFastAbsorb{"avx512", "fma_chain", fast_product_refuses, product_us<16>,
                                    fast_mla_absorb};
constexpr MlaProductRow kFastExpand{"avx512", "fma_chain", fast_product_refuses, product_us<16>,
                                    fast_mla_expand};
constexpr MlaProductRow kAmxAbsorb{"amx", "pairs", amx_mla_absorb_refuses, product_us<64>,
                                   amx_mla_absorb};
constexpr MlaProductRow kAmxExpand{"amx", "pairs", amx_mla_absorb_refuses, product_us<64>,
                                   amx_mla_expand};
constexpr MlaProductRow kExactAbsorb{"exact", "blocks128_columns", never_refuses, product_us<4>,
                                     mla_absorb};
constexpr MlaProductRow kExactExpand{"exact", "blocks128_lanes16", never_refuses, product_us<4>,
                                     mla_expand};

#if defined(__x86_64__)
// Whether the processor has AMX for BF16 and the system lets this process use it: the state of its
// tiles is large, so that one has to ask, once.
bool may_use_amx() {
  unsigned a = 0, b = 0, c = 0, features = 0;
  constexpr unsigned bf16 = 1u << 22, tiles = 1u << 24;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &features) == 0) return false;
  if ((features & bf16) == 0 || (features & tiles) == 0) return false;
  constexpr int request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM of newer headers
  constexpr int tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}
#endif

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
                     __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  caps.amx_bf16 = caps.avx512_bf16 && may_use_amx();
  caps.fast_dot = caps.avx512_bf16 && __builtin_cpu_is("amd");
#endif
  return caps;
}

std::string name_of(const CpuCaps& caps) {
  return caps.amx_bf16      ? "amx_bf16"
         : caps.avx512_bf16 ? "avx512_bf16"
         : caps.avx2        ? "avx2"
                            : "portable";
}

CpuCaps caps_for(const CpuOptions& options, CpuCaps found) {
  CpuCaps caps = found;
  const std::string& wanted = options.kernels;
  if (wanted == "portable") {
    caps.avx2 = caps.avx512_bf16 = caps.amx_bf16 = false;
  } else if (wanted == "avx2") {
    caps.avx512_bf16 = caps.amx_bf16 = false;
  } else if (wanted == "avx512") {
    caps.amx_bf16 = false;
  } else if (wanted != "auto" && wanted != "exact" && wanted != "amx") {
    throw Error({.what = "unknown set of CPU kernels",
                 .where = "--kernels",
                 .value = wanted,
                 .accepted = "auto, exact, portable, avx2, avx512, amx"});
  }
  if ((wanted == "amx" && !caps.amx_bf16) || (wanted == "avx512" && !caps.avx512_bf16) ||
      (wanted == "avx2" && !caps.avx2)) {
    throw Error({.what = "this processor cannot run the kernels asked for",
                 .where = "--kernels",
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
    tables.mla_absorb.push_back(kAmxAbsorb);
    tables.mla_absorb.push_back(kFastAbsorb);
    tables.mla_expand.push_back(kAmxExpand);
    tables.mla_expand.push_back(kFastExpand);
  }
  append(tables.linear, exact_linear_rows());
  append(tables.head_linear, exact_linear_rows());
  append(tables.moe, exact_moe_rows());
  append(tables.attention, exact_attention_rows());
  append(tables.mla_attention, exact_mla_attention_rows());
  tables.mla_absorb.push_back(kExactAbsorb);
  tables.mla_expand.push_back(kExactExpand);
  return tables;
}

}  // namespace octet::cpu
