#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/mapped_file.h"
#include "text/utf8.h"
#include "unit/base/error_of.h"
#include "unit/text/small_tokenizer.h"

namespace octet::text {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

const std::string kDemo = OCTET_SOURCE_DIR "/models/octet-demo";

constexpr EncodeOptions kTextOnly{.add_special_tokens = false};

TEST(Tokenizer, EqualsTheReferenceOnDifficultStrings) {
  const Json golden = parse_json_file(OCTET_SOURCE_DIR "/tests/unit/text/data/demo_tokens.json");
  const std::string demo_text = read_text(kDemo + "/tokenizer.json");
  JsonRules rules;
  const Json demo = parse_json(demo_text, "tokenizer.json", rules);
  int compared = 0;
  for (const Json& variant : golden["variants"]) {
    SCOPED_TRACE(variant["name"].get<std::string>());
    Json patched = demo;
    for (const auto& [key, value] : variant["patch"].items()) {
      if (key == "model") {
        patched["model"].update(value);
      } else {
        patched[key] = value;
      }
    }
    const Tokenizer tokenizer = Tokenizer::from_json(dump_json(patched), "");
    for (const Json& item : variant["cases"]) {
      const auto text = item["text"].get<std::string>();
      const auto ids = item["ids"].get<Ids>();
      ASSERT_EQ(tokenizer.encode(text, kTextOnly), ids) << item["text"];
      const auto as_text =
          item.contains("ids_special_as_text") ? item["ids_special_as_text"].get<Ids>() : ids;
      ASSERT_EQ(tokenizer.encode(text, {.add_special_tokens = false, .parse_special = false}),
                as_text)
          << item["text"];
      ++compared;
    }
    if (!variant.contains("decodes")) continue;
    for (const Json& item : variant["decodes"]) {
      const auto ids = item["ids"].get<Ids>();
      ASSERT_EQ(tokenizer.decode(ids, false), item["text"].get<std::string>());
      ASSERT_EQ(tokenizer.decode(ids, true), item["skipped"].get<std::string>());
    }
  }
  EXPECT_GT(compared, 900);
}

TEST(Tokenizer, EncodesTheDemoModelsPromptsAndTexts) {
  const Tokenizer tokenizer = Tokenizer::load(kDemo);
  EXPECT_EQ(tokenizer.size(), 8192);
  EXPECT_EQ(tokenizer.bos_id(), 0);
  EXPECT_EQ(tokenizer.eos_id(), 1);
  EXPECT_TRUE(tokenizer.adds_bos());
  const Json reference = parse_json_file(kDemo + "/reference.json");
  for (const auto& [name, prompt] : reference["prompts"].items()) {
    const auto ids = prompt["ids"].get<Ids>();
    EXPECT_EQ(tokenizer.encode(prompt["text"].get<std::string>()), ids) << name;
    EXPECT_EQ(tokenizer.decode(ids, true), prompt["text"].get<std::string>()) << name;
  }
  for (const auto& [name, info] : reference["texts"].items()) {
    const std::string text = read_text(kDemo + "/" + name);
    const Ids ids = tokenizer.encode(text, kTextOnly);
    EXPECT_EQ(ids.size(), info["tokens"].get<size_t>()) << name;
    EXPECT_EQ(tokenizer.decode(ids, false), text);
  }
}

TEST(Tokenizer, RoundTripsAnyBytesUpToReplacement) {
  const Tokenizer tokenizer = small_tokenizer();
  std::mt19937 rng(5);
  for (int round = 0; round < 2000; ++round) {
    std::string text(rng() % 50, ' ');
    for (char& c : text) c = static_cast<char>(rng() % (rng() % 2 ? 256 : 128));
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text, kTextOnly), false),
              replace_invalid_utf8(text));
  }
  EXPECT_EQ(tokenizer.encode("a\xFF", kTextOnly), (Ids{'a', 0xEF, 0xBF, 0xBD}));
  EXPECT_EQ(tokenizer.encode(std::string_view("\0a", 2), kTextOnly), (Ids{0, 'a'}));
}

