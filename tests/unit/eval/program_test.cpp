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
using ::testing::Not;

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

// The function `f` by its body, judged by what `test` asserts.
JudgedProgram judged(const std::string& body, const std::string& test) {
  const std::string known =
      "from typing import List\n\ndef twice(x):\n    return 2 * x\n\ndef f(x):\n    "
      "\"\"\"A.\"\"\"\n";
  return {.known = known, .answer = known + body + "\n", .entry = "f", .test = test};
}

TEST_F(Program, AFunctionIsJudgedByItsTest) {
  const auto run = [&](const std::string& body, const std::string& test) {
    return runner_.run(judged(body, test));
  };
  const std::string test =
      "assert f(3) == twice(3)\nassert f([1]) == [1, 1]\nassert f('ab') == 'abab'";
  EXPECT_EQ(run("    return 2 * x", test).end, ProgramEnd::passed);
  EXPECT_EQ(run("    print(x)\n    return twice(x)", test).end, ProgramEnd::passed);
  const ProgramResult wrong = run("    return x", test);
  EXPECT_EQ(wrong.end, ProgramEnd::failed);
  EXPECT_EQ(wrong.message, "AssertionError");
  EXPECT_EQ(run("    return x / 0", test).message, "ZeroDivisionError: division by zero");
  EXPECT_EQ(run("    return x /", test).message, "SyntaxError: invalid syntax");
  EXPECT_EQ(run("    exit(0)", test).message, "EOFError: the other program has ended");
  EXPECT_EQ(run("    import os; os.abort()", test).end, ProgramEnd::killed);
  EXPECT_EQ(run("    raise KeyError(x)",
                "try:\n    f(1)\nexcept KeyError:\n    pass\nelse:\n    assert False")
                .end,
            ProgramEnd::passed);
  EXPECT_EQ(hurried_.run(judged("    while True: pass", test)).end, ProgramEnd::out_of_time);
  // Values as they are, with their types.
  for (const char* value : {"None", "True", "(1, [2.5, 'x'], {3: {4}})", "-0.0", "1j", "10**400",
                            "b'x'", "float('inf')", "[[]]", "'\\ud800'"}) {
    const ProgramResult same = run(
        "    return x", fmt::format("v = {}\nassert f(v) == v and type(f(v)) is type(v)", value));
    EXPECT_EQ(same.end, ProgramEnd::passed) << value << ": " << same.message;
  }
  EXPECT_EQ(run("    from collections import Counter\n    return Counter(x)",
                "assert f('aab') == {'a': 2, 'b': 1}")
                .end,
            ProgramEnd::passed);
}

// What a model wrote has neither the word nor a way to where it would have to be said.
TEST_F(Program, AFunctionCannotSayThatItPassed) {
  const std::string test = "assert f(3) == 12345";
  const ProgramRunner brief("python3",
                            {.seconds = 5});  // the checker may wait for what never comes
  for (const char* body : {
           // It answers with what is equal to everything.
           "    class Any:\n        def __eq__(self, other): return True\n    return Any()",
           "    class Any(int):\n        def __eq__(self, other): return True\n    return Any()",
           // It looks for the word where the source of a program is, and says it everywhere.
           "    import os\n    for fd in range(32):\n        try: os.write(fd, b'done')\n        "
           "except OSError: pass",
           "    import os, sys\n    frame = sys._getframe()\n    words = set()\n"
           "    while frame:\n        words |= {str(c) for c in frame.f_code.co_consts}\n        "
           "frame = frame.f_back\n"
           "    assert not any('done-' in word for word in words), 'found'\n    os._exit(0)",
           "    import os; os._exit(0)",
           "    import sys; sys.exit(0)",
           "    raise SystemExit",
           // A message that runs code where it is read.
           "    class Evil:\n        def __reduce__(self): import os; return (os._exit, (0,))\n    "
           "return Evil()",
           "    class Evil:\n        def __reduce__(self): return (exec, ('import sys; "
           "sys.exit(0)',))\n    return Evil()",
           "    import builtins\n    builtins.AssertionError = Exception\n    globals()['check'] = "
           "print",
       }) {
    const ProgramResult result = brief.run(judged(body, test));
    EXPECT_NE(result.end, ProgramEnd::passed) << body;
    EXPECT_THAT(result.message, Not(HasSubstr("found")));
  }
  // All that it does to the checker by what it answers, while it lives.
  const ProgramResult forged =
      runner_.run(judged("    import os, pickle\n    data = pickle.dumps((None, 12345), 4)\n"
                         "    os.write(5, len(data).to_bytes(8, 'little') + data)\n    os._exit(0)",
                         "assert f(3) == 12345\nassert f(4) == 0"));
  EXPECT_EQ(forged.end, ProgramEnd::failed);
}

TEST(ProgramRunner, NoPythonIsAnError) {
  EXPECT_THAT(error_of([] { ProgramRunner("python-that-is-not-there", {}); }),
              HasSubstr("python-that-is-not-there"));
}

}  // namespace
}  // namespace octet::eval
