// Each kind of tokenizer against Hugging Face's: ids, offsets, decoded text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/nfc.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace octet::text {

void PrintTo(const TokenSpan& span, std::ostream* out) {
  *out << span.id << " [" << span.begin << ", " << span.end << ")";
}

namespace {

using Ids = std::vector<int32_t>;

constexpr EncodeOptions kTextOnly{.add_special_tokens = false};

Json small_tokenizers() {
  return parse_json_file(OCTET_SOURCE_DIR "/tests/unit/text/data/small_tokenizers.json");
}

Json kind_named(const std::string& name) {
  for (const Json& kind : small_tokenizers()) {
    if (kind["name"] == name) return kind["tokenizer"];
  }
  return nullptr;
}

Tokenizer tokenizer_of(const Json& json) {
  return Tokenizer::from_json(dump_json(json), "", "model");
}

TEST(TokenizerKinds, EqualTheReferenceInIdsOffsetsAndText) {
  int compared = 0;
  for (const Json& kind : small_tokenizers()) {
    SCOPED_TRACE(kind["name"].get<std::string>());
    const Tokenizer tokenizer = tokenizer_of(kind["tokenizer"]);
    for (const Json& item : kind["cases"]) {
      const auto text = item["text"].get<std::string>();
      std::vector<TokenSpan> spans;
      Ids ids;
      for (const Json& span : item["spans"]) {
        ids.push_back(span[0]);
        spans.push_back({span[0], span[1], span[2]});
      }
      EXPECT_EQ(tokenizer.encode(text, kTextOnly), ids) << item["text"];
      EXPECT_EQ(tokenizer.encode_with_offsets(text, kTextOnly), spans) << item["text"];
      EXPECT_EQ(tokenizer.decode(ids, false), item["decoded"].get<std::string>()) << item["text"];
      EXPECT_EQ(tokenizer.encode_at_most(ids.size(), text, kTextOnly), ids);
      if (!ids.empty()) {
        EXPECT_EQ(tokenizer.encode_at_most(ids.size() - 1, text, kTextOnly), std::nullopt);
      }
      ++compared;
    }
  }
  EXPECT_GT(compared, 350);
}

// The words of a SentencePiece text are merged each on its own where that cannot matter; here a
// vocabulary in which it does.
TEST(TokenizerKinds, WordsAreMergedTogetherWhereATokenReachesOverTheirBegin) {
  Json json = kind_named("llama-2");
  Json& vocab = json["model"]["vocab"];
  const int32_t joined = static_cast<int32_t>(vocab.size());
  vocab["x▁"] = joined;
  json["model"]["merges"].insert(json["model"]["merges"].begin(), Json{"x", "▁"});
  const Ids ids = tokenizer_of(json).encode("x x", kTextOnly);
  EXPECT_EQ(ids, (Ids{vocab["▁"], joined, vocab["x"]}));
}

TEST(TokenizerKinds, LongSentencePieceTextTakesLittleTimeAndSurvives) {
  const Tokenizer tokenizer = tokenizer_of(kind_named("llama-2"));
  for (const char* unit : {"hello ", "h", " ", "日", "\xFF"}) {
    std::string text;
    while (text.size() < 200'000) text += unit;
    const Ids ids = tokenizer.encode(text, kTextOnly);
    EXPECT_FALSE(ids.empty());
    EXPECT_EQ(tokenizer.encode_at_most(100, text, kTextOnly), std::nullopt);
  }
}

TEST(TokenizerKinds, NoAddedTokenIsFoundAcrossAWall) {
  Json json = kind_named("llama-2 with tokens in normalized text");
  const Tokenizer tokenizer = tokenizer_of(json);
  const int32_t s = tokenizer.token_id("<s>").value(), x = tokenizer.token_id("<|x|>").value();
  const auto ids = [&](const std::string& text, std::vector<size_t> walls) {
    EncodeOptions options = kTextOnly;
    options.walls = walls;
    const Ids found = tokenizer.encode(text, options);
    Ids traced;
    for (const TokenSpan& span : tokenizer.encode_with_offsets(text, options)) {
      traced.push_back(span.id);
    }
    EXPECT_EQ(found, traced);
    return found;
  };
  using ::testing::Contains;
  using ::testing::Not;
  EXPECT_THAT(ids("a<s>b", {}), Contains(s));
  EXPECT_THAT(ids("a<s>b", {1, 4}), Contains(s));  // beside it
  EXPECT_THAT(ids("a<s>b", {2}), Not(Contains(s)));
  EXPECT_EQ(ids("a<s>b<s>", {2}).back(), s);
  EXPECT_THAT(ids("<s> <|x|>", {}), Contains(x));
  EXPECT_THAT(ids("<s> <|x|>", {6}), Not(Contains(x)));
  EXPECT_EQ(ids("<s> <|x|>", {6}).front(), s);
}

// Composed characters come out of NFC as they went in, and the changes sum up to the source.
TEST(Nfc, KeepsWhatIsNormalAndAccountsForEverySourceCharacter) {
  std::mt19937 rng(3);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    int source = 0;
    for (int i = 0; i < 12; ++i) {
      constexpr char32_t pools[][2] = {{'a', 'z'},         {0xC0, 0x17F},    {0x300, 0x345},
                                       {0x1F00, 0x1FFC},   {0x1100, 0x11F9}, {0xAC00, 0xD7A3},
                                       {0x930, 0x95F},     {0x3041, 0x30FF}, {0xFB1D, 0xFB4E},
                                       {0x1D15E, 0x1D164}, {0x2126, 0x212B}};
      const auto& pool = pools[rng() % std::size(pools)];
      append_utf8(pool[0] + rng() % (pool[1] - pool[0] + 1), text);
      ++source;
    }
    std::string normal;
    int accounted = 0;
    for (const ChangedChar& c : nfc(text)) {
      append_utf8(c.code_point, normal);
      accounted += 1 - c.change;
    }
    EXPECT_EQ(accounted, source);
    std::string again;
    for (const ChangedChar& c : nfc(normal)) append_utf8(c.code_point, again);
    EXPECT_EQ(again, normal);
    if (is_surely_nfc(text)) {
      EXPECT_EQ(normal, text);
    }
  }
}

}  // namespace
}  // namespace octet::text
