#include "text/sandbox.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

#include "base/error.h"

namespace octet::text {
namespace {

// Sent before the bytes of a request or an answer.
struct Header {
  uint64_t bytes;
  int32_t kind;  // of an answer: Sandbox::Result::Kind
};

// What a child leaves to the nursery; its bytes follow.
struct Page {
  int32_t kind;
  uint64_t bytes;
};

bool write_all(int fd, const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool read_all(int fd, void* data, size_t bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = read(fd, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool send_message(int fd, int32_t kind, std::string_view text) {
  const Header header{text.size(), kind};
  return write_all(fd, &header, sizeof header) && write_all(fd, text.data(), text.size());
}

bool receive_message(int fd, int32_t& kind, std::string& text) {
  Header header;
  if (!read_all(fd, &header, sizeof header)) return false;
  kind = header.kind;
  text.resize(header.bytes);
  return read_all(fd, text.data(), text.size());
}

void limit(int resource, rlim_t most) {
  const rlimit value{most, most};
  setrlimit(resource, &value);
}

// The address space that this process has taken, of which the limits of a child know nothing.
size_t mapped_bytes() {
  size_t pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%zu", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

[[noreturn]] void run_child(const Sandbox::Job& job, const Sandbox::Limits& limits,
                            std::string_view input, Page* page) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGALRM, SIGXCPU}) {
    std::signal(signal, SIG_DFL);
  }
  limit(RLIMIT_CPU, static_cast<rlim_t>(limits.cpu_seconds));
  limit(RLIMIT_CORE, 0);
  if (Sandbox::limits_memory()) limit(RLIMIT_AS, mapped_bytes() + limits.memory_bytes);
  alarm(static_cast<unsigned>(limits.wall_seconds));
  const auto leave = [&](Sandbox::Result::Kind kind, std::string_view text) {
    if (text.size() > limits.output_bytes) {
      kind = Sandbox::Result::too_long;
      text = {};
    }
    text.copy(reinterpret_cast<char*>(page + 1), text.size());
    page->bytes = text.size();
    page->kind = kind;
    _exit(0);
  };
  try {
    leave(Sandbox::Result::done, job(input));
  } catch (const std::bad_alloc&) {
    leave(Sandbox::Result::out_of_memory, "");
  } catch (const std::exception& error) {
    leave(Sandbox::Result::refused, error.what());
  } catch (...) {
  }
  _exit(1);
}

// Runs one child to its end. Its memory, with all that it did, goes with it.
int32_t run_once(const Sandbox::Job& job, const Sandbox::Limits& limits, std::string_view input,
                 std::string& answer) {
  answer.clear();
  const size_t bytes = sizeof(Page) + limits.output_bytes;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return Sandbox::Result::crashed;
  Page* page = new (memory) Page{Sandbox::Result::crashed, 0};
  const pid_t child = fork();
  if (child == 0) run_child(job, limits, input, page);
  int status = 0;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  int32_t kind = Sandbox::Result::crashed;
  if (child > 0 && WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    if (signal == SIGXCPU || signal == SIGKILL) kind = Sandbox::Result::out_of_time;
    if (signal == SIGALRM) kind = Sandbox::Result::too_slow;
  } else if (child > 0 && WEXITSTATUS(status) == 0 && page->bytes <= limits.output_bytes) {
    kind = page->kind;
    answer.assign(reinterpret_cast<const char*>(page + 1), page->bytes);
  }
  munmap(memory, bytes);
  return kind;
}

// Serves until the other end of the socket closes.
[[noreturn]] void run_nursery(const Sandbox::Job& job, const Sandbox::Limits& limits, int socket) {
  setsid();  // what a terminal sends to its processes is not for this one
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) std::signal(signal, SIG_IGN);
  std::signal(SIGCHLD, SIG_DFL);
  const int nothing = open("/dev/null", O_RDWR);
  for (const int standard : {0, 1, 2}) dup2(nothing, standard);
  // Nothing of the parent stays open here: no listening socket, no file.
  if (socket != 3) dup2(socket, 3);
  close_range(4, ~0U, 0);
  int32_t kind = 0;
  std::string input, answer;
  while (receive_message(3, kind, input)) {
    kind = run_once(job, limits, input, answer);
    if (!send_message(3, kind, answer)) break;
  }
  _exit(0);
}

}  // namespace

bool Sandbox::limits_memory() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  return false;
#endif
#endif
  return true;
}

Sandbox::Sandbox(Job job, Limits limits) : limits_(limits) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Fault(std::string("no socket for a sandbox: ") + std::strerror(errno));
  }
  nursery_ = fork();
  if (nursery_ == 0) run_nursery(job, limits, ends[1]);
  close(ends[1]);
  socket_ = ends[0];
  if (nursery_ < 0) {
    close(socket_);
    throw Fault(std::string("no process for a sandbox: ") + std::strerror(errno));
  }
}

Sandbox::~Sandbox() {
  close(socket_);  // which ends it, at the latest with the run at hand
  while (waitpid(nursery_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Sandbox::Result Sandbox::run(std::string_view input) {
  const std::lock_guard lock(one_at_a_time_);
  int32_t kind = 0;
  std::string text;
  if (!send_message(socket_, 0, input) || !receive_message(socket_, kind, text)) {
    throw Fault("the process of a sandbox is gone");
  }
  return {static_cast<Result::Kind>(kind), std::move(text)};
}

}  // namespace octet::text
