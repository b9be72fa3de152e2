// A fixed set of threads for data-parallel loops. A loop is cut into contiguous ranges by
// arithmetic alone, so which thread computes what is known before it starts, and a body that
// computes each grain by itself gives the same bits on any number of threads.
//
// A barrier costs about half a microsecond on two cores while loops follow one another closely:
// idle workers spin for about 40 us before they sleep. A worker that the system does not schedule
// holds nobody up: the caller takes over a share that has not been begun.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#include "base/function_ref.h"

namespace octet {

// Physical cores that this process may run on: the affinity mask, with the hardware threads of one
// core counted once, and at most the CPU quota of its control group. At least 1.
int default_thread_count();

class ThreadPool {
 public:
  // `threads` >= 1 counts the caller of run(), so threads - 1 are started. Throws Error if the
  // system refuses them.
  explicit ThreadPool(int threads);

  // Joins the workers. No run() may be in progress.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(errors_.size()); }

  // Calls body(thread) once for every thread in [0, size()) and returns when all have returned.
  // `thread` names a share and its scratch space: shares run at the same time where cores are
  // free, else one after another, so a body must not wait for another's. An exception is rethrown
  // here, that of the lowest thread if several throw. One caller at a time, and never from inside a
  // body: Fault otherwise.
  void run(FunctionRef<void(int thread)> body);

  // Calls body(begin, end, thread) at most once a thread, with ranges that together are [0, n) and
  // whose borders are multiples of `grain` (or n). A loop of one grain runs on the caller.
  void parallel_for(int64_t n, int64_t grain,
                    FunctionRef<void(int64_t begin, int64_t end, int thread)> body);

 private:
  void work(int thread);
  void stop_workers();
  bool claim(int thread, uint32_t epoch);
  void finish(int thread, uint32_t epoch);
  void call(int thread) noexcept;

  using Body = FunctionRef<void(int)>;

  // Lines travel between cores once for each write that another core waits for, which is most of
  // what a short run costs. So what workers wait for and read at its begin is one line, and what
  // the caller waits for is one line a worker.
  struct alignas(64) Begin {
    std::atomic<uint32_t> epoch{0};  // one up = one run to do
    std::atomic<bool> stop{false};
    const Body* body = nullptr;  // of the run in progress; read after a claim only
  };
  struct alignas(64) Share {
    // The last epochs in which it was taken, and finished, by its worker or by the caller.
    std::atomic<uint32_t> taken{0}, finished{0};
  };

  Begin begin_;
  std::vector<Share> shares_;
  std::vector<std::exception_ptr> errors_;  // one a thread
  std::vector<std::thread> workers_;
  alignas(64) std::atomic<bool> running_{false};
};

}  // namespace octet
