#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <stdexcept>

#include "base/error.h"

namespace octet {
namespace {

TEST(ThreadPool, CallsEveryThreadOnce) {
  for (int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    std::vector<int> calls(static_cast<size_t>(threads));
    for (int round = 0; round < 200; ++round) {
      pool.run([&](int thread) { ++calls[static_cast<size_t>(thread)]; });
    }
    EXPECT_EQ(calls, std::vector<int>(static_cast<size_t>(threads), 200));
  }
}

TEST(ThreadPool, RangesCoverTheLoopInWholeGrains) {
  for (int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    for (int64_t n : {0, 1, 7, 8, 9, 64, 1000}) {
      for (int64_t grain : {1, 3, 8, 2000}) {
        std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
        std::atomic<int> calls = 0;
        pool.parallel_for(n, grain, [&](int64_t begin, int64_t end, int thread) {
          EXPECT_LT(begin, end);
          EXPECT_EQ(begin % grain, 0);
          EXPECT_TRUE(end % grain == 0 || end == n);
          EXPECT_LT(thread, threads);
          ++calls;
          for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
        });
        for (const auto& hit : hits) ASSERT_EQ(hit, 1);
        EXPECT_EQ(calls, std::min<int64_t>(threads, (n + grain - 1) / grain));
      }
    }
  }
}

TEST(ThreadPool, CarriesTheLowestThreadsExceptionAndWorksOn) {
  ThreadPool pool(4);
  for (int round = 0; round < 50; ++round) {
    try {
      pool.run([](int thread) {
        if (thread >= 2) throw std::runtime_error(std::to_string(thread));
      });
      FAIL() << "no exception arrived";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "2");
    }
    EXPECT_THROW(pool.run([](int thread) {
      if (thread == 0) throw Error({.what = "caller"});
    }),
                 Error);
  }
  std::atomic<int> calls = 0;
  pool.run([&](int) { ++calls; });
  EXPECT_EQ(calls, 4);
}

TEST(ThreadPool, RefusesToRunInsideARun) {
  ThreadPool pool(2);
  EXPECT_THROW(pool.run([&](int) { pool.run([](int) {}); }), Fault);
  pool.run([](int) {});  // and is whole afterwards
  EXPECT_THROW(ThreadPool(0), Fault);
}

// More threads than any machine has cores: most shares are taken over by the caller.
TEST(ThreadPool, EveryShareRunsOnceWhenCoresAreFew) {
  ThreadPool pool(64);
  std::vector<int> calls(64);
  for (int round = 0; round < 500; ++round) {
    pool.run([&](int thread) { ++calls[static_cast<size_t>(thread)]; });
  }
  EXPECT_EQ(calls, std::vector<int>(64, 500));
}

TEST(ThreadPool, WakesWorkersThatSleep) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> calls = 0;
    pool.run([&](int) { ++calls; });
    EXPECT_EQ(calls, 3);
  }
}

TEST(ThreadPool, IsDestroyedAtAnyMoment) {
  for (int round = 0; round < 100; ++round) {
    ThreadPool pool(3);
    if (round % 2 == 0) pool.run([](int) {});
  }
}

TEST(ThreadPool, DefaultIsAtLeastOneAndAtMostTheMachine) {
  EXPECT_GE(default_thread_count(), 1);
  EXPECT_LE(default_thread_count(), static_cast<int>(std::thread::hardware_concurrency()));
}

int twice(int x) {
  return 2 * x;
}

TEST(FunctionRef, CallsLambdasFunctionsAndMembersByReference) {
  int sum = 0;
  auto add = [&sum](int x) { return sum += x; };
  FunctionRef<int(int)> ref = add;
  EXPECT_EQ(ref(3), 3);
  EXPECT_EQ(ref(4), 7);
  auto pointer = &twice;
  EXPECT_EQ(FunctionRef<int(int)>(pointer)(21), 42);
}

}  // namespace
}  // namespace octet
