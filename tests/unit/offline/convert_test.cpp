// GGUF to a directory, and what becomes of its tokenizer.
#include "offline/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "model/gguf/checkpoint.h"
#include "model/gguf/hf_files.h"
#include "numerics/scheme.h"
#include "offline/quantize.h"
#include "text/tokenizer.h"
#include "unit/base/error_of.h"
#include "unit/base/temp_dir.h"
#include "unit/model/gguf_writer.h"

namespace octet::offline {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::GgufWriter;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kGolden = std::string(OCTET_SOURCE_DIR) + "/tests/golden/";

// The 256 letters of the byte alphabet (Radford et al. 2019, encoder.py), a few merges of them, and
// three added tokens.
struct Words {
  std::vector<std::string> tokens{"<s>", "</s>", "<tool>"};
  std::vector<int32_t> types{3, 3, 4};
  std::vector<std::string> merges{"h e", "l l", "he ll", "1 2", "Ġ w"};

  Words() {
    int next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool itself =
          (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      const int code = itself ? byte : next++;
      std::string letter;
      if (code < 0x80) {
        letter += static_cast<char>(code);
      } else {
        letter += static_cast<char>(0xC0 | code >> 6);
        letter += static_cast<char>(0x80 | (code & 0x3F));
      }
      add(letter, 1);
    }
    for (const char* word : {"he", "ll", "hell", "12", "Ġw"}) add(word, 1);
    add("[PAD264]", 5);
  }
  void add(const std::string& token, int32_t type) {
    tokens.push_back(token);
    types.push_back(type);
  }
  void write(GgufWriter& writer, const std::string& pre, bool add_bos) const {
    writer.text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", pre)
        .strings("tokenizer.ggml.tokens", tokens)
        .i32s("tokenizer.ggml.token_type", types)
        .strings("tokenizer.ggml.merges", merges)
        .u32("tokenizer.ggml.bos_token_id", 0)
        .u32("tokenizer.ggml.eos_token_id", 1)
        .flag("tokenizer.ggml.add_bos_token", add_bos)
        .text("tokenizer.chat_template", "{{ messages[0].content }}");
  }
};

text::Tokenizer tokenizer_of(const GgufWriter& writer) {
  const std::string bytes = writer.file();
  const auto file = model::gguf::parse(std::as_bytes(std::span(bytes)), "t.gguf");
  const auto files = model::gguf::tokenizer_files(file.metadata);
  return text::Tokenizer::from_json(files.at("tokenizer.json"), files.at("tokenizer_config.json"),
                                    "t.gguf");
}

// The ids of tokens, for readable expectations.
std::vector<std::string> pieces(const text::Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::string> pieces;
  for (const int32_t id : tokenizer.encode(text)) {
    pieces.emplace_back(tokenizer.token_bytes(id));
  }
  return pieces;
}

TEST(GgufTokenizer, CutsAsItsPreTokenizerSays) {
  const Words words;
  const auto with = [&](const std::string& pre, bool bos) {
    GgufWriter writer;
    words.write(writer, pre, bos);
    return tokenizer_of(writer);
  };
  EXPECT_THAT(pieces(with("gpt-2", false), "hell 12"), ElementsAre("hell", " ", "12"));
  // Digits one by one, so that "12" is never merged.
  EXPECT_THAT(pieces(with("smollm", false), "hell 12"), ElementsAre("hell", " ", "1", "2"));
  EXPECT_THAT(pieces(with("llama-bpe", true), "hell 12"), ElementsAre("<s>", "hell", " ", "12"));
  EXPECT_THAT(pieces(with("qwen2", false), "12 w<tool>"), ElementsAre("1", "2", " w", "<tool>"));
  const text::Tokenizer tokenizer = with("smollm", false);
  EXPECT_EQ(tokenizer.bos_id(), 0);
  EXPECT_EQ(tokenizer.eos_id(), 1);
  EXPECT_TRUE(tokenizer.is_special(1));
  EXPECT_FALSE(tokenizer.is_special(2));
  EXPECT_FALSE(tokenizer.adds_bos());
  EXPECT_FALSE(tokenizer.token_id("[PAD264]").has_value());
  const std::string text = "any bytes: \xc3\xa4\xe4\xbd\xa0\xf0\x9f\x9a\x80\n\t";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text), false), text);
}

