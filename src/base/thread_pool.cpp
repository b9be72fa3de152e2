#include "base/thread_pool.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <set>
#include <string>
#include <system_error>

#include "base/error.h"

namespace octet {
namespace {

using Clock = std::chrono::steady_clock;
// Longer than the gap between two kernels of a step, shorter than a scheduler's time slice.
constexpr auto spin_time = std::chrono::microseconds(40);

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until `word` differs from `old`: spinning first, asleep after that.
uint32_t wait_while(const std::atomic<uint32_t>& word, uint32_t old) {
  Clock::time_point give_up{};  // found after the first turn: most waits are over sooner
  while (true) {
    for (int i = 0; i < 32; ++i) {
      const uint32_t now = word.load(std::memory_order_acquire);
      if (now != old) return now;
      pause_cpu();
    }
    const auto now = Clock::now();
    if (give_up == Clock::time_point{}) give_up = now + spin_time;
    if (now >= give_up) break;
  }
  word.wait(old, std::memory_order_acquire);
  return word.load(std::memory_order_acquire);
}

// Whole CPUs that the control group grants; `limit` where it sets none.
int quota(int limit) {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string granted;
  double period = 0;
  if (!(file >> granted >> period) || granted == "max" || period <= 0) return limit;
  try {
    return std::clamp(static_cast<int>(std::stod(granted) / period), 1, limit);
  } catch (const std::exception&) {
    return limit;
  }
}

}  // namespace

int default_thread_count() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  std::set<std::string> cores;  // the list of its hardware threads names a core
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    std::ifstream file(
        fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
    std::string siblings;
    if (!std::getline(file, siblings)) siblings = std::to_string(cpu);
    cores.insert(siblings);
  }
  const int count = std::max(1, static_cast<int>(cores.size()));
  return quota(count);
}

ThreadPool::ThreadPool(int threads) : shares_(static_cast<size_t>(std::max(threads, 0))) {
  invariant(threads >= 1, "a thread pool has at least one thread, its caller");
  errors_.resize(static_cast<size_t>(threads));
  workers_.reserve(static_cast<size_t>(threads) - 1);
  try {
    for (int thread = 1; thread < threads; ++thread) {
      workers_.emplace_back([this, thread] { work(thread); });
      pthread_setname_np(workers_.back().native_handle(), fmt::format("octet-{}", thread).c_str());
    }
  } catch (const std::system_error& failure) {
    stop_workers();
    throw Error({.what = "the system refuses to start a thread",
                 .where = fmt::format("thread {} of {}", workers_.size() + 2, threads),
                 .value = failure.code().message(),
                 .fix = "ask for fewer threads, or raise the limit on processes (ulimit -u)"});
  }
}

ThreadPool::~ThreadPool() {
  stop_workers();
}

void ThreadPool::stop_workers() {
  begin_.stop = true;
  begin_.epoch.fetch_add(1);
  begin_.epoch.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

void ThreadPool::call(int thread) noexcept {
  try {
    (*begin_.body)(thread);
  } catch (...) {
    errors_[static_cast<size_t>(thread)] = std::current_exception();
  }
}

// True for one of those who ask for a share of a run.
bool ThreadPool::claim(int thread, uint32_t epoch) {
  std::atomic<uint32_t>& taken = shares_[static_cast<size_t>(thread)].taken;
  // Runs follow one another, so an unclaimed share was last taken in the epoch before. One that is
  // taken is seen by a load, which leaves its line with who took it.
  uint32_t before = epoch - 1;
  return taken.load(std::memory_order_relaxed) == before &&
         taken.compare_exchange_strong(before, epoch);
}

// Sequentially consistent, as whoever is told looks for sleepers afterwards.
void ThreadPool::finish(int thread, uint32_t epoch) {
  shares_[static_cast<size_t>(thread)].finished.store(epoch);
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;  // not epoch.load(): a run may have begun before this thread did
  while (true) {
    seen = wait_while(begin_.epoch, seen);
    if (begin_.stop.load()) return;
    // A worker that comes late finds its share claimed, and the run perhaps over.
    if (!claim(thread, seen)) continue;
    call(thread);
    finish(thread, seen);
    shares_[static_cast<size_t>(thread)].finished.notify_one();
  }
}

void ThreadPool::run(FunctionRef<void(int)> body) {
  invariant(!running_.exchange(true), "ThreadPool::run entered twice at once");
  begin_.body = &body;
  const uint32_t epoch = begin_.epoch.fetch_add(1) + 1;  // publishes the body
  if (!workers_.empty()) begin_.epoch.notify_all();
  call(0);
  for (int thread = 1; thread < size(); ++thread) {
    if (!claim(thread, epoch)) continue;
    call(thread);
    finish(thread, epoch);
  }
  for (int thread = 1; thread < size(); ++thread) {
    const std::atomic<uint32_t>& finished = shares_[static_cast<size_t>(thread)].finished;
    for (uint32_t last = finished.load(std::memory_order_acquire); last != epoch;) {
      last = wait_while(finished, last);
    }
  }
  std::exception_ptr first;
  for (std::exception_ptr& error : errors_) {
    if (error && !first) first = error;
    error = nullptr;
  }
  running_.store(false);
  if (first) std::rethrow_exception(first);
}

void ThreadPool::parallel_for(int64_t n, int64_t grain,
                              FunctionRef<void(int64_t, int64_t, int)> body) {
  invariant(n >= 0 && grain >= 1, "parallel_for needs n >= 0 and grain >= 1");
  if (n == 0) return;
  const int64_t grains = (n - 1) / grain + 1;
  const int64_t threads = std::min<int64_t>(size(), grains);
  if (threads == 1) {
    invariant(!running_.load(std::memory_order_relaxed), "parallel_for inside a run");
    body(0, n, 0);
    return;
  }
  // Whole grains, the first `extra` threads one more than the others.
  const int64_t each = grains / threads, extra = grains % threads;
  run([&](int thread) {
    if (thread >= threads) return;
    const int64_t first = thread * each + std::min<int64_t>(thread, extra);
    const int64_t last = first + each + (thread < extra ? 1 : 0);
    body(first * grain, std::min(n, last * grain), thread);
  });
}

}  // namespace octet
