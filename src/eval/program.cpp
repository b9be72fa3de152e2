#include "eval/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "eval/seccomp.h"

namespace octet::eval {
namespace {

using Clock = std::chrono::steady_clock;

// Bytes of what a program says that are kept.
constexpr size_t kKept = 4096;
// A program's descriptors: its source, nothing, what it complains of; where it says that it is
// through; and of two programs what each reads of the other and writes to it. -1: closed.
enum Place : size_t { kSource, kNothing, kComplaints, kDone, kRead, kWrite, kPlaces };
using Descriptors = std::array<int, kPlaces>;
constexpr Descriptors kClosed = {-1, -1, -1, -1, -1, -1};

// Seconds that Python may take to start, on a busy machine.
constexpr unsigned kPatience = 30;

// Exit codes of the child before it is the program.
constexpr int kCannotLimit = 125, kCannotStart = 126;

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {
    if (fd < 0) throw Fault(fmt::format("no file descriptor for a program: {}", strerror(errno)));
  }
  ~Fd() { close(); }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

struct Pipe {
  Pipe() {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) throw Fault(fmt::format("no pipe: {}", strerror(errno)));
    read = std::make_unique<Fd>(fds[0]);
    write = std::make_unique<Fd>(fds[1]);
  }
  std::unique_ptr<Fd> read, write;
};

// The source as a file that only this process knows.
int file_of(std::string_view source) {
  const int fd = memfd_create("program", MFD_CLOEXEC);
  for (size_t at = 0; fd >= 0 && at < source.size();) {
    const ssize_t wrote = ::write(fd, source.data() + at, source.size() - at);
    if (wrote <= 0) throw Fault(fmt::format("cannot hand over a program: {}", strerror(errno)));
    at += static_cast<size_t>(wrote);
  }
  if (fd >= 0) lseek(fd, 0, SEEK_SET);
  return fd;
}

bool limit(int what, rlim_t most) {
  const rlimit value{most, most};
  return setrlimit(static_cast<__rlimit_resource>(what), &value) == 0;
}

// In the child, between fork and exec: async-signal-safe calls alone.
[[noreturn]] void become(const char* python, Descriptors fds, pid_t parent,
                         const ProgramLimits& limits) {
  // Out of the way first: a descriptor may be one of the places already.
  fds[kNothing] = open("/dev/null", O_WRONLY);
  if (fds[kNothing] < 0) _exit(kCannotStart);
  for (int& fd : fds) {
    if (fd >= 0 && (fd = fcntl(fd, F_DUPFD, 10)) < 0) _exit(kCannotStart);
  }
  for (size_t i = 0; i < kPlaces; ++i) {
    const int place = static_cast<int>(i);
    if (fds[i] < 0) {
      close(place);
    } else if (dup2(fds[i], place) < 0) {
      _exit(kCannotStart);
    }
  }
  setsid();
  // However octet ends, this does not outlive it.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(kCannotLimit);
  // Of what root may do, nothing is left after exec. Fails, and is not needed, for other users.
  for (int capability = 0; capability < 64; ++capability) prctl(PR_CAPBSET_DROP, capability);
  signal(SIGPIPE, SIG_DFL);
  const auto seconds = static_cast<rlim_t>(std::ceil(limits.seconds));
  const bool bounded = close_range(kPlaces, ~0U, 0) == 0 && chdir("/") == 0 &&
                       limit(RLIMIT_CPU, seconds + 1) && limit(RLIMIT_FSIZE, 0) &&
                       limit(RLIMIT_AS, static_cast<rlim_t>(limits.memory_bytes)) &&
                       limit(RLIMIT_CORE, 0) && limit(RLIMIT_NOFILE, 32) && enter_seccomp();
  if (!bounded) _exit(kCannotLimit);
  // -I: neither the environment nor the user's packages; -B: no files beside the sources.
  // It finds its library by its own path.
  char* const arguments[] = {const_cast<char*>(python), const_cast<char*>("-I"),
                             const_cast<char*>("-B"), const_cast<char*>("-"), nullptr};
  char* const environment[] = {nullptr};
  execve(python, arguments, environment);
  _exit(kCannotStart);
}

// Appends what can be read now, and keeps the last `most` bytes; false at the end.
bool drain(int fd, std::string& text, size_t most) {
  char part[4096];
  const ssize_t got = ::read(fd, part, sizeof part);
  if (got <= 0) return got < 0 && errno == EINTR;
  text.append(part, static_cast<size_t>(got));
  if (text.size() > most) text.erase(0, text.size() - most);
  return true;
}

std::string last_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

std::string random_word() {
  std::random_device random;
  return fmt::format("done-{:08x}{:08x}{:08x}", random(), random(), random());
}

// The interpreter behind a name: what lies in PATH may be a script that starts it. Runs as any
// command of the user's, for kPatience seconds; empty if there is none, or it says nothing.
std::string interpreter_of(const std::string& python) {
  Pipe out;
  const pid_t child = fork();
  if (child < 0) throw Fault(fmt::format("no process to find Python: {}", strerror(errno)));
  if (child == 0) {
    dup2(out.write->get(), 1);
    alarm(kPatience);  // stays over exec
    execlp(python.c_str(), python.c_str(), "-I", "-c",
           "import sys; sys.stdout.write(sys.executable)", nullptr);
    _exit(kCannotStart);
  }
  out.write->close();
  std::string path;
  while (drain(out.read->get(), path, kKept)) {
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? path : "";
}

// A program in a process of its own, from its start to its end.
class Process {
 public:
  // Of `fds` the source and the complaints are its own to fill.
  Process(const std::string& python, std::string_view source, Descriptors fds,
          const ProgramLimits& limits) {
    const Fd program(file_of(source));
    fds[kSource] = program.get();
    fds[kComplaints] = complaints_.write->get();
    const pid_t parent = getpid();
    child_ = fork();
    if (child_ < 0) throw Fault(fmt::format("no process for a program: {}", strerror(errno)));
    if (child_ == 0) become(python.c_str(), fds, parent, limits);
    complaints_.write->close();
    ended_ = std::make_unique<Fd>(static_cast<int>(syscall(SYS_pidfd_open, child_, 0)));
  }
  ~Process() {
    if (!status_) end();
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Readable when it has ended; its ends of the pipes may be closed long before.
  int ended() const { return ended_->get(); }
  int complaints() const { return complaints_.read->get(); }
  // Kills it if it runs still.
  void end() {
    kill(child_, SIGKILL);
    wait();
  }
  int wait() {
    if (status_) return *status_;
    int status = 0;
    while (waitpid(child_, &status, 0) < 0 && errno == EINTR) {
    }
    status_ = status;
    return status;
  }

 private:
  Pipe complaints_;
  pid_t child_ = -1;
  std::unique_ptr<Fd> ended_;
  std::optional<int> status_;
};

// The last of what a pipe brought.
struct Heard {
  int fd;  // -1: it was closed
  std::string text;
};

// Reads `from` until `process` has ended; false if the deadline came first.
bool listen_until_end(const Process& process, std::span<Heard> from, Clock::time_point deadline) {
  std::vector<pollfd> fds{{process.ended(), POLLIN, 0}};
  for (const Heard& heard : from) fds.push_back({heard.fd, POLLIN, 0});
  while (fds[0].revents == 0) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    if (poll(fds.data(), fds.size(), static_cast<int>(left)) <= 0) continue;
    for (size_t i = 0; i < from.size(); ++i) {
      pollfd& fd = fds[i + 1];
      if (fd.revents != 0 && !drain(fd.fd, from[i].text, kKept)) fd.fd = from[i].fd = -1;
    }
  }
  return true;
}

// What is left of a process that has ended: it had no children that could hold a pipe open.
void hear_out(Heard& heard) {
  while (heard.fd >= 0 && drain(heard.fd, heard.text, kKept)) {
  }
}

Clock::time_point deadline_of(const ProgramLimits& limits) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limits.seconds));
}

