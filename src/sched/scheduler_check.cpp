// Looking in: nothing here changes a scheduler.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "sched/scheduler.h"

namespace octet::sched {

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
    if (seq.scored > 0 && (!seq.score || seq.scored >= seq.prompt_len))
      broken = "scores what is no prompt";
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
  const auto precedes = [](const Sequence* a, const Sequence* b) { return before(*a, *b); };
  const bool overtaken = config_.policy != Policy::priority && !running_.empty() &&
                         !waiting_.empty() && precedes(waiting_.front(), running_.back());
  if (overtaken || !std::is_sorted(running_.begin(), running_.end(), precedes) ||
      !std::is_sorted(waiting_.begin(), waiting_.end(), precedes)) {
    throw Fault("a younger sequence runs before an older one");
  }
}

}  // namespace octet::sched
