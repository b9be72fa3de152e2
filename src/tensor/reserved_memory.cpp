#include "tensor/reserved_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "tensor/buffer.h"

namespace octet {
namespace {

size_t whole_pages(size_t bytes) {
  const size_t page = ReservedMemory::page();
  return (bytes + page - 1) / page * page;
}

[[noreturn]] void refuse(const char* what, size_t bytes, std::string value) {
  throw Error({.what = what,
               .where = "weights that are made when the model is loaded",
               .value = std::move(value),
               .accepted = fmt::format("room for {} bytes", bytes),
               .fix = "free memory, or take a smaller model"});
}

}  // namespace

ReservedMemory::ReservedMemory(size_t bytes) : bytes_(bytes == 0 ? 0 : whole_pages(bytes)) {
  if (bytes_ == 0) return;
  void* data = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) refuse("not enough addresses for the model", bytes, std::strerror(errno));
  data_ = static_cast<std::byte*>(data);
}

ReservedMemory::ReservedMemory(ReservedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

ReservedMemory& ReservedMemory::operator=(ReservedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

ReservedMemory::~ReservedMemory() {
  if (data_) munmap(data_, bytes_);
}

size_t ReservedMemory::page() {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return page;
}

void ReservedMemory::commit(size_t offset, size_t bytes) {
  invariant(offset % page() == 0 && offset <= bytes_ && bytes <= bytes_ - offset,
            "a part of reserved memory that is none");
  if (const size_t left = available_host_memory(); bytes > left) {
    refuse("not enough memory for the model", bytes, fmt::format("{} bytes are left", left));
  }
  if (mprotect(data_ + offset, whole_pages(bytes), PROT_READ | PROT_WRITE) != 0) {
    refuse("not enough memory for the model", bytes, std::strerror(errno));
  }
}

void ReservedMemory::release(size_t offset, size_t bytes) {
  invariant(offset % page() == 0 && offset <= bytes_ && bytes <= bytes_ - offset,
            "a part of reserved memory that is none");
  // Neither call can fail for a range that was mapped; if one did, memory is kept, no more.
  madvise(data_ + offset, whole_pages(bytes), MADV_DONTNEED);
  mprotect(data_ + offset, whole_pages(bytes), PROT_NONE);
}

}  // namespace octet
