#include "cli/terminal.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace octet::cli {

Terminal::Terminal() : interactive_(isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0) {
  sigset_t held;
  sigemptyset(&held);
  sigaddset(&held, SIGINT);
  pthread_sigmask(SIG_BLOCK, &held, &before_);
  signal_fd_ = signalfd(-1, &held, SFD_CLOEXEC | SFD_NONBLOCK);
  invariant(signal_fd_ >= 0, "a signalfd can be made");
}

Terminal::~Terminal() {
  close(signal_fd_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

bool Terminal::take_interrupt() {
  signalfd_siginfo info;
  bool any = false;
  while (read(signal_fd_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) any = true;
  return any;
}

Terminal::Input Terminal::read_line(std::string& line) {
  for (;;) {
    const size_t end = buffer_.find('\n');
    if (end != buffer_.npos || (ended_ && !buffer_.empty())) {
      line = buffer_.substr(0, end);
      buffer_.erase(0, end == buffer_.npos ? end : end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return Input::line;
    }
    if (ended_) return Input::end;
    pollfd files[] = {{STDIN_FILENO, POLLIN, 0}, {signal_fd_, POLLIN, 0}};
    if (poll(files, 2, -1) < 0 && errno != EINTR) return Input::end;
    if (files[1].revents != 0 && take_interrupt()) return Input::interrupted;
    if (files[0].revents == 0) continue;
    char part[4096];
    const ssize_t count = read(STDIN_FILENO, part, sizeof part);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) ended_ = true;
    if (count > 0) buffer_.append(part, static_cast<size_t>(count));
  }
}

}  // namespace octet::cli
