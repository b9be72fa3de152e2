#include "base/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path& path, std::string value,
                         std::string accepted = "a readable file that is not empty") {
  throw Error({.what = "cannot read a file",
               .where = path.string(),
               .value = std::move(value),
               .accepted = std::move(accepted)});
}

class Descriptor {
 public:
  // Does not wait for a writer where `path` is a pipe; reads then do.
  explicit Descriptor(const fs::path& path)
      : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd_ < 0) refuse(path, std::strerror(errno));
    fcntl(fd_, F_SETFL, 0);
  }
  ~Descriptor() { close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator int() const { return fd_; }  // NOLINT(google-explicit-constructor)

 private:
  int fd_;
};

struct stat status_of(const Descriptor& fd, const fs::path& path) {
  struct stat info {};
  if (fstat(fd, &info) != 0) refuse(path, std::strerror(errno));
  if (S_ISDIR(info.st_mode)) refuse(path, "a directory");
  return info;
}

}  // namespace

MappedFile::MappedFile(fs::path path) : path_(std::move(path)) {
  const Descriptor fd(path_);
  const struct stat info = status_of(fd, path_);
  if (!S_ISREG(info.st_mode)) refuse(path_, "not a regular file");
  if (info.st_size == 0) refuse(path_, "an empty file");
  const auto size = static_cast<size_t>(info.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) refuse(path_, std::strerror(errno));
  bytes_ = {static_cast<const std::byte*>(data), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void MappedFile::advise(Advice advice, std::span<const std::byte> part) const {
  if (part.empty()) return;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(part.data()) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(part.data() + part.size());
  int flag = MADV_NORMAL;
  switch (advice) {
    case Advice::sequential:
      flag = MADV_SEQUENTIAL;
      break;
    case Advice::random:
      flag = MADV_RANDOM;
      break;
    case Advice::will_need:
      flag = MADV_WILLNEED;
      break;
    case Advice::dont_need:
      flag = MADV_DONTNEED;
      break;
  }
  madvise(reinterpret_cast<void*>(begin), end - begin, flag);
}

std::string read_text(const fs::path& path, size_t most) {
  const Descriptor fd(path);
  const struct stat info = status_of(fd, path);
  const auto check = [&](size_t size) {
    if (size > most) refuse(path, "too long", fmt::format("at most {} bytes", most));
  };
  if (S_ISREG(info.st_mode)) check(static_cast<size_t>(info.st_size));
  std::string text;
  std::vector<char> block(size_t{1} << 16);
  while (true) {
    const ssize_t count = read(fd, block.data(), block.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse(path, std::strerror(errno));
    if (count == 0) break;
    text.append(block.data(), static_cast<size_t>(count));
    check(text.size());
  }
  if (text.empty() && S_ISFIFO(info.st_mode)) refuse(path, "a pipe that nobody writes to");
  return text;
}

}  // namespace octet
