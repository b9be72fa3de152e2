#include "engine/capacity.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "engine/runner.h"
#include "ops/null_backend.h"

namespace octet::engine {

std::string to_string(const Ledger& ledger) {
  const auto line = [](std::string_view name, int64_t bytes) {
    return fmt::format("  {:<28}{:>10.1f} MiB\n", name, static_cast<double>(bytes) / 1048576.0);
  };
  const auto some = [&](std::string_view name, int64_t bytes) {
    return bytes > 0 ? line(name, bytes) : std::string();
  };
  return some("weights, mapped", ledger.mapped_weights) +
         line("weights, owned", ledger.owned_weights) + line("activations", ledger.arena) +
         line("step inputs, results", ledger.steps) +
         line(fmt::format("KV cache, {} tokens", ledger.kv_tokens), ledger.kv) +
         some("workspace", ledger.workspace) + some("kernels and graphs, at most", ledger.reserve) +
         line("total", ledger.total());
}

size_t arena_bytes(const model::Model& model, const ops::KvLayout& layout,
                   const StepLimits& limits) {
  ops::NullBackend backend;
  const model::KvStore kv(backend, layout, 1, model.kv_scales());

  ops::Batch batch;
  batch.rows = limits.rows;
  batch.sequences.push_back({0, limits.rows, 0});
  batch.tokens = batch.positions = batch.row_sequence = ops::nowhere(DType::i32, {limits.rows});
  batch.logits_rows = ops::nowhere(DType::i32, {limits.logits_rows});
  batch.spans = ops::nowhere(DType::i32, {1, 3});
  batch.block_table = ops::nowhere(DType::i32, {1, 1});
  batch.max_context = limits.rows;

  Arena arena;
  model.forward({backend, arena, kv, batch});
  return arena.peak();
}

Ledger ledger_of(const model::Model& model, const ops::BackendInfo& info,
                 const ops::KvLayout& layout, const StepLimits& limits, int32_t max_logprobs) {
  return {.mapped_weights = info.device.kind == DeviceKind::cpu ? mapped_weight_bytes(model) : 0,
          .owned_weights = model.owned_bytes(),
          .arena = static_cast<int64_t>(arena_bytes(model, layout, limits)),
          .steps = static_cast<int64_t>(step_bytes(limits, max_logprobs, model.config().vocab)),
          .workspace = info.workspace_bytes,
          .reserve = info.reserve_bytes};
}

int64_t kv_blocks(const KvDemand& demand) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();  // block ids are int32
  const ops::KvLayout& layout = demand.layout;
  const int64_t per_sequence =
      (demand.max_model_len + layout.block_tokens - 1) / layout.block_tokens;
  const int64_t block_bytes = layout.bytes_per_block();
  const int64_t wanted = std::min(per_sequence * demand.max_num_seqs, most);
  if (demand.asked_bytes > 0) {
    const int64_t blocks = demand.asked_bytes / block_bytes;
    if (blocks < 1) {
      throw Error(
          {.what = "the KV cache holds not even one block",
           .where = "--kv-cache-memory",
           .value = fmt::format("{} bytes", demand.asked_bytes),
           .accepted = fmt::format("at least {} bytes ({} for one sequence of {} tokens)",
                                   block_bytes, per_sequence * block_bytes, demand.max_model_len)});
    }
    return std::min(blocks, most);
  }
  if (demand.most_bytes <= 0) return wanted;
  return std::clamp(demand.most_bytes / block_bytes, std::min(per_sequence, wanted), wanted);
}

int64_t kv_budget(const ops::BackendInfo& info, double utilization, const Ledger& rest) {
  if (info.total_bytes <= 0) return info.memory_bytes / 4;
  // The workspace is taken already, so that what is free does not count it.
  const auto unused =
      static_cast<int64_t>((1.0 - utilization) * static_cast<double>(info.total_bytes));
  const int64_t taken = rest.total() - rest.workspace;
  const int64_t left = info.memory_bytes - unused - taken;
  if (left > 0) return left;
  throw Error({.what = "the model leaves no memory for a KV cache",
               .where = "--gpu-memory-utilization",
               .value = fmt::format("{}: {:.1f} MiB free, {:.1f} needed before the cache",
                                    utilization, static_cast<double>(info.memory_bytes) / 1048576.0,
                                    static_cast<double>(taken + unused) / 1048576.0),
               .fix = "a larger share, a smaller --max-num-batched-tokens, or a GPU with more "
                      "memory that is free"});
}

void require_host_memory(const ops::BackendInfo& info, int64_t kv, int64_t arena) {
  if (info.total_bytes > 0 || info.memory_bytes <= 0 || kv <= info.memory_bytes - arena) return;
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / 1048576.0; };
  throw Error({.what = "the KV cache is larger than the memory that is free",
               .where = "--kv-cache-memory",
               .value = fmt::format("{:.1f} MiB", mib(kv)),
               .accepted = fmt::format("at most {:.1f} MiB: {:.1f} are free, of which activations "
                                       "take {:.1f}",
                                       mib(std::max<int64_t>(info.memory_bytes - arena, 0)),
                                       mib(info.memory_bytes), mib(arena)),
               .fix = "a smaller cache, a smaller --max-model-len or --max-num-seqs, or free "
                      "memory"});
}

DType kv_dtype(model::KvType type, bool fp8_attention, DType activation) {
  switch (type) {
    case model::KvType::fp32:
      return DType::f32;
    case model::KvType::bf16:
      return DType::bf16;
    case model::KvType::fp8_e4m3:
    case model::KvType::fp8_token_heads:
      return DType::e4m3;
    case model::KvType::fp8_e5m2:
      return DType::e5m2;
    case model::KvType::int8_token_heads:
    case model::KvType::int8_token_groups:
      return DType::i8;
    case model::KvType::automatic:
      break;
  }
  return fp8_attention ? DType::e4m3 : activation;
}

ops::KvLayout kv_layout_of(const model::Model& model, model::KvType type, int64_t block_tokens,
                           bool unit_scale) {
  model::KvOptions options;
  options.type = kv_dtype(type, model.fp8_attention(), model.activation());
  options.activation = model.activation();
  options.block_tokens = block_tokens;
  options.group_tokens = model.kv_group_tokens();
  // Stored scales are made for E4M3. E5M2 has range enough without them.
  const model::KvScales& scales = model.kv_scales();
  const bool stored = options.type == DType::e4m3 && !scales.k.empty();
  options.scaling = model::has_token_heads(type) ? ops::KvScaling::token_heads
                    : stored                     ? ops::KvScaling::fixed
                                                 : ops::KvScaling::groups;
  options.channels = is_code(options.type) && !scales.channels.empty() && !unit_scale;
  // A latent's channels have scales for E4M3 that need no others.
  const bool latent = std::holds_alternative<model::Mla>(model.config().attention);
  const bool fixed = options.channels && options.type == DType::e4m3;
  options.unit_scale = unit_scale || (latent && fixed);
  return model::kv_layout(model.config(), options);
}

int64_t mapped_weight_bytes(const model::Model& model) {
  int64_t bytes = 0;
  for (const model::LinearUse& use : model.linears()) {
    bytes += use.linear->quant ? use.linear->quant.codes.bytes() : use.linear->plain.bytes();
  }
  // An untied embedding is read row by row, but it is mapped as a whole.
  const auto& config = model.config();
  if (!config.tied_embeddings) bytes += config.vocab * config.hidden * 2;
  return bytes;
}

}  // namespace octet::engine
