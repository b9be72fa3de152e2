#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "base/atomic_write.h"
#include "base/mapped_file.h"
#include "unit/base/error_of.h"
#include "unit/base/temp_dir.h"

namespace octet {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::slurp;
using test::TempDir;
using ::testing::HasSubstr;

TEST(MappedFile, ShowsTheBytesAndSurvivesAMove) {
  const TempDir dir;
  const std::string text(10000, 'x');
  MappedFile file(dir.file("a", text));
  ASSERT_EQ(file.bytes().size(), text.size());
  const std::byte* data = file.bytes().data();
  MappedFile moved = std::move(file);
  EXPECT_EQ(moved.bytes().data(), data);
  EXPECT_EQ(std::memcmp(data, text.data(), text.size()), 0);
  moved.advise(MappedFile::Advice::will_need);
  moved.advise(MappedFile::Advice::random, moved.bytes().subspan(4500, 100));
  moved = MappedFile(dir.file("b", "b"));
  EXPECT_EQ(moved.bytes().size(), 1u);
}

TEST(MappedFile, NamesTheFileAndTheReason) {
  const TempDir dir;
  auto open = [](const fs::path& path) { return error_of([&] { MappedFile file(path); }); };
  EXPECT_THAT(open(dir / "none"), HasSubstr("No such file"));
  EXPECT_THAT(open(dir / "none"), HasSubstr("none"));
  EXPECT_THAT(open(dir.path()), HasSubstr("a directory"));
  EXPECT_THAT(open(dir.file("empty", "")), HasSubstr("an empty file"));
  EXPECT_THAT(open("/dev/null"), HasSubstr("not a regular file"));
  if (geteuid() != 0) {  // root may read everything
    const fs::path locked = dir.file("locked", "x");
    fs::permissions(locked, fs::perms::none);
    EXPECT_THAT(open(locked), HasSubstr("Permission denied"));
  }
}

TEST(ReadText, ReadsAllOrSaysWhy) {
  const TempDir dir;
  EXPECT_EQ(read_text(dir.file("a", "one\ntwo")), "one\ntwo");
  EXPECT_EQ(read_text(dir.file("b", "")), "");
  EXPECT_THAT(error_of([&] { read_text(dir / "none"); }), HasSubstr("No such file"));
  EXPECT_THAT(error_of([&] { read_text(dir.path()); }), HasSubstr("a directory"));
}

TEST(ReadText, EndsWhateverTheFileIs) {
  const TempDir dir;
  EXPECT_EQ(read_text(dir.file("a", "12345678"), 8), "12345678");
  EXPECT_THAT(error_of([&] { read_text(dir / "a", 7); }), HasSubstr("at most 7 bytes"));
  EXPECT_THAT(error_of([&] { read_text("/dev/zero", 1 << 20); }), HasSubstr("too long"));
  EXPECT_EQ(read_text("/dev/null"), "");

  const fs::path fifo = dir / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { MappedFile file(fifo); }), HasSubstr("not a regular file"));
  EXPECT_THAT(error_of([&] { read_text(fifo); }), HasSubstr("nobody writes"));

  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "piped", 5), 5);
  close(ends[1]);
  EXPECT_EQ(read_text("/dev/fd/" + std::to_string(ends[0])), "piped");
  close(ends[0]);
}

TEST(AtomicFile, AppearsOnCommitOnly) {
  const TempDir dir;
  {
    AtomicFile file(dir / "a");
    file.write("half");
    EXPECT_FALSE(fs::exists(dir / "a"));
  }
  EXPECT_TRUE(fs::is_empty(dir.path()));
  AtomicFile file(dir / "a");
  file.write("one ");
  file.write("two");
  file.commit();
  EXPECT_EQ(slurp(dir / "a"), "one two");
  EXPECT_THROW(file.write("more"), Fault);
}

