// Runs a Python program that a model wrote, in a process of its own that can do little: no network,
// no other process, no file that it could write, bounded time, memory and output.
//
// What holds it is the kernel: resource limits, and a seccomp filter that refuses sockets, new
// processes, signals to others, whatever opens a file to write or changes the file system, and the
// ways around (ptrace, io_uring, namespaces); and no capability is left to it. It may read what the
// user may read, and has nowhere to send it. No part of it runs inside this process.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "eval/judged_program.h"

namespace octet::eval {

struct ProgramLimits {
  double seconds = 3;  // of wall time; CPU time, too
  int64_t memory_bytes = int64_t{1} << 30;
};

enum class ProgramEnd : uint8_t {
  passed,  // it ran to its last line
  failed,  // an exception, or it left before its last line
  out_of_time,
  killed,  // by a signal: memory, a forbidden call
};
std::string_view name_of(ProgramEnd end);

struct ProgramResult {
  ProgramEnd end = ProgramEnd::failed;
  std::string message;  // the last line of stderr: "AssertionError", ...; of two, of who failed
};

class ProgramRunner {
 public:
  // `python` is looked for in PATH unless it has a slash. Sees that the limits hold: that a program
  // can open no socket, write no file and start no process. Throws Error if Python does not start,
  // or the system cannot hold it.
  ProgramRunner(const std::string& python, const ProgramLimits& limits);

  // Runs `source` to its end; it reads nothing from stdin and finds no environment. From any
  // thread.
  ProgramResult run(std::string_view source) const { return run(source, limits_); }
  // Runs a function and its test, each in such a process; both together within the limit of time.
  // Passed: the test ran to its end, which only the test's own process can say. From any thread.
  ProgramResult run(const JudgedProgram& program) const;

 private:
  ProgramResult run(std::string_view source, const ProgramLimits& limits) const;

  std::string python_;  // a path
  ProgramLimits limits_;
};

}  // namespace octet::eval
