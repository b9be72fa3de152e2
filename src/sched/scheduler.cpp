#include "sched/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>
#include <span>
#include <utility>

#include "base/error.h"

namespace octet::sched {
namespace {

Config validated(const Config& config) {
  validate(config);
  return config;
}

void count_usage(const Sequence& seq, Emission& out) {
  out.seq = seq.id;
  out.prompt_tokens = seq.prompt_len;
  out.output_tokens = seq.output_len();
  out.cached_tokens = seq.cached;
}

}  // namespace

bool before(const Sequence& a, const Sequence& b) {
  if (a.aged != b.aged) return a.aged;
  if (!a.aged && a.priority != b.priority) return a.priority < b.priority;
  return a.arrival < b.arrival;
}

void Scheduler::enlist(Line& line, Sequence& seq) {
  const auto precedes = [](const Sequence* a, const Sequence* b) { return before(*a, *b); };
  line.insert(std::upper_bound(line.begin(), line.end(), &seq, precedes), &seq);
}

void Scheduler::delist(Line& line, const Sequence& seq) {
  const auto found = std::find(line.begin(), line.end(), &seq);
  if (found == line.end()) throw Fault(fmt::format("sequence {} is not listed", seq.id));
  line.erase(found);
}

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
  seq->score = request.score;
  seq->submitted = next_step_;
  if (config_.policy == Policy::priority) seq->priority = request.priority;
  ++counters_.submitted;
  counters_.prompt_tokens += seq->prompt_len;
  enlist(waiting_, *seq);
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
    out.scored = static_cast<int32_t>(slice.scored.size());
    if (out.scored > 0) seq.scored = slice.score_first + out.scored;
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
    if (out.tokens.empty() && out.scored == 0 && !out.finish) continue;
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
    delist(running_, seq);
    if (seq.in_flight > 0) ++draining_;
  } else {
    delist(waiting_, seq);
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

}  // namespace octet::sched
