#include "engine/session.h"

#include <algorithm>
#include <numeric>

#include "engine/capacity.h"

namespace octet::engine {
namespace {

int64_t blocks_for(const SessionOptions& options) {
  return (options.max_tokens + options.block_tokens - 1) / options.block_tokens;
}

StepLimits session_limits(const SessionOptions& options) {
  const int64_t rows = std::max(options.chunk, options.sequences);
  return {
      .rows = rows,
      .sequences = options.sequences,
      .blocks_per_sequence = blocks_for(options),
      .logits_rows = std::max(options.logits_rows ? options.logits_rows : rows, options.sequences),
      .block_tokens = options.block_tokens};
}

ops::KvLayout layout_of(const model::Model& model, const SessionOptions& options) {
  const auto layout = [&](model::KvType type) {
    return kv_layout_of(model, type, options.block_tokens, options.unit_kv_scale);
  };
  ops::KvLayout all = layout(options.kv_type);
  invariant(options.kv_by_layer.empty() || options.kv_by_layer.size() == all.layers.size(),
            "each layer has its type of cache, or none has");
  for (size_t i = 0; i < options.kv_by_layer.size(); ++i) {
    all.layers[i] = layout(options.kv_by_layer[i]).layers[i];
  }
  return all;
}

}  // namespace

Session::Session(const model::Model& model, ops::Backend& backend, const SessionOptions& options)
    : model_(model),
      backend_(backend),
      options_(options),
      blocks_per_sequence_(blocks_for(options)),
      limits_(session_limits(options)),
      kv_(backend, layout_of(model, options), options.sequences * blocks_per_sequence_,
          model.kv_scales()),
      arena_bytes_(engine::arena_bytes(model, kv_.layout(), limits_)),
      arena_(backend.alloc(arena_bytes_, "activations")),
      batch_(backend, limits_),
      block_ids_(static_cast<size_t>(kv_.blocks())),
      lengths_(static_cast<size_t>(options.sequences)) {
  std::iota(block_ids_.begin(), block_ids_.end(), 0);
  if (backend.info().device.kind != DeviceKind::cpu) {
    host_logits_ = backend.alloc_host(
        static_cast<size_t>(limits_.logits_rows * model.config().vocab) * sizeof(float), "logits");
  }
}

void Session::reset() {
  std::ranges::fill(lengths_, 0);
}

std::span<const int32_t> Session::blocks(int64_t sequence) const {
  return std::span(block_ids_)
      .subspan(static_cast<size_t>(sequence * blocks_per_sequence_),
               static_cast<size_t>(blocks_per_sequence_));
}

Tensor Session::run(std::span<const SequenceTokens> parts) {
  const Arena::Scope scratch(arena_);
  const ops::Batch& batch = batch_.build(parts).batch;
  Tensor logits = model_.forward({backend_, arena_, kv_, batch}, observer_);
  if (logits && host_logits_.data()) {
    const Tensor host = host_logits_.tensor(DType::f32, logits.shape);
    backend_.copy(logits, host);
    logits = host;
  }
  backend_.sync();
  return logits;
}

void Session::truncate(int64_t sequence, int64_t length) {
  int64_t& have = lengths_[static_cast<size_t>(sequence)];
  invariant(length >= 0 && length <= have, "only tokens that are there can be kept");
  have = length;
}

void Session::extend(int64_t sequence, std::span<const int32_t> tokens, Wanted wanted,
                     FunctionRef<void(int64_t, const Tensor&)> visit) {
  int64_t& length = lengths_[static_cast<size_t>(sequence)];
  invariant(length + static_cast<int64_t>(tokens.size()) <= options_.max_tokens,
            "the session was opened for fewer tokens");
  for (size_t first = 0; first < tokens.size();) {
    const size_t count = std::min(tokens.size() - first, static_cast<size_t>(options_.chunk));
    const bool is_last = first + count == tokens.size();
    const SequenceTokens part{
        .tokens = tokens.subspan(first, count),
        .first_position = length,
        .blocks = blocks(sequence),
        .logits = wanted == Wanted::last && !is_last ? Wanted::nothing : wanted};
    const Tensor logits = run({&part, 1});
    if (logits)
      visit(wanted == Wanted::last ? length + static_cast<int64_t>(count) - 1 : length, logits);
    length += static_cast<int64_t>(count);
    first += count;
  }
}

void Session::extend(int64_t sequence, std::span<const int32_t> tokens) {
  extend(sequence, tokens, Wanted::nothing, [](int64_t, const Tensor&) {});
}

Tensor Session::decode(std::span<const int32_t> tokens) {
  invariant(tokens.size() == lengths_.size(), "decode takes one token for each sequence");
  std::vector<SequenceTokens> parts;
  for (size_t i = 0; i < tokens.size(); ++i) {
    invariant(lengths_[i] < options_.max_tokens, "the session was opened for fewer tokens");
    parts.push_back({.tokens = tokens.subspan(i, 1),
                     .first_position = lengths_[i],
                     .blocks = blocks(static_cast<int64_t>(i)),
                     .logits = Wanted::last});
    ++lengths_[i];
  }
  return run(parts);
}

}  // namespace octet::engine
