#include "cli/bench_common.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/philox.h"
#include "base/thread_pool.h"
#include "cli/cuda_device.h"

namespace octet::cli {

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  const double median = values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
  return {median, values.front(), values.back()};
}

OrderedJson json_of(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.least}, {"max", spread.most}};
}

std::string line_of(std::string_view name, const Spread& s, std::string_view unit) {
  return fmt::format("  {:<32}{:>10.1f} {:<10} ({:.1f} to {:.1f})\n", name, s.median, unit, s.least,
                     s.most);
}

double seconds_of(FunctionRef<void()> work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double step_bytes(const model::Model& model, int64_t batch) {
  double bytes = 0;
  for (const model::LinearUse& use : model.linears()) {
    const double read = 1.0 - std::pow(1.0 - use.per_token, static_cast<double>(batch));
    bytes += read * static_cast<double>(use.linear->bytes());
  }
  return bytes;
}

double prompt_flop(const model::Model& model) {
  double flop = 0;
  for (const model::LinearUse& use : model.linears()) {
    if (use.layer < 0) continue;
    flop += 2.0 * use.per_token * static_cast<double>(use.linear->out * use.linear->in);
  }
  return flop;
}

double decode_flop(const model::Model& model) {
  double flop = prompt_flop(model);
  for (const model::LinearUse& use : model.linears()) {
    if (use.layer >= 0) continue;
    flop += 2.0 * use.per_token * static_cast<double>(use.linear->out * use.linear->in);
  }
  return flop;
}

std::vector<int32_t> random_prompt(const model::ModelConfig& config, int64_t count) {
  Philox random(0, 7);
  std::vector<int32_t> prompt;
  prompt.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    prompt.push_back(static_cast<int32_t>(random.bits() % static_cast<uint32_t>(config.vocab)));
  }
  return prompt;
}

void check_length(const OpenModel& open, int64_t length, int64_t warm_up) {
  if (length + warm_up <= open.max_model_len()) return;
  throw Error({.what = "the model was not made for such long sequences",
               .where = "--prompt-len, --output-len",
               .value = fmt::format("{}", length),
               .accepted = fmt::format("together at most {}: {} steps more warm up",
                                       open.max_model_len() - warm_up, warm_up)});
}

std::unique_ptr<DeviceProbe> make_probe(const BackendOptions& options, ops::Backend& backend,
                                        int64_t read_mib) {
  if (!options.on_cpu()) return make_cuda_probe(backend);
  const int threads = options.threads > 0 ? options.threads : default_thread_count();
  return make_cpu_probe(threads, static_cast<size_t>(read_mib) << 20);
}

OrderedJson memory_json(const engine::Ledger& ledger, int64_t used_bytes) {
  return {{"mapped_weights", ledger.mapped_weights},
          {"owned_weights", ledger.owned_weights},
          {"arena", ledger.arena},
          {"steps", ledger.steps},
          {"kv", ledger.kv},
          {"kv_tokens", ledger.kv_tokens},
          {"workspace", ledger.workspace},
          {"reserve", ledger.reserve},
          {"total", ledger.total()},
          {"device_used", used_bytes}};
}

}  // namespace octet::cli
