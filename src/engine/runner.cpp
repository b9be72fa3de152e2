#include "engine/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/capacity.h"
#include "engine/not_finite.h"
#include "tensor/populate.h"

namespace octet::engine {
namespace {

// The results of `rows` samples with `top` log-probabilities each, one behind the other. The tokens
// come first, wherever the rest lies: the step after finds them there.
ops::SampleResult lay_out(const Buffer& buffer, int64_t rows, int64_t top) {
  size_t offset = 0;
  const auto take = [&](DType type, Shape shape) {
    Tensor tensor = buffer.tensor(type, shape, offset);
    offset += static_cast<size_t>(tensor.bytes());
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

size_t result_bytes(int64_t rows, int64_t top) {
  return static_cast<size_t>(rows * (3 + 2 * top)) * sizeof(int32_t);
}

ops::SampleRow sample_row(const Sampling& how, const sched::Slice& slice) {
  return {.temperature = how.temperature,
          .top_k = how.top_k,
          .top_p = how.top_p,
          .min_p = how.min_p,
          .seed = how.seed,
          .position = slice.first + slice.count};
}

}  // namespace

size_t step_bytes(const StepLimits& limits, int32_t max_logprobs, int64_t vocab) {
  return BatchMemory::device_bytes(limits) + EditMemory::device_bytes(limits, vocab) +
         result_bytes(limits.logits_rows, max_logprobs);
}

Runner::Runner(const model::Model& model, ops::Backend& backend, const model::KvStore& kv,
               const StepLimits& limits, int32_t max_logprobs, int depth)
    : model_(model),
      backend_(backend),
      kv_(kv),
      limits_(limits),
      max_logprobs_(max_logprobs),
      arena_([&] {
        Buffer memory = backend.alloc(arena_bytes(model, kv.layout(), limits), "activations");
        host_arena_ = host_bytes(memory.tensor(DType::u8, {static_cast<int64_t>(memory.bytes())}));
        return Arena(std::move(memory));
      }()),
      batch_(backend, limits, depth),
      edits_(backend, limits, model.config().vocab, depth),
      results_(backend.alloc(result_bytes(limits.logits_rows, max_logprobs), "sampling results")),
      slots_(static_cast<size_t>(depth)) {
  for (InFlight& slot : slots_) {
    slot.host = backend.alloc_host(results_.bytes(), "sampling results");
  }
}

// Where in results_ a slice finds its token. Only the newest step's samples are still there.
int32_t Runner::row_of(const sched::DeviceToken& token) const {
  invariant(!in_flight_.empty() && in_flight_.back()->step == token.step,
            "a slice waits for a token of a step that is not the one before");
  return in_flight_.back()->rows_of[static_cast<size_t>(token.slice)].sample;
}

std::optional<StepBucket> Runner::bucket(const sched::StepPlan& plan, int32_t top) const {
  if (!backend_.info().graphs) return std::nullopt;
  int64_t context = 0;
  for (const sched::Slice& slice : plan.slices) {
    if (slice.count != 1 || !slice.sample) return std::nullopt;
    context = std::max<int64_t>(context, slice.first + 1);
  }
  return bucket_of(static_cast<int64_t>(plan.slices.size()), context, top, limits_, max_logprobs_);
}

void Runner::launch(const sched::StepPlan& plan, DrawOf draw_of) {
  invariant(in_flight_.size() < slots_.size(),
            "more steps in flight than the runner has memory for");
  InFlight& slot = slots_[next_slot_];
  slot.step = plan.step;
  slot.rows_of.clear();

  std::vector<SequenceTokens> parts;
  std::vector<ops::SampleRow> samples;
  std::vector<RowRules> rules;  // by row; empty while no row has any
  int32_t top = 0;
  for (const sched::Slice& slice : plan.slices) {
    SequenceTokens part{.tokens = slice.tokens,
                        .first_position = slice.first,
                        .blocks = slice.blocks,
                        .logits = slice.sample ? Wanted::last : Wanted::nothing};
    if (slice.from) part.token_row = row_of(*slice.from);
    InFlight::Rows rows;
    if (slice.sample || !slice.scored.empty()) {
      const Draw draw = draw_of(slice.seq);
      if (!slice.scored.empty()) {
        part.scored_first = slice.score_first - slice.first;
        part.scored_rows = static_cast<int64_t>(slice.scored.size());
        rows.scored = static_cast<int32_t>(samples.size());
        rows.count = static_cast<int32_t>(slice.scored.size());
        rows.prompt_logprobs = draw.prompt_logprobs;
        for (const int32_t token : slice.scored) samples.push_back({.forced = token});
      }
      if (slice.sample) {
        rows.sample = static_cast<int32_t>(samples.size());
        rows.logprobs = draw.sampling.logprobs;
        samples.push_back(sample_row(draw.sampling, slice));
        if (draw.rules) {
          rules.resize(samples.size());
          rules.back() = {draw.rules, slice.first + slice.count - slice.prompt_len};
        }
      }
    }
    top = std::max({top, rows.logprobs, rows.prompt_logprobs});
    parts.push_back(part);
    slot.rows_of.push_back(rows);
  }
  if (!rules.empty()) rules.resize(samples.size());

  // What is edited differs from step to step: such a step is not replayed.
  enqueue(slot, parts, samples, rules, rules.empty() ? bucket(plan, top) : std::nullopt, top);
}

void Runner::enqueue(InFlight& slot, std::span<const SequenceTokens> parts,
                     std::span<const ops::SampleRow> samples, std::span<const RowRules> rules,
                     const std::optional<StepBucket>& bucket, int32_t top) {
  const StepInputs& inputs = bucket
                                 ? batch_.build(parts, samples, {bucket->rows, bucket->max_context})
                                 : batch_.build(parts, samples);
  slot.top = bucket ? bucket->top : top;
  slot.rows = inputs.sample_rows ? inputs.sample_rows.rows() : 0;

  const Arena::Scope scratch(arena_);
  backend_.run_step(bucket ? bucket->key() : 0, [&] {
    if (inputs.token_rows) {
      const Tensor sampled = results_.tensor(DType::i32, {limits_.logits_rows});
      backend_.take_tokens(sampled, inputs.token_rows, inputs.batch.tokens);
    }
    const Tensor logits = model_.forward({backend_, arena_, kv_, inputs.batch});
    if (logits) sample(logits, inputs.sample_rows, rules, lay_out(results_, slot.rows, slot.top));
  });
  if (slot.rows > 0) {
    const Shape bytes{static_cast<int64_t>(result_bytes(slot.rows, slot.top))};
    backend_.copy(results_.tensor(DType::u8, bytes), slot.host.tensor(DType::u8, bytes));
  }
  slot.point = backend_.record();
  next_slot_ = (next_slot_ + 1) % slots_.size();
  in_flight_.push_back(&slot);
}

void Runner::sample(const Tensor& logits, const Tensor& rows, std::span<const RowRules> rules,
                    const ops::SampleResult& results) {
  if (rules.empty()) return backend_.sample(logits, rows, {}, results);
  for (size_t first = 0; first < rules.size();) {
    // The host's copy of the part before is overwritten.
    if (first > 0) backend_.sync();
    const EditMemory::Part part = edits_.build(rules.subspan(first));
    const auto of_part = [&](const Tensor& all) {
      return all ? all.slice(static_cast<int64_t>(first), part.rows) : Tensor();
    };
    backend_.sample(of_part(logits), of_part(rows), part.edits,
                    {of_part(results.tokens), of_part(results.logprobs), of_part(results.ranks),
                     of_part(results.top_tokens), of_part(results.top_logprobs)});
    first += static_cast<size_t>(part.rows);
  }
}

void Runner::prepare() {
  if (!backend_.info().graphs) return;
  // One sequence of one token; the other rows are padding. It writes to a block that is nobody's.
  const std::vector<int32_t> token{0}, block{0};
  const SequenceTokens part{.tokens = token, .blocks = block, .logits = Wanted::last};
  const ops::SampleRow greedy{};
  for (const StepBucket& bucket : usual_buckets(limits_, max_logprobs_)) {
    for (int time = 0; time < 2; ++time) {
      enqueue(slots_[next_slot_], {&part, 1}, {&greedy, 1}, {}, bucket, 0);
      backend_.wait(in_flight_.front()->point);
      in_flight_.pop_front();
    }
  }
}

StepOutput Runner::wait() {
  invariant(!in_flight_.empty(), "there is no step in flight");
  const InFlight& slot = *in_flight_.front();
  backend_.wait(slot.point);
  in_flight_.pop_front();

  StepOutput output;
  output.result.step = slot.step;
  const ops::SampleResult results = lay_out(slot.host, slot.rows, slot.top);
  const auto token_of = [&](int32_t row, int32_t top) {
    SampledToken token{.token = results.tokens.as<int32_t>()[row],
                       .logprob = results.logprobs.as<float>()[row],
                       .rank = results.ranks.as<int32_t>()[row]};
    if (std::isnan(token.logprob) && !output.slices.back().broken) {
      output.slices.back().broken = not_finite(
          "the model computes NaN or infinite logits",
          fmt::format("step {}, slice {}, op sample", slot.step, output.slices.size() - 1),
          fmt::format("token {} with log-probability {}", token.token, token.logprob));
    }
    for (int64_t k = 0; k < top; ++k) {
      const auto at = static_cast<size_t>(row * slot.top + k);
      token.top.push_back(
          {results.top_tokens.as<int32_t>()[at], results.top_logprobs.as<float>()[at]});
    }
    return token;
  };
  for (const InFlight::Rows& rows : slot.rows_of) {
    output.result.tokens.emplace_back();
    SliceOutput& slice = output.slices.emplace_back();
    for (int32_t i = 0; i < rows.count; ++i) {
      slice.scored.push_back(token_of(rows.scored + i, rows.prompt_logprobs));
    }
    if (slice.broken) slice.scored.clear();
    if (rows.sample < 0 || slice.broken) continue;
    SampledToken token = token_of(rows.sample, rows.logprobs);
    if (slice.broken) continue;
    if (token.token < 0) {
      slice.no_token = true;
      continue;
    }
    output.result.tokens.back().push_back(token.token);
    slice.sampled = std::move(token);
  }
  return output;
}

}  // namespace octet::engine