TEST(Tokenizer, MergesInTheOrderOfRanks) {
  const Tokenizer tokenizer = small_tokenizer();
  EXPECT_EQ(tokenizer.encode("hello hello hell", kTextOnly), (Ids{259, 260, ' ', 258}));
  EXPECT_EQ(tokenizer.token_bytes(260), " hello");
  EXPECT_EQ(tokenizer.token_bytes(-1), "");
  EXPECT_EQ(tokenizer.token_bytes(263), "");
}

TEST(Tokenizer, ReadsBothFormsOfMerges) {
  Json json = small_tokenizer_json();
  for (Json& merge : json["model"]["merges"]) {
    const std::string text = merge;
    merge = {text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)};
  }
  EXPECT_EQ(small_tokenizer(json).encode("hello hello", kTextOnly), (Ids{259, 260}));
}

TEST(Tokenizer, NeverAddsBosTwice) {
  const Tokenizer tokenizer = small_tokenizer();
  EXPECT_EQ(tokenizer.encode("a"), (Ids{261, 'a'}));
  EXPECT_EQ(tokenizer.encode(""), Ids{261});
  EXPECT_EQ(tokenizer.encode("<bos>a"), (Ids{261, 'a'}));
  EXPECT_EQ(tokenizer.encode("<bos><bos>a"), (Ids{261, 261, 'a'}));  // both are the text's own
  EXPECT_EQ(tokenizer.encode("a<bos>"), (Ids{261, 'a', 261}));
  EXPECT_EQ(tokenizer.encode("<bos>a", kTextOnly), (Ids{261, 'a'}));

  // A template and add_bos_token together.
  Json json = small_tokenizer_json();
  json["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "ByteLevel"}},
        {{"type", "TemplateProcessing"},
         {"single",
          {{{"SpecialToken", {{"id", "<bos>"}}}},
           {{"Sequence", {{"id", "A"}}}},
           {{"SpecialToken", {{"id", "<eos>"}}}}}},
         {"special_tokens", {{"<bos>", {{"ids", {261}}}}, {"<eos>", {{"ids", {262}}}}}}}}}};
  EXPECT_EQ(small_tokenizer(json).encode("a"), (Ids{261, 'a', 262}));
  EXPECT_EQ(small_tokenizer(json, nullptr).encode("a"), (Ids{261, 'a', 262}));
  EXPECT_EQ(small_tokenizer(json, nullptr).bos_id(), 261);
  // The config overrules the template.
  Json config = small_config_json();
  config["add_bos_token"] = false;
  config["add_eos_token"] = false;
  EXPECT_EQ(small_tokenizer(json, config).encode("a"), Ids{'a'});
  EXPECT_FALSE(small_tokenizer(json, config).adds_bos());
  config["add_eos_token"] = true;
  EXPECT_EQ(small_tokenizer(json, config).encode("a"), (Ids{'a', 262}));
}

TEST(Tokenizer, ParsesSpecialTokensOnlyIfAsked) {
  Json json = small_tokenizer_json();
  json["added_tokens"].push_back({{"id", 263}, {"content", "<tool>"}, {"special", false}});
  const Tokenizer tokenizer = small_tokenizer(json);
  EXPECT_EQ(tokenizer.encode("<eos><tool>", kTextOnly), (Ids{262, 263}));
  EXPECT_EQ(tokenizer.encode("<eos><tool>", {.add_special_tokens = false, .parse_special = false}),
            (Ids{'<', 'e', 'o', 's', '>', 263}));
  EXPECT_EQ(tokenizer.encode("<tool>", {.add_special_tokens = false, .parse_added = false}),
            (Ids{'<', 't', 'o', 'o', 'l', '>'}));
  EXPECT_TRUE(tokenizer.is_special(262));
  EXPECT_FALSE(tokenizer.is_special(263));
  EXPECT_FALSE(tokenizer.is_special('a'));
  EXPECT_FALSE(tokenizer.is_special(-1));
  EXPECT_FALSE(tokenizer.is_special(264));
  EXPECT_EQ(tokenizer.decode(Ids{'a', 262, 263}, true), "a<tool>");
  EXPECT_EQ(tokenizer.decode(Ids{'a', 262, 263}, false), "a<eos><tool>");
  EXPECT_EQ(tokenizer.token_id("<tool>"), 263);
  EXPECT_EQ(tokenizer.token_id(" hello"), 260);
  EXPECT_EQ(tokenizer.token_id("absent"), std::nullopt);
}

