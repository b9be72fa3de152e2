// Runs one function in a process of its own, with limits: for code that can be made to loop, to
// take all memory or to crash by what it is given, and that cannot be bounded from inside.
//
//   caller ── request ──▶ nursery ── fork ──▶ child: limits, job(input)
//          ◀── answer ───         ◀─ its end ─
//
// The nursery is forked by the constructor and only forks again, one child a run: so nothing that a
// job does outlives it, and no later thread or memory of this process is in a child. Make a Sandbox
// early, before there are threads and gigabytes.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

namespace octet::text {

class Sandbox {
 public:
  struct Limits {
    int cpu_seconds = 2;
    int wall_seconds = 10;
    size_t memory_bytes = size_t{512} << 20;  // beside what the nursery has; see limits_memory
    size_t output_bytes = size_t{16} << 20;
  };

  struct Result {
    enum Kind {
      done,
      refused,
      out_of_time,    // of the processor
      too_slow,       // wall_seconds were over: the machine gave it too little of the processor
      too_long,       // output_bytes
      out_of_memory,  // memory_bytes
      crashed
    };
    Kind kind;
    std::string text;  // of done: the job's; of refused: what its exception said
  };

  // Gives its result, or throws (anything with a what()): refused. It runs in the child alone, and
  // what it holds is as it was when the sandbox was made.
  using Job = std::function<std::string(std::string_view input)>;

  // Throws Fault if no process can be made.
  Sandbox(Job job, Limits limits);
  ~Sandbox();
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  // Runs the job, and waits for it; from any thread, one after the other. Throws Fault if the
  // nursery is gone.
  Result run(std::string_view input);

  const Limits& limits() const { return limits_; }

  // No under a sanitizer, which maps terabytes for itself: there only time ends what takes memory.
  static bool limits_memory();

 private:
  Limits limits_;
  std::mutex one_at_a_time_;
  int socket_ = -1;
  pid_t nursery_ = -1;
};

}  // namespace octet::text
