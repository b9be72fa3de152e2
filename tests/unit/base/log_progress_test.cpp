#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"

namespace octet {
namespace {

using ::testing::HasSubstr;

TEST(Log, WritesToStderrFromItsLevelUp) {
  testing::internal::CaptureStderr();
  log::set_level(log::Level::warning);
  log::info("quiet {}", 1);
  log::warning("loud {}", 2);
  log::set_level(log::Level::off);
  log::error("never");
  log::set_level(log::Level::info);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("loud 2"));
  EXPECT_EQ(text.find("quiet"), std::string::npos);
  EXPECT_EQ(text.find("never"), std::string::npos);
}

// What a hostile file names may be megabytes: neither a line nor an error prints it all.
TEST(Log, ALineAndAnErrorHaveALargestLength) {
  const std::string huge(size_t{5} << 20, 'x');
  testing::internal::CaptureStderr();
  log::warning("a notice about {}", huge);
  const std::string line = testing::internal::GetCapturedStderr();
  EXPECT_THAT(line, HasSubstr("a notice about xxx"));
  EXPECT_LT(line.size(), size_t{17} << 10);
  const Error error({.what = "no " + huge, .where = huge, .value = huge, .accepted = huge});
  EXPECT_LT(std::string(error.what()).size(), size_t{14} << 10);
  EXPECT_THAT(error.what(), HasSubstr("(5242880 bytes)"));
}

TEST(Log, KnowsItsLevels) {
  EXPECT_EQ(log::parse_level("debug"), log::Level::debug);
  EXPECT_THROW(log::parse_level("loud"), Error);
}

TEST(Progress, ShowsShareRateAndTimeLeft) {
  const Progress bytes("quantize", int64_t{4} << 30, Progress::Unit::bytes);
  EXPECT_EQ(bytes.line(int64_t{1} << 30, 2.0),
            "quantize [=======>                      ]  25%  512.0 MiB/s  0:06 left");
  EXPECT_EQ(bytes.line(int64_t{4} << 30, 8.0),
            "quantize [==============================] 100%  512.0 MiB/s  0:08 in all");
  EXPECT_EQ(Progress("eval", 0, Progress::Unit::tokens).line(300, 2.0),
            "eval  300 tokens  150 tokens/s");
  EXPECT_THAT(Progress("slow", 100000).line(1, 1.0), HasSubstr("27:46:39 left"));
  EXPECT_THAT(bytes.line(0, 0.0), HasSubstr("0%"));
}

TEST(Progress, IsSilentWithoutATerminal) {
  testing::internal::CaptureStderr();
  {
    Progress progress("work", 10);
    progress.advance(10);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace octet
