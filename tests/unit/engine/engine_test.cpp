// The engine: the same tokens as by hand, and one end for every request, whatever happens.
#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "engine/first_not_finite.h"
#include "engine/session.h"
#include "unit/engine/rig.h"

namespace octet::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
constexpr auto kCancelled = sched::Finish::cancelled;

std::vector<int32_t> prompt_of(int length, int seed = 0) {
  std::vector<int32_t> ids(static_cast<size_t>(length));
  for (int i = 0; i < length; ++i) ids[static_cast<size_t>(i)] = (7 * i + 3 + 11 * seed) % 100 + 3;
  return ids;
}

// Greedy decoding by hand.
std::vector<int32_t> by_hand(Rig& rig, const std::vector<int32_t>& prompt, int count) {
  Session session(*rig.model, rig.backend, {.max_tokens = 64});
  std::vector<int32_t> out;
  const auto take = [&](const Tensor& logits) {
    const float* row = logits.as<float>();
    out.push_back(
        static_cast<int32_t>(std::max_element(row, row + rig.model->config().vocab) - row));
  };
  session.extend(0, prompt, Wanted::last, [&](int64_t, const Tensor& logits) { take(logits); });
  while (static_cast<int>(out.size()) < count) take(session.decode(std::vector{out.back()}));
  return out;
}

TEST(Engine, DrawsTheTokensThatASessionDraws) {
  for (const char* name : {"llama_mha", "deepseek_v3_groups"}) {
    SCOPED_TRACE(name);
    Rig rig(name);
    std::vector<std::vector<int32_t>> expected;
    for (int i = 0; i < 5; ++i) expected.push_back(by_hand(rig, prompt_of(3 + 7 * i, i), 12));
    // Few tokens a step and few blocks: prompts come in chunks, and sequences are preempted.
    Engine engine(*rig.model, rig.backend,
                  {.max_num_seqs = 4, .max_num_batched_tokens = 9, .block_tokens = 4});
    std::vector<Collector> collectors(5);
    for (int i = 0; i < 5; ++i) {
      const Submitted submitted = engine.submit(greedy(prompt_of(3 + 7 * i, i), 12),
                                                collectors[static_cast<size_t>(i)].sink());
      ASSERT_TRUE(submitted.accepted());
    }
    for (size_t i = 0; i < 5; ++i) {
      SCOPED_TRACE(i);
      const Ended ended = drain(collectors[i]);
      EXPECT_EQ(ended.tokens, expected[i]);
      EXPECT_EQ(ended.last.finish, sched::Finish::length);
      EXPECT_EQ(ended.last.output_tokens, 12);
      EXPECT_EQ(ended.ends, 1);
    }
  }
}

TEST(Engine, RefusesWhatCanNeverRunWithTheNumbers) {
  Rig rig;
  Engine engine(*rig.model, rig.backend, {});
  Collector unused;
  EXPECT_EQ(engine.max_model_len(), 64);
  const auto reason = [&](GenRequest request) {
    const Submitted submitted = engine.submit(std::move(request), unused.sink());
    EXPECT_FALSE(submitted.accepted());
    return submitted.admission.reason;
  };
  using Reason = sched::Admission::Reason;
  EXPECT_EQ(reason(greedy({}, 4)), Reason::empty_prompt);
  EXPECT_EQ(reason(greedy(prompt_of(64), 1)), Reason::prompt_too_long);
  EXPECT_EQ(reason(greedy(prompt_of(60), 5)), Reason::exceeds_model_len);
  EXPECT_EQ(reason(greedy(prompt_of(6), 0)), Reason::bad_max_tokens);
  EXPECT_FALSE(unused.next(std::chrono::milliseconds(20)).has_value());
  EXPECT_EQ(engine.stats().seconds_since_step, 0);
}