TEST(AtomicFile, ReplacesOnlyWhenTold) {
  const TempDir dir;
  dir.file("a", "old");
  EXPECT_THAT(error_of([&] { AtomicFile file(dir / "a"); }), HasSubstr("exists already"));
  {
    AtomicFile file(dir / "a", Overwrite::replace);
    file.write("new");
    EXPECT_EQ(slurp(dir / "a"), "old");
    file.commit();
  }
  EXPECT_EQ(slurp(dir / "a"), "new");

  AtomicFile late(dir / "b");
  dir.file("b", "someone else's");
  EXPECT_THAT(error_of([&] { late.commit(); }), HasSubstr("exists already"));
  EXPECT_EQ(slurp(dir / "b"), "someone else's");
  EXPECT_THAT(error_of([&] { AtomicFile file(dir.path()); }), HasSubstr("is a folder"));
  EXPECT_THAT(error_of([&] { AtomicFile file("/"); }), HasSubstr("not the name"));
}

void replace(const fs::path& target, const std::string& text) {
  AtomicFile file(target, Overwrite::replace);
  file.write(text);
  file.commit();
}

TEST(AtomicFile, ReplacesWhatALinkLeadsTo) {
  const TempDir dir;
  fs::create_directory(dir / "sub");
  dir.file("sub/real", "old");
  fs::create_symlink("sub/real", dir / "one");
  fs::create_symlink("one", dir / "two");
  replace(dir / "two", "new");
  EXPECT_EQ(slurp(dir / "sub/real"), "new");
  EXPECT_TRUE(fs::is_symlink(dir / "one"));
  EXPECT_TRUE(fs::is_symlink(dir / "two"));

  fs::create_symlink("sub/later", dir / "dangling");
  replace(dir / "dangling", "made");
  EXPECT_EQ(slurp(dir / "sub/later"), "made");
  EXPECT_TRUE(fs::is_symlink(dir / "dangling"));

  fs::create_symlink("loop", dir / "loop");
  EXPECT_THAT(error_of([&] { replace(dir / "loop", "x"); }), HasSubstr("levels of symbolic links"));
  fs::create_symlink("sub", dir / "folder");
  EXPECT_THAT(error_of([&] { replace(dir / "folder", "x"); }), HasSubstr("is a folder"));
  EXPECT_THAT(error_of([&] { check_file_target(dir / "folder", Overwrite::replace); }),
              HasSubstr("is a folder"));
}

TEST(AtomicFile, ATargetIsCheckedBeforeTheWork) {
  const TempDir dir;
  dir.file("a", "old");
  const auto check = [](const fs::path& target) {
    return error_of([&] { check_file_target(target, Overwrite::replace); });
  };
  EXPECT_EQ(check(dir / "a"), "no error");
  EXPECT_EQ(check(dir / "b"), "no error");
  EXPECT_THAT(check(dir / "new/folders/b"), HasSubstr("no folder"));
  EXPECT_THAT(error_of([&] { AtomicFile file(dir / "new/b"); }), HasSubstr("no folder"));
  EXPECT_EQ(check("/dev/null"), "no error");
  EXPECT_THAT(check(dir / "a/b"), HasSubstr("not a folder"));
  EXPECT_THAT(check(dir / "a/b/c"), HasSubstr("no folder"));
  EXPECT_THAT(check(""), HasSubstr("not the name"));
  if (geteuid() != 0) {  // root may write everywhere
    fs::create_directory(dir / "locked");
    fs::permissions(dir / "locked", fs::perms::owner_read | fs::perms::owner_exec);
    EXPECT_THAT(check(dir / "locked/b"), HasSubstr("Permission denied"));
  }
  EXPECT_FALSE(fs::exists(dir / "new"));
}

TEST(AtomicFile, DevicesAndPipesStayWhatTheyAre) {
  const TempDir dir;
  // By its descriptor, lest a fault here costs the machine its /dev/full.
  const int full = open("/dev/full", O_WRONLY);
  EXPECT_THAT(error_of([&] { replace("/dev/fd/" + std::to_string(full), "x"); }),
              HasSubstr("No space left"));
  close(full);

  const fs::path fifo = dir / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const int reader = open(fifo.c_str(), O_RDONLY | O_NONBLOCK);
  replace(fifo, "piped");
  char got[8] = {};
  EXPECT_EQ(read(reader, got, sizeof got), 5);
  EXPECT_STREQ(got, "piped");
  close(reader);
  EXPECT_TRUE(fs::is_fifo(fifo));

  // A descriptor, as /dev/stdout is: what its file holds already stays.
  const int log = open(dir.file("log", "before ").c_str(), O_WRONLY);
  replace("/dev/fd/" + std::to_string(log), "after");
  close(log);
  EXPECT_EQ(slurp(dir / "log"), "before after");
}

