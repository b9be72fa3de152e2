// Random histories of a scheduler. Drawn at random: the pool, the budget, the depth, the requests
// (few distinct tokens, so that prefixes repeat), and what happens to them between any two calls.
// The oracle of every output is expected(): the tokens by definition, without a scheduler.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <iostream>

#include "base/error.h"
#include "unit/sched/fake_device.h"

namespace octet::sched {

void showValue(const Config& config, std::ostream& os) {
  EventLog([&](const std::string& line) { os << line; }).config(config);
}

namespace {

// rc::check with more cases; RC_PARAMS still sets the seed and reproduces failures.
template <typename Property>
bool holds(const std::string& name, const Property& property) {
  rc::detail::TestParams params = rc::detail::configuration().testParams;
  params.maxSuccess = std::max(params.maxSuccess, 400);
  rc::detail::TestMetadata metadata;
  metadata.id = name;
  metadata.description = name;
  const auto result = rc::detail::checkTestable(property, metadata, params);
  std::cerr << name << ": ";
  rc::detail::printResultMessage(result, std::cerr);
  std::cerr << std::endl;
  return result.template is<rc::detail::SuccessResult>();
}

enum class What { turn, plan, apply, submit, cancel, finish_at };

struct Event {
  What what = What::turn;
  Request request;    // submit
  uint32_t pick = 0;  // cancel, finish_at: which request; finish_at: how much of its output is cut
};

void showValue(const Event& event, std::ostream& os) {
  static const char* const names[] = {"turn", "plan", "apply", "submit", "cancel", "finish_at"};
  os << names[static_cast<int>(event.what)] << ' ' << event.pick;
  if (event.what == What::submit) {
    EventLog([&](const std::string& line) { os << ' ' << line; }).submit(event.request);
  }
}

rc::Gen<Config> configs() {
  return rc::gen::exec([] {
    Config c;
    c.block_tokens = *rc::gen::element(1, 2, 3, 4, 8);
    c.num_blocks = std::max(2, *rc::gen::inRange(8, 64) / c.block_tokens);
    c.max_num_seqs = *rc::gen::inRange(1, 8);
    c.max_num_batched_tokens = c.max_num_seqs + *rc::gen::inRange(0, 20);
    c.max_model_len = *rc::gen::inRange(8, 48);
    c.max_chunk = *rc::gen::element(0, 1, 3, 7);
    c.launch_depth = *rc::gen::inRange(1, 5);
    c.enable_prefix_caching = *rc::gen::arbitrary<bool>();
    c.policy = *rc::gen::element(Policy::fcfs, Policy::priority, Policy::prefill_first);
    c.max_scored_tokens = *rc::gen::inRange(1, 9);
    c.max_wait_steps = *rc::gen::inRange(1, 40);
    c.max_prefill_steps = *rc::gen::inRange(1, 5);
    return c;
  });
}

// A prompt starts with some of a few common tokens and goes on at random.
rc::Gen<Request> requests() {
  return rc::gen::exec([] {
    Request r;
    const int32_t common = *rc::gen::inRange(0, 12);
    for (int32_t i = 0; i < common; ++i) r.prompt.push_back(i % 5);
    const int32_t own = *rc::gen::inRange(0, 5);
    for (int32_t i = 0; i < own; ++i) r.prompt.push_back(*rc::gen::inRange(0, 3));
    if (*rc::gen::inRange(0, 4) > 0) r.max_tokens = *rc::gen::inRange(0, 20);
    r.min_tokens = *rc::gen::element(0, 0, 0, 3);
    r.eos_ids = {0};
    r.stop_ids = *rc::gen::element(std::vector<TokenId>{}, std::vector<TokenId>{4, 9});
    r.ignore_eos = *rc::gen::arbitrary<bool>();
    r.lockstep = *rc::gen::element(false, false, false, true);
    r.salt = *rc::gen::element(std::string(), std::string(), std::string("a"));
    r.priority = *rc::gen::inRange(-2, 3);
    r.score = *rc::gen::element(false, false, false, true);
    return r;
  });
}

rc::Gen<Event> events() {
  return rc::gen::exec([] {
    Event e;
    e.what = *rc::gen::weightedElement<What>({{6, What::turn},
                                              {6, What::plan},
                                              {4, What::apply},
                                              {8, What::submit},
                                              {1, What::cancel},
                                              {1, What::finish_at}});
    if (e.what == What::submit) e.request = *requests();
    e.pick = *rc::gen::arbitrary<uint32_t>();
    return e;
  });
}

// Up to 150 events, whatever the size that RapidCheck is at.
rc::Gen<std::vector<Event>> histories() {
  return rc::gen::resize(150, rc::gen::container<std::vector<Event>>(events()));
}

void play(Driver& d, const std::vector<Event>& history) {
  SeqId next = 1;
  for (const Event& event : history) {
    const SeqId picked = 1 + event.pick % next;
    const Sequence* seq = d.scheduler.find(picked);
    switch (event.what) {
      case What::turn:
        d.turn();
        break;
      case What::plan:
        if (d.scheduler.can_plan()) d.plan();
        break;
      case What::apply:
        if (d.scheduler.steps_in_flight() > 0) d.apply();
        break;
      case What::submit: {
        Request request = event.request;
        request.id = next++;
        d.submit(request);
        break;
      }
      case What::cancel:
        d.cancel(picked);
        break;
      case What::finish_at:
        if (seq && seq->phase != Phase::retiring) {
          const auto keep =
              static_cast<int32_t>(event.pick / 7 % static_cast<uint32_t>(seq->output_len() + 1));
          d.finish_at(picked, keep, event.pick % 2 ? Finish::stop : Finish::error);
        }
        break;
    }
  }
  d.run();
}

// Everything that Driver checks: conservation after every call, budget, order, that no block
// changes hands in flight, progress of the oldest, termination, one end a request; and the outputs.
TEST(SchedulerProperty, AnyHistoryKeepsThePromises) {
  EXPECT_TRUE(holds("any history", [] {
    const Config config = *configs();
    const auto history = *histories();
    Driver d(config);
    play(d, history);
    d.check_outputs();
    const Stats stats = d.scheduler.stats();
    RC_ASSERT(stats.submitted == static_cast<int64_t>(d.outcomes.size()));
    RC_ASSERT(stats.submitted == stats.finished_stop + stats.finished_length +
                                     stats.finished_cancelled + stats.finished_timeout +
                                     stats.finished_error);
    RC_ASSERT(stats.blocks_free + stats.blocks_cached == stats.blocks_total);
    RC_CLASSIFY(stats.preemptions > 0, "preempted");
    RC_CLASSIFY(stats.prefix_hit_tokens > 0, "prefix hit");
  }));
}

TEST(SchedulerProperty, AnyHistoryReplaysToTheSameLines) {
  EXPECT_TRUE(holds("replay", [] {
    const Config config = *configs();
    const auto history = *histories();
    Driver d(config);
    play(d, history);
    const ReplayReport report = replay(d.lines);
    RC_ASSERT(report.recorded == report.replayed);
    RC_ASSERT(report.same());
  }));
}

// Steps that sample none or several tokens, as speculation will: what is known stays right.
TEST(SchedulerProperty, AnyNumberOfTokensASliceGivesTheSameOutput) {
  EXPECT_TRUE(holds("several tokens", [] {
    Config config = *configs();
    config.launch_depth = 1;
    const auto history = *histories();
    uint32_t state = *rc::gen::arbitrary<uint32_t>();
    Driver d(config);
    d.alter = [&](const StepPlan& plan, StepResult& result) {
      for (size_t i = 0; i < plan.slices.size(); ++i) {
        if (!plan.slices[i].sample) continue;
        state = state * 1664525u + 1013904223u;
        const uint32_t count = (state >> 16) % 4;
        std::vector<TokenId>& sampled = result.tokens[i];
        std::vector<TokenId> tokens = d.scheduler.find(plan.slices[i].seq)->tokens;
        sampled.clear();
        while (sampled.size() < count) {
          sampled.push_back(next_token(tokens));
          tokens.push_back(sampled.back());
        }
      }
    };
    play(d, history);
    d.check_outputs();
  }));
}

// The same requests under two configurations: the same tokens, ends and usage.
void same_outputs(const Config& a, const Config& b, const std::vector<Request>& list) {
  std::map<SeqId, Driver::Outcome> outcomes[2];
  const Config* const configs[] = {&a, &b};
  for (int i = 0; i < 2; ++i) {
    Driver d(*configs[i]);
    SeqId next = 1;
    for (Request request : list) {
      request.id = next++;
      d.submit(request);
      if (next % 3 == 0) d.turn();
    }
    d.run();
    outcomes[i] = d.outcomes;
  }
  RC_ASSERT(outcomes[0].size() == outcomes[1].size());
  for (const auto& [id, one] : outcomes[0]) {
    const Driver::Outcome& two = outcomes[1].at(id);
    RC_ASSERT(one.output == two.output);
    RC_ASSERT(one.finish == two.finish);
    RC_ASSERT(one.stop_token == two.stop_token);
    RC_ASSERT(one.output_tokens == two.output_tokens);
  }
}

void check_pairs(const char* name, const std::function<void(Config&, Config&)>& differ) {
  EXPECT_TRUE(holds(name, [&] {
    Config a = *configs();
    const auto list = *rc::gen::resize(40, rc::gen::container<std::vector<Request>>(requests()));
    Config b = a;
    differ(a, b);
    same_outputs(a, b, list);
  }));
}

TEST(SchedulerProperty, DepthDoesNotShow) {
  check_pairs("depth 1 and 2", [](Config& a, Config& b) {
    a.launch_depth = 1;
    b.launch_depth = 2;
  });
  check_pairs("depth 2 and 4", [](Config& a, Config& b) {
    a.launch_depth = 2;
    b.launch_depth = 4;
  });
}

TEST(SchedulerProperty, PoliciesDoNotShow) {
  for (const Policy policy : {Policy::priority, Policy::prefill_first}) {
    check_pairs(to_string(policy), [&](Config& a, Config& b) {
      a.policy = Policy::fcfs;
      b.policy = policy;
    });
  }
}

TEST(SchedulerProperty, PrefixCachingDoesNotShow) {
  check_pairs("prefix caching", [](Config& a, Config& b) {
    a.enable_prefix_caching = false;
    b.enable_prefix_caching = true;
  });
}

TEST(SchedulerProperty, ChunksDoNotShow) {
  for (int32_t chunk : {1, 7}) {
    check_pairs("chunks", [&](Config& a, Config& b) {
      a.max_chunk = chunk;
      b.max_chunk = 64;
      b.max_num_batched_tokens = 64 + b.max_num_seqs;
    });
  }
}

// A large pool never preempts. Both get a model length that the small pool can hold, so that an
// unset max_tokens resolves alike.
TEST(SchedulerProperty, PreemptionDoesNotShow) {
  check_pairs("preemption", [](Config& a, Config& b) {
    a.max_model_len = static_cast<int32_t>(
        std::max<int64_t>(2, std::min<int64_t>(a.max_model_len, a.pool_tokens())));
    b.max_model_len = a.max_model_len;
    b.num_blocks = b.max_num_seqs * (b.max_model_len / b.block_tokens + 2);
    b.enable_prefix_caching = false;
  });
}

}  // namespace
}  // namespace octet::sched