// A mistake of the caller is thrown at the caller, and nobody else notices.
TEST(Engine, ThrowsAtCallersWhoAskForWhatDoesNotExist) {
  Rig rig;
  Engine engine(*rig.model, rig.backend, {.max_logprobs = 5});
  Collector collector;
  GenRequest request = greedy(prompt_of(3), 2);
  request.sampling.logprobs = 6;
  EXPECT_THROW(engine.submit(request, collector.sink()), Fault);
  EXPECT_THROW(engine.submit(greedy({1, 131}, 2), collector.sink()), Fault);
  EXPECT_THROW(engine.submit(greedy({-1}, 2), collector.sink()), Fault);
  request.sampling.logprobs = 5;
  ASSERT_TRUE(engine.submit(request, collector.sink()).accepted());
  const Ended ended = drain(collector);
  EXPECT_EQ(ended.tokens.size(), 2u);
  EXPECT_TRUE(engine.stats().fault.empty());
}

TEST(Engine, GivesTheLogprobsThatWereAskedFor) {
  Rig rig;
  Engine engine(*rig.model, rig.backend, {});
  std::vector<Collector> collectors(3);
  for (int i = 0; i < 3; ++i) {  // in one batch, each with its own number
    GenRequest request = greedy(prompt_of(5, i), 4);
    request.sampling.logprobs = i == 0 ? -1 : i * 3;
    ASSERT_TRUE(engine.submit(request, collectors[static_cast<size_t>(i)].sink()).accepted());
  }
  for (size_t i = 0; i < 3; ++i) {
    for (int step = 0; step < 4; ++step) {
      const auto event = collectors[i].next(std::chrono::seconds(60));
      ASSERT_TRUE(event && event->tokens.size() == 1);
      const SampledToken& token = event->tokens[0];
      ASSERT_EQ(token.top.size(), i * 3);
      if (i == 0) continue;
      EXPECT_EQ(token.top[0].token, token.token);  // greedy
      EXPECT_EQ(token.top[0].logprob, token.logprob);
      EXPECT_TRUE(std::ranges::is_sorted(token.top, std::greater<>(), &TopToken::logprob));
    }
  }
}

TEST(Engine, ExtremeSamplingIsNoFault) {
  Rig rig;
  Engine engine(*rig.model, rig.backend, {});
  for (const Sampling& sampling :
       {Sampling{.temperature = 1e-30f}, Sampling{.temperature = 1e6f},
        Sampling{.temperature = 1, .top_p = 1e-38f}, Sampling{.temperature = 1, .min_p = 1},
        Sampling{.temperature = 1, .top_k = 1 << 30}}) {
    Collector collector;
    GenRequest request = greedy(prompt_of(4), 3);
    request.sampling = sampling;
    ASSERT_TRUE(engine.submit(request, collector.sink()).accepted());
    EXPECT_EQ(drain(collector).tokens.size(), 3u);
  }
}

TEST(Engine, CancelsWhileQueuedPrefillingAndDecoding) {
  Rig rig;
  Engine engine(*rig.model, rig.backend, {.max_num_seqs = 1, .max_num_batched_tokens = 8});
  // Decoding: one token has come, and the step of the next is held.
  Collector decoding, queued;
  rig.backend.hold(1);
  const Submitted first = engine.submit(greedy(prompt_of(4), 60), decoding.sink());
  ASSERT_TRUE(decoding.next(std::chrono::seconds(60)).has_value());
  // Queued: there is room for one sequence only.
  const Submitted second = engine.submit(greedy(prompt_of(4, 1), 4), queued.sink());
  engine.cancel(second.id);
  engine.cancel(first.id);
  engine.cancel(first.id);  // twice is no harm
  engine.cancel(987654);
  rig.backend.let_go();
  for (Collector* collector : {&decoding, &queued}) {
    const Ended ended = drain(*collector);
    EXPECT_EQ(ended.last.finish, kCancelled);
    EXPECT_EQ(ended.ends, 1);
  }
  // Prefilling: held in the first chunk of five.
  Collector prefilling;
  rig.backend.hold();
  const int before = rig.backend.steps();
  const Submitted third = engine.submit(greedy(prompt_of(40, 2), 4), prefilling.sink());
  ASSERT_TRUE(rig.backend.wait_for_steps(before + 1));
  engine.cancel(third.id);
  rig.backend.let_go();
  const Ended ended = drain(prefilling);
  EXPECT_EQ(ended.last.finish, kCancelled);
  EXPECT_TRUE(ended.tokens.empty());

  // Nothing leaks, and what comes next is right.
  const std::vector<int32_t> next = [&] {
    Collector collector;
    EXPECT_TRUE(engine.submit(greedy(prompt_of(40, 2), 4), collector.sink()).accepted());
    return drain(collector).tokens;
  }();
  engine.stop();
  EXPECT_EQ(next, by_hand(rig, prompt_of(40, 2), 4));
  const sched::Stats stats = engine.stats().scheduler;
  EXPECT_EQ(stats.finished_cancelled, 3);
  EXPECT_EQ(stats.finished_length, 1);
}

