// Requests are the same for one seed, have the lengths that were asked for, and files say where
// they are wrong.
#include "load/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "unit/base/error_of.h"
#include "unit/base/temp_dir.h"

namespace octet::load {
namespace {

using test::error_of;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

const Tokens kIds = {.ids = {5, 6, 7, 8}};

const Ids& ids_of(const LoadRequest& request) {
  return std::get<Ids>(request.prompt);
}

TEST(Dataset, RandomPromptsHaveTheirLengths) {
  const auto requests = random_requests(
      {.count = 200, .length = {40, 10}, .range_ratio = 0.5, .prefix = 8, .seed = 1}, kIds);
  ASSERT_EQ(requests.size(), 200u);
  size_t shortest = 1000, longest = 0;
  for (const LoadRequest& request : requests) {
    const size_t own = ids_of(request).size() - 8;
    EXPECT_EQ(request.prompt_tokens, static_cast<int64_t>(own + 8));
    shortest = std::min(shortest, own);
    longest = std::max(longest, own);
    EXPECT_GE(request.output_tokens, 5);
    EXPECT_LE(request.output_tokens, 15);
    EXPECT_TRUE(std::equal(ids_of(request).begin(), ids_of(request).begin() + 8,
                           ids_of(requests[0]).begin()));
    for (const int32_t id : ids_of(request)) EXPECT_TRUE(id >= 5 && id <= 8);
  }
  EXPECT_GE(shortest, 20u);
  EXPECT_LT(shortest, 25u);
  EXPECT_LE(longest, 60u);
  EXPECT_GT(longest, 55u);
}

TEST(Dataset, ASeedIsADataSet) {
  const RandomOptions one{.count = 3, .length = {20, 5}, .seed = 1};
  RandomOptions other = one;
  other.seed = 2;
  EXPECT_EQ(ids_of(random_requests(one, kIds)[2]), ids_of(random_requests(one, kIds)[2]));
  EXPECT_NE(ids_of(random_requests(one, kIds)[2]), ids_of(random_requests(other, kIds)[2]));
}

TEST(Dataset, WithoutATokenizerPromptsAreWords) {
  const auto requests = random_requests({.count = 1, .length = {12, 5}}, {});
  const auto& text = std::get<std::string>(requests[0].prompt);
  EXPECT_EQ(std::ranges::count(text, ' '), 11);
  EXPECT_EQ(requests[0].prompt_tokens, 0);  // for the server to say
}

TEST(Dataset, ChatPromptsAreDecodedAndCounted) {
  Tokens tokens = kIds;
  tokens.send_ids = false;
  tokens.decode = [](std::span<const int32_t> ids) { return std::string(ids.size(), 'x'); };
  tokens.count = [](const std::string& text) { return static_cast<int64_t>(text.size()) / 2; };
  const auto requests = random_requests({.count = 1, .length = {12, 5}}, tokens);
  EXPECT_EQ(std::get<std::string>(requests[0].prompt), std::string(12, 'x'));
  EXPECT_EQ(requests[0].prompt_tokens, 6);
}

TEST(Dataset, GroupsShareTheirPrefix) {
  const auto requests = shared_prefix_requests(
      {.groups = 3, .prompts_per_group = 4, .prefix = 10, .question = 5, .output = 2}, kIds);
  ASSERT_EQ(requests.size(), 12u);
  std::map<std::string, std::vector<Ids>> groups;
  for (const LoadRequest& request : requests) groups[request.group].push_back(ids_of(request));
  ASSERT_EQ(groups.size(), 3u);
  for (const auto& [name, prompts] : groups) {
    ASSERT_EQ(prompts.size(), 4u);
    for (const Ids& prompt : prompts) {
      EXPECT_EQ(prompt.size(), 15u);
      EXPECT_TRUE(std::equal(prompt.begin(), prompt.begin() + 10, prompts[0].begin()));
    }
  }
  EXPECT_NE(Ids(groups["group 0"][0].begin(), groups["group 0"][0].begin() + 10),
            Ids(groups["group 1"][0].begin(), groups["group 1"][0].begin() + 10));
}

TEST(Dataset, AMixIsSevenTwoOne) {
  for (const int64_t count : {10, 100, 37, 1}) {
    std::map<std::string, int64_t> kinds;
    for (const LoadRequest& request : mixed_requests({.count = count, .seed = 3}, kIds)) {
      ++kinds[request.group];
      EXPECT_EQ(request.prompt_tokens, request.group == "short"    ? 64
                                       : request.group == "medium" ? 512
                                                                   : 2048);
    }
    EXPECT_EQ(kinds["short"] + kinds["medium"] + kinds["long"], count);
    EXPECT_NEAR(static_cast<double>(kinds["medium"]), 0.2 * double(count), 0.5);
    EXPECT_NEAR(static_cast<double>(kinds["long"]), 0.1 * double(count), 0.5);
  }
}

TEST(Dataset, LengthsAreParsed) {
  EXPECT_EQ(parse_length("12:3", "--short").prompt, 12);
  EXPECT_EQ(parse_length("12:3", "--short").output, 3);
  for (const char* bad :
       {"", "12", "12:", ":3", "0:3", "3:0", "-1:3", "1:2:3", "a:b", "1 :2", "99999999999:1"}) {
    EXPECT_THAT(error_of([&] { parse_length(bad, "--short"); }), HasSubstr("--short")) << bad;
  }
}

TEST(Dataset, LinesAreRead) {
  const test::TempDir dir;
  const auto file = dir.file("a.jsonl",
                             "{\"prompt\": \"one\", \"output_tokens\": 3}\n\n"
                             "{\"prompt\": [1, 2], \"max_tokens\": 4}\n"
                             "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n");
  const auto requests = jsonl_requests({.path = file, .count = 4}, {});
  ASSERT_EQ(requests.size(), 4u);
  EXPECT_EQ(std::get<std::string>(requests[0].prompt), "one");
  EXPECT_EQ(requests[0].output_tokens, 3);
  EXPECT_EQ(ids_of(requests[1]), Ids({1, 2}));
  EXPECT_EQ(requests[1].output_tokens, 4);
  EXPECT_EQ(std::get<Json>(requests[2].prompt)[0]["content"], "x");
  EXPECT_EQ(requests[2].output_tokens, 128);
  EXPECT_EQ(std::get<std::string>(requests[3].prompt), "one");  // from the beginning again
  EXPECT_EQ(jsonl_requests({.path = file, .count = 4, .repeat = false}, {}).size(), 3u);
  EXPECT_EQ(jsonl_requests({.path = file, .count = 2, .output_len = 9}, {})[0].output_tokens, 9);
}

TEST(Dataset, BadLinesAreNamed) {
  const test::TempDir dir;
  for (const char* bad : {"{", "[]", "1", "{}", "{\"prompt\": 5}", "{\"prompt\": [\"a\"]}",
                          "{\"prompt\": null}", "{\"prompt\": \"a\", \"output_tokens\": 0}",
                          "{\"prompt\": \"a\", \"output_tokens\": \"x\"}", "{\"messages\": 5}",
                          "{\"prompt\": [1e10]}"}) {
    const auto file = dir.file("a.jsonl", std::string("{\"prompt\": \"fine\"}\n") + bad + "\n");
    EXPECT_THAT(error_of([&] { jsonl_requests({.path = file}, {}); }), HasSubstr("a.jsonl:2"))
        << bad;
  }
  EXPECT_THAT(error_of([&] { jsonl_requests({.path = dir / "none"}, {}); }), HasSubstr("none"));
  EXPECT_THAT(error_of([&] { jsonl_requests({.path = dir.path()}, {}); }), HasSubstr("directory"));
  EXPECT_THAT(error_of([&] { jsonl_requests({.path = dir.file("e", "\n")}, {}); }),
              HasSubstr("no usable request"));
}

TEST(Dataset, ShareGptIsCutAsVllmCutsIt) {
  const test::TempDir dir;
  const auto turn = [](size_t bytes) {
    return "{\"from\": \"x\", \"value\": \"" + std::string(bytes, 'a') + "\"}";
  };
  const auto talk = [&](size_t prompt, size_t answer) {
    return "{\"conversations\": [" + turn(prompt) + "," + turn(answer) + "]}";
  };
  const auto file =
      dir.file("s.json", "[" + talk(40, 80) + "," + talk(4, 80) + "," + talk(40, 4) + "," +
                             talk(5000, 80) + "," + talk(3000, 6000) +
                             R"(, {"conversations": []}, {"conversations": 3}, {}, 5,)" +
                             R"({"conversations": [{"value": 5}, {"value": 6}]}])");
  const auto requests = sharegpt_requests({.path = file, .count = 10, .repeat = false}, {});
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(requests[0].prompt_tokens, 10);
  EXPECT_EQ(requests[0].output_tokens, 20);
  for (const char* bad : {"{}", "[]", "[{}]", "x"}) {
    EXPECT_THAT(error_of([&] { sharegpt_requests({.path = dir.file("b.json", bad)}, {}); }),
                HasSubstr("b.json"));
  }
}

}  // namespace
}  // namespace octet::load
