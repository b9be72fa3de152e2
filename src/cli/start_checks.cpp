#include "cli/start_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "backends/cpu/cpu_backend.h"
#include "backends/probe/cache_error.h"
#include "engine/self_test.h"
#include "engine/session.h"
#include "offline/self_text.h"

namespace octet::cli {

void check_kernels(const OpenModel& open, const BackendOptions& options, ops::Backend& backend) {
  if (!options.on_cpu() || options.kernels == "exact") return;
  cpu::CpuBackend reference({.threads = options.threads, .kernels = "exact"});
  const engine::SelfTest test =
      engine::self_test(engine::small_version(open.config()), open.load_options(), open.kv_type(),
                        backend, reference);
  engine::require_passed(test, backend.info());
}

std::string e5m2_warning(const OpenModel& open, ops::Backend& backend) {
  std::string text =
      "the KV cache is E5M2, which has two bits of mantissa where E4M3 has three: twice the error "
      "of each value";
  if (backend.info().device.kind == DeviceKind::cpu) {
    const int64_t window = std::min<int64_t>(64, open.max_model_len());
    const auto tokens = offline::write_own_text(
        open.model(), backend, {.samples = 1, .window = window, .bos = open.bos()});
    const auto error_of = [&](model::KvType type) {
      probe::CacheErrorBackend probe(backend);
      engine::Session session(open.model(), probe,
                              {.max_tokens = window, .logits_rows = 1, .kv_type = type});
      session.extend(0, tokens.front());
      return probe.relative_error();
    };
    const double e5m2 = error_of(model::KvType::fp8_e5m2), e4m3 = error_of(model::KvType::fp8_e4m3);
    text += fmt::format(
        ". On {} tokens that this model writes, what is in the cache is off by {:.2f} % "
        "({:.1f} dB) in E5M2 and by {:.2f} % ({:.1f} dB) in E4M3",
        window, 100 * e5m2, -20 * std::log10(e5m2), 100 * e4m3, -20 * std::log10(e4m3));
  }
  return text +
         "; `octet eval compare` says what that does to answers, --kv-cache-dtype fp8_e4m3 avoids "
         "it";
}

}  // namespace octet::cli
