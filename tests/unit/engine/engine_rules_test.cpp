// Penalties, forbidden tokens and constraints in the engine, at both launch depths.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "engine/session.h"
#include "unit/engine/rig.h"

namespace octet::engine {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using Tokens = std::vector<int32_t>;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A backend that wants two steps in flight, as a GPU does.
class TwoDeep final : public probe::ForwardingBackend {
 public:
  explicit TwoDeep(ops::Backend& inner) : ForwardingBackend(inner), info_(inner.info()) {
    info_.launch_depth = 2;
  }
  const ops::BackendInfo& info() const override { return info_; }

 private:
  ops::BackendInfo info_;
};

Tokens prompt_of(int length, int seed = 0) {
  Tokens ids(static_cast<size_t>(length));
  for (int i = 0; i < length; ++i) ids[static_cast<size_t>(i)] = (7 * i + 3 + 11 * seed) % 100 + 3;
  return ids;
}

// Greedy decoding by hand; `change` gets the output so far and the row of logits.
Tokens by_hand(Rig& rig, const Tokens& prompt, int count,
               const std::function<void(const Tokens&, std::vector<float>&)>& change) {
  Session session(*rig.model, rig.cpu, {.max_tokens = 64});
  Tokens out;
  const auto take = [&](const Tensor& logits) {
    const float* const row = logits.as<float>();
    std::vector<float> changed(row, row + rig.model->config().vocab);
    change(out, changed);
    out.push_back(static_cast<int32_t>(std::ranges::max_element(changed) - changed.begin()));
  };
  session.extend(0, prompt, Wanted::last, [&](int64_t, const Tensor& logits) { take(logits); });
  while (static_cast<int>(out.size()) < count) take(session.decode(Tokens{out.back()}));
  return out;
}

template <typename Run>
void at_both_depths(Rig& rig, Run run) {
  run(static_cast<ops::Backend&>(rig.cpu));
  TwoDeep two(rig.cpu);
  run(static_cast<ops::Backend&>(two));
}

TEST(EngineRules, PenaltiesAreThoseByHand) {
  Rig rig;
  const auto penalize = [&](float r, float p, float f, const Tokens& prompt) {
    return [=](const Tokens& output, std::vector<float>& logits) {
      for (size_t t = 0; t < logits.size(); ++t) {
        const auto token = static_cast<int32_t>(t);
        const auto count = static_cast<float>(std::ranges::count(output, token));
        float& x = logits[t];
        if (count > 0 || std::ranges::count(prompt, token)) x = x > 0 ? x / r : x * r;
        if (count > 0) x -= f * count + p;
      }
    };
  };
  std::vector<Tokens> plain, want;
  for (int i = 0; i < 6; ++i) {
    const Tokens prompt = prompt_of(4 + 5 * i, i);
    plain.push_back(by_hand(rig, prompt, 16, [](const Tokens&, std::vector<float>&) {}));
    want.push_back(
        by_hand(rig, prompt, 16,
                penalize(i % 2 ? 1.4f : 1.0f, i % 3 ? 0.3f : 0.0f, i == 2 ? 0.4f : 0.0f, prompt)));
  }
  EXPECT_NE(plain, want);
  at_both_depths(rig, [&](ops::Backend& backend) {
    // Small enough that sequences are preempted: what was counted stays right.
    Engine engine(*rig.model, backend,
                  {.max_num_seqs = 4,
                   .max_num_batched_tokens = 9,
                   .block_tokens = 4,
                   .kv_cache_bytes = 12 * 3072,
                   .check_every_step = true});
    std::vector<Collector> collectors(6);
    for (int i = 0; i < 6; ++i) {
      GenRequest request = greedy(prompt_of(4 + 5 * i, i), 16);
      request.sampling.repetition_penalty = i % 2 ? 1.4f : 1.0f;
      request.sampling.presence_penalty = i % 3 ? 0.3f : 0.0f;
      request.sampling.frequency_penalty = i == 2 ? 0.4f : 0.0f;
      ASSERT_TRUE(engine.submit(request, collectors[static_cast<size_t>(i)].sink()).accepted());
    }
    for (size_t i = 0; i < 6; ++i) EXPECT_EQ(drain(collectors[i]).tokens, want[i]) << i;
    engine.stop();
    EXPECT_GT(engine.stats().scheduler.preemptions, 0);
  });
}

TEST(EngineRules, ForbiddenTokensDoNotAppear) {
  Rig rig;
  const Tokens plain = by_hand(rig, prompt_of(5), 12, [](const Tokens&, std::vector<float>&) {});
  at_both_depths(rig, [&](ops::Backend& backend) {
    Engine engine(*rig.model, backend, {});
    const auto run = [&](const std::function<void(GenRequest&)>& ask) {
      Collector collector;
      GenRequest request = greedy(prompt_of(5), 12);
      ask(request);
      EXPECT_TRUE(engine.submit(request, collector.sink()).accepted());
      return drain(collector);
    };
    EXPECT_EQ(run([](GenRequest&) {}).tokens, plain);
    EXPECT_THAT(run([](GenRequest& r) {
                  r.sampling.allowed = {7, 9, 11};
                }).tokens,
                Each(::testing::AnyOf(7, 9, 11)));
    EXPECT_THAT(run([](GenRequest& r) {
                  r.sampling.logit_bias = {{42, 1000.0f}};
                }).tokens,
                Each(42));
    const Ended no_word = run([&](GenRequest& r) { r.sampling.bad_words = {{plain[0]}}; });
    EXPECT_EQ(std::ranges::count(no_word.tokens, plain[0]), 0);
    // The pair goes, its first token stays.
    const Ended no_pair = run([&](GenRequest& r) {
      r.sampling.bad_words = {{plain[0], plain[1]}};
    });
    EXPECT_EQ(no_pair.tokens[0], plain[0]);
    for (size_t i = 1; i < no_pair.tokens.size(); ++i) {
      EXPECT_FALSE(no_pair.tokens[i - 1] == plain[0] && no_pair.tokens[i] == plain[1]);
    }
    // A stop token is not drawn as one of the first min_tokens, rather than drawn and passed over.
    const Ended late = run([&](GenRequest& r) {
      r.stop_ids = {plain[0], 8};
      r.min_tokens = 6;
      r.sampling.logit_bias = {{8, 1000.0f}};
    });
    EXPECT_EQ(late.tokens.size(), 7u);
    EXPECT_EQ(late.last.finish, sched::Finish::stop);
    EXPECT_EQ(late.last.stop_token, 8);
    EXPECT_EQ(std::ranges::count(late.tokens, plain[0]), 0);
  });
}

// Allows these tokens one after another; then it is finished, or allows nothing.
class Script final : public TokenConstraint {
 public:
  explicit Script(Tokens tokens, bool ends = true) : tokens_(std::move(tokens)), ends_(ends) {}
  bool fill(std::span<int32_t> mask) override {
    std::ranges::fill(mask, 0);
    if (next_ < tokens_.size()) {
      const int32_t token = tokens_[next_];
      mask[static_cast<size_t>(token / 32)] = static_cast<int32_t>(1u << token % 32);
    }
    return true;
  }
  bool accept(int32_t token) override {
    return next_ < tokens_.size() && tokens_[next_++] == token;
  }
  bool finished() const override { return ends_ && next_ == tokens_.size(); }

