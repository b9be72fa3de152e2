#include "base/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/error.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path& path, std::string value) {
  throw Error({.what = "cannot read a file",
               .where = path.string(),
               .value = std::move(value),
               .accepted = "a readable file that is not empty"});
}

class Descriptor {
 public:
  explicit Descriptor(const fs::path& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) refuse(path, std::strerror(errno));
  }
  ~Descriptor() { close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator int() const { return fd_; }  // NOLINT(google-explicit-constructor)

 private:
  int fd_;
};

}  // namespace

MappedFile::MappedFile(fs::path path) : path_(std::move(path)) {
  const Descriptor fd(path_);
  struct stat info {};
  if (fstat(fd, &info) != 0) refuse(path_, std::strerror(errno));
  if (S_ISDIR(info.st_mode)) refuse(path_, "a directory");
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

std::string read_text(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) refuse(path, "a directory");
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse(path, std::strerror(errno != 0 ? errno : ENOENT));
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) refuse(path, "a read error");
  return text;
}

}  // namespace octet
