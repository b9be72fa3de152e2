// A file mapped into memory, read-only. Pages are read when they are first touched.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace octet {

class MappedFile {
 public:
  // Maps the whole file. Throws Error if it is missing, a directory, empty or unreadable.
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  // Valid as long as this object, and wherever it is moved to. A file that another process
  // truncates meanwhile kills this one (SIGBUS), as with every mapping.
  std::span<const std::byte> bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }

  enum class Advice { sequential, random, will_need, dont_need };

  // Tells the kernel what is coming for `part`, which lies inside bytes(), or for all of it. Only
  // a hint: never fails.
  void advise(Advice advice) const { advise(advice, bytes_); }
  void advise(Advice advice, std::span<const std::byte> part) const;

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

// The whole file as text. Throws Error as MappedFile does, except that an empty file is "" and that
// a pipe or a device is read to its end, too; and if there are more than `most` bytes.
std::string read_text(const std::filesystem::path& path, size_t most = size_t{1} << 30);

}  // namespace octet
