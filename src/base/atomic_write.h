// Files and folders that exist whole or not at all. Both classes write beside the target under a
// hidden name, ".NAME.partial", and rename on commit(); an object destroyed without commit(), and
// a process killed at any moment, leave the target as it was. What a kill leaves behind is removed
// by the next write to the same target.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace octet {

enum class Overwrite { refuse, replace };

// Throws Error if AtomicFile would refuse the target or cannot write it, and changes nothing: for
// work that takes long before it writes.
void check_file_target(const std::filesystem::path& target, Overwrite overwrite);

// A target that is a symbolic link stands for the file it leads to. A device, a pipe and
// /dev/stdout cannot be replaced: they get each write() at once.
class AtomicFile {
 public:
  // Throws Error if the target exists and may not be replaced, if it is a directory, or if its
  // folder does not exist (a mistyped path is no wish for a new folder) or cannot be written.
  explicit AtomicFile(const std::filesystem::path& target, Overwrite overwrite = Overwrite::refuse);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Appends. Throws Error when the disk is full or fails.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }

  // Flushes to the disk and gives the file its name. Throws Error; the target is then unchanged.
  void commit();

 private:
  std::filesystem::path target_, partial_;  // no partial_: written directly
  Overwrite overwrite_;
  int fd_ = -1;
};

class AtomicDirectory {
 public:
  // As AtomicFile, but creates missing parent folders, which go again if nothing is committed; also
  // refuses while another process writes the same target. A target that is replaced must be a
  // directory, and is removed as a whole, on commit.
  explicit AtomicDirectory(const std::filesystem::path& target,
                           Overwrite overwrite = Overwrite::refuse);
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  // Where to write the contents.
  const std::filesystem::path& path() const { return partial_; }

  // Flushes every file and gives the directory its name. Throws Error; the target is then
  // unchanged.
  void commit();

 private:
  std::filesystem::path target_, partial_;
  std::filesystem::path made_;  // the uppermost folder that was created for the target, or ""
  Overwrite overwrite_;
  int fd_ = -1;  // of partial_; holds the lock that tells a writer at work from a dead one's rest
};

}  // namespace octet
