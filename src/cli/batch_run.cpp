#include "cli/batch_run.h"

#include <algorithm>
#include <chrono>

namespace octet::cli {

BatchRun::BatchRun(const model::Model& model, ops::Backend& backend, const BatchRunOptions& options)
    : options_(options),
      blocks_per_sequence_((options.max_tokens + options.block_tokens - 1) / options.block_tokens),
      limits_{.rows = std::max(options.chunk, options.sequences),
              .sequences = options.sequences,
              .blocks_per_sequence = blocks_per_sequence_,
              .logits_rows = options.sequences,
              .block_tokens = options.block_tokens},
      kv_(backend,
          engine::kv_layout_of(model, options.kv_type, options.block_tokens, options.unit_kv_scale),
          options.sequences * blocks_per_sequence_, model.kv_scales()),
      runner_(model, backend, kv_, limits_, /*max_logprobs=*/0, backend.info().launch_depth),
      ledger_(engine::ledger_of(model, backend.info(), kv_.layout(), limits_, 0)),
      depth_(backend.info().launch_depth) {
  ledger_.kv = kv_.bytes();
  ledger_.kv_tokens = kv_.blocks() * options.block_tokens;
  reset();
}

void BatchRun::reset() {
  lengths_.assign(static_cast<size_t>(options_.sequences), 0);
  last_.assign(static_cast<size_t>(options_.sequences), 0);
  hash_ = {};
}

void BatchRun::rewind(int64_t tokens) {
  for (int64_t& length : lengths_) {
    invariant(length >= tokens, "a run is rewound, not wound on");
    length = tokens;
  }
}

sched::Slice BatchRun::slice(int64_t sequence, std::span<const int32_t> tokens, bool sample) const {
  sched::Slice slice;
  slice.seq = static_cast<sched::SeqId>(sequence);
  slice.first = static_cast<int32_t>(lengths_[static_cast<size_t>(sequence)]);
  slice.count = static_cast<int32_t>(tokens.size());
  slice.sample = sample;
  slice.tokens.assign(tokens.begin(), tokens.end());
  const int64_t used = slice.first + slice.count;
  invariant(used <= options_.max_tokens, "the run was opened for fewer tokens");
  const int64_t blocks = (used + options_.block_tokens - 1) / options_.block_tokens;
  for (int64_t b = 0; b < blocks; ++b) {
    slice.blocks.push_back(static_cast<int32_t>(sequence * blocks_per_sequence_ + b));
  }
  return slice;
}

void BatchRun::launch(sched::StepPlan plan) {
  if (static_cast<int>(in_flight_.size()) == depth_) wait();
  plan.step = next_step_++;
  runner_.launch(plan, [&](sched::SeqId) { return engine::Draw{greedy_}; });
  for (const sched::Slice& slice : plan.slices) {
    lengths_[static_cast<size_t>(slice.seq)] += slice.count;
  }
  in_flight_.push_back(std::move(plan));
}

void BatchRun::wait() {
  const engine::StepOutput output = runner_.wait();
  const sched::StepPlan plan = std::move(in_flight_.front());
  in_flight_.pop_front();
  for (size_t i = 0; i < plan.slices.size(); ++i) {
    if (output.slices[i].broken) throw Error(*output.slices[i].broken);
    if (!output.slices[i].sampled) continue;
    const engine::SampledToken& token = *output.slices[i].sampled;
    last_[static_cast<size_t>(plan.slices[i].seq)] = token.token;
    hash_.add(std::as_bytes(std::span(&token.token, 1)));
    hash_.add(std::as_bytes(std::span(&token.logprob, 1)));
  }
}

void BatchRun::prefill(int64_t first, int64_t count, std::span<const int32_t> prompt) {
  sched::StepPlan plan;
  int64_t rows = 0;
  for (int64_t sequence = first; sequence < first + count; ++sequence) {
    for (size_t done = 0; done < prompt.size();) {
      const size_t room = static_cast<size_t>(options_.chunk - rows);
      const size_t take = std::min(prompt.size() - done, room);
      plan.slices.push_back(
          slice(sequence, prompt.subspan(done, take), done + take == prompt.size()));
      done += take;
      rows += static_cast<int64_t>(take);
      if (rows < options_.chunk) continue;
      launch(std::exchange(plan, {}));
      rows = 0;
    }
  }
  if (!plan.slices.empty()) launch(std::move(plan));
  while (!in_flight_.empty()) wait();
}

void BatchRun::decode(int64_t steps, std::vector<double>& step_us) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point before = Clock::now();
  const auto finish_one = [&] {
    wait();
    const Clock::time_point now = Clock::now();
    step_us.push_back(std::chrono::duration<double, std::micro>(now - before).count());
    before = now;
  };
  for (int64_t step = 0; step < steps; ++step) {
    if (static_cast<int>(in_flight_.size()) == depth_) finish_one();
    sched::StepPlan plan;
    for (int64_t sequence = 0; sequence < options_.sequences; ++sequence) {
      plan.slices.push_back(slice(sequence, {&last_[static_cast<size_t>(sequence)], 1}, true));
      // The newest token is that of the step in flight.
      if (!in_flight_.empty()) {
        plan.slices.back().from =
            sched::DeviceToken{in_flight_.back().step, static_cast<int32_t>(sequence)};
      }
    }
    launch(std::move(plan));
  }
  while (!in_flight_.empty()) finish_one();
}

double BatchRun::kv_step_bytes() const {
  double tokens = 0;
  for (const int64_t length : lengths_) tokens += static_cast<double>(length);
  return tokens * static_cast<double>(kv_.layout().bytes_per_token());
}

}  // namespace octet::cli
