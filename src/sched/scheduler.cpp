#include "sched/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>
#include <span>
#include <utility>

#include "base/error.h"

namespace octet::sched {
namespace {

// The one policy of order: first come, first served. The youngest is preempted first.
bool before(const Sequence* a, const Sequence* b) {
  return a->arrival < b->arrival;
}

Config validated(const Config& config) {
  validate(config);
  return config;
}

template <typename List>
void remove(List& list, const Sequence* seq) {
  const auto found = std::find(list.begin(), list.end(), seq);
  if (found == list.end()) throw Fault(fmt::format("sequence {} is not listed", seq->id));
  list.erase(found);
}

void count_usage(const Sequence& seq, Emission& out) {
  out.seq = seq.id;
  out.prompt_tokens = seq.prompt_len;
  out.output_tokens = seq.output_len();
  out.cached_tokens = seq.cached;
}

}  // namespace

Scheduler::Scheduler(const Config& config)
    : config_(validated(config)), pool_(config.num_blocks), tree_(pool_, config.block_tokens) {}

void Scheduler::set_log(EventLog* log) {
  if (log && (next_arrival_ > 0 || counters_.refused > 0)) {
    throw Fault("an event log must start with the scheduler, or it cannot be replayed");
  }
  log_ = log;
  if (log_) log_->config(config_);
}

// ---- requests in and out ------------------------------------------------------------------------

Admission Scheduler::submit(Request request) {
  if (log_) log_->submit(request);
  if (sequences_.contains(request.id)) {
    throw Fault(fmt::format("submit: sequence {} still exists", request.id));
  }
  const Admission admission = admit(config_, request);
  if (log_) log_->admission(admission);
  if (!admission.ok()) {
    ++counters_.refused;
    return admission;
  }
  auto seq = std::make_unique<Sequence>();
  seq->id = request.id;
  seq->arrival = next_arrival_++;
  seq->tokens = std::move(request.prompt);
  seq->prompt_len = seq->known();
  seq->max_tokens = static_cast<int32_t>(admission.max_tokens);
  seq->min_tokens = request.min_tokens;
  seq->stop_ids = std::move(request.stop_ids);
  if (!request.ignore_eos) {
    seq->stop_ids.insert(seq->stop_ids.end(), request.eos_ids.begin(), request.eos_ids.end());
  }
  seq->lockstep = request.lockstep;
  seq->salt = std::move(request.salt);
  ++counters_.submitted;
  counters_.prompt_tokens += seq->prompt_len;
  waiting_.push_back(seq.get());
  sequences_.emplace(seq->id, std::move(seq));
  return admission;
}

std::optional<Emission> Scheduler::cancel(SeqId id) {
  if (log_) log_->cancel(id);
  Sequence* seq = live(id);
  if (!seq) return std::nullopt;
  return finish(*seq, Finish::cancelled);
}

std::optional<Emission> Scheduler::finish_at(SeqId id, int32_t output_len, Finish reason) {
  if (log_) log_->finish_at(id, output_len, reason);
  Sequence* seq = live(id);
  if (!seq) return std::nullopt;
  if (output_len < 0 || output_len > seq->output_len()) {
    throw Fault(fmt::format("finish_at: sequence {} has {} output tokens, not {}", id,
                            seq->output_len(), output_len));
  }
  const int32_t length = seq->prompt_len + output_len;
  seq->tokens.resize(static_cast<size_t>(length));
  return finish(*seq, reason);
}

// ---- planning -----------------------------------------------------------------------------------

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

int32_t Scheduler::chunk(int32_t gap) const {
  const int32_t count = std::min(gap, budget_);
  return config_.max_chunk > 0 ? std::min(count, config_.max_chunk) : count;
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

// As take_blocks, and preempts the youngest sequences for it. False = not in this plan. It never
// preempts an older one, nor while blocks are about to come back from steps in flight; so the
// oldest sequence, which fits into the pool alone, gets its blocks at last, whatever else runs.
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
    return true;
  });
  remove(running_, &seq);
  waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), &seq, before), &seq);
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
// Others grow by a block now and then: one for each that runs is left, or they would soon preempt
// the newcomer.
bool Scheduler::try_start(Sequence& seq) {
  std::vector<BlockId> matched;
  if (config_.enable_prefix_caching) {
    matched = tree_.match(seq.salt, seq.tokens, (seq.known() - 1) / config_.block_tokens);
  }
  for (BlockId block : matched) pool_.share(block);  // or they might be evicted for the rest
  const auto headroom = static_cast<int32_t>(running_.size());
  const int32_t need = blocks_for(seq.known()) - static_cast<int32_t>(matched.size());
  if (need + headroom > pool_.free() + pool_.cached()) {
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
  waiting_.pop_front();
  running_.push_back(&seq);
  return true;
}

StepPlan Scheduler::plan() {
  if (log_) log_->plan();
  if (!can_plan()) throw Fault(fmt::format("plan: {} steps are in flight", steps_in_flight()));
  draft_.clear();
  budget_ = config_.max_num_batched_tokens;
  const Sequence* blocked = nullptr;  // waits for blocks: the younger take none
  const auto draft = [&](Sequence& seq, int32_t count) {
    draft_.push_back({&seq, count});
    budget_ -= count;
  };
  // Preemption takes from the end of running_, never what lies before the current index.
  const auto draft_running = [&](bool chunks) {
    for (size_t i = 0; i < running_.size() && budget_ > 0; ++i) {
      Sequence& seq = *running_[i];
      const int32_t open = gap(seq);
      if (open == 0 || (open > 1) != chunks) continue;
      const int32_t count = chunk(open);
      const int32_t need = blocks_for(seq.scheduled() + count);
      if (need > static_cast<int32_t>(seq.blocks.size())) {
        if (blocked && before(blocked, &seq)) continue;
        if (!ensure_blocks(seq, need)) {
          blocked = &seq;
          continue;
        }
      }
      draft(seq, count);
    }
  };
  draft_running(/*chunks=*/false);
  draft_running(/*chunks=*/true);
  while (!waiting_.empty() && budget_ > 0 && !blocked &&
         static_cast<int32_t>(running_.size()) < config_.max_num_seqs) {
    Sequence& seq = *waiting_.front();
    if (seq.in_flight > 0 || !try_start(seq)) break;  // nobody overtakes the first in line
    draft(seq, chunk(gap(seq)));
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

// ---- results ------------------------------------------------------------------------------------

// For each slice, its tokens move from "in flight" to "computed" and its samples become known:
//
//   0           computed        scheduled
//   |-----------|-- slice --|---|
//   |-----------------------|---|
//   0             computed'     scheduled (the rest is of later steps)
//
// A retiring sequence drops them. A preempted one keeps its samples; its blocks go when the last
// slice has come back.
std::vector<Emission> Scheduler::apply(const StepPlan& plan, const StepResult& result) {
  if (plan.empty()) return {};
  if (log_) log_->apply(result);
  if (steps_in_flight() == 0 || plan.step != next_apply_ || result.step != plan.step ||
      result.tokens.size() != plan.slices.size()) {
    throw Fault(fmt::format(
        "apply: plan of step {} with {} slices, result of step {} with {}; step {} is due",
        plan.step, plan.slices.size(), result.step, result.tokens.size(), next_apply_));
  }
  ++next_apply_;

  std::vector<Emission> emissions;
  for (size_t i = 0; i < plan.slices.size(); ++i) {
    const Slice& slice = plan.slices[i];
    const auto found = sequences_.find(slice.seq);
    if (found == sequences_.end()) {
      throw Fault(fmt::format("apply: sequence {} is forgotten", slice.seq));
    }
    Sequence& seq = *found->second;
    seq.in_flight -= slice.count;
    if (slice.sample) --seq.pending;
    const bool drained = seq.in_flight == 0;
    if (seq.in_flight < 0 || seq.pending < 0) {
      throw Fault(fmt::format("apply: sequence {} has nothing in flight", seq.id));
    }
    if (seq.phase != Phase::running && drained) --draining_;
    if (seq.phase == Phase::retiring) {
      if (drained) drain(seq);
      continue;
    }
    if (slice.first != seq.computed) {
      throw Fault(fmt::format("apply: sequence {} has {} tokens computed; the slice starts at {}",
                              seq.id, seq.computed, slice.first));
    }
    seq.computed += slice.count;

    Emission out;
    out.slice = static_cast<int32_t>(i);
    take_tokens(seq, slice, result.tokens[i], out);
    count_usage(seq, out);
    cache_blocks(seq, seq.prompt_len);
    if (out.finish) {
      retire(seq, *out.finish);  // seq may be gone
    } else if (drained && seq.phase == Phase::waiting) {
      drain(seq);
    } else if (drained) {
      for (BlockId block : std::exchange(seq.surplus, {})) pool_.release(block);
    }
    if (out.tokens.empty() && !out.finish) continue;
    if (log_) log_->emitted(out);
    emissions.push_back(std::move(out));
  }
  return emissions;
}

// Appends the sampled tokens up to the first that finishes the sequence. Of a live sequence that
// goes on, at least the last known token is left to compute.
void Scheduler::take_tokens(Sequence& seq, const Slice& slice, const std::vector<TokenId>& sampled,
                            Emission& out) {
  if (!slice.sample) {
    if (sampled.empty()) return;
    throw Fault(fmt::format("sequence {}: tokens from a slice that does not sample", seq.id));
  }
  if (sampled.size() != 1 && seq.in_flight > 0) {
    throw Fault(fmt::format("sequence {}: {} tokens sampled, and a later step counts on one",
                            seq.id, sampled.size()));
  }
  for (TokenId token : sampled) {
    if (token < 0) throw Fault(fmt::format("sequence {}: sampled token {}", seq.id, token));
    seq.tokens.push_back(token);
    out.tokens.push_back(token);
    ++counters_.output_tokens;
    if (seq.output_len() >= seq.min_tokens &&
        std::find(seq.stop_ids.begin(), seq.stop_ids.end(), token) != seq.stop_ids.end()) {
      out.stop_token = token;
      out.finish = Finish::stop;
      return;
    }
    if (seq.output_len() >= seq.max_tokens) {
      out.finish = Finish::length;
      return;
    }
  }
  if (sampled.empty()) seq.computed = seq.known() - 1;
}

// Puts the whole blocks among the first `tokens` tokens into the tree, as far as they are computed.
//
//   0               tree_blocks    min(tokens, computed)
//   |---------------|------|------|---|----------
//   | a path of the | enter now   | not a whole block
//   | tree already  |             |
//
// Where another sequence was faster, its block replaces ours (the same tokens at the same positions
// have the same KV). So blocks[0 .. tree_blocks) stay a path that this sequence holds itself. A
// step in flight may still read our own copy: it is released when none is.
//
// The prompt enters as it is computed, the output only when its length is final.
void Scheduler::cache_blocks(Sequence& seq, int32_t tokens) {
  if (!config_.enable_prefix_caching) return;
  const int32_t whole = std::min(tokens, seq.computed) / config_.block_tokens;
  const auto width = static_cast<size_t>(config_.block_tokens);
  for (; seq.tree_blocks < whole; ++seq.tree_blocks) {
    const auto i = static_cast<size_t>(seq.tree_blocks);
    const BlockId own = seq.blocks[i];
    const BlockId parent = i == 0 ? kNoBlock : seq.blocks[i - 1];
    const auto edge = std::span<const TokenId>(seq.tokens).subspan(i * width, width);
    const BlockId block = tree_.insert(seq.salt, parent, edge, own);
    if (block == own) continue;
    pool_.share(block);
    seq.blocks[i] = block;
    if (seq.in_flight > 0) {
      seq.surplus.push_back(own);
    } else {
      pool_.release(own);
    }
  }
}

// ---- ends ---------------------------------------------------------------------------------------

Emission Scheduler::finish(Sequence& seq, Finish reason) {
  Emission out;
  out.finish = reason;
  count_usage(seq, out);
  retire(seq, reason);
  if (log_) log_->emitted(out);
  return out;
}

// Any live phase -> retiring, or forgotten at once (the reference is dead then) if no step in
// flight uses its blocks.
void Scheduler::retire(Sequence& seq, Finish reason) {
  switch (reason) {
    case Finish::stop:
      ++counters_.finished_stop;
      break;
    case Finish::length:
      ++counters_.finished_length;
      break;
    case Finish::cancelled:
      ++counters_.finished_cancelled;
      break;
    case Finish::timeout:
      ++counters_.finished_timeout;
      break;
    case Finish::error:
      ++counters_.finished_error;
      break;
  }
  if (reason == Finish::stop || reason == Finish::length) cache_blocks(seq, seq.known());
  if (seq.phase == Phase::running) {
    remove(running_, &seq);
    if (seq.in_flight > 0) ++draining_;
  } else {
    remove(waiting_, &seq);
  }
  seq.phase = Phase::retiring;
  if (seq.in_flight == 0) drain(seq);
}

// No step in flight uses the blocks of this preempted or retiring sequence any more: they go, and a
// retiring one is forgotten (the reference is dead then).
void Scheduler::drain(Sequence& seq) {
  if (seq.tree_blocks > 0) tree_.touch(seq.blocks[static_cast<size_t>(seq.tree_blocks) - 1]);
  // From the end, so that the blocks at the start of a context are the next to be reused.
  for (BlockId block : std::views::reverse(seq.blocks)) pool_.release(block);
  for (BlockId block : seq.surplus) pool_.release(block);
  seq.blocks.clear();
  seq.surplus.clear();
  seq.tree_blocks = 0;
  seq.computed = 0;
  if (seq.phase == Phase::retiring) sequences_.erase(SeqId{seq.id});
}

Sequence* Scheduler::live(SeqId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second->phase == Phase::retiring) return nullptr;
  return found->second.get();
}

// ---- looking in ---------------------------------------------------------------------------------

const Sequence* Scheduler::find(SeqId id) const {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? nullptr : found->second.get();
}

Stats Scheduler::stats() const {
  Stats out = counters_;
  out.waiting = static_cast<int32_t>(waiting_.size());
  out.running = static_cast<int32_t>(running_.size());
  out.retiring = static_cast<int32_t>(sequences_.size()) - out.waiting - out.running;
  out.steps_in_flight = steps_in_flight();
  out.blocks_total = pool_.total();
  out.blocks_free = pool_.free();
  out.blocks_cached = pool_.cached();
  out.blocks_held = pool_.held();
  return out;
}

void Scheduler::check() const {
  pool_.check();
  tree_.check();
  std::vector<int32_t> refs(static_cast<size_t>(pool_.total()));
  int32_t draining = 0;
  for (const auto& [id, owned] : sequences_) {
    const Sequence& seq = *owned;
    for (BlockId block : seq.blocks) ++refs[static_cast<size_t>(block)];
    for (BlockId block : seq.surplus) ++refs[static_cast<size_t>(block)];
    if (seq.phase != Phase::running && seq.in_flight > 0) ++draining;
    const bool active = seq.phase == Phase::running || seq.in_flight > 0;
    const bool live = seq.phase != Phase::retiring;
    const auto capacity = static_cast<int64_t>(seq.blocks.size()) * config_.block_tokens;
    const char* broken = nullptr;
    if (seq.in_flight < 0 || seq.pending < 0 || seq.computed < 0) broken = "negative counts";
    if (!active && (!seq.blocks.empty() || seq.computed > 0)) broken = "holds blocks while waiting";
    if (seq.scheduled() > capacity) broken = "computes tokens without a block";
    if (live && seq.computed >= seq.known()) broken = "has nothing to compute";
    if (live && seq.output_len() >= seq.max_tokens) broken = "should have finished";
    if (live && seq.scheduled() > seq.known() + seq.pending) broken = "computes unknown tokens";
    if (seq.tree_blocks * config_.block_tokens > seq.computed)
      broken = "shares what is not computed";
    if (seq.in_flight == 0 && !seq.surplus.empty()) broken = "keeps surplus blocks";
    if (seq.phase == Phase::retiring && seq.in_flight == 0) broken = "was not forgotten";
    for (int32_t i = 0; i < seq.tree_blocks; ++i) {
      if (!pool_.in_tree(seq.blocks[static_cast<size_t>(i)]))
        broken = "shares a block not in the tree";
    }
    if (broken) throw Fault(fmt::format("sequence {} {}", id, broken));
  }
  for (BlockId block = 0; block < pool_.total(); ++block) {
    if (refs[static_cast<size_t>(block)] != pool_.refs(block)) {
      throw Fault(fmt::format("block {} has {} references, but {} users", block, pool_.refs(block),
                              refs[static_cast<size_t>(block)]));
    }
  }
  if (draining != draining_) throw Fault(fmt::format("{} draining, not {}", draining, draining_));
  if (!std::is_sorted(running_.begin(), running_.end(), before) ||
      !std::is_sorted(waiting_.begin(), waiting_.end(), before) ||
      (!running_.empty() && !waiting_.empty() && before(waiting_.front(), running_.back()))) {
    throw Fault("a younger sequence runs before an older one");
  }
}

}  // namespace octet::sched
