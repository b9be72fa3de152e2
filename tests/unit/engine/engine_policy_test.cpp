// Who comes first, when time is up, and what is written down of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <mutex>

#include "engine/session.h"
#include "sched/event_log.h"
#include "unit/engine/rig.h"

namespace octet::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tokens = std::vector<int32_t>;

Tokens prompt_of(int length, int seed = 0) {
  Tokens ids(static_cast<size_t>(length));
  for (int i = 0; i < length; ++i) ids[static_cast<size_t>(i)] = (7 * i + 3 + 11 * seed) % 100 + 3;
  return ids;
}

// Notes in which order requests end.
class Order {
 public:
  EventSink sink(char name, Collector& collector) {
    return [this, name, inner = collector.sink()](TokenEvent event) {
      if (event.finish) {
        const std::scoped_lock lock(mutex_);
        order_ += name;
      }
      inner(std::move(event));
    };
  }
  std::string get() {
    const std::scoped_lock lock(mutex_);
    return order_;
  }

 private:
  std::mutex mutex_;
  std::string order_;
};

TEST(EnginePolicy, PriorityPreemptsAndOthersWait) {
  Rig rig;
  Tokens expected;
  for (const auto policy : {sched::Policy::fcfs, sched::Policy::priority}) {
    Order order;
    std::vector<Collector> collectors(4);
    Engine engine(*rig.model, rig.backend,
                  {.max_num_seqs = 1, .policy = policy, .check_every_step = true});
    const auto submit = [&](size_t i, int32_t priority, int32_t max_tokens) {
      GenRequest request = greedy(prompt_of(6, static_cast<int>(i)), max_tokens);
      request.priority = priority;
      EXPECT_TRUE(
          engine.submit(request, order.sink(static_cast<char>('a' + i), collectors[i])).accepted());
    };
    rig.backend.hold(3);
    submit(0, 5, 20);
    ASSERT_TRUE(collectors[0].next(std::chrono::seconds(60)).has_value());  // it runs
    submit(1, 9, 4);
    submit(2, 0, 4);
    submit(3, -1, 4);
    rig.backend.let_go();
    for (size_t i = 1; i < 4; ++i) EXPECT_EQ(drain(collectors[i]).tokens.size(), 4u);
    const Tokens first = drain(collectors[0]).tokens;
    engine.stop();
    if (policy == sched::Policy::fcfs) {
      EXPECT_EQ(order.get(), "abcd");
      expected = first;
    } else {
      EXPECT_EQ(order.get(), "dcab");
      EXPECT_EQ(engine.stats().scheduler.preemptions, 1);
      EXPECT_EQ(first, expected) << "preempted text is not the text";
    }
  }
}

