#include "tensor/populate.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "tensor/buffer.h"

namespace octet {
namespace {

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // of newer headers: what the kernel knows counts
#endif

constexpr size_t kSlice = size_t{2} << 20;  // at once: no fault of another thread waits long
constexpr int kNiceness = 10;
// What is left to others: the cache then grows with use, as it would have.
constexpr size_t kSpare = size_t{256} << 20;

}  // namespace

Populator::Populator(std::vector<std::span<std::byte>> parts)
    : parts_(std::move(parts)), thread_([this] { run(); }) {}

Populator::~Populator() {
  stop_ = true;
  thread_.join();
}

void Populator::run() {
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness);
  for (const std::span<std::byte> part : parts_) {
    for (size_t at = 0; at < part.size(); at += kSlice) {
      if (stop_) return;
      if (at % (kSlice * 32) == 0 && available_host_memory() < kSlice * 32 + kSpare) {
        state_ = State::unsupported;
        return;
      }
      const size_t bytes = std::min(kSlice, part.size() - at);
      while (madvise(part.data() + at, bytes, MADV_POPULATE_WRITE) != 0) {
        if (errno == EINTR || errno == EAGAIN) continue;
        // An old kernel, or too little memory: it comes with use, as it would have.
        state_ = State::unsupported;
        return;
      }
    }
  }
  state_ = State::done;
}

}  // namespace octet