TEST(Tokenizer, TakesAddedTokensOfTheConfig) {
  Json config = small_config_json();
  config["added_tokens_decoder"] = {
      {"262", {{"content", "<eos>"}, {"special", true}, {"normalized", false}}},
      {"300", {{"content", "<think>"}, {"special", false}, {"normalized", false}}}};
  config["pad_token"] = "<think>";
  const Tokenizer tokenizer = small_tokenizer(small_tokenizer_json(), config);
  EXPECT_EQ(tokenizer.encode("<think>x", kTextOnly), (Ids{300, 'x'}));
  EXPECT_EQ(tokenizer.size(), 301);
  EXPECT_TRUE(tokenizer.is_special(300));  // the config names it as PAD
  EXPECT_EQ(tokenizer.decode(Ids{299, 300}, false), "<think>");
}

TEST(Tokenizer, DecodesAddedTokensAsTheyAreWritten) {
  // Characters outside of the byte alphabet, and inside: U+00E9 is the letter of byte E9.
  Json json = small_tokenizer_json();
  json["added_tokens"].push_back({{"id", 263}, {"content", "<\uFF5Cuser\u2581x\uFF5C>"}});
  json["added_tokens"].push_back({{"id", 264}, {"content", "\u00E9\u00E9"}});
  const Tokenizer tokenizer = small_tokenizer(json);
  EXPECT_EQ(tokenizer.decode(Ids{263, 264}, false), "<\uFF5Cuser\u2581x\uFF5C>\u00E9\u00E9");
}

TEST(Tokenizer, ByteFallbackAndUnknown) {
  Json json = small_tokenizer_json();
  json["added_tokens"] = Json::array();
  Json& model = json["model"];
  model["vocab"].erase("z");
  model["unk_token"] = "a";
  EXPECT_EQ(small_tokenizer(json, nullptr).encode("bz", kTextOnly), (Ids{'b', 'a'}));
  model["byte_fallback"] = true;
  model["vocab"]["<0x7A>"] = 400;
  EXPECT_EQ(small_tokenizer(json, nullptr).encode("bz", kTextOnly), (Ids{'b', 400}));
}

TEST(Tokenizer, ManyThreadsGiveTheSameIds) {
  const Tokenizer tokenizer = Tokenizer::load(kDemo);
  const std::string text = read_text(kDemo + "/eval_code.txt");
  const Ids expected = tokenizer.encode(text);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) wrong[t] += tokenizer.encode(text) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

// All of the ids or nothing, for every limit around their number, also where BOS is taken back.
TEST(Tokenizer, EncodesAtMost) {
  Json both = small_config_json();
  both["add_eos_token"] = true;
  for (const Json& config : {small_config_json(), both}) {
    const Tokenizer tokenizer = small_tokenizer(small_tokenizer_json(), config);
    for (const char* text :
         {"", "a", "<bos>a", "<bos><bos>", "hello hello", "a<eos>b c", "a\xFF b"}) {
      for (const bool special : {false, true}) {
        const EncodeOptions options{.add_special_tokens = special};
        const Ids all = tokenizer.encode(text, options);
        for (size_t most = 0; most < all.size() + 3; ++most) {
          const auto some = tokenizer.encode_at_most(most, text, options);
          EXPECT_EQ(some.has_value(), all.size() <= most) << text << ", at most " << most;
          if (some) EXPECT_EQ(*some, all) << text;
        }
      }
    }
  }
}

// A limit bounds the work, whatever the text is.
TEST(Tokenizer, ALimitEndsTheWorkEarly) {
  const auto seconds = [](const Tokenizer& tokenizer, const std::string& text) {
    const std::clock_t begin = std::clock();
    EXPECT_FALSE(tokenizer.encode_at_most(100, text, kTextOnly).has_value());
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  // Too many bytes for 100 ids of at most 6 bytes: not looked at, or this would take a minute.
  EXPECT_LT(seconds(small_tokenizer(), std::string(size_t{100} << 20, 'x')), 1.0);
  // A long token says that 100 ids might be enough: it ends at the 101st.
  Json json = small_tokenizer_json();
  json["added_tokens"].push_back({{"id", 263},
                                  {"content", std::string(200000, 'z')},
                                  {"special", true},
                                  {"normalized", false}});
  std::string text;
  while (text.size() < 16000000) text += "a word and 12 more. ";
  EXPECT_LT(seconds(small_tokenizer(json), text), 1.0);
}

TEST(Tokenizer, LongRunsTakeTimeInProportion) {
  // Pieces of 60,000 bytes: a quadratic merge or split would be noticed.
  const Tokenizer tokenizer = Tokenizer::load(kDemo);
  for (const char c : {'a', ' ', '\n', '!', '1'}) {
    const std::string text(60000, c);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, kTextOnly), false), text);
  }
}

