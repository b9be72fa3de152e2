#include "engine/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/capacity.h"

namespace octet::engine {
namespace {

// The tensors of a SampleResult, one behind the other in a buffer.
ops::SampleResult lay_out(const Buffer& buffer, int64_t rows, int64_t top) {
  size_t offset = 0;
  const auto take = [&](DType type, Shape shape) {
    Tensor tensor = buffer.tensor(type, shape, offset);
    offset += static_cast<size_t>(shape.count()) * size_of(type);
    return tensor;
  };
  ops::SampleResult result;
  result.tokens = take(DType::i32, {rows});
  result.logprobs = take(DType::f32, {rows});
  result.ranks = take(DType::i32, {rows});
  if (top > 0) {
    result.top_tokens = take(DType::i32, {rows, top});
    result.top_logprobs = take(DType::f32, {rows, top});
  }
  return result;
}

size_t sample_bytes(int64_t rows, int64_t top) {
  return static_cast<size_t>(rows * (3 + 2 * top)) * sizeof(int32_t);
}

ops::SampleResult first_rows(const ops::SampleResult& all, int64_t rows, int64_t top) {
  ops::SampleResult part;
  part.tokens = all.tokens.slice(0, rows);
  part.logprobs = all.logprobs.slice(0, rows);
  part.ranks = all.ranks.slice(0, rows);
  if (top == 0) return part;
  // A step that wants fewer than the most packs its own k columns.
  part.top_tokens = Tensor(all.top_tokens.data, DType::i32, {rows, top}, all.top_tokens.device);
  part.top_logprobs = Tensor(all.top_logprobs.data, DType::f32, {rows, top}, all.top_tokens.device);
  return part;
}

void copy_result(ops::Backend& backend, const ops::SampleResult& from,
                 const ops::SampleResult& to) {
  backend.copy(from.tokens, to.tokens);
  backend.copy(from.logprobs, to.logprobs);
  backend.copy(from.ranks, to.ranks);
  if (!from.top_tokens) return;
  backend.copy(from.top_tokens, to.top_tokens);
  backend.copy(from.top_logprobs, to.top_logprobs);
}

}  // namespace

Runner::Runner(const model::Model& model, ops::Backend& backend, const model::KvStore& kv,
               const StepLimits& limits, int32_t max_logprobs, int depth)
    : model_(model),
      backend_(backend),
      kv_(kv),
      arena_bytes_(engine::arena_bytes(model, kv.layout(), limits)),
      arena_(backend.alloc(arena_bytes_, "activations")) {
  for (int i = 0; i < depth; ++i) {
    slots_.push_back(std::make_unique<InFlight>(make_slot(limits, max_logprobs)));
  }
}

Runner::InFlight Runner::make_slot(const StepLimits& limits, int32_t max_logprobs) {
  InFlight slot{.batch = BatchMemory(backend_, limits)};
  const size_t bytes = sample_bytes(limits.logits_rows, max_logprobs);
  slot.buffer = backend_.alloc(bytes, "sampling results");
  slot.device = lay_out(slot.buffer, limits.logits_rows, max_logprobs);
  slot.host = slot.device;
  if (backend_.info().device.kind != DeviceKind::cpu) {
    slot.host_buffer = host_buffer(bytes);
    slot.host = lay_out(slot.host_buffer, limits.logits_rows, max_logprobs);
  }
  return slot;
}

Runner::InFlight& Runner::slot_of(sched::StepId step) {
  const auto found = std::ranges::find(in_flight_, step, &InFlight::step);
  invariant(found != in_flight_.end(), "a slice waits for a token of a step that is not in flight");
  return **found;
}

void Runner::launch(const sched::StepPlan& plan, SamplingOf sampling) {
  invariant(in_flight_.size() < slots_.size(),
            "more steps in flight than the runner has memory for");
  InFlight& slot = *slots_[next_slot_];
  next_slot_ = (next_slot_ + 1) % slots_.size();
  slot.step = plan.step;
  slot.sample_row.clear();
  slot.logprobs.clear();

  std::vector<SequenceTokens> parts;
  std::vector<ops::SampleRow> rows;
  int32_t top = 0;
  for (const sched::Slice& slice : plan.slices) {
    SequenceTokens part{.tokens = slice.tokens,
                        .first_position = slice.first,
                        .blocks = slice.blocks,
                        .logits = slice.sample ? Wanted::last : Wanted::nothing};
    if (slice.from) {
      const InFlight& source = slot_of(slice.from->step);
      const int32_t row = source.sample_row[static_cast<size_t>(slice.from->slice)];
      part.device_token = source.device.tokens.slice(row, 1);
    }
    parts.push_back(part);
    if (!slice.sample) {
      slot.sample_row.push_back(-1);
      slot.logprobs.push_back(-1);
      continue;
    }
    const Sampling& how = sampling(slice.seq);
    slot.sample_row.push_back(static_cast<int32_t>(rows.size()));
    slot.logprobs.push_back(how.logprobs);
    top = std::max(top, how.logprobs);
    rows.push_back({.temperature = how.temperature,
                    .top_k = how.top_k,
                    .top_p = how.top_p,
                    .min_p = how.min_p,
                    .seed = how.seed,
                    .position = slice.first + slice.count});
  }

  const Arena::Scope scratch(arena_);
  const ops::Batch& batch = slot.batch.build(backend_, parts);
  const auto count = static_cast<int64_t>(rows.size());
  const Tensor how(rows.data(), DType::u8, {count, sizeof(ops::SampleRow)});
  backend_.run_step(plan.step, [&] {
    const Tensor logits = model_.forward({backend_, arena_, kv_, batch});
    if (logits) backend_.sample(logits, how, first_rows(slot.device, count, top));
  });
  if (count > 0 && slot.host_buffer.data()) {
    copy_result(backend_, first_rows(slot.device, count, top), first_rows(slot.host, count, top));
  }
  in_flight_.push_back(&slot);
}

StepOutput Runner::wait() {
  invariant(!in_flight_.empty(), "there is no step in flight");
  backend_.sync();
  InFlight& slot = *in_flight_.front();
  in_flight_.pop_front();

  StepOutput output;
  output.result.step = slot.step;
  int64_t top = 0;
  for (const int32_t wanted : slot.logprobs) top = std::max<int64_t>(top, wanted);
  for (size_t i = 0; i < slot.sample_row.size(); ++i) {
    output.result.tokens.emplace_back();
    output.sampled.emplace_back();
    const int32_t row = slot.sample_row[i];
    if (row < 0) continue;
    SampledToken token{.token = slot.host.tokens.as<int32_t>()[row],
                       .logprob = slot.host.logprobs.as<float>()[row],
                       .rank = slot.host.ranks.as<int32_t>()[row]};
    if (!std::isfinite(token.logprob)) {
      throw Fault(
          fmt::format("the model gives NaN or infinite logits in step {}, slice {} (token {} has "
                      "log-probability {}): octet inspect MODEL finds where a weight is broken",
                      slot.step, i, token.token, token.logprob));
    }
    for (int64_t k = 0; k < slot.logprobs[i]; ++k) {
      const auto at = static_cast<size_t>(row * top + k);
      token.top.push_back(
          {slot.host.top_tokens.as<int32_t>()[at], slot.host.top_logprobs.as<float>()[at]});
    }
    output.result.tokens.back().push_back(token.token);
    output.sampled.back() = std::move(token);
  }
  return output;
}

}  // namespace octet::engine
