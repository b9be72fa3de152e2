#include "sched/event_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "unit/sched/fake_device.h"

namespace octet::sched {
namespace {

using ::testing::ElementsAre;

Config small() {
  Config c;
  c.block_tokens = 4;
  c.num_blocks = 8;
  c.max_num_seqs = 4;
  c.max_num_batched_tokens = 16;
  c.max_model_len = 32;
  return c;
}

std::vector<std::string> recorded() {
  Config c = small();
  c.launch_depth = 2;
  Driver d(c);
  Request r;
  for (r.id = 1; r.id <= 4; ++r.id) {
    r.prompt.assign(5, static_cast<TokenId>(r.id));
    r.max_tokens = 9;
    r.eos_ids = {0};
    r.salt = r.id == 3 ? std::string("a b\0\n", 5) : "";
    d.submit(r);
  }
  r.prompt.clear();
  d.submit(r);
  for (int i = 0; i < 3; ++i) d.turn();
  d.cancel(2);
  d.finish_at(1, 1, Finish::stop);
  d.run();
  return d.lines;
}

TEST(EventLog, ReadsAsText) {
  std::vector<std::string> lines;
  EventLog log([&](const std::string& line) { lines.push_back(line); });
  Scheduler s(small());
  s.set_log(&log);
  Request r;
  r.id = 1;
  r.prompt = {5, 6};
  r.salt = "k";
  r.eos_ids = {2};
  r.score = true;
  s.submit(r);
  const StepPlan plan = s.plan();
  s.apply(plan, {plan.step, {{17}}});
  s.cancel(1);
  EXPECT_THAT(
      lines,
      ElementsAre(
          "config block_tokens=4 num_blocks=8 max_num_seqs=4 max_num_batched_tokens=16 "
          "max_model_len=32 max_chunk=0 launch_depth=1 enable_prefix_caching=1 policy=fcfs "
          "max_scored_tokens=128 max_wait_steps=1000 max_prefill_steps=8",
          "submit id=1 max_tokens=- min_tokens=0 ignore_eos=0 lockstep=0 priority=0 score=1 "
          "salt=6b eos=2 stop=- prompt=5,6",
          " admission reason=ok prompt=2 max_tokens=30 model=32 pool=32", "plan",
          " step=1 seq=1 first=0 count=2 known=2 prompt=2 sample=1 from=- tokens=5,6 scored=0:6 "
          "blocks=0",
          "apply step=1 tokens=17",
          " emit seq=1 slice=0 tokens=17 scored=1 finish=- stop_token=- prompt=2 output=1 cached=0",
          "cancel id=1",
          " emit seq=1 slice=-1 tokens=- scored=0 finish=cancelled stop_token=- prompt=2 "
          "output=1 cached=0"));
}

TEST(EventLog, ReplaysToTheSameLines) {
  const std::vector<std::string> lines = recorded();
  const ReplayReport report = replay(lines);
  EXPECT_TRUE(report.same()) << report.recorded << "\n" << report.replayed;
  EXPECT_GT(report.events, 20);
}

TEST(EventLog, NamesTheFirstDifference) {
  std::vector<std::string> lines = recorded();
  size_t changed = 0;
  for (size_t i = 0; i < lines.size() && changed == 0; ++i) {
    const size_t at = lines[i].find("blocks=0");
    if (lines[i][0] == ' ' && at != std::string::npos) {
      lines[i].replace(at, 8, "blocks=7");
      changed = i;
    }
  }
  const ReplayReport report = replay(lines);
  ASSERT_FALSE(report.same());
  EXPECT_EQ(*report.first_difference, static_cast<int64_t>(changed));
  EXPECT_EQ(report.recorded, lines[changed]);
  EXPECT_NE(report.replayed, lines[changed]);

  lines = recorded();
  lines.push_back(" emit that never came");
  EXPECT_EQ(replay(lines).first_difference, static_cast<int64_t>(lines.size()) - 1);
}

TEST(EventLog, BadLinesAreUserErrors) {
  const std::string config = recorded()[0];
  const auto throws = [](std::vector<std::string> lines) {
    EXPECT_THROW(replay(lines), Error) << lines.back();
  };
  throws({"plan"});
  throws({config, config});
  throws({config, "dance"});
  throws({config, "cancel"});
  throws({config, "cancel id=x"});
  throws({config, "cancel id=1 loudly"});
  throws({config, "cancel id=99999999999999999999999"});
  throws({config, "finish_at id=1 output=0 reason=boredom"});
  throws({config, "apply step=1 tokens=1"});
  throws({"config block_tokens=4"});
  throws({config,
          "submit id=1 max_tokens=- min_tokens=0 ignore_eos=0 lockstep=0 priority=0 score=0 "
          "salt=6 eos=- stop=- prompt=1"});
  throws({config, config.substr(0, config.find("policy=")) + "policy=lottery"});
}

TEST(EventLog, StartsWithTheScheduler) {
  EventLog log([](const std::string&) {});
  Scheduler s(small());
  Request r;
  r.prompt = {1};
  s.submit(r);
  EXPECT_THROW(s.set_log(&log), Fault);
}

}  // namespace
}  // namespace octet::sched