// The log while a tokenizer is read.
std::string told(const Json& json) {
  testing::internal::CaptureStderr();
  small_tokenizer(json);
  return testing::internal::GetCapturedStderr();
}

// What the reference takes without a word, though nobody can have meant it.
TEST(Tokenizer, TellsOfEmptyTokensAndDoubledMerges) {
  Json json = small_tokenizer_json();
  EXPECT_EQ(told(json), "");
  json["added_tokens"].push_back({{"id", 263}, {"content", ""}});
  EXPECT_THAT(told(json), AllOf(HasSubstr("$.added_tokens[2]"), HasSubstr("token 263 is empty")));
  json = small_tokenizer_json();
  Json& merges = json["model"]["merges"];
  const size_t count = merges.size();
  merges.push_back(merges[0]);
  EXPECT_THAT(told(json), AllOf(HasSubstr("$.model.merges[" + std::to_string(count) + "]"),
                                HasSubstr("1 merges are listed twice")));
}

TEST(Tokenizer, TellsOfLostMerges) {
  Json json = small_tokenizer_json();
  EXPECT_EQ(told(json), "");
  json["model"]["merges"].erase(1);  // "ll"
  EXPECT_THAT(told(json), AllOf(HasSubstr("model/tokenizer.json, $.model.merges"),
                                HasSubstr("1 tokens"), HasSubstr("\"ll\"")));
}

// Errors name the file, the place in it, what was found and what is accepted.

std::string load_error(const Json& tokenizer, const Json& config = nullptr) {
  return error_of([&] { small_tokenizer(tokenizer, config); });
}

TEST(TokenizerErrors, NameFilePathValueAndWhatIsAccepted) {
  Json json = small_tokenizer_json();
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFKC"}}}}};
  EXPECT_THAT(load_error(json),
              AllOf(HasSubstr("unsupported normalizer"),
                    HasSubstr("model/tokenizer.json, $.normalizer.normalizers[0].type"),
                    HasSubstr("\"NFKC\""), HasSubstr("null, NFC, Prepend, Replace")));
  json["normalizer"]["normalizers"] = Json::array();
  EXPECT_EQ(load_error(json), "no error");

  json["pre_tokenizer"] = {{"type", "Whitespace"}};
  EXPECT_THAT(load_error(json), AllOf(HasSubstr("$.pre_tokenizer.type"), HasSubstr("Whitespace"),
                                      HasSubstr("Sequence, Split, Digits, Punctuation")));
  json["pre_tokenizer"] = nullptr;
  EXPECT_THAT(load_error(json), HasSubstr("ByteLevel in both, or in neither"));
}

