// Decides what each step computes. A deterministic state machine: no clock, thread, device, log or
// randomness. The same calls give the same plans, always.
//
//   Scheduler s(config);
//   s.submit(request);                               // Admission: ok, or refused with numbers
//   while (s.has_work()) {
//     while (s.can_plan()) {                         // up to launch_depth steps in flight
//       StepPlan plan = s.plan();
//       if (plan.empty()) break;                     // the rest waits for steps in flight
//       in_flight.push({plan, runner.launch(plan)});
//     }
//     auto [plan, ticket] = in_flight.pop_front();
//     for (Emission& e : s.apply(plan, runner.wait(ticket))) deliver(e);
//   }
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "sched/admission.h"
#include "sched/block_pool.h"
#include "sched/config.h"
#include "sched/event_log.h"
#include "sched/prefix_tree.h"
#include "sched/sequence.h"
#include "sched/step_plan.h"

namespace octet::sched {

// Gauges are of now, counters since construction. Blocks in blocks, the rest as named.
struct Stats {
  int32_t waiting = 0;  // requests, preempted ones included
  int32_t running = 0;
  int32_t retiring = 0;  // finished, with a step still in flight
  int32_t steps_in_flight = 0;
  int32_t blocks_total = 0, blocks_free = 0, blocks_cached = 0, blocks_held = 0;

  int64_t steps = 0;
  int64_t submitted = 0, refused = 0;
  int64_t finished_stop = 0, finished_length = 0, finished_cancelled = 0;
  int64_t finished_timeout = 0, finished_error = 0;
  int64_t preemptions = 0;
  int64_t prompt_tokens = 0;        // of admitted requests
  int64_t output_tokens = 0;        // applied, including what a later finish_at() cuts off
  int64_t computed_tokens = 0;      // planned, recomputation included
  int64_t prefix_query_tokens = 0;  // tokens looked up in the tree when a sequence (re)starts
  int64_t prefix_hit_tokens = 0;    // of these, taken from it
};

class Scheduler {
 public:
  // Throws octet::Error if the config makes no sense.
  explicit Scheduler(const Config& config);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Records every call; null = stop. To be set before the first request. The log must outlive its
  // use.
  void set_log(EventLog* log);

  // Queues the request, or refuses what can never fit. An id that is still in use is a Fault.
  Admission submit(Request request);

  // Ends a request in any phase; its blocks stay until no step in flight uses them. Returns the
  // last emission, or nothing if the id is unknown or has finished already.
  std::optional<Emission> cancel(SeqId id);

  // Ends a request after its first output_len output tokens (a stop string found in its text, or an
  // error). What was sampled beyond enters neither usage nor the prefix tree. Returns as cancel().
  // output_len beyond what was emitted is a Fault.
  std::optional<Emission> finish_at(SeqId id, int32_t output_len, Finish reason);

  // True if fewer than launch_depth steps are in flight.
  bool can_plan() const { return steps_in_flight() < config_.launch_depth; }

  // The next step: one-token slices and chunks within the budget, in the order of the policy.
  StepPlan plan();

  // Takes the result of the oldest step in flight. Emissions come in the order of the slices.
  std::vector<Emission> apply(const StepPlan& plan, const StepResult& result);

  // True while a request is unfinished or a step is in flight.
  bool has_work() const { return !sequences_.empty(); }
  int32_t steps_in_flight() const { return static_cast<int32_t>(next_step_ - next_apply_); }

  Stats stats() const;
  const Config& config() const { return config_; }

  // The sequence, or null if unknown. Valid until the next non-const call. For tests and debugging.
  const Sequence* find(SeqId id) const;

  // The blocks that nobody uses: for tests that write rubbish there.
  std::span<const BlockId> free_blocks() const { return pool_.free_list(); }

  // Throws octet::Fault unless every block is accounted for: free + cached + held == total, each
  // block's references are those of the sequences, and the token counts are in order. O(total).
  void check() const;

 private:
  using Line = std::deque<Sequence*>;  // in the order of before()
  struct Draft {
    Sequence* seq;
    int32_t count;
    int32_t scored;
    bool decode;  // the only token open
  };
  struct Range {
    int32_t first, count;
  };

  static void enlist(Line& line, Sequence& seq);
  static void delist(Line& line, const Sequence& seq);

  int32_t gap(const Sequence& seq) const;
  int32_t blocks_for(int32_t tokens) const;
  int32_t chunk(const Sequence& seq) const;
  Range scored_in(const Sequence& seq, int32_t first, int32_t count) const;

  void promote();
  bool draft_decodes();
  void draft_prompts();
  void draft(Sequence& seq);
  bool running_full() const;
  bool fits(int32_t num_blocks) const;
  bool make_room(const Sequence& seq, int32_t num_blocks);
  bool ensure_blocks(Sequence& seq, int32_t num_blocks);
  bool take_blocks(Sequence& seq, int32_t num_blocks);
  bool try_start(Sequence& seq);
  void preempt(Sequence& seq);
  Slice make_slice(Sequence& seq, int32_t count, const StepPlan& plan);

  void take_tokens(Sequence& seq, const Slice& slice, const std::vector<TokenId>& sampled,
                   Emission& out);
  void cache_blocks(Sequence& seq, int32_t tokens);
  Emission finish(Sequence& seq, Finish reason);
  void retire(Sequence& seq, Finish reason);
  void drain(Sequence& seq);
  Sequence* live(SeqId id);

  Config config_;
  BlockPool pool_;
  PrefixTree tree_;
  std::unordered_map<SeqId, std::unique_ptr<Sequence>> sequences_;  // all that are not forgotten
  Line waiting_;
  Line running_;                       // each before every waiting one, unless by priority
  std::vector<Draft> draft_;           // the plan being made
  int32_t budget_ = 0;                 // tokens it may still take
  int32_t score_budget_ = 0;           // logits of prompt tokens that it may still want
  const Sequence* blocked_ = nullptr;  // lacks blocks in this plan: who comes later takes none
  int32_t paused_steps_ = 0;           // prefill_first: steps in a row without all decodes
  int32_t draining_ = 0;               // not running, but a step in flight still uses their blocks
  uint64_t next_arrival_ = 0;
  StepId next_step_ = 1;   // the next to plan
  StepId next_apply_ = 1;  // the next to apply
  Stats counters_;
  EventLog* log_ = nullptr;
};

}  // namespace octet::sched