TEST(GgufTokenizer, WhatIsWrongIsNamed) {
  const auto fault = [](const std::function<void(Words&, GgufWriter&, std::string&)>& change) {
    Words words;
    GgufWriter writer;
    std::string pre = "smollm";
    change(words, writer, pre);
    words.write(writer, pre, false);
    return error_of([&] { tokenizer_of(writer); });
  };
  EXPECT_EQ(fault([](Words&, GgufWriter&, std::string&) {}), "no error");
  EXPECT_THAT(fault([](Words&, GgufWriter&, std::string& pre) { pre = "unheard-of"; }),
              testing::AllOf(HasSubstr("tokenizer.ggml.pre"), HasSubstr("unheard-of"),
                             HasSubstr("smollm")));
  EXPECT_THAT(fault([](Words& words, GgufWriter&, std::string&) { words.types.pop_back(); }),
              HasSubstr("tokenizer.ggml.token_type"));
  for (const int type : {0, 7, 99, -1}) {
    EXPECT_THAT(fault([&](Words& words, GgufWriter&, std::string&) { words.types[3] = type; }),
                testing::AllOf(HasSubstr("tokenizer.ggml.token_type"),
                               HasSubstr(std::to_string(type) + " of token 3")));
  }
  EXPECT_THAT(fault([](Words& words, GgufWriter&, std::string&) { words.merges[0] = "he"; }),
              HasSubstr("not a merge"));
  EXPECT_THAT(fault([](Words& words, GgufWriter&, std::string&) { words.merges[0] = "x yz"; }),
              HasSubstr("t.gguf"));
  EXPECT_THAT(fault([](Words& words, GgufWriter&, std::string&) { words.merges.clear(); }),
              testing::AllOf(HasSubstr("tokenizer.ggml.merges"), HasSubstr("an empty list")));
  EXPECT_THAT(fault([](Words& words, GgufWriter&, std::string&) { words.tokens[5] = "!"; }),
              HasSubstr("t.gguf"));
  // No list of merges at all, and scores from which none follows.
  EXPECT_THAT(error_of([] {
                tokenizer_of(GgufWriter()
                                 .text("tokenizer.ggml.model", "gpt2")
                                 .text("tokenizer.ggml.pre", "smollm")
                                 .strings("tokenizer.ggml.tokens", {"a", "b", "ab"}));
              }),
              HasSubstr("tokenizer.ggml.merges"));
  EXPECT_THAT(error_of([] {
                tokenizer_of(GgufWriter()
                                 .text("tokenizer.ggml.model", "llama")
                                 .strings("tokenizer.ggml.tokens", {"a", "abc"})
                                 .add("tokenizer.ggml.scores", 9,
                                      test::raw(uint32_t{6}) + test::raw(uint64_t{2}) +
                                          test::raw(0.0f) + test::raw(-1.0f)));
              }),
              testing::AllOf(HasSubstr("t.gguf"), HasSubstr("\"abc\""), HasSubstr("no merge")));
  // Every string of up to 18 letters "a" and "b": 8 million ways to put one together.
  std::vector<std::string> all = {"a", "b"};
  for (size_t i = 0; all.back().size() < 18 || all.back().find('a') != std::string::npos; ++i) {
    all.push_back(all[i] + "a");
    all.push_back(all[i] + "b");
  }
  std::string scores = test::raw(uint32_t{6}) + test::raw(uint64_t{all.size()});
  scores.resize(scores.size() + 4 * all.size());
  EXPECT_THAT(error_of([&] {
                tokenizer_of(GgufWriter()
                                 .text("tokenizer.ggml.model", "llama")
                                 .strings("tokenizer.ggml.tokens", all)
                                 .add("tokenizer.ggml.scores", 9, scores));
              }),
              testing::AllOf(HasSubstr("t.gguf"), HasSubstr("too many ways")));
  EXPECT_THAT(error_of([] { tokenizer_of(GgufWriter().text("tokenizer.ggml.model", "bert")); }),
              HasSubstr("bert"));
}

// transformers makes the same list of the same scores; with it, tokenizers gives llama.cpp's own
// ids for the texts beside its llama-spm and phi-3 vocabularies.
TEST(GgufTokenizer, SentencePieceScoresBecomeMerges) {
  GgufWriter writer;
  std::string scores = test::raw(uint32_t{6}) + test::raw(uint64_t{9});
  for (const float score : {0.f, 0.f, 0.f, -3.f, -4.f, -5.f, -1.f, -2.f, -2.f}) {
    scores += test::raw(score);
  }
  writer.text("tokenizer.ggml.model", "llama")
      .strings("tokenizer.ggml.tokens",
               {"<unk>", "<s>", "</s>", "a", "b", "\u00e4", "ab", "aba", "b\u00e4"})
      .i32s("tokenizer.ggml.token_type", {2, 3, 3, 1, 1, 1, 1, 1, 1})
      .add("tokenizer.ggml.scores", 9, scores)
      .u32("tokenizer.ggml.bos_token_id", 1)
      .u32("tokenizer.ggml.eos_token_id", 2);
  const std::string bytes = writer.file();
  const auto parsed = model::gguf::parse(std::as_bytes(std::span(bytes)), "t.gguf");
  const auto files = model::gguf::tokenizer_files(parsed.metadata);
  const Json json = parse_json(files.at("tokenizer.json"), "tokenizer.json");
  EXPECT_EQ(json.at("model").at("merges"),
            Json::parse(R"([["a", "b"], ["ab", "a"], ["b", "\u00e4"]])"));
  EXPECT_EQ(json.at("model").at("unk_token"), "<unk>");
  EXPECT_EQ(json.at("model").at("byte_fallback"), true);
  EXPECT_EQ(json.at("normalizer").at("normalizers").size(), 2u);
  // BOS is llama.cpp's default for this kind.
  EXPECT_EQ(json.at("post_processor").at("single").at(0).at("SpecialToken").at("id"), "<s>");
  EXPECT_THAT(error_of([&] {
                const std::string cut = GgufWriter()
                                            .text("tokenizer.ggml.model", "llama")
                                            .strings("tokenizer.ggml.tokens", {"a", "b"})
                                            .add("tokenizer.ggml.scores", 9, scores)
                                            .file();
                model::gguf::tokenizer_files(
                    model::gguf::parse(std::as_bytes(std::span(cut)), "t.gguf").metadata);
              }),
              HasSubstr("tokenizer.ggml.scores"));
}

