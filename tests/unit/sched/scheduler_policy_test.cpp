// What each policy promises, by small examples. Random histories are in tests/property/sched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "unit/sched/fake_device.h"

namespace octet::sched {
namespace {

using ::testing::ElementsAre;
using Tokens = std::vector<TokenId>;

Config config_of(Policy policy) {
  Config c;
  c.block_tokens = 4;
  c.num_blocks = 16;
  c.max_num_seqs = 4;
  c.max_num_batched_tokens = 16;
  c.max_model_len = 64;
  c.policy = policy;
  return c;
}

Request request(SeqId id, int32_t prompt, int32_t max_tokens, int32_t priority = 0) {
  Request r;
  r.id = id;
  r.prompt.assign(static_cast<size_t>(prompt), static_cast<TokenId>(id % kVocab));
  r.max_tokens = max_tokens;
  r.priority = priority;
  return r;
}

// Plans, samples token 1 wherever a slice samples, applies; the plan.
StepPlan turn(Scheduler& s) {
  StepPlan plan = s.plan();
  StepResult result{plan.step, {}};
  for (const Slice& slice : plan.slices) {
    result.tokens.push_back(slice.sample ? Tokens{1} : Tokens{});
  }
  s.apply(plan, result);
  s.check();
  return plan;
}

std::vector<SeqId> sequences(const StepPlan& plan) {
  std::vector<SeqId> ids;
  for (const Slice& slice : plan.slices) ids.push_back(slice.seq);
  return ids;
}

TEST(Policy, NamesAreReadBack) {
  for (const Policy policy : {Policy::fcfs, Policy::priority, Policy::prefill_first}) {
    EXPECT_EQ(parse_policy(to_string(policy)), policy);
  }
  EXPECT_THROW(parse_policy("random"), Error);
}

TEST(Policy, PriorityCountsOnlyUnderItsPolicy) {
  for (const Policy policy : {Policy::fcfs, Policy::priority}) {
    Config c = config_of(policy);
    c.max_num_seqs = 1;
    Scheduler s(c);
    s.submit(request(1, 2, 1, 5));
    s.submit(request(2, 2, 1, -5));
    s.submit(request(3, 2, 1, -5));
    std::vector<SeqId> order;
    while (s.has_work()) order.push_back(sequences(turn(s))[0]);
    if (policy == Policy::fcfs) {
      EXPECT_THAT(order, ElementsAre(1, 2, 3));
    }
    if (policy == Policy::priority) {
      EXPECT_THAT(order, ElementsAre(2, 3, 1));
    }
  }
}

TEST(Policy, TheLastInOrderIsPreemptedForAnEarlierOne) {
  Scheduler s(config_of(Policy::priority));
  s.submit(request(1, 8, 20, 1));
  s.submit(request(2, 8, 20, 3));
  s.submit(request(3, 8, 20, 2));
  s.submit(request(4, 8, 20, 2));
  turn(s);
  turn(s);
  ASSERT_EQ(s.stats().running, 4);
  s.submit(request(5, 8, 20, 2));
  turn(s);
  EXPECT_EQ(s.stats().preemptions, 1);
  EXPECT_EQ(s.find(2)->phase, Phase::waiting);  // priority 3
  EXPECT_EQ(s.find(5)->phase, Phase::running);
  s.submit(request(6, 8, 20, 1));
  const StepPlan plan = turn(s);
  EXPECT_EQ(s.find(5)->phase, Phase::waiting);  // of priority 2, the youngest
  EXPECT_EQ(plan.slices.back().seq, 6u);
  EXPECT_EQ(s.stats().preemptions, 2);
  // A third of priority 2 takes nobody's place.
  s.submit(request(7, 8, 20, 2));
  turn(s);
  EXPECT_EQ(s.stats().preemptions, 2);
}

// Nobody is thrown out for one who does not fit all the same.
TEST(Policy, NobodyIsPreemptedInVain) {
  Config c = config_of(Policy::priority);
  c.max_num_batched_tokens = 64;
  Scheduler s(c);
  s.submit(request(1, 38, 20, 0));  // 10 blocks of 16
  s.submit(request(2, 8, 20, 9));
  turn(s);
  ASSERT_EQ(s.stats().running, 2);
  s.submit(request(3, 40, 8, 5));  // 10 blocks: more than what 2 would give back
  turn(s);
  EXPECT_EQ(s.find(2)->phase, Phase::running);
  EXPECT_EQ(s.find(3)->phase, Phase::waiting);
  EXPECT_EQ(s.stats().preemptions, 0);
  // 1 ends: now 3 starts, and nobody who came later has overtaken it.
  s.submit(request(4, 4, 4, 6));
  s.cancel(1);
  turn(s);
  EXPECT_EQ(s.find(3)->phase, Phase::running);
}

// A stream of better requests never ends, and the old one is served all the same.
TEST(Policy, WhoWaitsLongEnoughComesFirst) {
  Config c = config_of(Policy::priority);
  c.max_num_seqs = 1;
  c.max_wait_steps = 20;
  Scheduler s(c);
  s.submit(request(1, 4, 3, 1000));
  SeqId next = 2;
  int steps = 0;
  while (s.find(1) && steps < 100) {
    s.submit(request(next++, 4, 2, -1000));
    turn(s);
    ++steps;
  }
  EXPECT_FALSE(s.find(1));
  EXPECT_GE(steps, 20);
  EXPECT_LE(steps, 25);
}

TEST(Policy, PromptsBeforeDecodesButNotForEver) {
  Config c = config_of(Policy::prefill_first);
  c.num_blocks = 64;
  c.max_model_len = 200;
  c.max_num_batched_tokens = 8;
  c.max_prefill_steps = 3;
  Scheduler s(c);
  s.submit(request(1, 4, 30));
  turn(s);
  s.submit(request(2, 60, 30));
  std::vector<std::vector<SeqId>> plans;
  for (int i = 0; i < 8; ++i) plans.push_back(sequences(turn(s)));
  // Three steps for the prompt alone, then one in which the decode comes first.
  const std::vector<SeqId> prompt{2}, both{1, 2};
  EXPECT_THAT(plans, ElementsAre(prompt, prompt, prompt, both, prompt, prompt, prompt, both));
}

TEST(Policy, ScoredPromptsShareABudgetOfLogits) {
  Config c = config_of(Policy::fcfs);
  c.max_num_batched_tokens = 64;
  c.max_scored_tokens = 5;
  Scheduler s(c);
  Request r = request(1, 8, 2);
  r.score = true;
  s.submit(r);
  r = request(2, 8, 2);
  r.score = true;
  s.submit(r);
  s.submit(request(3, 8, 2));
  std::vector<std::vector<int32_t>> scored;  // by step, of requests 1 and 2
  while (s.has_work()) {
    const StepPlan plan = turn(s);
    std::vector<int32_t> counts(2);
    for (const Slice& slice : plan.slices) {
      if (slice.seq > 2) continue;
      counts[slice.seq - 1] += static_cast<int32_t>(slice.scored.size());
      for (const TokenId token : slice.scored) {
        EXPECT_EQ(token, static_cast<TokenId>(slice.seq));
      }
    }
    if (plan.step == 1) {
      EXPECT_EQ(plan.slices.back().seq, 3u);  // which needs none of it
    }
    scored.push_back(counts);
  }
  EXPECT_THAT(scored, ElementsAre(ElementsAre(5, 0), ElementsAre(2, 3), ElementsAre(0, 4),
                                  ElementsAre(0, 0)));
}

}  // namespace
}  // namespace octet::sched
