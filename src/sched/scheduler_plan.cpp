// What a step computes: the half of the scheduler that decides.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "sched/scheduler.h"

namespace octet::sched {

// How many tokens of a running sequence can be launched now.
//
//   0           computed      scheduled       known      known + pending
//   |-----------|-------------|---------------|----------|
//   | applied   | in flight   | on the host   | on the   |
//   |           |             |               | device   |
//                             |<-------- gap ----------->|
//
// The last output token is sampled but never computed, so a sequence whose pending samples bring it
// to max_tokens has no gap.
int32_t Scheduler::gap(const Sequence& seq) const {
  if (seq.pending > 0) {
    if (seq.lockstep) return 0;
    if (seq.output_len() + seq.pending >= seq.max_tokens) return 0;
  }
  return seq.known() + seq.pending - seq.scheduled();
}

int32_t Scheduler::blocks_for(int32_t tokens) const {
  return (tokens + config_.block_tokens - 1) / config_.block_tokens;
}

// How many of them this step takes, of a sequence that computes its gap in chunks. A chunk whose
// logits are wanted takes no more of them than the step may still have.
int32_t Scheduler::chunk(const Sequence& seq) const {
  int32_t count = std::min(gap(seq), budget_);
  if (config_.max_chunk > 0) count = std::min(count, config_.max_chunk);
  const int32_t wanted = std::max(seq.scheduled(), seq.scored);  // the first such position
  if (seq.score && wanted + score_budget_ < seq.prompt_len - 1) {
    count = std::min(count, wanted + score_budget_ - seq.scheduled());
  }
  return count;
}

// The positions [first, first + count) of seq whose logits score a prompt token.
Scheduler::Range Scheduler::scored_in(const Sequence& seq, int32_t first, int32_t count) const {
  if (!seq.score) return {first, 0};
  const int32_t begin = std::max(first, seq.scored);
  const int32_t end = std::min(first + count, seq.prompt_len - 1);
  return {begin, std::max(end - begin, 0)};
}

// Grows seq to num_blocks from free and cached blocks only. All or nothing.
bool Scheduler::take_blocks(Sequence& seq, int32_t num_blocks) {
  const int32_t need = num_blocks - static_cast<int32_t>(seq.blocks.size());
  if (need > pool_.free() + pool_.cached()) return false;
  for (int32_t i = 0; i < need; ++i) {
    // Every cached block can be evicted: whoever holds a node of the tree holds all above it.
    if (pool_.free() == 0 && !tree_.evict()) throw Fault("a cached block cannot be evicted");
    seq.blocks.push_back(*pool_.acquire());
  }
  return true;
}

// As take_blocks, and preempts the last sequences for it. False = not in this plan. It never
// preempts an earlier one, nor while blocks are about to come back from steps in flight; so the
// first sequence, which fits into the pool alone, gets its blocks at last, whatever else runs.
bool Scheduler::ensure_blocks(Sequence& seq, int32_t num_blocks) {
  while (!take_blocks(seq, num_blocks)) {
    if (draining_ > 0 || running_.back() == &seq) return false;
    preempt(*running_.back());
  }
  return true;
}

// Back to waiting, with all known tokens kept. Its output so far is recomputed like a prompt.
void Scheduler::preempt(Sequence& seq) {
  ++counters_.preemptions;
  std::erase_if(draft_, [&](const Draft& draft) {
    if (draft.seq != &seq) return false;
    budget_ += draft.count;
    score_budget_ += draft.scored;
    return true;
  });
  seq.drafted = 0;
  delist(running_, seq);
  enlist(waiting_, seq);
  seq.phase = Phase::waiting;
  if (seq.in_flight > 0) {
    ++draining_;  // drain() follows in apply()
  } else {
    drain(seq);
  }
}

// Starts or restarts a waiting sequence if all its known tokens fit. The whole context gets its
// blocks at once, so a long prompt cannot be preempted half-way by another one that started later.
//
//   0              matched * block_tokens                    known
//   |--------------|-----------------------------------------|
//   | cached: the  | to compute: at least the last token, so |
//   | tree's own   | that there are logits to sample from    |
//
// A prompt that is to be scored takes from the tree only what was scored before it was preempted.
//
// Others grow by a block now and then: one for each that runs is left, or they would soon preempt
// the newcomer.
bool Scheduler::try_start(Sequence& seq) {
  if (seq.in_flight > 0) return false;
  const bool preempts = !running_.empty() && before(seq, *running_.back());
  if (running_full() && !preempts) return false;
  std::vector<BlockId> matched;
  if (config_.enable_prefix_caching) {
    const bool scores = seq.score && seq.scored < seq.prompt_len - 1;
    matched = tree_.match(seq.salt, seq.tokens,
                          (scores ? seq.scored : seq.known() - 1) / config_.block_tokens);
  }
  for (BlockId block : matched) pool_.share(block);  // or they might be evicted for the rest
  const int32_t need = blocks_for(seq.known()) - static_cast<int32_t>(matched.size());
  if (!fits(need) && !(preempts && make_room(seq, need))) {
    for (BlockId block : matched) pool_.release(block);
    return false;
  }
  if (config_.enable_prefix_caching) counters_.prefix_query_tokens += seq.known();
  seq.tree_blocks = static_cast<int32_t>(matched.size());
  seq.computed = seq.tree_blocks * config_.block_tokens;
  counters_.prefix_hit_tokens += seq.computed;
  if (!seq.started) seq.cached = seq.computed;
  seq.started = true;
  if (!matched.empty()) tree_.touch(matched.back());
  seq.blocks = std::move(matched);
  if (!take_blocks(seq, blocks_for(seq.known()))) throw Fault("counted blocks are not there");
  seq.phase = Phase::running;
  delist(waiting_, seq);
  enlist(running_, seq);
  return true;
}

bool Scheduler::running_full() const {
  return static_cast<int32_t>(running_.size()) >= config_.max_num_seqs;
}

// Whether one more sequence that needs so many blocks may run.
bool Scheduler::fits(int32_t num_blocks) const {
  const auto headroom = static_cast<int32_t>(running_.size());
  return !running_full() && num_blocks + headroom <= pool_.free() + pool_.cached();
}

// Preempts from the end until num_blocks fit, but none that comes before seq, and nobody if all who
// come after it do not suffice. False = not in this plan: perhaps blocks come back from steps in
// flight.
bool Scheduler::make_room(const Sequence& seq, int32_t num_blocks) {
  std::vector<BlockId> theirs;
  int32_t staying = 0;
  for (const Sequence* other : running_) {
    if (before(*other, seq)) {
      ++staying;
    } else {
      theirs.insert(theirs.end(), other->blocks.begin(), other->blocks.end());
    }
  }
  // A block comes back if nobody else holds it.
  std::sort(theirs.begin(), theirs.end());
  int32_t back = 0;
  for (size_t i = 0, end = 0; i < theirs.size(); i = end) {
    while (end < theirs.size() && theirs[end] == theirs[i]) ++end;
    if (static_cast<int32_t>(end - i) == pool_.refs(theirs[i])) ++back;
  }
  if (staying >= config_.max_num_seqs ||
      num_blocks + staying > pool_.free() + pool_.cached() + back) {
    return false;
  }
  while (!fits(num_blocks)) {
    // Of a full house one has to go, whatever comes back.
    if (draining_ > 0 && !running_full()) return false;
    if (running_.empty() || before(*running_.back(), seq)) return false;
    preempt(*running_.back());
  }
  return true;
}

// Drafts what a running sequence can compute now, within what is left of the budgets.
void Scheduler::draft(Sequence& seq) {
  const int32_t count = chunk(seq);
  if (count <= 0 || seq.drafted == next_step_) return;
  const int32_t need = blocks_for(seq.scheduled() + count);
  if (need > static_cast<int32_t>(seq.blocks.size())) {
    if (blocked_ && before(*blocked_, seq)) return;
    if (!ensure_blocks(seq, need)) {
      blocked_ = &seq;
      return;
    }
  }
  const int32_t scored = scored_in(seq, seq.scheduled(), count).count;
  seq.drafted = next_step_;
  draft_.push_back({&seq, count, scored, gap(seq) == 1});
  budget_ -= count;
  score_budget_ -= scored;
}

// Those that run with one token open. False if the budget ended before they did.
// Preemption takes from the end of running_, never what lies before the current index.
bool Scheduler::draft_decodes() {
  for (size_t i = 0; i < running_.size(); ++i) {
    if (gap(*running_[i]) != 1) continue;
    if (budget_ == 0) return false;
    draft(*running_[i]);
  }
  return true;
}

// Those that run with more tokens open, then those that wait: nobody overtakes the first in line.
void Scheduler::draft_prompts() {
  for (size_t i = 0; i < running_.size() && budget_ > 0; ++i) {
    if (gap(*running_[i]) > 1) draft(*running_[i]);
  }
  while (!waiting_.empty() && budget_ > 0 && !blocked_) {
    Sequence& seq = *waiting_.front();
    if (!try_start(seq)) break;
    draft(seq);
  }
}

// Policy::priority: who has waited long enough comes first from now on; then, who comes before one
// that runs takes its place. Both lines stay sorted.
void Scheduler::promote() {
  bool changed = false;
  for (Line* line : {&running_, &waiting_}) {
    for (Sequence* seq : *line) {
      const auto age = static_cast<int64_t>(next_step_ - seq->submitted);
      if (seq->aged || age < config_.max_wait_steps) continue;
      seq->aged = changed = true;
    }
  }
  if (changed) {
    const auto precedes = [](const Sequence* a, const Sequence* b) { return before(*a, *b); };
    std::sort(running_.begin(), running_.end(), precedes);
    std::sort(waiting_.begin(), waiting_.end(), precedes);
  }
  while (!waiting_.empty() && !running_.empty() && before(*waiting_.front(), *running_.back())) {
    if (try_start(*waiting_.front())) continue;
    blocked_ = waiting_.front();
    return;
  }
}

StepPlan Scheduler::plan() {
  if (log_) log_->plan();
  if (!can_plan()) throw Fault(fmt::format("plan: {} steps are in flight", steps_in_flight()));
  draft_.clear();
  budget_ = config_.max_num_batched_tokens;
  score_budget_ = config_.max_scored_tokens;
  blocked_ = nullptr;
  if (config_.policy == Policy::priority) promote();
  if (config_.policy == Policy::prefill_first && paused_steps_ < config_.max_prefill_steps) {
    draft_prompts();
    paused_steps_ = draft_decodes() ? 0 : paused_steps_ + 1;
    std::stable_partition(draft_.begin(), draft_.end(), [](const Draft& d) { return d.decode; });
  } else {
    paused_steps_ = 0;
    draft_decodes();
    draft_prompts();
  }

  StepPlan plan;
  if (draft_.empty()) {
    if (steps_in_flight() == 0 && has_work()) throw Fault("plan: no sequence can make progress");
    plan.step = next_step_;
  } else {
    plan.step = next_step_++;
    ++counters_.steps;
    plan.slices.reserve(draft_.size());
    for (const Draft& d : draft_) plan.slices.push_back(make_slice(*d.seq, d.count, plan));
  }
  if (log_) log_->planned(plan);
  return plan;
}

// Moves [scheduled, scheduled + count) into flight.
Slice Scheduler::make_slice(Sequence& seq, int32_t count, const StepPlan& plan) {
  const int32_t known = seq.known();
  Slice slice;
  slice.seq = seq.id;
  slice.first = seq.scheduled();
  slice.count = count;
  slice.known = known;
  slice.prompt_len = seq.prompt_len;
  slice.sample = slice.first + count == known + seq.pending;
  if (slice.first >= known) {
    if (count != 1 || slice.first != known + seq.pending - 1) {
      throw Fault(fmt::format("sequence {}: slice at {} + {}, known {}, pending {}", seq.id,
                              slice.first, count, known, seq.pending));
    }
    slice.from = DeviceToken{seq.sample_step, seq.sample_slice};
    slice.tokens = {kNoToken};
  } else {
    const auto begin = seq.tokens.begin() + slice.first;
    slice.tokens.assign(begin, begin + count);
  }
  if (const Range scored = scored_in(seq, slice.first, count); scored.count > 0) {
    slice.score_first = scored.first;
    const auto begin = seq.tokens.begin() + scored.first + 1;
    slice.scored.assign(begin, begin + scored.count);
  }
  slice.blocks = seq.blocks;
  seq.in_flight += count;
  if (slice.sample) {
    ++seq.pending;
    seq.sample_step = plan.step;
    seq.sample_slice = static_cast<int32_t>(plan.slices.size());
  }
  counters_.computed_tokens += count;
  return slice;
}

}  // namespace octet::sched