// One after another, each in another phase; and the time that a request waits counts.
TEST(EnginePolicy, TimeIsUpInEveryPhase) {
  Rig rig;
  Engine engine(*rig.model, rig.backend,
                {.max_num_seqs = 1, .max_num_batched_tokens = 8, .check_every_step = true});
  const auto with_timeout = [](GenRequest request, double seconds) {
    request.timeout_s = seconds;
    return request;
  };
  Collector decoding, queued, in_time;
  rig.backend.hold(1);
  engine.submit(with_timeout(greedy(prompt_of(4), 60), 0.05), decoding.sink());
  ASSERT_TRUE(decoding.next(std::chrono::seconds(60)).has_value());
  engine.submit(with_timeout(greedy(prompt_of(4, 1), 4), 0.05), queued.sink());
  engine.submit(with_timeout(greedy(prompt_of(4, 2), 4), 1e300), in_time.sink());
  std::this_thread::sleep_for(std::chrono::milliseconds(80));
  rig.backend.let_go();
  const Ended decoded = drain(decoding), waited = drain(queued), done = drain(in_time);
  EXPECT_EQ(decoded.last.finish, sched::Finish::timeout);
  EXPECT_LE(decoded.last.output_tokens, 2);
  EXPECT_EQ(waited.last.finish, sched::Finish::timeout);
  EXPECT_TRUE(waited.tokens.empty());
  EXPECT_GE(waited.last.timing.queue_s, 0.05);
  EXPECT_EQ(waited.last.timing.prefill_s, 0);
  EXPECT_EQ(done.last.finish, sched::Finish::length);
  EXPECT_GE(done.last.timing.queue_s, 0.05);
  const Timing& t = done.last.timing;
  EXPECT_GT(t.prefill_s, 0);
  EXPECT_GT(t.decode_s, 0);
  EXPECT_NEAR(t.queue_s + t.prefill_s + t.decode_s, t.total_s, 1e-3);

  Collector prefilling;
  rig.backend.hold();
  const int before = rig.backend.steps();
  engine.submit(with_timeout(greedy(prompt_of(40, 2), 4), 0.05), prefilling.sink());
  ASSERT_TRUE(rig.backend.wait_for_steps(before + 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(80));
  rig.backend.let_go();
  const Ended ended = drain(prefilling);
  EXPECT_EQ(ended.last.finish, sched::Finish::timeout);
  EXPECT_TRUE(ended.tokens.empty());
  engine.stop();
  EXPECT_EQ(engine.stats().scheduler.finished_timeout, 3);
  EXPECT_EQ(engine.stats().scheduler.blocks_held, 0);
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// What an engine did is replayed from its file, whole or cut at its size.
TEST(EnginePolicy, EventsAreRecordedAndReplayed) {
  Rig rig;
  const std::string path =
      (std::filesystem::path(::testing::TempDir()) / "octet_events.log").string();
  for (const int64_t most : {int64_t{1} << 30, int64_t{4000}, int64_t{0}}) {
    SCOPED_TRACE(most);
    {
      Engine engine(*rig.model, rig.backend,
                    {.max_num_seqs = 3,
                     .max_num_batched_tokens = 9,
                     .block_tokens = 4,
                     .kv_cache_bytes = 1 << 16,
                     .policy = sched::Policy::priority,
                     .record_events = path,
                     .record_events_bytes = most});
      std::vector<Collector> collectors(8);
      for (int i = 0; i < 8; ++i) {
        GenRequest request = greedy(prompt_of(3 + 4 * i, i / 2), 9);
        request.priority = i % 3;
        if (i == 3) request.prompt_logprobs = 0;
        if (i == 4) request.sampling.presence_penalty = 1.0f;
        if (i == 5) request.timeout_s = 0.0;
        const Submitted submitted =
            engine.submit(request, collectors[static_cast<size_t>(i)].sink());
        if (i == 6) engine.cancel(submitted.id);
      }
      for (Collector& collector : collectors) drain(collector);
    }
    const std::vector<std::string> lines = lines_of(path);
    EXPECT_LE(std::filesystem::file_size(path), static_cast<uintmax_t>(most));
    if (most == 0) {
      EXPECT_TRUE(lines.empty());
      continue;
    }
    const sched::ReplayReport report = sched::replay(lines);
    EXPECT_TRUE(report.same()) << report.recorded << "\n" << report.replayed;
    EXPECT_GT(report.events, most > 4000 ? 40 : 8);
  }
  std::filesystem::remove(path);
  EXPECT_THROW(Engine(*rig.model, rig.backend, {.record_events = "/nonexistent directory/events"}),
               Error);
}

// Blocks that nobody uses are full of NaN at every step: nothing of it is seen, whatever is reused,
// preempted, aborted in the middle of a prompt and sent again.
TEST(EnginePolicy, FreeBlocksFullOfNanAreNeverRead) {
  for (const char* name : {"llama_mha", "deepseek_v3_groups"}) {
    Rig rig(name);
    const auto run = [&](std::optional<uint8_t> poison) {
      const int64_t block = kv_layout_of(*rig.model, model::KvType::automatic, 4).bytes_per_block();
      Engine engine(*rig.model, rig.backend,
                    {.max_num_seqs = 3,
                     .max_num_batched_tokens = 14,
                     .block_tokens = 4,
                     .kv_cache_bytes = 16 * block,
                     .check_every_step = true,
                     .poison_free_blocks = poison});
      std::vector<Tokens> all;
      const auto submit = [&](const Tokens& prompt, Collector& collector) {
        GenRequest request = greedy(prompt, 12);
        request.sampling = {.temperature = 0.8f, .seed = 3};
        const Submitted submitted = engine.submit(request, collector.sink());
        EXPECT_TRUE(submitted.accepted());
        return submitted.id;
      };
      // In chunk 2 of 3 of a prompt its client goes, and comes again.
      Collector gone, again;
      const int before = rig.backend.steps();
      rig.backend.hold(1);
      const uint64_t id = submit(prompt_of(40), gone);
      EXPECT_TRUE(rig.backend.wait_for_steps(before + 2));
      engine.cancel(id);
      rig.backend.let_go();
      EXPECT_EQ(drain(gone).last.finish, sched::Finish::cancelled);
      submit(prompt_of(40), again);
      all.push_back(drain(again).tokens);
      // The same prefix, and more than the pool holds.
      std::vector<Collector> crowd(5);
      for (int i = 0; i < 5; ++i) {
        Tokens prompt = prompt_of(24);
        const Tokens tail = prompt_of(3 + i, 5 + i);
        prompt.insert(prompt.end(), tail.begin(), tail.end());
        if (i >= 3) prompt = prompt_of(20, i);
        submit(prompt, crowd[static_cast<size_t>(i)]);
      }
      for (Collector& collector : crowd) all.push_back(drain(collector).tokens);
      engine.stop();
      const sched::Stats stats = engine.stats().scheduler;
      EXPECT_GT(stats.preemptions, 0);
      EXPECT_GT(stats.prefix_hit_tokens, 0);
      return all;
    };
    const std::vector<Tokens> clean = run(std::nullopt);
    for (const uint8_t byte : {0xFF, 0x7F}) EXPECT_EQ(run(byte), clean) << int{byte};
    for (const Tokens& tokens : clean) EXPECT_EQ(tokens.size(), 12u);
  }
}

}  // namespace
}  // namespace octet::engine
