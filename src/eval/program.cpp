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
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <memory>
#include <random>
#include <utility>

#include "base/error.h"
#include "eval/seccomp.h"

namespace octet::eval {
namespace {

using Clock = std::chrono::steady_clock;

// Bytes of what a program says that are kept.
constexpr size_t kKept = 4096;
// Where a program says that it is through.
constexpr int kDone = 3;

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
[[noreturn]] void become(const char* python, int in, int done, int err, pid_t parent,
                         const ProgramLimits& limits) {
  // Out of the way first: a descriptor may be one of 0 to 3 already.
  const int null = fcntl(open("/dev/null", O_WRONLY), F_DUPFD, 10);
  for (int* fd : {&in, &done, &err}) *fd = fcntl(*fd, F_DUPFD, 10);
  if (dup2(in, 0) < 0 || dup2(err, 2) < 0 || dup2(done, kDone) < 0 || dup2(null, 1) < 0) {
    _exit(kCannotStart);
  }
  setsid();
  // However octet ends, this does not outlive it.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(kCannotLimit);
  // Of what root may do, nothing is left after exec. Fails, and is not needed, for other users.
  for (int capability = 0; capability < 64; ++capability) prctl(PR_CAPBSET_DROP, capability);
  signal(SIGPIPE, SIG_DFL);
  const auto seconds = static_cast<rlim_t>(std::ceil(limits.seconds));
  const bool bounded = close_range(kDone + 1, ~0U, 0) == 0 && chdir("/") == 0 &&
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
  // Written last of all, by what the program cannot have known when it was written.
  const std::string word = random_word();
  const Fd program(
      file_of(fmt::format("{}\nimport os as _os\n_os.write({}, b'{}')\n", source, kDone, word)));
  Pipe done, err;
  const pid_t parent = getpid(), child = fork();
  if (child < 0) throw Fault(fmt::format("no process for a program: {}", strerror(errno)));
  if (child == 0) {
    become(python_.c_str(), program.get(), done.write->get(), err.write->get(), parent, limits);
  }
  done.write->close();
  err.write->close();
  // Readable when the child has ended; its ends of the pipes may be closed long before.
  const Fd ended(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  std::string said, complained;
  pollfd fds[] = {
      {done.read->get(), POLLIN, 0}, {err.read->get(), POLLIN, 0}, {ended.get(), POLLIN, 0}};
  std::string* const texts[] = {&said, &complained};
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(limits.seconds));
  bool late = false;
  while (fds[2].revents == 0 && !late) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    late = left <= 0;
    if (late || poll(fds, 3, static_cast<int>(left)) <= 0) continue;
    for (int i = 0; i < 2; ++i) {
      if (fds[i].revents != 0 && !drain(fds[i].fd, *texts[i], kKept)) fds[i].fd = -1;
    }
  }
  if (late) kill(child, SIGKILL);
  // It had no children that could hold a pipe open.
  for (int i = 0; i < 2; ++i) {
    while (fds[i].fd >= 0 && drain(fds[i].fd, *texts[i], kKept)) {
    }
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  ProgramResult result{.message = last_line(complained)};
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && said == word) {
    result.end = ProgramEnd::passed;
  } else if (late || (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU)) {
    result.end = ProgramEnd::out_of_time;
  } else if (WIFSIGNALED(status)) {
    result = {ProgramEnd::killed, strsignal(WTERMSIG(status))};
  } else if (WEXITSTATUS(status) == kCannotLimit) {
    result.message = "its limits cannot be set";
  } else if (WEXITSTATUS(status) == kCannotStart) {
    result.message = "it does not start";
  }
  return result;
}

}  // namespace octet::eval