// The end of a program that did not pass.
ProgramResult failure_of(int status, bool late, const std::string& complaints) {
  if (late || (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU)) {
    return {ProgramEnd::out_of_time, last_line(complaints)};
  }
  if (WIFSIGNALED(status)) return {ProgramEnd::killed, strsignal(WTERMSIG(status))};
  if (WEXITSTATUS(status) == kCannotLimit) return {.message = "its limits cannot be set"};
  if (WEXITSTATUS(status) == kCannotStart) return {.message = "it does not start"};
  return {.message = last_line(complaints)};
}

// `source`, and what it does last of all: write `word`, which it cannot have known when it was
// written.
std::string with_word(std::string_view source, std::string_view word) {
  return fmt::format("{}\nimport os as _os\n_os.write({}, b'{}')\n", source, int{kDone}, word);
}

// Prints what a program could do and must not.
constexpr std::string_view kProbe = R"(
import os, sys, socket
def can(what, try_it):
    try:
        try_it()
    except OSError:
        return
    sys.exit("a program can " + what)
can("open a socket", lambda: socket.socket())
can("write a file", lambda: open("/tmp/octet-probe", "w"))
can("start a process", os.fork)
can("send a signal", lambda: os.kill(os.getppid(), 0))
)";

}  // namespace

std::string_view name_of(ProgramEnd end) {
  switch (end) {
    case ProgramEnd::passed:
      return "passed";
    case ProgramEnd::failed:
      return "failed";
    case ProgramEnd::out_of_time:
      return "out_of_time";
    case ProgramEnd::killed:
      return "killed";
  }
  throw Fault("not a ProgramEnd");
}

