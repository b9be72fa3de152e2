// SIGINT, SIGTERM and SIGHUP as an exception, for a verb that must tidy up before it ends.
#pragma once

#include <signal.h>

#include <exception>

namespace octet::cli {

// main() turns it into the exit code that a shell expects: 130, 143 or 129.
class Interrupted : public std::exception {
 public:
  explicit Interrupted(int signal) : signal_(signal) {}
  const char* what() const noexcept override { return "interrupted"; }
  int exit_code() const { return 128 + signal_; }

 private:
  int signal_;
};

// Holds the three signals back from this thread, and from those that it starts, until check() asks
// for them: so no handler runs at a bad moment. One that comes after the last check() ends the
// process when the object dies.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  // Throws Interrupted if one has come.
  void check() const;
  // Whether one has come, of which check() still tells.
  bool pending() const;

 private:
  sigset_t held_, before_;
};

}  // namespace octet::cli
