// The request log: what a line holds, and that the file never grows beyond its bound.
#include "server/request_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace octet::server {
namespace {

namespace fs = std::filesystem;

class BoundedLogTest : public testing::Test {
 protected:
  BoundedLogTest() : folder_(fs::path(testing::TempDir()) / "octet_request_log") {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~BoundedLogTest() override { fs::remove_all(folder_); }
  std::string path() const { return (folder_ / "log").string(); }
  static std::string text(const std::string& file) {
    std::ifstream stream(file);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  fs::path folder_;
};

TEST_F(BoundedLogTest, KeepsTheNewestWithinItsBound) {
  BoundedLog log(path(), 100);
  for (int i = 0; i < 50; ++i) {
    log.write("line " + std::to_string(i));
    const uintmax_t old = fs::exists(path() + ".1") ? fs::file_size(path() + ".1") : 0;
    EXPECT_LE(fs::file_size(path()) + old, 100u);
  }
  EXPECT_TRUE(text(path()).ends_with("line 49\n"));
  EXPECT_TRUE(text(path() + ".1").starts_with("line "));
  log.write(std::string(60, 'x'));  // longer than half: left out
  EXPECT_TRUE(text(path()).ends_with("line 49\n"));
}

TEST_F(BoundedLogTest, GoesOnInAFileThatIsThereAndIsPrivate) {
  BoundedLog(path(), 100).write("one");
  BoundedLog(path(), 100).write("two");
  EXPECT_EQ(text(path()), "one\ntwo\n");
  EXPECT_EQ(fs::status(path()).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_THROW(BoundedLog(folder_.string(), 100), Error);
  EXPECT_THROW(BoundedLog("/no/such/folder/log", 100), Error);
}

TEST(LogLine, HoldsWhatComputesTheAnswerAgain) {
  LoggedRequest request{
      "/v1/completions", R"({"prompt":"a","cache_salt":"tenant","n":2})", {"cmpl-1", "tiny", 9}, 2};
  request.generation.sampling.seed = 18446744073709551615u;
  request.generation.sampling.logit_bias = {{3, -1.5f}};
  request.generation.stop_ids = {7};
  request.prompts = {std::make_shared<const EncodedPrompt>(EncodedPrompt{{0, 5}, "", {}})};
  request.choices = {{18446744073709551615u, {1, 2}, "length"}, {0, {}, "abort"}};
  const std::string line = log_line(request, "00ff");
  EXPECT_EQ(line.find("tenant"), line.npos);
  EXPECT_EQ(line.find('\n'), line.npos);
  const Json json = Json::parse(line);
  EXPECT_EQ(json["version"], 1);
  EXPECT_EQ(json["body"], Json::parse(R"({"prompt":"a","n":2})"));
  EXPECT_EQ(json["prompts"], Json::parse("[[0,5]]"));
  EXPECT_EQ(json["sampling"]["seed"], 18446744073709551615u);
  EXPECT_EQ(json["sampling"]["logit_bias"], Json::parse("[[3,-1.5]]"));
  EXPECT_TRUE(json["generation"]["max_tokens"].is_null());
  EXPECT_EQ(
      json["choices"],
      Json::parse(
          R"([{"index":0,"seed":18446744073709551615,"output_ids":[1,2],"finish_reason":"length"},
          {"index":1,"seed":0,"output_ids":[],"finish_reason":"abort"}])"));
}

}  // namespace
}  // namespace octet::server
