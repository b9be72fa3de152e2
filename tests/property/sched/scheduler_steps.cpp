// A hundred thousand steps: long histories of crowded schedulers, under every policy and launch
// depth, with everything that Driver checks after every call. Where scheduler_property.cpp looks
// for the smallest history that breaks a promise, this one looks for rare coincidences.
#include <gtest/gtest.h>

#include <iostream>

#include "base/philox.h"
#include "unit/sched/fake_device.h"

namespace octet::sched {
namespace {

constexpr int64_t kStepsOfAPolicy = 40000;

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  int32_t below(int32_t n) {
    return static_cast<int32_t>(random_.bits() % static_cast<uint32_t>(n));
  }
  bool one_in(int32_t n) { return below(n) == 0; }

 private:
  Philox random_;
};

Config draw_config(Dice& dice, Policy policy) {
  Config c;
  c.block_tokens = 1 + dice.below(5);
  c.num_blocks = 2 + (10 + dice.below(60)) / c.block_tokens;
  c.max_num_seqs = 1 + dice.below(10);
  c.max_num_batched_tokens = c.max_num_seqs + dice.below(24);
  c.max_model_len = 12 + dice.below(40);
  c.max_chunk = dice.one_in(3) ? 1 + dice.below(7) : 0;
  c.launch_depth = 1 + dice.below(3);
  c.enable_prefix_caching = !dice.one_in(4);
  c.policy = policy;
  c.max_scored_tokens = 1 + dice.below(12);
  c.max_wait_steps = 1 + dice.below(200);
  c.max_prefill_steps = 1 + dice.below(6);
  return c;
}

Request draw_request(Dice& dice, SeqId id) {
  Request r;
  r.id = id;
  for (int32_t i = dice.below(14); i > 0; --i) r.prompt.push_back(i % 5);
  for (int32_t i = dice.below(6); i > 0; --i) r.prompt.push_back(dice.below(3));
  if (!dice.one_in(4)) r.max_tokens = 1 + dice.below(20);
  r.min_tokens = dice.one_in(4) ? 2 : 0;
  r.eos_ids = {0};
  if (dice.one_in(3)) r.stop_ids = {4, 9};
  r.ignore_eos = dice.one_in(2);
  r.lockstep = dice.one_in(4);
  r.priority = dice.below(5) - 2;
  r.score = dice.one_in(5);
  if (dice.one_in(3)) r.salt = "a";
  return r;
}

// One life of a scheduler; `seen` adds up what happened.
void live(uint64_t seed, Policy policy, Stats& seen, int64_t& scored) {
  Dice dice(seed);
  Driver d(draw_config(dice, policy));
  SeqId next = 1;
  for (int event = 0; event < 400; ++event) {
    const SeqId some = 1 + static_cast<SeqId>(dice.below(static_cast<int32_t>(next)));
    const Sequence* const seq = d.scheduler.find(some);
    switch (dice.below(16)) {
      case 0:
      case 1:
      case 2:
        d.submit(draw_request(dice, next++));
        break;
      case 3:
        if (dice.one_in(4)) d.cancel(some);
        break;
      case 4:
        if (seq && seq->phase != Phase::retiring && dice.one_in(4)) {
          const Finish reason = dice.one_in(2) ? Finish::timeout : Finish::stop;
          d.finish_at(some, dice.below(seq->output_len() + 1), reason);
        }
        break;
      case 5:
      case 6:
        if (d.scheduler.can_plan()) d.plan();
        break;
      case 7:
        if (d.scheduler.steps_in_flight() > 0) d.apply();
        break;
      default:
        d.turn();
    }
  }
  d.run();
  d.check_outputs();
  const ReplayReport report = replay(d.lines);
  ASSERT_TRUE(report.same()) << report.recorded << " / " << report.replayed;
  const Stats stats = d.scheduler.stats();
  seen.steps += d.steps;
  seen.preemptions += stats.preemptions;
  seen.prefix_hit_tokens += stats.prefix_hit_tokens;
  seen.finished_timeout += stats.finished_timeout;
  for (const auto& [id, outcome] : d.outcomes) {
    scored += static_cast<int64_t>(outcome.scored.size());
  }
}

TEST(SchedulerSteps, AHundredThousandKeepThePromises) {
  int64_t total = 0;
  for (const Policy policy : {Policy::fcfs, Policy::priority, Policy::prefill_first}) {
    Stats seen;
    int64_t scored = 0;
    for (uint64_t seed = 0; seen.steps < kStepsOfAPolicy; ++seed) {
      SCOPED_TRACE(std::string(to_string(policy)) + ", seed " + std::to_string(seed));
      ASSERT_NO_THROW(live(seed, policy, seen, scored));
      if (HasFatalFailure()) return;
    }
    std::cout << to_string(policy) << ": " << seen.steps << " steps, " << seen.preemptions
              << " preemptions, " << seen.prefix_hit_tokens << " tokens from the tree, " << scored
              << " scored, " << seen.finished_timeout << " timeouts\n";
    EXPECT_GT(seen.preemptions, 1000);
    EXPECT_GT(seen.prefix_hit_tokens, 1000);
    EXPECT_GT(seen.finished_timeout, 10);
    EXPECT_GT(scored, 1000);
    total += seen.steps;
  }
  EXPECT_GE(total, 100000);
}

}  // namespace
}  // namespace octet::sched