TEST(GgufTokenizer, AScoreThatIsNoNumberIsRefused) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::string scores = test::raw(uint32_t{6}) + test::raw(uint64_t{3}) + test::raw(-1.0f) +
                             test::raw(nan) + test::raw(0.0f);
  EXPECT_THAT(error_of([&] {
                const std::string bytes = GgufWriter()
                                              .text("tokenizer.ggml.model", "llama")
                                              .strings("tokenizer.ggml.tokens", {"a", "b", "ab"})
                                              .add("tokenizer.ggml.scores", 9, scores)
                                              .file();
                model::gguf::tokenizer_files(
                    model::gguf::parse(std::as_bytes(std::span(bytes)), "t.gguf").metadata);
              }),
              testing::AllOf(HasSubstr("tokenizer.ggml.scores"), HasSubstr("NaN of token 1")));
}

class Convert : public testing::Test {
 protected:
  void SetUp() override {
    const std::string folder = kGolden + "llama_mha";
    Json config = parse_json_file(folder + "/config.json");
    GgufWriter writer = test::llama_gguf(model::Checkpoint(folder), config);
    Words().write(writer, "smollm", false);
    source_ = dir_.file("m.gguf", writer.file()).string();
    out_ = (dir_ / "out").string();
  }

  const test::TempDir dir_;
  std::string source_, out_;
};

TEST_F(Convert, TheDirectoryIsTheModel) {
  const ConvertReport report = convert_checkpoint({.source = source_, .out = out_});
  const model::Checkpoint wanted(kGolden + "llama_mha"), found(out_);
  EXPECT_EQ(report.tensors, static_cast<int64_t>(wanted.names().size()));
  EXPECT_EQ(found.names(), wanted.names());
  for (const std::string& name : wanted.names()) {
    const Tensor &a = *wanted.find(name), &b = *found.find(name);
    ASSERT_EQ(a.bytes(), b.bytes()) << name;
    EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())), 0) << name;
  }
  EXPECT_EQ(text::Tokenizer::load(out_).size(), 264);
  const Json config = parse_json_file(fs::path(out_) / "tokenizer_config.json");
  EXPECT_EQ(config.at("chat_template"), "{{ messages[0].content }}");
}

TEST_F(Convert, QuantizingTheFileAndTheDirectoryGiveTheSameBytes) {
  convert_checkpoint({.source = source_, .out = out_});
  const LinearFormat scheme = scheme_named("fp8_block").format;
  const fs::path a = dir_ / "a", b = dir_ / "b";
  quantize_checkpoint({.source = source_, .out = a.string(), .scheme = scheme});
  quantize_checkpoint({.source = out_, .out = b.string(), .scheme = scheme});
  int files = 0;
  for (const auto& entry : fs::directory_iterator(a)) {
    EXPECT_EQ(test::slurp(entry.path()), test::slurp(b / entry.path().filename()));
    ++files;
  }
  EXPECT_EQ(files, 4);
}

TEST_F(Convert, OnlyAWholeGgufIsTaken) {
  const auto fault = [&](const std::string& source) {
    return error_of([&] { convert_checkpoint({.source = source, .out = out_}); });
  };
  EXPECT_THAT(fault(kGolden + "llama_mha"), HasSubstr("a directory"));
  EXPECT_THAT(fault((dir_ / "none.gguf").string()), HasSubstr("no such file"));
  EXPECT_THAT(fault(dir_.file("x.txt", "text").string()), HasSubstr("another kind of file"));
  EXPECT_THAT(fault(dir_.file("x.gguf", "text").string()), HasSubstr("too short"));
  const std::string whole = test::slurp(source_);
  EXPECT_THAT(fault(dir_.file("cut.gguf", whole.substr(0, whole.size() - 4000)).string()),
              HasSubstr("beyond the end"));
  EXPECT_FALSE(fs::exists(out_));
  convert_checkpoint({.source = source_, .out = out_});
  EXPECT_THAT(fault(source_), HasSubstr("out"));  // it exists
  EXPECT_THAT(
      error_of([&] {
        convert_checkpoint({.source = source_, .out = dir_.path().string(), .overwrite = true});
      }),
      HasSubstr("cannot replace"));
}

}  // namespace
}  // namespace octet::offline
