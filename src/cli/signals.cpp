#include "cli/signals.h"

#include <ctime>
#include <initializer_list>

namespace octet::cli {

HeldSignals::HeldSignals() {
  sigemptyset(&held_);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    // One that is ignored (nohup, a background job) must stay so; held back, it would be kept.
    struct sigaction action = {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&held_, signal);
  }
  pthread_sigmask(SIG_BLOCK, &held_, &before_);
}

HeldSignals::~HeldSignals() {
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void HeldSignals::check() const {
  const timespec at_once = {};
  const int signal = sigtimedwait(&held_, nullptr, &at_once);
  if (signal > 0) throw Interrupted(signal);
}

bool HeldSignals::pending() const {
  sigset_t come;
  sigpending(&come);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (sigismember(&held_, signal) == 1 && sigismember(&come, signal) == 1) return true;
  }
  return false;
}

}  // namespace octet::cli
