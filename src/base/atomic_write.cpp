#include "base/atomic_write.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCheck = "check the path, its rights and the free space, or name another";

[[noreturn]] void refuse(std::string what, const fs::path& path, std::string value,
                         std::string fix) {
  throw Error({.what = std::move(what),
               .where = path.string(),
               .value = std::move(value),
               .fix = std::move(fix)});
}

[[noreturn]] void refuse_errno(std::string what, const fs::path& path) {
  refuse(std::move(what), path, std::strerror(errno), kCheck);
}

// "a/b/" and "a/b" are one target; "" , "/" and ".." have no name to give.
fs::path normal(const fs::path& target) {
  fs::path path = target.empty() ? target : fs::absolute(target).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  if (!path.has_filename()) {
    refuse("cannot write there", target, "not the name of a file or folder",
           "name a file or folder");
  }
  return path;
}

// The file that `path` leads to, so that a rename replaces it and not the link. Stops at a link of
// /proc, which stands for an open descriptor (/dev/stdout) and may lead to no name at all.
fs::path follow_links(fs::path path) {
  constexpr int kMostLinks = 40;  // the kernel's limit
  std::error_code error;
  for (int links = 0; fs::is_symlink(path, error); ++links) {
    if (links == kMostLinks) refuse("cannot write there", path, std::strerror(ELOOP), kCheck);
    const fs::path folder = fs::canonical(path.parent_path(), error);
    if (folder.native().starts_with("/proc/")) break;
    const fs::path next = fs::read_symlink(path, error);
    if (error) refuse("cannot write there", path, error.message(), kCheck);
    path = normal(folder / next);
  }
  return path;
}

// A device, a pipe or an open descriptor: it stays what it is and takes the bytes as they come.
bool is_stream(const fs::path& target) {
  std::error_code ignored;
  if (fs::is_symlink(target, ignored)) return true;  // of /proc: see follow_links
  const fs::file_status status = fs::status(target, ignored);
  return fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
}

fs::path partial_of(const fs::path& target) {
  return target.parent_path() / ("." + target.filename().string() + ".partial");
}

void check_target(const fs::path& target, Overwrite overwrite, bool want_directory) {
  std::error_code ignored;
  const fs::file_status status = fs::symlink_status(target, ignored);
  if (!fs::exists(status)) return;
  if (fs::is_directory(status) != want_directory) {
    refuse("cannot replace the output", target,
           want_directory ? "exists and is not a folder" : "exists and is a folder",
           "remove it, or name another");
  }
  if (overwrite == Overwrite::refuse) {
    refuse("the output exists already", target, "", "remove it, name another, or pass --overwrite");
  }
}

void check_access(const fs::path& path, int rights, const fs::path& target) {
  if (faccessat(AT_FDCWD, path.c_str(), rights, AT_EACCESS) != 0) {
    refuse_errno("cannot write there", target);
  }
}

// Returns the uppermost of the folders that it made, or "".
fs::path make_parents(const fs::path& target) {
  fs::path made;
  std::error_code error;
  for (fs::path folder = target.parent_path(); !fs::exists(folder, error);
       folder = folder.parent_path()) {
    made = folder;
  }
  fs::create_directories(target.parent_path(), error);
  if (error) refuse("cannot create a folder", target.parent_path(), error.message(), kCheck);
  return made;
}

// Removes the empty folders above `target` up to `made`.
void remove_parents(const fs::path& target, const fs::path& made) {
  if (made.empty()) return;
  std::error_code error;
  for (fs::path folder = target.parent_path();; folder = folder.parent_path()) {
    if (!fs::remove(folder, error) || folder == made) return;
  }
}

// Throws Error unless a new file can be put beside `path`.
void check_folder(const fs::path& path, const fs::path& target) {
  const fs::path folder = path.parent_path();
  std::error_code ignored;
  if (!fs::exists(folder, ignored)) {
    refuse("cannot write there", target, fmt::format("no folder {}", folder.string()),
           "create the folder, or name another");
  }
  if (!fs::is_directory(folder, ignored)) {
    refuse("cannot write there", target, fmt::format("{} is not a folder", folder.string()),
           "name another file");
  }
  check_access(folder, W_OK | X_OK, target);
}

void sync_path(const fs::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) refuse_errno("cannot flush to the disk", path);
  const int reason = fsync(fd) == 0 ? 0 : errno;
  close(fd);
  // Some network file systems cannot sync a folder; there the rename is as safe as it gets.
  if (reason == 0 || reason == EINVAL) return;
  errno = reason;
  refuse_errno("cannot flush to the disk", path);
}