TEST(Engine, IdlePublishesThatNothingIsHeld) {
  Rig rig;
  Engine engine(*rig.model, rig.backend, {});
  Collector collector;
  ASSERT_TRUE(engine.submit(greedy(prompt_of(20), 8), collector.sink()).accepted());
  drain(collector);
  EXPECT_EQ(engine.pending(), 0);
  EXPECT_TRUE(soon([&] { return engine.stats().scheduler.running == 0; }));
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.scheduler.running, 0);
  EXPECT_EQ(stats.scheduler.waiting, 0);
  EXPECT_EQ(stats.scheduler.blocks_held, 0);
  EXPECT_EQ(stats.scheduler.blocks_free + stats.scheduler.blocks_cached,
            stats.scheduler.blocks_total);
  EXPECT_EQ(stats.seconds_since_step, 0);
}

// Idle time is no age of a step: the first request after a long pause does not fail /health.
TEST(Engine, AgeOfTheStepStartsWithTheWork) {
  Rig rig;
  Engine engine(*rig.model, rig.backend, {});
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  rig.backend.hold();
  Collector collector;
  const auto start = std::chrono::steady_clock::now();
  engine.submit(greedy(prompt_of(4), 2), collector.sink());
  const double age = engine.stats().seconds_since_step;
  const std::chrono::duration<double> since_submit = std::chrono::steady_clock::now() - start;
  EXPECT_LE(age, since_submit.count());
  ASSERT_TRUE(rig.backend.wait_for_steps(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_GT(engine.stats().seconds_since_step, 0.05);  // and it grows while a step hangs
  rig.backend.let_go();
  drain(collector);
}

TEST(Engine, FinishAtEndsThere) {
  Rig rig;
  const std::vector<int32_t> expected = by_hand(rig, prompt_of(5), 3);
  Engine engine(*rig.model, rig.backend, {});
  Collector collector;
  const EventSink inner = collector.sink();
  int32_t count = 0;
  std::atomic<uint64_t> id{0};
  rig.backend.hold();
  const Submitted submitted = engine.submit(greedy(prompt_of(5), 50), [&](TokenEvent event) {
    inner(std::move(event));
    if (++count == 3) engine.finish_at(id, 2);
  });
  id = submitted.id;
  rig.backend.let_go();
  const Ended ended = drain(collector);
  engine.stop();  // who has seen the last event may be quicker than the sink, which uses all this
  EXPECT_EQ(ended.last.finish, sched::Finish::stop);
  EXPECT_EQ(ended.last.output_tokens, 2);
  EXPECT_EQ(ended.ends, 1);
  EXPECT_EQ(ended.tokens, expected);
}

TEST(Engine, StopTokensStopAndCount) {
  Rig rig;
  const std::vector<int32_t> expected = by_hand(rig, prompt_of(5), 6);
  Engine engine(*rig.model, rig.backend, {});
  Collector collector;
  GenRequest request = greedy(prompt_of(5), 50);
  request.stop_ids = {expected[3]};
  const auto first = std::ranges::find(expected, expected[3]) - expected.begin();
  engine.submit(request, collector.sink());
  const Ended ended = drain(collector);
  EXPECT_EQ(ended.last.finish, sched::Finish::stop);
  EXPECT_EQ(ended.last.stop_token, expected[3]);
  EXPECT_EQ(ended.last.output_tokens, first + 1);
}

TEST(Engine, RefusesTheOneTooMany) {
  Rig rig;
  rig.backend.hold();
  Engine engine(*rig.model, rig.backend, {.max_num_seqs = 2, .max_queued_requests = 3});
  std::vector<Collector> collectors(6);
  int accepted = 0, overloaded = 0;
  for (Collector& collector : collectors) {
    const Submitted submitted = engine.submit(greedy(prompt_of(4), 2), collector.sink());
    accepted += submitted.accepted();
    overloaded += submitted.overloaded;
  }
  EXPECT_EQ(accepted, 5);
  EXPECT_EQ(overloaded, 1);
  rig.backend.let_go();
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(drain(collectors[i]).ends, 1);
  EXPECT_TRUE(engine.submit(greedy(prompt_of(4), 2), collectors[5].sink()).accepted());
  EXPECT_EQ(drain(collectors[5]).ends, 1);
}

// Neither does a flood of cancels wait for a step that hangs.
TEST(Engine, CancelNeverWaits) {
  Rig rig;
  rig.backend.hold();
  Engine engine(*rig.model, rig.backend, {.max_num_seqs = 1, .max_queued_requests = 1});
  Collector collector;
  const Submitted submitted = engine.submit(greedy(prompt_of(4), 2), collector.sink());
  for (int i = 0; i < 20000; ++i) engine.cancel(submitted.id);
  rig.backend.let_go();
  EXPECT_EQ(drain(collector).last.finish, kCancelled);
}

TEST(Engine, EndsEveryRequestWhenItIsDestroyed) {
  Rig rig;
  std::vector<Collector> collectors(12);
  {
    Engine engine(*rig.model, rig.backend, {.max_num_seqs = 2, .max_num_batched_tokens = 8});
    rig.backend.hold();
    for (size_t i = 0; i < 6; ++i) {
      engine.submit(greedy(prompt_of(20, static_cast<int>(i)), 40), collectors[i].sink());
    }
    ASSERT_TRUE(rig.backend.wait_for_steps(1));
    // These are still in the queue of commands when the engine stops.
    for (size_t i = 6; i < 12; ++i) {
      engine.submit(greedy(prompt_of(20, static_cast<int>(i)), 40), collectors[i].sink());
    }
    std::thread opener([&] {  // once stop() has begun
      soon([&] { return !engine.submit(greedy(prompt_of(4), 2), Collector().sink()).accepted(); });
      rig.backend.let_go();
    });
    engine.stop();
    opener.join();
    const Submitted late = engine.submit(greedy(prompt_of(4), 2), collectors[0].sink());
    EXPECT_FALSE(late.accepted());
    EXPECT_FALSE(late.overloaded);
    EXPECT_THAT(late.unavailable, HasSubstr("stopped"));
    engine.cancel(1);
    engine.stop();
  }
  for (Collector& collector : collectors) {
    const Ended ended = drain(collector);
    EXPECT_EQ(ended.ends, 1);
    EXPECT_EQ(ended.last.finish, kCancelled);
  }
}

TEST(Engine, AFaultEndsEveryStreamAndTheEngine) {
  Rig rig;
  Engine engine(*rig.model, rig.backend, {.max_num_seqs = 2, .max_num_batched_tokens = 8});
  rig.backend.hold();
  std::vector<Collector> collectors(8);
  for (size_t i = 0; i < 4; ++i) {
    engine.submit(greedy(prompt_of(6, static_cast<int>(i)), 40), collectors[i].sink());
  }
  ASSERT_TRUE(rig.backend.wait_for_steps(1));
  for (size_t i = 4; i < 8; ++i) {
    engine.submit(greedy(prompt_of(6, static_cast<int>(i)), 40), collectors[i].sink());
  }
  rig.backend.break_after(9);
  rig.backend.let_go();
  for (Collector& collector : collectors) {
    const Ended ended = drain(collector);
    EXPECT_EQ(ended.ends, 1);
    EXPECT_FALSE(ended.last.finish.has_value());
    EXPECT_THAT(ended.last.fault, HasSubstr("caught fire"));
  }
  EXPECT_THAT(engine.stats().fault, HasSubstr("caught fire"));
  const Submitted late = engine.submit(greedy(prompt_of(4), 2), collectors[0].sink());
  EXPECT_FALSE(late.accepted());
  EXPECT_FALSE(late.overloaded);
  EXPECT_THAT(late.unavailable, HasSubstr("caught fire"));
  engine.cancel(1);  // and neither hangs
  engine.finish_at(1, 1);
  EXPECT_THROW(engine.rethrow_fault(), Fault);
}

// Only the requests that meet it end; the engine goes on.
TEST(Engine, LogitsThatAreNaNEndTheirRequestsAlone) {
  Rig rig;
  const std::vector<int32_t> expected = by_hand(rig, prompt_of(5), 10);
  Engine engine(*rig.model, rig.backend, {.max_num_seqs = 4, .enable_prefix_caching = false});
  Collector well, scored, sampled, after;
  constexpr int32_t poisoned = 2;  // which no prompt has
  ASSERT_EQ(std::ranges::count(expected, poisoned), 0);
  rig.backend.poison_token(poisoned);
  std::vector<int32_t> bad = prompt_of(5);
  bad.push_back(poisoned);
  GenRequest with_scores = greedy(bad, 2);
  with_scores.prompt_logprobs = 0;
  ASSERT_TRUE(engine.submit(greedy(prompt_of(5), 10), well.sink()).accepted());
  ASSERT_TRUE(engine.submit(greedy(bad, 2), sampled.sink()).accepted());
  ASSERT_TRUE(engine.submit(with_scores, scored.sink()).accepted());
  for (Collector* one : {&sampled, &scored}) {
    const Ended ended = drain(*one);
    EXPECT_EQ(ended.ends, 1);
    EXPECT_EQ(ended.last.finish, sched::Finish::error);
    EXPECT_TRUE(ended.last.of_model);
    EXPECT_THAT(ended.last.error, AllOf(HasSubstr("NaN"), HasSubstr("op sample"),
                                        HasSubstr("--scan"), testing::Not(HasSubstr("\n"))));
    EXPECT_TRUE(ended.tokens.empty());
  }
  EXPECT_EQ(drain(well).tokens, expected);
  ASSERT_TRUE(engine.submit(greedy(prompt_of(5), 10), after.sink()).accepted());
  EXPECT_EQ(drain(after).tokens, expected);
  EXPECT_EQ(engine.stats().fault, "");
  engine.rethrow_fault();  // nothing
}

// The part of the model in which the trouble begins, and the token.
TEST(Engine, TheFirstValueThatIsNotFiniteIsNamed) {
  const std::pair<const char*, const char*> places[] = {
      {"model.layers.0.self_attn.o_proj", "model.layers.0.self_attn adds, at token 3"},
      {"model.layers.1.self_attn.v_proj", "model.layers.1.self_attn adds, at token 3"},
      {"model.layers.0.mlp.down_proj", "model.layers.0.mlp adds, at token 3"},
      {"model.layers.1.mlp.up_proj", "model.layers.1.mlp adds, at token 3"}};
  for (const auto& [module, said] : places) {
    Rig rig;
    ASSERT_EQ(rig.model->config().layers, 2) << "of the model of this test";
    rig.backend.poison_linear(module, 3);
    EXPECT_THAT(first_not_finite(*rig.model, rig.backend, prompt_of(5), model::KvType::automatic),
                HasSubstr(said));
  }
  Rig rig;
  EXPECT_THAT(first_not_finite(*rig.model, rig.backend, prompt_of(5), model::KvType::automatic),
              HasSubstr("5 tokens by themselves give finite numbers"));
}

// Sinks that take long hold the engine up, and break nothing.
TEST(Engine, SlowSinksLoseNothing) {
  Rig rig;
  const std::vector<int32_t> expected = by_hand(rig, prompt_of(5), 10);
  Engine engine(*rig.model, rig.backend, {});
  Collector slow, quick;
  const EventSink inner = slow.sink();
  engine.submit(greedy(prompt_of(5), 10), [&](TokenEvent event) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    inner(std::move(event));
  });
  engine.submit(greedy(prompt_of(5), 10), quick.sink());
  EXPECT_EQ(drain(slow).tokens, expected);
  EXPECT_EQ(drain(quick).tokens, expected);
  engine.stop();  // the sink refers to `inner`
}

// Many threads submit and cancel at random; each request ends once. For the thread sanitizer.
TEST(Engine, ManyThreads) {
  Rig rig;
  Engine engine(*rig.model, rig.backend,
                {.max_num_seqs = 3, .max_num_batched_tokens = 16, .max_queued_requests = 6});
  std::atomic<int> ended{0}, refused{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 12; ++i) {
        Collector collector;
        const Submitted submitted =
            engine.submit(greedy(prompt_of(2 + (t * 5 + i) % 30, t), 6), collector.sink());
        if (!submitted.accepted()) {
          ++refused;
          continue;
        }
        if (i % 3 == 1) engine.cancel(submitted.id);
        std::optional<TokenEvent> first;  // which may be the end already
        if (i % 3 == 2) {
          first = collector.next(std::chrono::seconds(60));
          engine.cancel(submitted.id);
        }
        engine.stats();
        ended += drain(collector, std::move(first)).ends;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ended + refused, 48);
  engine.stop();
  const sched::Stats stats = engine.stats().scheduler;
  EXPECT_EQ(stats.finished_cancelled + stats.finished_length + stats.finished_stop, ended);
}

TEST(Engine, RefusesLongerSequencesThanTheModel) {
  Rig rig;
  EXPECT_THROW(Engine(*rig.model, rig.backend, {.max_model_len = 65}), Error);
  EXPECT_THROW(Engine(*rig.model, rig.backend, {.kv_cache_bytes = 10}), Error);
}

TEST(Session, CutsIntoChunksWithoutATrace) {
  Rig rig;
  const std::vector<int32_t> prompt = prompt_of(30);
  std::vector<std::vector<float>> rows;
  for (const int64_t chunk : {1, 7, 64}) {
    Session session(*rig.model, rig.backend, {.max_tokens = 64, .chunk = chunk});
    std::vector<float> all;
    int64_t next = 0;
    session.extend(0, prompt, Wanted::all, [&](int64_t first, const Tensor& logits) {
      EXPECT_EQ(first, next);
      next += logits.shape[0];
      all.insert(all.end(), logits.as<float>(), logits.as<float>() + logits.count());
    });
    EXPECT_EQ(session.length(0), 30);
    rows.push_back(all);
    // Only the last row is visited, and it is the same.
    session.reset();
    int visits = 0;
    session.extend(0, prompt, Wanted::last, [&](int64_t first, const Tensor& logits) {
      ++visits;
      EXPECT_EQ(first, 29);
      const int64_t vocab = rig.model->config().vocab;
      EXPECT_TRUE(std::equal(logits.as<float>(), logits.as<float>() + vocab, all.end() - vocab));
    });
    EXPECT_EQ(visits, 1);
  }
  EXPECT_EQ(rows[0], rows[2]);
  EXPECT_EQ(rows[1], rows[2]);
}

TEST(Session, RefusesMoreTokensThanItWasOpenedFor) {
  Rig rig;
  Session session(*rig.model, rig.backend, {.max_tokens = 8});
  session.extend(0, prompt_of(8));
  EXPECT_THROW(session.extend(0, prompt_of(1)), Fault);
  EXPECT_THROW(session.decode(std::vector<int32_t>{1}), Fault);
}

}  // namespace
}  // namespace octet::engine