TEST(TokenizerErrors, CoverEveryPartOfTheFile) {
  const auto with = [](const char* pointer, const Json& value) {
    Json json = small_tokenizer_json();
    json[Json::json_pointer(pointer)] = value;
    return load_error(json);
  };
  EXPECT_THAT(with("/model/type", "Unigram"), HasSubstr("$.model.type"));
  EXPECT_THAT(with("/model/merges/1", "xy"), HasSubstr("$.model.merges[1]"));
  EXPECT_THAT(with("/model/merges/1", "q w"), HasSubstr("the vocabulary lacks: \"qw\""));
  EXPECT_THAT(with("/model/merges/1", {"a", "b", "c"}), HasSubstr("not a merge"));
  EXPECT_THAT(with("/model/vocab/a", -1), HasSubstr("$.model.vocab[\"a\"]"));
  EXPECT_THAT(with("/model/vocab/a", 98), HasSubstr("twice"));
  EXPECT_THAT(with("/model/vocab/a", 1 << 30), HasSubstr("out of range"));
  EXPECT_THAT(with("/model/vocab/a", "1"), HasSubstr("out of range"));
  EXPECT_THAT(with("/model/merges", nullptr), HasSubstr("missing member \"merges\""));
  EXPECT_THAT(with("/model/merges", Json::array()),
              AllOf(HasSubstr("$.model.merges"), HasSubstr("\"he\""), HasSubstr("no merge")));
  EXPECT_THAT(with("/model/dropout", 0.1), HasSubstr("random"));
  EXPECT_THAT(with("/model/end_of_word_suffix", "</w>"), HasSubstr("end_of_word_suffix"));
  EXPECT_THAT(with("/model/ignore_merges", "yes"), HasSubstr("true or false"));
  EXPECT_THAT(with("/model/vocab", Json::object()), HasSubstr("the vocabulary is empty"));
  EXPECT_THAT(with("/model/vocab", nullptr), HasSubstr("missing member \"vocab\""));
  EXPECT_THAT(with("/model", 3), HasSubstr("an object"));
  EXPECT_THAT(with("/decoder", {{"type", "WordPiece"}}), HasSubstr("unsupported decoder"));
  EXPECT_THAT(with("/decoder", {{"type", "Metaspace"}}), HasSubstr("ByteLevel in both"));
  EXPECT_THAT(with("/decoder", nullptr), HasSubstr("decoder"));
  EXPECT_THAT(with("/decoder", {{"type", "Strip"}, {"content", " "}, {"start", 2}, {"stop", 0}}),
              HasSubstr("unsupported Strip"));
  EXPECT_THAT(with("/normalizer", {{"type", "Prepend"}, {"prepend", std::string(17, 'x')}}),
              HasSubstr("$.normalizer.prepend"));
  EXPECT_THAT(with("/normalizer", {{"type", "Replace"}, {"pattern", {{"String", ""}}}}),
              HasSubstr("$.normalizer"));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}}),
              HasSubstr("$.pre_tokenizer.replacement"));
  EXPECT_THAT(with("/post_processor", {{"type", "BertProcessing"}}), HasSubstr("post-processor"));
  EXPECT_THAT(with("/added_tokens/0/id", 97), HasSubstr("$.added_tokens[0].id"));
  EXPECT_THAT(with("/added_tokens/0/content", 1), HasSubstr("a string"));
  const Json split = {{"type", "Split"}, {"pattern", {{"Regex", "["}}}, {"behavior", "Isolated"}};
  const Json bytes = {{"type", "ByteLevel"}};
  const auto with_split = [&](const char* pointer, const Json& value) {
    Json changed = split;
    changed[Json::json_pointer(pointer)] = value;
    return with("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {changed, bytes}}});
  };
  EXPECT_THAT(with_split("/type", "Split"), HasSubstr("pretokenizers[0].pattern.Regex"));
  EXPECT_THAT(with_split("/pattern", Json{{"String", ""}}), HasSubstr("empty pattern"));
  EXPECT_THAT(with_split("/pattern", Json{{"Glob", "x"}}), HasSubstr("unsupported pattern"));
  EXPECT_THAT(with_split("/behavior", "isolated"), HasSubstr("unknown split behavior"));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {bytes, bytes}}}),
              HasSubstr("behind ByteLevel"));
}

TEST(TokenizerErrors, StagesThatSwellATextOrTakeForEverAreRefused) {
  const auto with = [](const char* key, const char* list, const Json& stage, size_t count) {
    Json json = small_tokenizer_json();
    json[key] = {{"type", "Sequence"}, {list, Json::array()}};
    for (size_t i = 0; i < count; ++i) json[key][list].push_back(stage);
    if (json[key][list].size() > 0 && std::string(key) == "pre_tokenizer") {
      json[key][list].push_back({{"type", "ByteLevel"}});
    }
    return load_error(json);
  };
  const auto replace = [](const Json& pattern, const char* content) {
    return Json{{"type", "Replace"}, {"pattern", pattern}, {"content", content}};
  };
  const Json letter = replace({{"String", "o"}}, "oooooooo"),
             same = replace({{"String", "o"}}, "u");
  const Json anything = replace({{"Regex", "x*"}}, "oooooooo");
  EXPECT_EQ(with("normalizer", "normalizers", letter, 2), "no error");  // 64 times
  EXPECT_THAT(with("normalizer", "normalizers", letter, 3),
              AllOf(HasSubstr("$.normalizer"), HasSubstr("512 times as long")));
  EXPECT_THAT(with("normalizer", "normalizers", letter, 30), HasSubstr("times as long"));
  EXPECT_THAT(with("normalizer", "normalizers", anything, 2), HasSubstr("81 times as long"));
  EXPECT_EQ(with("normalizer", "normalizers", same, 32), "no error");
  EXPECT_THAT(with("normalizer", "normalizers", same, 33),
              AllOf(HasSubstr("$.normalizer.normalizers[32]"), HasSubstr("too many stages")));
  const Json digits = {{"type", "Digits"}};
  EXPECT_EQ(with("pre_tokenizer", "pretokenizers", digits, 31), "no error");
  EXPECT_THAT(with("pre_tokenizer", "pretokenizers", digits, 32), HasSubstr("too many stages"));
}

