#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "unit/sched/fake_device.h"

namespace octet::sched {
namespace {

using Tokens = std::vector<TokenId>;

Config small() {
  Config c;
  c.block_tokens = 4;
  c.num_blocks = 16;
  c.max_num_seqs = 4;
  c.max_num_batched_tokens = 16;
  c.max_model_len = 64;
  return c;
}

Tokens ramp(TokenId first, int32_t count) {
  Tokens out;
  for (int32_t i = 0; i < count; ++i) out.push_back((first + i) % kVocab);
  return out;
}

Request request(SeqId id, Tokens prompt, int32_t max_tokens) {
  Request r;
  r.id = id;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  return r;
}

// A result in which slice i samples tokens[i].
StepResult result(const StepPlan& plan, std::vector<Tokens> tokens) {
  return {plan.step, tokens};
}

TEST(Scheduler, OneRequestFromPromptToLength) {
  Scheduler s(small());
  ASSERT_TRUE(s.submit(request(7, {5, 6, 7}, 2)).ok());
  StepPlan plan = s.plan();
  ASSERT_EQ(plan.slices.size(), 1u);
  EXPECT_EQ(plan.step, 1u);
  Slice want;
  want.seq = 7;
  want.first = 0;
  want.count = 3;
  want.known = 3;
  want.prompt_len = 3;
  want.sample = true;
  want.tokens = {5, 6, 7};
  want.blocks = {0};
  EXPECT_EQ(plan.slices[0], want);

  std::vector<Emission> emissions = s.apply(plan, result(plan, {{9}}));
  ASSERT_EQ(emissions.size(), 1u);
  EXPECT_EQ(emissions[0].tokens, Tokens{9});
  EXPECT_FALSE(emissions[0].finish);
  EXPECT_EQ(emissions[0].output_tokens, 1);

  plan = s.plan();
  want.first = 3;
  want.count = 1;
  want.known = 4;
  want.tokens = {9};
  EXPECT_EQ(plan.slices[0], want);
  emissions = s.apply(plan, result(plan, {{8}}));
  EXPECT_EQ(emissions[0].finish, Finish::length);
  EXPECT_EQ(emissions[0].prompt_tokens, 3);
  EXPECT_EQ(emissions[0].output_tokens, 2);
  EXPECT_FALSE(s.has_work());
  EXPECT_TRUE(s.plan().empty());
  EXPECT_EQ(s.stats().blocks_held, 0);
  EXPECT_EQ(s.stats().finished_length, 1);
}

TEST(Scheduler, DecodesFirstThenChunksWithinTheBudget) {
  Config c = small();
  c.max_num_batched_tokens = 6;
  c.enable_prefix_caching = false;
  Scheduler s(c);
  s.submit(request(1, {1, 2}, 8));
  StepPlan plan = s.plan();
  s.apply(plan, result(plan, {{3}}));
  s.submit(request(2, ramp(0, 12), 8));
  s.submit(request(3, ramp(5, 3), 8));
  plan = s.plan();  // 1 decodes, 2 gets what is left, 3 waits
  ASSERT_EQ(plan.slices.size(), 2u);
  EXPECT_EQ(plan.slices[0].seq, 1u);
  EXPECT_EQ(plan.slices[0].count, 1);
  EXPECT_EQ(plan.slices[1].seq, 2u);
  EXPECT_EQ(plan.slices[1].count, 5);
  EXPECT_FALSE(plan.slices[1].sample);
  EXPECT_EQ(plan.num_tokens(), 6);
  EXPECT_EQ(s.apply(plan, result(plan, {{4}, {}})).size(), 1u);
  plan = s.plan();
  EXPECT_EQ(plan.slices[1].first, 5);
  EXPECT_EQ(plan.slices[1].count, 5);
  s.apply(plan, result(plan, {{4}, {}}));
  plan = s.plan();  // 1 decodes, 2 ends its prompt with two tokens, 3 starts with three
  ASSERT_EQ(plan.slices.size(), 3u);
  EXPECT_TRUE(plan.slices[1].sample);
  EXPECT_EQ(plan.slices[1].count, 2);
  EXPECT_EQ(plan.slices[2].seq, 3u);
  EXPECT_EQ(plan.slices[2].count, 3);
}

TEST(Scheduler, MaxChunkLeavesRoomForOthers) {
  Config c = small();
  c.max_chunk = 4;
  Scheduler s(c);
  s.submit(request(1, ramp(0, 12), 2));
  s.submit(request(2, ramp(1, 3), 2));
  const StepPlan plan = s.plan();
  ASSERT_EQ(plan.slices.size(), 2u);
  EXPECT_EQ(plan.slices[0].count, 4);
  EXPECT_EQ(plan.slices[1].count, 3);
}

TEST(Scheduler, StopTokensEndARequestAndCountInItsUsage) {
  Scheduler s(small());
  Request r = request(1, {1}, 8);
  r.eos_ids = {2};
  r.stop_ids = {3};
  s.submit(r);
  r.id = 2;
  r.ignore_eos = true;
  s.submit(r);
  r.id = 3;
  r.ignore_eos = false;
  r.min_tokens = 2;
  s.submit(r);
  StepPlan plan = s.plan();
  std::vector<Emission> e = s.apply(plan, result(plan, {{2}, {2}, {2}}));
  ASSERT_EQ(e.size(), 3u);
  EXPECT_EQ(e[0].finish, Finish::stop);
  EXPECT_EQ(e[0].stop_token, 2);
  EXPECT_EQ(e[0].output_tokens, 1);
  EXPECT_FALSE(e[1].finish);  // ignore_eos
  EXPECT_FALSE(e[2].finish);  // min_tokens
  plan = s.plan();
  e = s.apply(plan, result(plan, {{3}, {2}}));
  EXPECT_EQ(e[0].finish, Finish::stop);  // a stop token of the caller is not an eos
  EXPECT_EQ(e[0].stop_token, 3);
  EXPECT_EQ(e[1].finish, Finish::stop);
  EXPECT_EQ(e[1].output_tokens, 2);
  EXPECT_EQ(s.stats().finished_stop, 3);
}

TEST(Scheduler, AStopTokenBeatsTheLength) {
  Scheduler s(small());
  Request r = request(1, {1}, 1);
  r.eos_ids = {2};
  s.submit(r);
  const StepPlan plan = s.plan();
  EXPECT_EQ(s.apply(plan, result(plan, {{2}}))[0].finish, Finish::stop);
}

TEST(Scheduler, RefusedRequestsLeaveNoTrace) {
  Scheduler s(small());
  EXPECT_EQ(s.submit(request(1, {}, 1)).reason, Admission::Reason::empty_prompt);
  EXPECT_EQ(s.submit(request(1, ramp(0, 64), 1)).reason, Admission::Reason::prompt_too_long);
  EXPECT_FALSE(s.has_work());
  EXPECT_EQ(s.stats().refused, 2);
  EXPECT_TRUE(s.submit(request(1, {1}, 1)).ok());
}

TEST(Scheduler, APrefixHitLeavesOneTokenToCompute) {
  Driver d(small());
  d.submit(request(1, ramp(0, 8), 1));
  d.run();
  d.submit(request(2, ramp(0, 8), 1));  // the same prompt: of two whole blocks only one is taken
  d.run();
  EXPECT_EQ(d.outcomes.at(2).cached_tokens, 4);
  EXPECT_EQ(d.plans.back().slices[0].first, 4);
  d.submit(request(3, ramp(0, 9), 1));
  d.run();
  EXPECT_EQ(d.outcomes.at(3).cached_tokens, 8);
  EXPECT_EQ(d.plans.back().slices[0].count, 1);
  Request salted = request(4, ramp(0, 9), 1);
  salted.salt = "tenant";
  d.submit(salted);
  d.run();
  EXPECT_EQ(d.outcomes.at(4).cached_tokens, 0);
  EXPECT_EQ(d.scheduler.stats().prefix_query_tokens, 8 + 8 + 9 + 9);
  EXPECT_EQ(d.scheduler.stats().prefix_hit_tokens, 4 + 8);
  d.check_outputs();
}

TEST(Scheduler, TheNextTurnOfAConversationReusesTheAnswer) {
  Driver d(small());
  d.submit(request(1, ramp(0, 6), 7));
  d.run();
  Tokens turn = ramp(0, 6);
  const Tokens answer = d.outcomes.at(1).output;
  turn.insert(turn.end(), answer.begin(), answer.end());
  turn.push_back(3);
  d.submit(request(2, turn, 2));
  d.run();
  EXPECT_EQ(d.outcomes.at(2).cached_tokens, 12);  // 6 + 7 - the last, which was never computed
  d.check_outputs();
}

TEST(Scheduler, TwoWhoComputeTheSamePromptEndUpWithOneCopy) {
  for (int32_t depth : {1, 2}) {
    Config c = small();
    c.launch_depth = depth;
    Driver d(c);
    d.submit(request(1, ramp(0, 8), 9));
    d.submit(request(2, ramp(0, 8), 9));
    d.turn();
    d.turn();
    if (depth == 1) {
      const auto& one = d.scheduler.find(1)->blocks;
      const auto& two = d.scheduler.find(2)->blocks;
      EXPECT_EQ(one[0], two[0]);
      EXPECT_EQ(one[1], two[1]);
      EXPECT_NE(one[2], two[2]);
    }
    d.run();
    d.check_outputs();
  }
}

// An abort in chunk 2 of 3 must not leave a block that was not computed in the tree.
TEST(Scheduler, AnAbortMidPromptLeavesOnlyComputedBlocks) {
  for (int32_t depth : {1, 2}) {
    Config c = small();
    c.max_chunk = 6;
    c.launch_depth = depth;
    Driver d(c);
    d.submit(request(1, ramp(0, 18), 2));
    d.turn();
    d.plan();
    d.cancel(1);
    d.run();
    EXPECT_EQ(d.outcomes.at(1).finish, Finish::cancelled);
    d.submit(request(2, ramp(0, 18), 4));
    d.run();
    EXPECT_EQ(d.outcomes.at(2).cached_tokens, 4);  // 6 tokens were applied: one whole block
    d.check_outputs();
  }
}

TEST(Scheduler, CancelInEveryPhase) {
  Config c = small();
  c.max_num_seqs = 1;
  c.launch_depth = 2;
  Scheduler s(c);
  s.submit(request(1, {1, 2}, 8));
  s.submit(request(2, {1, 2}, 8));
  const std::optional<Emission> waiting = s.cancel(2);
  ASSERT_TRUE(waiting);
  EXPECT_EQ(waiting->finish, Finish::cancelled);
  EXPECT_EQ(s.find(2), nullptr);
  EXPECT_FALSE(s.cancel(2));
  EXPECT_FALSE(s.cancel(99));

  const StepPlan one = s.plan();
  const StepPlan two = s.plan();
  ASSERT_TRUE(s.cancel(1));  // with two steps in flight
  EXPECT_FALSE(s.cancel(1));
  EXPECT_EQ(s.stats().retiring, 1);
  EXPECT_EQ(s.stats().blocks_held, 1);
  s.check();
  EXPECT_THROW(s.submit(request(1, {1}, 1)), Fault);  // the id is still in use
  EXPECT_TRUE(s.apply(one, result(one, {{5}})).empty());
  EXPECT_EQ(s.stats().blocks_held, 1);  // step two still writes there
  EXPECT_TRUE(s.apply(two, result(two, {{5}})).empty());
  EXPECT_EQ(s.stats().blocks_held, 0);
  EXPECT_FALSE(s.has_work());
  EXPECT_TRUE(s.submit(request(1, {1}, 1)).ok());
  s.check();
}

TEST(Scheduler, FinishAtCutsUsageAndTree) {
  Driver d(small());
  d.submit(request(1, ramp(0, 4), 20));
  for (int i = 0; i < 12; ++i) d.turn();
  ASSERT_EQ(d.outcomes.at(1).output.size(), 12u);
  d.finish_at(1, 5, Finish::stop);
  EXPECT_EQ(d.outcomes.at(1).output_tokens, 5);
  EXPECT_EQ(d.outcomes.at(1).finish, Finish::stop);
  // 4 + 5 tokens: two whole blocks, not the three or more that were computed.
  EXPECT_EQ(d.scheduler.stats().blocks_cached, 2);
  EXPECT_EQ(d.scheduler.stats().blocks_free, 14);
  EXPECT_FALSE(d.scheduler.finish_at(1, 0, Finish::stop));
  d.submit(request(2, ramp(0, 4), 20));
  d.turn();
  EXPECT_THROW(d.scheduler.finish_at(2, 2, Finish::stop), Fault);
  d.finish_at(2, 0, Finish::error);
  EXPECT_EQ(d.scheduler.stats().finished_error, 1);
  d.run();
}

TEST(Scheduler, DepthTwoTakesTheTokenFromTheDevice) {
  Config c = small();
  c.launch_depth = 2;
  Scheduler s(c);
  s.submit(request(1, {1, 2}, 3));
  const StepPlan one = s.plan();
  ASSERT_TRUE(s.can_plan());
  const StepPlan two = s.plan();
  EXPECT_FALSE(s.can_plan());
  EXPECT_THROW(s.plan(), Fault);
  ASSERT_EQ(two.slices.size(), 1u);
  EXPECT_EQ(two.slices[0].from, (DeviceToken{one.step, 0}));
  EXPECT_EQ(two.slices[0].tokens, Tokens{kNoToken});
  EXPECT_EQ(two.slices[0].first, 2);
  EXPECT_EQ(two.slices[0].known, 2);
  EXPECT_THROW(s.apply(two, result(two, {{5}})), Fault);  // out of order
  s.apply(one, result(one, {{5}}));
  const StepPlan three = s.plan();
  EXPECT_EQ(three.slices[0].from, (DeviceToken{two.step, 0}));
  EXPECT_EQ(three.slices[0].known, 3);
  s.apply(two, result(two, {{6}}));
  EXPECT_TRUE(s.plan().empty());  // the third and last token is in flight already
  EXPECT_EQ(s.apply(three, result(three, {{7}}))[0].finish, Finish::length);
  EXPECT_FALSE(s.has_work());
}

TEST(Scheduler, ResultsAfterAStopAreDropped) {
  Config c = small();
  c.launch_depth = 2;
  Scheduler s(c);
  Request r = request(1, {1, 2}, 9);
  r.eos_ids = {0};
  s.submit(r);
  const StepPlan one = s.plan();
  const StepPlan two = s.plan();
  const std::vector<Emission> e = s.apply(one, result(one, {{0}}));
  EXPECT_EQ(e[0].finish, Finish::stop);
  EXPECT_TRUE(s.has_work());
  EXPECT_TRUE(s.plan().empty());
  EXPECT_TRUE(s.apply(two, result(two, {{5}})).empty());
  EXPECT_FALSE(s.has_work());
  s.check();
}

TEST(Scheduler, LockstepWaitsForEachToken) {
  Config c = small();
  c.launch_depth = 3;
  Scheduler s(c);
  Request r = request(1, {1, 2}, 9);
  r.lockstep = true;
  s.submit(r);
  s.submit(request(2, {3}, 9));
  const StepPlan one = s.plan();
  EXPECT_EQ(one.slices.size(), 2u);
  const StepPlan two = s.plan();
  ASSERT_EQ(two.slices.size(), 1u);
  EXPECT_EQ(two.slices[0].seq, 2u);
  s.apply(one, result(one, {{5}, {6}}));
  const StepPlan three = s.plan();
  ASSERT_EQ(three.slices.size(), 2u);
  EXPECT_EQ(three.slices[0].tokens, Tokens{5});
  EXPECT_FALSE(three.slices[0].from);
}

TEST(Scheduler, PreemptsTheYoungestAndItsOutputIsTheSame) {
  for (int32_t depth : {1, 2, 3}) {
    for (bool caching : {false, true}) {
      Config c = small();
      c.num_blocks = 9;
      c.launch_depth = depth;
      c.enable_prefix_caching = caching;
      Driver d(c);
      for (SeqId id = 1; id <= 3; ++id) d.submit(request(id, ramp(static_cast<int>(id), 5), 20));
      d.run();
      EXPECT_GT(d.scheduler.stats().preemptions, 0);
      d.check_outputs();
      // What a restart finds of its own in the tree is not a saving of the caller's.
      for (const auto& [id, outcome] : d.outcomes) EXPECT_EQ(outcome.cached_tokens, 0);
      // The oldest is never preempted: it never computes a token twice.
      int32_t next = 0;
      for (const StepPlan& plan : d.plans) {
        for (const Slice& slice : plan.slices) {
          if (slice.seq != 1) continue;
          EXPECT_EQ(slice.first, next);
          next = slice.first + slice.count;
        }
      }
    }
  }
}

TEST(Scheduler, CachedBlocksGoBeforeAnyoneIsPreempted) {
  Config c = small();
  c.num_blocks = 6;
  Driver d(c);
  d.submit(request(1, ramp(0, 16), 1));
  d.run();
  EXPECT_EQ(d.scheduler.stats().blocks_cached, 4);
  d.submit(request(2, ramp(9, 4), 17));
  d.run();
  EXPECT_EQ(d.scheduler.stats().preemptions, 0);
  EXPECT_LE(d.scheduler.stats().blocks_cached, 6);
  d.check_outputs();
}

TEST(Scheduler, PreemptsNoMoreThanNeededWhileStepsAreInFlight) {
  Config c = small();
  c.num_blocks = 6;
  c.launch_depth = 2;
  c.enable_prefix_caching = false;
  Driver d(c);
  // Step s computes position prompt - 1 + s: the first grows at 1 and 5, the second at 2 and 6, the
  // third at 4. The sixth block is taken at 4.
  d.submit(request(1, ramp(0, 4), 12));
  d.submit(request(2, ramp(1, 3), 12));
  d.submit(request(3, ramp(2, 1), 12));
  while (d.scheduler.stats().preemptions == 0) d.turn();
  EXPECT_EQ(d.scheduler.stats().preemptions, 1);
  EXPECT_EQ(d.scheduler.find(2)->phase, Phase::running);
  EXPECT_EQ(d.scheduler.find(3)->phase, Phase::waiting);
  d.run();
  d.check_outputs();
}

TEST(Scheduler, EvictsWhatWasUsedLongestAgo) {
  Driver d(small());
  d.submit(request(1, ramp(0, 8), 4));  // its prompt enters the tree first, but it ends last
  d.submit(request(2, ramp(1, 8), 1));
  d.run();
  EXPECT_EQ(d.scheduler.stats().blocks_cached, 4);
  d.submit(request(3, ramp(2, 49), 1));  // 13 blocks of which 12 are free
  d.run();
  d.submit(request(4, ramp(0, 9), 1));
  d.submit(request(5, ramp(1, 9), 1));
  d.run();
  EXPECT_EQ(d.outcomes.at(4).cached_tokens, 8);
  EXPECT_EQ(d.outcomes.at(5).cached_tokens, 4);
  d.check_outputs();
}

TEST(Scheduler, TheOutputOfACancelledRequestIsNotCached) {
  Driver d(small());
  d.submit(request(1, ramp(0, 4), 20));
  for (int i = 0; i < 10; ++i) d.turn();
  d.cancel(1);
  EXPECT_EQ(d.scheduler.stats().blocks_cached, 1);
  d.run();
  d.check_outputs();
}

// A sequence restarts only when its whole context fits.
TEST(Scheduler, StartsOnlyWhatFitsAsAWhole) {
  Config c = small();
  c.num_blocks = 8;
  c.max_num_batched_tokens = 4;
  c.enable_prefix_caching = false;
  Scheduler s(c);
  s.submit(request(1, ramp(0, 12), 8));  // 3 blocks, 5 in the end
  s.submit(request(2, ramp(1, 16), 2));  // 4 blocks: fit, but would leave the first no room to grow
  s.submit(request(3, ramp(2, 2), 2));   // small, but does not overtake
  for (int i = 0; i < 4; ++i) {
    const StepPlan plan = s.plan();
    ASSERT_EQ(plan.slices.size(), 1u);
    EXPECT_EQ(plan.slices[0].seq, 1u);
    s.apply(plan, result(plan, {plan.slices[0].sample ? Tokens{5} : Tokens{}}));
  }
}

// What fits the pool exactly runs; one token more is refused.
TEST(Scheduler, APoolFullIsUsedToTheLastToken) {
  for (int32_t depth : {1, 2}) {
    Config c = small();
    c.num_blocks = 4;
    c.launch_depth = depth;
    Driver d(c);
    EXPECT_EQ(d.submit(request(1, ramp(0, 7), 11)).reason, Admission::Reason::exceeds_pool);
    EXPECT_TRUE(d.submit(request(1, ramp(0, 7), 10)).ok());
    EXPECT_TRUE(d.submit(request(2, ramp(0, 7), 10)).ok());
    d.run();
    EXPECT_EQ(d.outcomes.at(2).output.size(), 10u);
    d.check_outputs();
  }
}

TEST(Scheduler, SeveralTokensASliceAndNone) {
  Config c = small();
  Scheduler s(c);
  s.submit(request(1, {1, 2}, 9));
  StepPlan plan = s.plan();
  s.apply(plan, result(plan, {{5, 6, 7}}));
  plan = s.plan();  // the gap is three now
  EXPECT_EQ(plan.slices[0].first, 2);
  EXPECT_EQ(plan.slices[0].tokens, (Tokens{5, 6, 7}));
  EXPECT_TRUE(s.apply(plan, result(plan, {{}})).empty());
  s.check();
  plan = s.plan();  // nothing was sampled: the last token again
  EXPECT_EQ(plan.slices[0].first, 4);
  EXPECT_EQ(plan.slices[0].tokens, Tokens{7});
  std::vector<Emission> e = s.apply(plan, result(plan, {{1, 2, 3, 4, 5, 6, 7}}));
  EXPECT_EQ(e[0].tokens, (Tokens{1, 2, 3, 4, 5, 6}));  // up to max_tokens
  EXPECT_EQ(e[0].finish, Finish::length);
  EXPECT_FALSE(s.has_work());
}

TEST(Scheduler, WrongResultsAreFaults) {
  Config c = small();
  c.launch_depth = 2;
  c.max_chunk = 2;
  Scheduler s(c);
  s.submit(request(1, {1, 2, 3}, 9));
  const StepPlan one = s.plan();
  EXPECT_THROW(s.apply(one, result(one, {})), Fault);
  EXPECT_THROW(s.apply(one, {one.step + 1, {{}}}), Fault);
  EXPECT_TRUE(s.apply(one, result(one, {{}})).empty());
  EXPECT_THROW(s.apply(one, result(one, {{}})), Fault);  // twice
  EXPECT_TRUE(s.apply(StepPlan(), StepResult()).empty());
}

TEST(Scheduler, TokensFromAChunkThatDoesNotSampleAreAFault) {
  Config c = small();
  c.max_chunk = 2;
  Scheduler s(c);
  s.submit(request(1, {1, 2, 3}, 9));
  const StepPlan plan = s.plan();
  EXPECT_THROW(s.apply(plan, result(plan, {{4}})), Fault);
}

// A tiny pool under load for ten thousand steps, everything checked after each.
TEST(Scheduler, TenThousandStepsInATinyPool) {
  for (int32_t depth : {1, 2}) {
    Config c = small();
    c.num_blocks = 7;
    c.max_num_batched_tokens = 9;
    c.launch_depth = depth;
    Driver d(c);
    std::mt19937 random(17);
    SeqId next = 1;
    while (d.steps < 10000) {
      if (d.scheduler.stats().waiting < 3 || random() % 8 == 0) {
        Request r = request(next++, ramp(static_cast<TokenId>(random() % 3), 1 + random() % 12),
                            1 + static_cast<int32_t>(random() % 16));
        r.eos_ids = {0};
        d.submit(r);
      }
      if (random() % 16 == 0) d.cancel(1 + random() % next);
      if (d.outcomes.size() > 300) {  // keep the bookkeeping of the test small
        d.run();
        d.check_outputs();
        d.outcomes.clear();
        d.order.clear();
        d.plans.clear();
        d.lines.clear();
      }
      d.turn();
    }
    d.run();
    d.check_outputs();
    const Stats stats = d.scheduler.stats();
    EXPECT_GT(stats.preemptions, 100);
    EXPECT_GT(stats.prefix_hit_tokens, 100);
    EXPECT_EQ(stats.submitted, stats.finished_stop + stats.finished_length +
                                   stats.finished_cancelled + stats.finished_timeout +
                                   stats.finished_error);
  }
}

}  // namespace
}  // namespace octet::sched