TEST(AtomicFile, WritesThroughNoLinkThatLiesInItsWay) {
  const TempDir dir;
  dir.file("precious", "keep");
  fs::create_symlink("precious", dir / ".a.partial");
  replace(dir / "a", "new");
  EXPECT_EQ(slurp(dir / "precious"), "keep");
  EXPECT_EQ(slurp(dir / "a"), "new");
  EXPECT_FALSE(fs::is_symlink(dir / "a"));
}

TEST(AtomicDirectory, AppearsWholeOrNotAtAll) {
  const TempDir dir;
  {
    AtomicDirectory out((dir / "model").string() + "/");
    std::ofstream(out.path() / "config.json") << "{}";
    EXPECT_FALSE(fs::exists(dir / "model"));
  }
  EXPECT_TRUE(fs::is_empty(dir.path()));
  {
    AtomicDirectory out(dir / "model");
    fs::create_directory(out.path() / "sub");
    std::ofstream(out.path() / "sub/a") << "a";
    out.commit();
  }
  EXPECT_EQ(slurp(dir / "model/sub/a"), "a");
  EXPECT_THAT(error_of([&] { AtomicDirectory out(dir / "model"); }), HasSubstr("exists already"));
  EXPECT_THAT(error_of([&] { AtomicDirectory out(dir / "model/sub/a"); }),
              HasSubstr("is not a folder"));
  {
    AtomicDirectory out(dir / "model", Overwrite::replace);
    std::ofstream(out.path() / "b") << "b";
    EXPECT_EQ(slurp(dir / "model/sub/a"), "a");
    out.commit();
  }
  EXPECT_EQ(slurp(dir / "model/b"), "b");
  EXPECT_FALSE(fs::exists(dir / "model/sub"));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 1);
}

TEST(AtomicDirectory, FoldersAboveAreMadeAndGoAgain) {
  const TempDir dir;
  { const AtomicDirectory out(dir / "new/er/model"); }
  EXPECT_TRUE(fs::is_empty(dir.path()));
  fs::create_directory(dir / "old");
  { const AtomicDirectory out(dir / "old/er/model"); }
  EXPECT_TRUE(fs::is_empty(dir / "old"));
  AtomicDirectory out(dir / "new/er/model");
  out.commit();
  EXPECT_TRUE(fs::is_directory(dir / "new/er/model"));
}

TEST(AtomicDirectory, ClearsNoFolderThroughALink) {
  const TempDir dir;
  fs::create_directory(dir / "precious");
  dir.file("precious/a", "keep");
  fs::create_directory_symlink("precious", dir / ".model.partial");
  AtomicDirectory out(dir / "model");
  out.commit();
  EXPECT_EQ(slurp(dir / "precious/a"), "keep");
  EXPECT_FALSE(fs::is_symlink(dir / "model"));
}

TEST(AtomicDirectory, AKillLeavesNothingThatStaysOrBlocks) {
  const TempDir dir;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    AtomicDirectory out(dir / "model");
    std::ofstream(out.path() / "half") << "half";
    if (::write(ready[1], "x", 1) != 1) _exit(1);
    while (true) pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_THAT(error_of([&] { AtomicDirectory out(dir / "model"); }), HasSubstr("another process"));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
  EXPECT_FALSE(fs::exists(dir / "model"));
  AtomicDirectory out(dir / "model");
  EXPECT_TRUE(fs::is_empty(out.path()));
  out.commit();
  EXPECT_TRUE(fs::is_empty(dir / "model"));
}

}  // namespace
}  // namespace octet
