#include "cli/warm_up.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <variant>

#include "base/error.h"
#include "base/log.h"
#include "cli/calibration.h"
#include "offline/calibrated_scales.h"

namespace octet::cli {
namespace {

void refuse_fixed_scales(const OpenModel& open) {
  if (std::holds_alternative<model::Mla>(open.config().attention)) {
    throw Error({.what = "a latent is scaled token by token, so there is no scale to calculate",
                 .where = "--calculate-kv-scales",
                 .value = open.config().architecture,
                 .accepted = "a model whose cache holds K and V",
                 .fix = "leave the flag out"});
  }
  if (open.kv_dtype() == DType::e4m3 && !model::has_token_heads(open.kv_type())) return;
  throw Error({.what = "only a KV cache in E4M3 has fixed scales",
               .where = "--calculate-kv-scales",
               .value = "a cache in " + open.kv_name(),
               .accepted = "--kv-cache-dtype fp8",
               .fix = "leave the flag out, or pass --kv-cache-dtype fp8"});
}

// "0.00123 to 0.0456" of the side whose tensors' names end so.
std::string range_of(const std::map<std::string, std::vector<float>>& scales,
                     std::string_view suffix) {
  float least = INFINITY, most = 0;
  for (const auto& [name, values] : scales) {
    if (!name.ends_with(suffix)) continue;
    const auto [low, high] = std::ranges::minmax(values);
    least = std::min(least, low);
    most = std::max(most, high);
  }
  return fmt::format("{:.3g} to {:.3g}", least, most);
}

}  // namespace

void add_warm_up_rows(OptionTable& table, WarmUpOptions& o) {
  table.add("--calculate-kv-scales", &o.calculate,
            "fix the scales of an FP8 KV cache by what --warmup's text holds, before anybody is "
            "served");
  table.add("--warmup", &o.text,
            "of --calculate-kv-scales: a text like what will be asked, of which 64 windows of 512 "
            "tokens are taken at most; FILE.jsonl with a \"text\" or \"messages\" a line; or "
            "\"model\": the model writes it itself",
            {.metavar = "FILE"});
}

bool warm_up(const WarmUpOptions& o, const ModelOptions& model, const BackendOptions& backend,
             OpenModel& open) {
  if (!o.calculate && !o.text.empty()) {
    throw Error({.what = "a text to warm up with says nothing without what it is for",
                 .where = "--warmup",
                 .value = o.text,
                 .accepted = "together with --calculate-kv-scales",
                 .fix = "give that, or leave --warmup out"});
  }
  if (!o.calculate) return false;
  refuse_fixed_scales(open);
  if (o.text.empty()) {
    // vLLM's flag takes its scales from random tokens, or the first request: neither says much.
    log::info(
        "--calculate-kv-scales is passed over: block groups choose the scales as the cache grows; "
        "--warmup FILE (or --warmup model) has them calculated");
    return false;
  }
  CalibrationRun run(model, {.source = o.text});
  run.load(backend.threads);
  offline::Calibration seen;
  offline::Calibrator calibrator(seen);
  run.run({.cache = cache_into(calibrator)});
  auto scales =
      offline::kv_scales(seen, open.config(), {.granularity = offline::KvGranularity::head});
  const std::string origin =
      fmt::format("{} samples, {} tokens of {}", run.samples().size(), run.tokens(),
                  o.text == kOwnText ? "what the model writes" : o.text);
  log::info("KV scales are fixed, one a head: K {}, V {}; from {}", range_of(scales, ".k_scale"),
            range_of(scales, ".v_scale"), origin);
  open.set_kv_scales(std::move(scales), origin);
  return true;
}

std::string kv_scales_from(const OpenModel& open, bool warmed_up) {
  const DType type = open.kv_dtype();
  if (model::has_token_heads(open.kv_type())) return "tokens and heads";
  if (!is_code(type)) return "none";
  const bool channels = !open.model().kv_scales().channels.empty();
  if (std::holds_alternative<model::Mla>(open.config().attention)) {
    if (open.unit_kv_scale()) return "none";
    return channels && type == DType::e4m3 ? "checkpoint, by dimension" : "tokens";
  }
  if (warmed_up) return "warm-up";
  const bool stored = type == DType::e4m3 && !open.model().kv_scales().k.empty();
  if (stored && channels) return "checkpoint, by dimension";
  return stored ? "checkpoint" : fmt::format("block groups of {}", open.model().kv_group_tokens());
}

}  // namespace octet::cli