ProgramRunner::ProgramRunner(const std::string& python, const ProgramLimits& limits)
    : python_(interpreter_of(python)), limits_(limits) {
  if (python_.empty()) {
    throw Error(
        {.what = "programs need Python, and it does not start",
         .where = "--python",
         .value = python,
         .accepted = fmt::format("an executable in PATH, or the path of one, that says within "
                                 "{} s where its interpreter lies",
                                 kPatience),
         .fix = "install python3"});
  }
  ProgramLimits patient = limits;  // a busy machine is no reason to refuse
  patient.seconds = std::max(limits.seconds, double{kPatience});
  const ProgramResult probe = run(kProbe, patient);
  if (probe.end == ProgramEnd::passed) return;
  throw Error({.what = "this system cannot hold a program that a model wrote",
               .where = python_,
               .value = probe.message.empty() ? std::string(name_of(probe.end)) : probe.message,
               .accepted = "a kernel with seccomp, and a python3 that starts within its limits",
               .fix = fmt::format("{} MiB may be too little for Python itself: give more --memory",
                                  limits.memory_bytes >> 20)});
}

ProgramResult ProgramRunner::run(std::string_view source, const ProgramLimits& limits) const {
  const std::string word = random_word();
  Pipe done;
  Descriptors fds = kClosed;
  fds[kDone] = done.write->get();
  Process program(python_, with_word(source, word), fds, limits);
  done.write->close();
  Heard heard[] = {{done.read->get(), ""}, {program.complaints(), ""}};
  const bool late = !listen_until_end(program, heard, deadline_of(limits));
  if (late) program.end();
  for (Heard& one : heard) hear_out(one);
  const int status = program.wait();
  if (status == 0 && heard[0].text == word) return {ProgramEnd::passed, last_line(heard[1].text)};
  return failure_of(status, late, heard[1].text);
}

ProgramResult ProgramRunner::run(const JudgedProgram& judged) const {
  const std::string word = random_word();
  Pipe done, calls, answers;
  Descriptors of_checker = kClosed, of_subject = kClosed;
  of_checker[kDone] = done.write->get();
  of_checker[kRead] = answers.read->get();
  of_checker[kWrite] = calls.write->get();
  of_subject[kRead] = calls.read->get();
  of_subject[kWrite] = answers.write->get();
  Process subject(python_, subject_source(judged), of_subject, limits_);
  Process checker(python_, with_word(checker_source(judged), word), of_checker, limits_);
  // Who waits for the other must see its end.
  for (Pipe* pipe : {&done, &calls, &answers}) pipe->write->close();
  for (Pipe* pipe : {&calls, &answers}) pipe->read->close();
  Heard heard[] = {{done.read->get(), ""}, {checker.complaints(), ""}, {subject.complaints(), ""}};
  const auto deadline = deadline_of(limits_);
  bool late = !listen_until_end(checker, heard, deadline);
  if (late) checker.end();
  hear_out(heard[0]);
  hear_out(heard[1]);
  if (checker.wait() == 0 && heard[0].text == word) {
    return {ProgramEnd::passed, last_line(heard[1].text)};
  }
  // The checker ended because the subject did, or the subject sees now that nobody asks any more.
  late = late || !listen_until_end(subject, std::span(heard).subspan(2), deadline);
  if (late) subject.end();
  hear_out(heard[2]);
  const int status = subject.wait();
  if (late || status != 0) return failure_of(status, late, heard[2].text);
  return failure_of(checker.wait(), false, heard[1].text);
}

}  // namespace octet::eval