 private:
  Tokens tokens_;
  bool ends_;
  size_t next_ = 0;
};

// Wants no mask, and then does not like what was drawn.
class Moody final : public TokenConstraint {
 public:
  bool fill(std::span<int32_t>) override { return false; }
  bool accept(int32_t) override { return ++tokens_ < 3; }
  bool finished() const override { return false; }

 private:
  int tokens_ = 0;
};

// Stops looking after a token, and says so.
class Tired final : public TokenConstraint {
 public:
  bool fill(std::span<int32_t> mask) override {
    std::ranges::fill(mask, tokens_ == 0 ? -1 : 0);
    return true;
  }
  bool accept(int32_t) override { return ++tokens_ > 0; }
  bool finished() const override { return false; }
  std::string given_up() const override { return tokens_ > 0 ? "too tired" : ""; }

 private:
  int tokens_ = 0;
};

TEST(EngineRules, ConstraintsRuleOneRequestAlone) {
  Rig rig;
  const Tokens plain = by_hand(rig, prompt_of(5, 1), 12, [](const Tokens&, std::vector<float>&) {});
  at_both_depths(rig, [&](ops::Backend& backend) {
    Engine engine(*rig.model, backend, {.check_every_step = true});
    std::vector<Collector> collectors(6);
    const Tokens script{50, 3, 70, 3, 99};
    const auto submit = [&](size_t i, GenRequest request) {
      EXPECT_TRUE(engine.submit(std::move(request), collectors[i].sink()).accepted());
    };
    GenRequest request = greedy(prompt_of(5), 20);
    request.sampling.temperature = 1.0f;
    request.constraint = std::make_shared<Script>(script);
    submit(0, request);
    request.constraint = std::make_shared<Script>(script, /*ends=*/false);
    submit(1, request);
    request.constraint = std::make_shared<Moody>();
    submit(2, request);
    GenRequest nothing = greedy(prompt_of(6), 20);
    nothing.sampling.allowed = {4};
    nothing.stop_ids = {4};
    nothing.min_tokens = 2;
    submit(3, nothing);
    submit(4, greedy(prompt_of(5, 1), 12));
    request.constraint = std::make_shared<Tired>();
    submit(5, request);

    const Ended finished = drain(collectors[0]);
    EXPECT_EQ(finished.tokens, script);
    EXPECT_EQ(finished.last.finish, sched::Finish::stop);
    EXPECT_EQ(finished.last.output_tokens, 5);
    EXPECT_EQ(finished.ends, 1);
    const Ended dead_end = drain(collectors[1]);
    EXPECT_EQ(dead_end.tokens, script);
    EXPECT_EQ(dead_end.last.finish, sched::Finish::error);
    EXPECT_THAT(dead_end.last.error, HasSubstr("no token is left"));
    const Ended moody = drain(collectors[2]);
    EXPECT_EQ(moody.tokens.size(), 2u);
    EXPECT_EQ(moody.last.output_tokens, 2);
    EXPECT_EQ(moody.last.finish, sched::Finish::error);
    EXPECT_THAT(moody.last.error, HasSubstr("does not allow"));
    const Ended masked = drain(collectors[3]);
    EXPECT_TRUE(masked.tokens.empty());
    EXPECT_EQ(masked.last.finish, sched::Finish::error);
    EXPECT_EQ(masked.ends, 1);
    EXPECT_EQ(drain(collectors[4]).tokens, plain);  // and nobody else notices
    const Ended tired = drain(collectors[5]);
    EXPECT_EQ(tired.tokens.size(), 1u);
    EXPECT_EQ(tired.last.error, "too tired");
    EXPECT_EQ(engine.stats().fault, "");
  });
}

// More edits than the memory of a step holds: the step is sampled in parts, and nothing changes.
TEST(EngineRules, ManyPenaltiesAtOnceAreThoseOfOne) {
  Rig rig;
  const auto request_of = [](int i) {
    GenRequest request = greedy(prompt_of(33, i % 7), 4);
    request.prompt.back() = 3 + i % 90;
    for (int32_t id = 3; id < 128; ++id) {
      request.sampling.logit_bias.emplace_back(id, static_cast<float>((id * 37 + i) % 11) / 4);
    }
    return request;
  };
  const EngineOptions options{
      .max_model_len = 40, .max_num_seqs = 160, .max_num_batched_tokens = 6000};
  Engine alone(*rig.model, rig.cpu, options);
  std::vector<Tokens> want;
  for (int i = 0; i < 160; i += 16) {
    Collector collector;
    ASSERT_TRUE(alone.submit(request_of(i), collector.sink()).accepted());
    want.push_back(drain(collector).tokens);
  }
  alone.stop();
  rig.backend.hold();
  Engine engine(*rig.model, rig.backend, options);
  std::vector<Collector> collectors(160);
  for (int i = 0; i < 160; ++i) {
    ASSERT_TRUE(engine.submit(request_of(i), collectors[static_cast<size_t>(i)].sink()).accepted());
  }
  rig.backend.let_go();
  for (size_t i = 0; i < 160; ++i) {
    const Tokens tokens = drain(collectors[i]).tokens;
    if (i % 16 == 0) {
      EXPECT_EQ(tokens, want[i / 16]) << i;
    }
  }
}

TEST(EngineRules, MistakesOfACallerAreThrownAtTheCaller) {
  Rig rig;
  Engine engine(*rig.model, rig.backend, {});
  Collector unused;
  const auto throws = [&](const std::function<void(GenRequest&)>& ask) {
    GenRequest request = greedy(prompt_of(3), 2);
    ask(request);
    EXPECT_THROW(engine.submit(request, unused.sink()), Fault);
  };
  throws([](GenRequest& r) { r.sampling.allowed = {131}; });
  throws([](GenRequest& r) { r.sampling.bad_words = {{1, -2}}; });
  throws([](GenRequest& r) { r.sampling.logit_bias = {{1 << 20, 1.0f}}; });
  throws([](GenRequest& r) { r.sampling.logit_bias = {{1, kNan}}; });
  throws([](GenRequest& r) { r.sampling.repetition_penalty = 0.0f; });
  throws([](GenRequest& r) { r.sampling.frequency_penalty = kNan; });
  throws([](GenRequest& r) { r.stop_ids = {-1}; });
  throws([](GenRequest& r) { r.prompt_logprobs = 1000; });
}

}  // namespace
}  // namespace octet::engine