TEST(TokenizerErrors, NothingMayBeThereTwice) {
  const auto listed = [](const Json& token) {
    Json json = small_tokenizer_json();
    json["added_tokens"].push_back(token);
    return load_error(json);
  };
  EXPECT_EQ(listed({{"id", 263}, {"content", "<new>"}}), "no error");
  EXPECT_THAT(
      listed({{"id", 263}, {"content", "<bos>"}}),
      AllOf(HasSubstr("listed twice"), HasSubstr("$.added_tokens[2].content"), HasSubstr("<bos>")));
  EXPECT_THAT(listed({{"id", 262}, {"content", "<new>"}}),
              AllOf(HasSubstr("one id"), HasSubstr("$.added_tokens[2].id"), HasSubstr("262")));
  // Also where the vocabulary has the content, and its id counts.
  EXPECT_THAT(listed({{"id", 262}, {"content", "hello"}}), HasSubstr("one id"));

  // JSON keys, at any depth of either file; of any value.
  const std::string good = dump_json(small_tokenizer_json());
  const auto doubled = [&](const std::string& before, const std::string& key) {
    std::string json = good;
    json.insert(json.find(before) + before.size(), key);
    return error_of([&] { Tokenizer::from_json(json, "", "model"); });
  };
  EXPECT_THAT(doubled("{", R"("model":{},)"),
              AllOf(HasSubstr("key appears twice"), HasSubstr("model/tokenizer.json, $\n"),
                    HasSubstr("\"model\"")));
  EXPECT_THAT(doubled(R"("vocab":{)", R"("hello":9,)"),
              AllOf(HasSubstr("$.model.vocab"), HasSubstr("\"hello\"")));
  EXPECT_THAT(doubled(R"("added_tokens":[{)", R"("special":false,)"),
              AllOf(HasSubstr("$.added_tokens[0]"), HasSubstr("\"special\"")));
  EXPECT_THAT(error_of([&] {
                Tokenizer::from_json(good, R"({"add_bos_token":true,"add_bos_token":false})", "m");
              }),
              AllOf(HasSubstr("m/tokenizer_config.json"), HasSubstr("\"add_bos_token\"")));
}

TEST(TokenizerErrors, CoverTheConfigAndBrokenFiles) {
  const Json json = small_tokenizer_json();
  EXPECT_THAT(load_error(json, {{"bos_token", "none"}, {"add_bos_token", true}}),
              AllOf(HasSubstr("model/tokenizer_config.json, $.add_bos_token")));
  EXPECT_THAT(load_error(json, {{"bos_token", 3}}), HasSubstr("a string"));
  EXPECT_THAT(load_error(json, {{"added_tokens_decoder", {{"x", {{"content", "a"}}}}}}),
              HasSubstr("not a token id"));
  EXPECT_THAT(error_of([] { Tokenizer::from_json("{", "", "m"); }),
              AllOf(HasSubstr("not a JSON file"), HasSubstr("m/tokenizer.json")));
  EXPECT_THAT(error_of([] { Tokenizer::from_json("[]", ""); }), HasSubstr("an object"));
  EXPECT_THAT(error_of([] { Tokenizer::load("no-such-model"); }),
              HasSubstr("no-such-model/tokenizer.json"));
}

}  // namespace
}  // namespace octet::text