// Gives `from` the name `to`, which must be free unless `overwrite` allows to replace it.
void rename_to(const fs::path& from, const fs::path& to, Overwrite overwrite) {
  if (overwrite == Overwrite::refuse) {
    // The kernel's own check, so that no file made since ours is lost.
    if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return;
    if (errno == EEXIST) check_target(to, overwrite, fs::is_directory(from));
    if (errno != EINVAL && errno != ENOSYS) refuse_errno("cannot name the output", to);
    check_target(to, overwrite, fs::is_directory(from));
  }
  if (rename(from.c_str(), to.c_str()) != 0) refuse_errno("cannot name the output", to);
}

}  // namespace

void check_file_target(const fs::path& target, Overwrite overwrite) {
  const fs::path path = follow_links(normal(target));
  check_target(path, overwrite, false);
  if (is_stream(path)) {
    check_access(path, W_OK, target);
    return;
  }
  check_folder(path, target);
}

AtomicFile::AtomicFile(const fs::path& target, Overwrite overwrite)
    : target_(follow_links(normal(target))), overwrite_(overwrite) {
  check_target(target_, overwrite_, false);
  if (is_stream(target_)) {
    fd_ = open(target_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  } else {
    check_folder(target_, target);
    partial_ = partial_of(target_);
    // Removed, not reused: it may be a link to someone's file.
    unlink(partial_.c_str());
    fd_ = open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  }
  if (fd_ < 0) refuse_errno("cannot write a file", target_);
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  close(fd_);
  if (!partial_.empty()) unlink(partial_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  invariant(fd_ >= 0, "AtomicFile written after its commit");
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse_errno("cannot write a file", target_);
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

void AtomicFile::commit() {
  invariant(fd_ >= 0, "AtomicFile committed twice");
  if (partial_.empty()) {
    if (close(std::exchange(fd_, -1)) != 0) refuse_errno("cannot write a file", target_);
    return;
  }
  if (fsync(fd_) != 0) refuse_errno("cannot flush to the disk", target_);
  rename_to(partial_, target_, overwrite_);
  close(std::exchange(fd_, -1));
  sync_path(target_.parent_path());
}

AtomicDirectory::AtomicDirectory(const fs::path& target, Overwrite overwrite)
    : target_(normal(target)), partial_(partial_of(target_)), overwrite_(overwrite) {
  check_target(target_, overwrite_, true);
  made_ = make_parents(target_);
  // Cleared through a link, someone's folder would lose its contents.
  std::error_code error;
  if (fs::is_symlink(partial_, error)) unlink(partial_.c_str());
  if (mkdir(partial_.c_str(), 0777) != 0 && errno != EEXIST) {
    refuse_errno("cannot create a folder", partial_);
  }
  fd_ = open(partial_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd_ < 0) refuse_errno("cannot create a folder", partial_);
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    close(std::exchange(fd_, -1));
    refuse("another process is writing this output", target_, "", "wait for it, or name another");
  }
  // Ours now; it may hold what a killed writer left.
  error.clear();
  for (const fs::directory_entry& entry : fs::directory_iterator(partial_, error)) {
    fs::remove_all(entry.path(), error);
  }
  if (error) {
    close(std::exchange(fd_, -1));
    refuse("cannot clear what an earlier run left", partial_, error.message(),
           "remove that folder");
  }
}

AtomicDirectory::~AtomicDirectory() {
  if (fd_ < 0) return;
  std::error_code ignored;
  fs::remove_all(partial_, ignored);
  close(fd_);
  remove_parents(target_, made_);
}

void AtomicDirectory::commit() {
  invariant(fd_ >= 0, "AtomicDirectory committed twice");
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(partial_)) {
    if (!entry.is_symlink()) sync_path(entry.path());
  }
  sync_path(partial_);
  check_target(target_, overwrite_, true);
  bool exchanged = false;
  int old = -1;
  if (fs::exists(target_)) {
    // Locked, so that no writer takes the old one for a rest of its own while it is removed.
    old = open(target_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (old >= 0) flock(old, LOCK_EX | LOCK_NB);
    // rename() cannot replace a folder that is not empty: exchange the two, then remove the old.
    exchanged =
        renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) == 0;
    std::error_code error;
    if (!exchanged) fs::remove_all(target_, error);
    if (error) refuse("cannot replace the output", target_, error.message(), kCheck);
  }
  if (!exchanged) rename_to(partial_, target_, overwrite_);
  sync_path(target_.parent_path());
  std::error_code ignored;
  if (exchanged) fs::remove_all(partial_, ignored);
  if (old >= 0) close(old);
  close(std::exchange(fd_, -1));
}

}  // namespace octet
