// A terminal, or a pipe, to talk with: lines in, and Ctrl-C as an event.
#pragma once

#include <signal.h>

#include <optional>
#include <string>

namespace octet::cli {

// While it lives, SIGINT is held back from this thread and those that it starts, and is asked for.
class Terminal {
 public:
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Whether a person sits there: both stdin and stdout are terminals.
  bool interactive() const { return interactive_; }

  enum class Input { line, end, interrupted };
  // Waits for a line (without its end), the end of input, or Ctrl-C, after which the terminal has
  // thrown away what was typed of the line.
  Input read_line(std::string& line);

  // Whether Ctrl-C was pressed since the last call.
  bool take_interrupt();

 private:
  sigset_t before_;
  int signal_fd_ = -1;
  bool interactive_, ended_ = false;
  std::string buffer_;
};

}  // namespace octet::cli
