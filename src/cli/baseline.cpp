#include "cli/baseline.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/log.h"

namespace octet::cli {
namespace {

ModelOptions model_options(const BaselineOptions& options) {
  ModelOptions model;
  model.path = options.path;
  return model;
}

// The microscope takes turns with the engine on one processor, so it gets few threads.
BackendOptions backend_options(const BaselineOptions& options, BackendOptions device) {
  if (device.on_cpu()) device.threads = options.threads;
  return device;
}

void require_same_tokenizer(const OpenModel& served, const OpenModel& baseline,
                            const std::string& path) {
  const text::Tokenizer& a = served.tokenizer();
  const text::Tokenizer& b = baseline.tokenizer();
  const auto refuse = [&](std::string value) {
    throw Error({.what = "the baseline has another tokenizer than the model, so that their "
                         "predictions cannot be compared",
                 .where = "--baseline",
                 .value = path + ": " + std::move(value),
                 .accepted = "a model with the same tokens under the same ids",
                 .fix = "name the 16-bit checkpoint that the model was quantized from"});
  };
  if (a.size() != b.size()) refuse(fmt::format("{} tokens, not {}", b.size(), a.size()));
  for (int32_t id = 0; id < a.size(); ++id) {
    if (a.token_bytes(id) == b.token_bytes(id)) continue;
    refuse(fmt::format("token {} is '{}', not '{}'", id, b.token_bytes(id), a.token_bytes(id)));
  }
}

}  // namespace

void add_baseline_rows(OptionTable& table, BaselineOptions& options) {
  table.group("Microscope");
  table.add("--baseline", &options.path,
            "a 16-bit model with the same tokenizer, for the console's microscope: how far the "
            "served one is from it, token by token",
            {.metavar = "MODEL"});
  table.add("--baseline-threads", &options.threads,
            "CPU threads of the microscope, beside those of the engine",
            {.least = 1, .most = 4096});
  table.add("--microscope-tokens", &options.microscope_tokens,
            "most tokens, prompt and output together, that the microscope looks at",
            {.least = 2, .most = 1 << 20});
}

Baseline::Baseline(const BaselineOptions& options, const OpenModel& served,
                   const BackendOptions& device)
    : open_(model_options(options)) {
  if (open_.load_options().compute == model::Compute::fp8) {
    throw Error({.what = "a baseline computes in 16 bits or more, and this one is quantized",
                 .where = "--baseline",
                 .value = options.path,
                 .accepted = "a BF16, FP16 or FP32 checkpoint",
                 .fix = "name the checkpoint that the model was quantized from"});
  }
  require_same_tokenizer(served, open_, options.path);
  backend_ = open_backend(backend_options(options, device));
  const int64_t most =
      std::min({options.microscope_tokens, served.max_model_len(), open_.max_model_len()});
  const model::Model& baseline = open_.load(*backend_, most);
  microscope_ = std::make_unique<engine::Microscope>(
      served.model(), baseline, *backend_,
      engine::MicroscopeOptions{.max_tokens = most,
                                .kv_type = served.kv_type(),
                                .baseline_kv_type = open_.kv_type(),
                                .unit_kv_scale = served.unit_kv_scale()});
  const std::string name = std::filesystem::weakly_canonical(options.path).filename().string();
  log::info("{} is the baseline, on {}, memory:\n{}", name, backend_->info().name,
            engine::to_string(microscope_->ledger()));
  served_.emplace(server::ServedBaseline{*microscope_, name});
}

}  // namespace octet::cli
