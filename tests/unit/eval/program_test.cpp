// What a program that a model wrote may do, and what it may not.
#include "eval/program.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "unit/base/error_of.h"
#include "unit/base/temp_dir.h"

namespace octet::eval {
namespace {

using test::error_of;
using ::testing::HasSubstr;

class Program : public ::testing::Test {
 protected:
  ProgramRunner runner_{"python3", {.seconds = 60, .memory_bytes = int64_t{512} << 20}};
  ProgramRunner hurried_{"python3", {.seconds = 0.5}};
};

TEST_F(Program, PassesWhenItsLastLineIsReached) {
  EXPECT_EQ(runner_.run("assert 1 + 1 == 2").end, ProgramEnd::passed);
  EXPECT_EQ(runner_.run("import math, collections, re, typing\nprint('x' * 100000)").end,
            ProgramEnd::passed);
  EXPECT_EQ(
      runner_.run("import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()").end,
      ProgramEnd::passed)
      << "threads are no processes";
}

TEST_F(Program, FailsOtherwise) {
  const ProgramResult wrong = runner_.run("assert 1 + 1 == 3, 'no'");
  EXPECT_EQ(wrong.end, ProgramEnd::failed);
  EXPECT_EQ(wrong.message, "AssertionError: no");
  EXPECT_EQ(runner_.run("import sys\nsys.stderr.write('x' * 99999)\nassert False").message,
            "AssertionError");
  EXPECT_EQ(runner_.run("def f(:").end, ProgramEnd::failed);
  EXPECT_EQ(runner_.run("import sys; sys.exit(0)").end, ProgramEnd::failed);
  EXPECT_EQ(runner_.run("import os; os._exit(0)").end, ProgramEnd::failed) << "it left early";
  EXPECT_EQ(runner_.run("input()").end, ProgramEnd::failed) << "there is nothing to read";
  EXPECT_EQ(runner_.run("raise SystemExit").end, ProgramEnd::failed);
}

TEST_F(Program, IsBoundedInTimeAndMemory) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(hurried_.run("while True: pass").end, ProgramEnd::out_of_time);
  EXPECT_EQ(hurried_.run("import time; time.sleep(60)").end, ProgramEnd::out_of_time);
  EXPECT_EQ(hurried_.run("while True: print('x' * 10000)").end, ProgramEnd::out_of_time);
  EXPECT_EQ(hurried_.run("import os, time; os.closerange(0, 9); time.sleep(60)").end,
            ProgramEnd::out_of_time);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_THAT(runner_.run("x = bytearray(1 << 30)").message, HasSubstr("MemoryError"));
}

// A program that fails as a function of the C library does.
std::string call(const std::string& function, const std::string& arguments) {
  return fmt::format(
      "import ctypes, os\nc = ctypes.CDLL(None, use_errno=True)\n"
      "if c.{}({}) < 0:\n    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))",
      function, arguments);
}

TEST_F(Program, HasNoCallsThatAreNewerThanItsFilter) {
  for (const int number : {424, 428, 435, 437, 452, 463, 466, 469, 600}) {
    const ProgramResult result = runner_.run(call("syscall", std::to_string(number)));
    EXPECT_EQ(result.end, ProgramEnd::failed) << number;
    EXPECT_THAT(result.message, HasSubstr("Errno 38")) << number;
  }
  // And no device is spoken to, nor a file's flags changed: FS_IOC_SETFLAGS.
  EXPECT_THAT(runner_.run(call("ioctl", "0, 0x40086602, 0")).message, HasSubstr("Errno 25"));
}

TEST_F(Program, ReachesNothingOutside) {
  const test::TempDir dir;
  const std::string target = (dir / "made").string();
  const std::string kept = dir.file("kept", "text").string();
  for (const std::string& bad : {
           std::string("import socket; socket.socket()"),
           std::string("import socket; socket.create_connection(('127.0.0.1', 1))"),
           std::string("import socket; socket.socketpair()"),
           std::string("import os; os.fork()"),
           std::string("import subprocess; subprocess.run(['true'])"),
           std::string("import os; os.posix_spawn('/bin/true', ['true'], {})"),
           std::string("import os; os.kill(os.getppid(), 9)"),
           std::string("import os; os.killpg(os.getpgid(os.getppid()), 9)"),
           std::string("import fcntl, os; fcntl.fcntl(2, fcntl.F_SETOWN, os.getppid())"),
           std::string("import os; os.sched_setaffinity(os.getppid(), {0})"),
           std::string("import os; os.chroot('/')"),
           call("prctl", "1, 0, 0, 0, 0"),  // PR_SET_PDEATHSIG
           call("lremovexattr", "b'/', b'user.x'"),
           call("fremovexattr", "0, b'user.x'"),
           call("flock", "0, 2"),
           std::string("import multiprocessing as m; m.Process(target=print).start()"),
           fmt::format("open('{}', 'w')", target),
           fmt::format("open('{}', 'a')", kept),
           fmt::format("open('{}', 'r+')", kept),
           fmt::format("import os; os.mkdir('{}')", target),
           fmt::format("import os; os.remove('{}')", kept),
           fmt::format("import os; os.rename('{}', '{}')", kept, target),
           fmt::format("import os; os.chmod('{}', 0)", kept),
           fmt::format("import os; os.truncate('{}', 0)", kept),
           fmt::format("import os; os.symlink('{}', '{}')", kept, target),
           fmt::format("import os; os.utime('{}')", kept),
       }) {
    const ProgramResult result = runner_.run(bad);
    EXPECT_EQ(result.end, ProgramEnd::failed) << bad;
    EXPECT_THAT(result.message, HasSubstr("Errno 1")) << bad;
  }
  EXPECT_FALSE(std::filesystem::exists(target));
  EXPECT_EQ(test::slurp(kept), "text");
}

TEST_F(Program, SeesNoEnvironmentAndNoDescriptorsOfOurs) {
  EXPECT_EQ(runner_.run("import os\nassert 'HOME' not in os.environ, os.environ").end,
            ProgramEnd::passed);
  EXPECT_EQ(runner_
                .run("import os\nfor fd in range(4, 32):\n    try:\n        os.fstat(fd)\n"
                     "    except OSError:\n        continue\n    raise Exception(fd)")
                .end,
            ProgramEnd::passed);
}

TEST_F(Program, HasNoRightsOfRoot) {
  EXPECT_EQ(runner_
                .run("lines = dict(l.split(':', 1) for l in open('/proc/self/status'))\n"
                     "assert int(lines['CapEff'], 16) == 0")
                .end,
            ProgramEnd::passed);
}

TEST(ProgramRunner, NoPythonIsAnError) {
  EXPECT_THAT(error_of([] { ProgramRunner("python-that-is-not-there", {}); }),
              HasSubstr("python-that-is-not-there"));
}

}  // namespace
}  // namespace octet::eval
