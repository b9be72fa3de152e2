#include "model/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "model/config_overrides.h"
#include "unit/model/configs.h"
#include "unit/model/support.h"

namespace octet::model {
namespace {

using test::deepseek_v3;
using test::error_of;
using test::fault_of;
using test::fault_without;
using test::llama;
using test::parse;
using test::source;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Rope, ThetaIsNeverGuessed) {
  EXPECT_THAT(fault_without(llama(), "rope_theta"),
              AllOf(HasSubstr("rope_theta is missing"), HasSubstr("config.json"),
                    HasSubstr("Llama 1 and 2 have 10000.0")));
  EXPECT_THAT(fault_of(llama(), "rope_theta", 1.0), HasSubstr("$.rope_theta"));
  EXPECT_THAT(fault_of(llama(), "rope_theta", "1e4"), HasSubstr("a number"));
}

TEST(Rope, BothRopeDialectsAreEqual) {
  const Json scaling = {{"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 64},
                        {"rope_type", "llama3"}};
  Json before = llama();
  before["rope_scaling"] = scaling;
  Json after = llama();
  after.erase("rope_theta");
  after["rope_parameters"] = scaling;
  after["rope_parameters"]["rope_theta"] = 10000.0;
  for (const Json& json : {before, after}) {
    const RopeConfig rope = parse(json).rope;
    EXPECT_EQ(rope.kind, RopeConfig::Kind::llama3);
    EXPECT_EQ(rope.theta, 10000.0);
    EXPECT_EQ(rope.factor, 8.0);
    EXPECT_EQ(rope.original_positions, 64);
    EXPECT_EQ(rope.low_freq_factor, 1.0);
    EXPECT_EQ(rope.high_freq_factor, 4.0);
  }
  // Some files have it twice.
  before["rope_scaling"]["rope_theta"] = 10000;
  EXPECT_NO_THROW(parse(before));
  before["rope_scaling"]["rope_theta"] = 500000;
  EXPECT_THAT(error_of([&] { parse(before); }), HasSubstr("given twice"));
  // transformers 5 without scaling.
  after["rope_parameters"] = {{"rope_theta", 5e5}, {"rope_type", "default"}};
  EXPECT_EQ(parse(after).rope.kind, RopeConfig::Kind::plain);
  EXPECT_EQ(parse(after).rope.theta, 5e5);
  after["rope_parameters"] = {{"rope_theta", 5e5}};
  EXPECT_EQ(parse(after).rope.kind, RopeConfig::Kind::plain);
}

std::string rope_fault(const Json& scaling) {
  return fault_of(llama(), "rope_scaling", scaling);
}

TEST(Rope, Scalings) {
  const auto rope_of = [](const Json& scaling) {
    Json json = llama();
    json["rope_scaling"] = scaling;
    return parse(json).rope;
  };
  RopeConfig rope = rope_of({{"type", "linear"}, {"factor", 2.5}});
  EXPECT_EQ(rope.kind, RopeConfig::Kind::linear);
  EXPECT_EQ(rope.factor, 2.5);
  rope = rope_of({{"rope_type", "yarn"},
                  {"factor", 4},
                  {"mscale", 0.707},
                  {"mscale_all_dim", 0.5},
                  {"beta_fast", 16},
                  {"beta_slow", 2},
                  {"attention_factor", 1.25},
                  {"truncate", false},
                  {"original_max_position_embeddings", 128}});
  EXPECT_EQ(rope.kind, RopeConfig::Kind::yarn);
  EXPECT_EQ(rope.mscale, 0.707);
  EXPECT_EQ(rope.mscale_all_dim, 0.5);
  EXPECT_EQ(rope.beta_fast, 16);
  EXPECT_EQ(rope.beta_slow, 2);
  EXPECT_EQ(rope.attention_factor, 1.25);
  EXPECT_FALSE(rope.truncate);
  // No factor: how much longer the context is than it was.
  rope = rope_of(
      {{"rope_type", "yarn"}, {"factor", nullptr}, {"original_max_position_embeddings", 128}});
  EXPECT_EQ(rope.factor, 4.0);
  EXPECT_TRUE(rope.truncate);
  EXPECT_FALSE(rope.attention_factor);
  // No original length: the context's own, as HF has it.
  EXPECT_EQ(rope_of({{"rope_type", "yarn"}, {"factor", 4}}).original_positions, 512);

  EXPECT_THAT(rope_fault({{"rope_type", "magic"}, {"factor", 2}}),
              HasSubstr("unknown RoPE scaling"));
  EXPECT_THAT(rope_fault({{"factor", 2}}), HasSubstr("$.rope_scaling.rope_type"));
  EXPECT_THAT(rope_fault({{"rope_type", "linear"}}), HasSubstr("$.rope_scaling.factor"));
  EXPECT_THAT(rope_fault({{"rope_type", "linear"}, {"factor", 0.5}}), HasSubstr("1 to 1e6"));
  EXPECT_THAT(
      rope_fault({{"rope_type", "yarn"}, {"factor", 2}, {"beta_fast", 1}, {"beta_slow", 2}}),
      HasSubstr("beta_fast"));
  EXPECT_THAT(rope_fault({{"rope_type", "llama3"},
                          {"factor", 2},
                          {"low_freq_factor", 4},
                          {"high_freq_factor", 4},
                          {"original_max_position_embeddings", 64}}),
              HasSubstr("high_freq_factor"));
  EXPECT_THAT(rope_fault({{"rope_type", "llama3"},
                          {"factor", 2},
                          {"low_freq_factor", 1},
                          {"high_freq_factor", 4}}),
              HasSubstr("original_max_position_embeddings"));
  EXPECT_THAT(fault_of(llama(), "partial_rotary_factor", 0.5), HasSubstr("partial_rotary_factor"));
}

// What HF transformers computes: tests/golden/generate_rope.py. Its values are FP32.
TEST(Rope, Goldens) {
  const Json golden = parse_json_file(source("tests/golden/rope.json"));
  int compared = 0;
  for (const auto& [name, entry] : golden["ropes"].items()) {
    SCOPED_TRACE(name);
    Json json = llama();
    json["head_dim"] = entry["dim"];
    json["rope_theta"] = entry["rope_theta"];
    json["max_position_embeddings"] = entry["max_position_embeddings"];
    json["rope_scaling"] = entry["rope_scaling"];
    RopeConfig rope = parse(json).rope;
    if (!entry["seq_len"].is_null()) rope.length = entry["seq_len"].get<int64_t>();
    const std::vector<double> frequencies = rope_frequencies(rope);
    const auto expected = entry["inv_freq"].get<std::vector<double>>();
    ASSERT_EQ(frequencies.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(frequencies[i] / expected[i], 1.0, 1e-6) << "pair " << i;
    }
    EXPECT_NEAR(rope_attention_factor(rope), entry["attention_factor"].get<double>(), 1e-6);
    if (entry.contains("mla_softmax_scale")) {
      const double mscale = yarn_mscale(rope.factor, rope.mscale_all_dim);
      EXPECT_NEAR(mscale * mscale / std::sqrt(192.0), entry["mla_softmax_scale"].get<double>(),
                  1e-6);
    }
    ++compared;
  }
  EXPECT_GE(compared, 15);
}

// Figures that were published for three models, and the pairs at which scaling begins and ends.
TEST(Rope, PublishedFigures) {
  struct Figure {
    size_t pair;
    double frequency;
  };
  struct Model {
    const char* name;
    int64_t dim, positions;
    double theta;
    Json scaling;
    size_t last_plain, first_scaled;  // the pairs between turn at something between
    std::vector<Figure> figures;
  };
  const auto yarn = [](double factor, int64_t original) -> Json {
    return {
        {"rope_type", "yarn"}, {"factor", factor}, {"original_max_position_embeddings", original}};
  };
  const Model models[] = {
      {"Llama-3.1-8B",
       128,
       131072,
       5e5,
       {{"rope_type", "llama3"},
        {"factor", 8.0},
        {"low_freq_factor", 1.0},
        {"high_freq_factor", 4.0},
        {"original_max_position_embeddings", 8192}},
       28,
       35,
       {{20, 0.01656044},
        {28, 0.003211446},
        {29, 0.0021665708},
        {30, 0.0013718936},
        {35, 9.5562124e-5},
        {63, 3.068926e-7}}},
      {"DeepSeek-V3",
       64,
       163840,
       1e4,
       yarn(40, 4096),
       10,
       23,
       {{10, 0.056234133}, {16, 0.0055}, {23, 3.3338036e-5}, {31, 3.3338036e-6}}},
      {"DeepSeek-V4", 64, 1048576, 1.6e5, yarn(16, 65536), 15, 25, {}},
  };
  for (const Model& model : models) {
    SCOPED_TRACE(model.name);
    Json json = llama();
    json["head_dim"] = model.dim;
    json["rope_theta"] = model.theta;
    json["max_position_embeddings"] = model.positions;
    const std::vector<double> plain = rope_frequencies(parse(json).rope);
    json["rope_scaling"] = model.scaling;
    const std::vector<double> scaled = rope_frequencies(parse(json).rope);
    for (const auto& [pair, frequency] : model.figures) {
      EXPECT_NEAR(scaled[pair] / frequency, 1.0, 1e-6) << "pair " << pair;
    }
    const double factor = model.scaling["factor"];
    for (size_t i = 0; i < scaled.size(); ++i) {
      const double slower = plain[i] / scaled[i];
      if (i <= model.last_plain) {
        EXPECT_NEAR(slower, 1.0, 1e-12) << "pair " << i;
      } else if (i >= model.first_scaled) {
        EXPECT_NEAR(slower / factor, 1.0, 1e-12) << "pair " << i;
      } else {
        EXPECT_GT(slower, 1.0) << "pair " << i;
        EXPECT_LT(slower, factor) << "pair " << i;
      }
    }
  }
}

Json longrope() {
  return {{"rope_type", "longrope"},
          {"original_max_position_embeddings", 128},
          {"short_factor", {1, 1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6}},
          {"long_factor", {1, 2, 3, 4, 5, 6, 7, 8}}};
}

TEST(Rope, Longrope) {
  Json json = llama();
  json["rope_scaling"] = longrope();
  RopeConfig rope = parse(json).rope;
  EXPECT_EQ(rope.kind, RopeConfig::Kind::longrope);
  EXPECT_EQ(rope.factor, 4.0);  // 512 / 128
  EXPECT_EQ(rope.length, 512);
  EXPECT_NEAR(rope_attention_factor(rope), std::sqrt(1 + std::log(4.0) / std::log(128.0)), 1e-12);
  const double plain = std::pow(10000.0, -2.0 * 7 / 16);
  EXPECT_NEAR(rope_frequencies(rope)[7], plain / 8, 1e-12);
  rope.length = 129;
  EXPECT_NEAR(rope_frequencies(rope)[7], plain / 8, 1e-12);
  EXPECT_THAT(rope_notice(rope),
              ::testing::Optional(AllOf(HasSubstr("long factors"), HasSubstr("129 tokens"))));
  rope.length = 128;
  EXPECT_NEAR(rope_frequencies(rope)[7], plain / 1.6, 1e-12);
  EXPECT_THAT(rope_notice(rope), ::testing::Optional(HasSubstr("short factors")));

  // Phi-3 has the original length beside the dictionary, and "su" as the name.
  json["rope_scaling"].erase("original_max_position_embeddings");
  json["rope_scaling"]["rope_type"] = "su";
  json["original_max_position_embeddings"] = 128;
  json["rope_scaling"]["attention_factor"] = 1.5;
  EXPECT_EQ(parse(json).rope.factor, 4.0);
  EXPECT_EQ(rope_attention_factor(parse(json).rope), 1.5);

  const auto fault_with = [](const char* key, const Json& value) {
    Json scaling = longrope();
    scaling[key] = value;
    return rope_fault(scaling);
  };
  EXPECT_THAT(fault_with("long_factor", {1, 2, 3}), HasSubstr("3 factors for 8 pairs"));
  EXPECT_THAT(fault_with("short_factor", nullptr), HasSubstr("short_factor"));
  EXPECT_THAT(fault_with("short_factor", {1, 1, 1, 1, 1, 1, 1, 0}), HasSubstr("0.001 to 1e6"));
  EXPECT_THAT(fault_with("short_factor", {1, 1, 1, 1, 1, 1, 1, "2"}), HasSubstr("a number"));
  EXPECT_THAT(fault_with("original_max_position_embeddings", 1), HasSubstr("2 or more"));
}

TEST(Rope, DynamicStartsAtTheTrainedLength) {
  Json json = llama();
  json["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 3.0}};
  const ModelConfig config = parse(json);
  EXPECT_EQ(config.max_positions, 1536);
  EXPECT_EQ(config.rope.length, 1536);
  RopeConfig rope = config.rope, plain = parse(llama()).rope;
  for (const int64_t length : {1, 511, 512}) {
    rope.length = length;
    EXPECT_EQ(rope_frequencies(rope), rope_frequencies(plain)) << length;
  }
  rope.length = 513;
  EXPECT_LT(rope_frequencies(rope)[7], rope_frequencies(plain)[7]);
  EXPECT_THAT(rope_notice(rope),
              ::testing::Optional(AllOf(HasSubstr("513 tokens"), HasSubstr("--max-model-len"))));
  EXPECT_FALSE(rope_notice(plain));
  // HF counts from max_position_embeddings, whatever an original length says.
  json["rope_scaling"]["original_max_position_embeddings"] = 256;
  EXPECT_THAT(error_of([&] { parse(json); }), HasSubstr("max_position_embeddings"));
}

// What the change of base is made for: the fastest pair stays, the slowest is slower by the factor.
TEST(Rope, NtkStretchesTheSlowestPair) {
  Json json = llama();
  const std::vector<double> plain = rope_frequencies(parse(json).rope);
  json["rope_scaling"] = {{"rope_type", "ntk"}, {"factor", 4.0}};
  const std::vector<double> ntk = rope_frequencies(parse(json).rope);
  EXPECT_EQ(ntk.front(), 1.0);
  EXPECT_NEAR(ntk.back() * 4.0 / plain.back(), 1.0, 1e-12);
  for (size_t i = 1; i < ntk.size(); ++i) EXPECT_LT(ntk[i], plain[i]);
}

// A length that is scaled already is never scaled again; one that is not reaches original · factor.
TEST(Rope, Reach) {
  const auto reach = [](const Json& scaling) {
    Json json = llama();
    json["rope_scaling"] = scaling;
    return parse(json).max_positions;
  };
  const auto yarn = [](double factor, int64_t original) {
    return Json{
        {"rope_type", "yarn"}, {"factor", factor}, {"original_max_position_embeddings", original}};
  };
  EXPECT_EQ(reach(yarn(4, 512)), 2048);  // put on by hand
  EXPECT_EQ(reach(yarn(4, 128)), 512);   // as published
  EXPECT_EQ(reach(yarn(2, 128)), 512);
  EXPECT_EQ(reach(yarn(1e6, int64_t{1} << 31)), int64_t{1} << 30);
  EXPECT_EQ(reach({{"rope_type", "yarn"}, {"factor", 4}}), 512);
  EXPECT_EQ(reach({{"rope_type", "linear"}, {"factor", 4}}), 512);
  EXPECT_EQ(reach({{"rope_type", "ntk"}, {"factor", 4}}), 512);
  // Llama 3.2 has 8192 · 32 with a context of 131072.
  EXPECT_EQ(reach({{"rope_type", "llama3"},
                   {"factor", 32},
                   {"low_freq_factor", 1},
                   {"high_freq_factor", 4},
                   {"original_max_position_embeddings", 64}}),
            512);
}

TEST(Rope, NoPartOfAScalingIsPassedOver) {
  EXPECT_THAT(rope_fault({{"rope_type", "linear"}, {"factor", 2}, {"mrope_section", {1, 2}}}),
              AllOf(HasSubstr("$.rope_scaling.mrope_section"), HasSubstr("does not know")));
  EXPECT_THAT(rope_fault({{"rope_type", "linear"}, {"type", "yarn"}, {"factor", 2}}),
              HasSubstr("two different scalings"));
  EXPECT_EQ(rope_fault({{"rope_type", "yarn"}, {"type", "deepseek_yarn"}, {"factor", 2}}),
            "no error");
  // A YaRN of which nobody can tell the factor.
  EXPECT_THAT(rope_fault({{"rope_type", "yarn"}}), HasSubstr("$.rope_scaling.factor"));
  EXPECT_THAT(rope_fault({{"rope_type", "yarn"}, {"original_max_position_embeddings", 512}}),
              HasSubstr("$.rope_scaling.factor"));
  Json json = llama();
  json["head_dim"] = 2;
  EXPECT_THAT(fault_of(json, "rope_scaling", {{"rope_type", "ntk"}, {"factor", 2}}),
              HasSubstr("one frequency"));

  json = llama();
  json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  json["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 1e4}};
  EXPECT_EQ(parse(json).rope.factor, 2.0);
  json["rope_parameters"]["factor"] = 4.0;
  EXPECT_THAT(error_of([&] { parse(json); }),
              AllOf(HasSubstr("$.rope_scaling.factor"), HasSubstr("different things")));
}

TEST(Rope, ParametersByLayerMustAgree) {
  const Json one = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 5e5}};
  Json json = llama();
  json.erase("rope_theta");
  json["rope_parameters"] = {{"full_attention", one}, {"sliding_attention", one}};
  EXPECT_EQ(parse(json).rope.theta, 5e5);
  EXPECT_EQ(parse(json).rope.kind, RopeConfig::Kind::linear);
  json["rope_parameters"]["sliding_attention"]["rope_theta"] = 1e4;
  EXPECT_THAT(
      error_of([&] { parse(json); }),
      AllOf(HasSubstr("$.rope_parameters.sliding_attention"), HasSubstr("differ by layer")));
  json["rope_parameters"] = {{"full_attention", one}, {"factor", 2.0}};
  EXPECT_THAT(error_of([&] { parse(json); }), HasSubstr("single layers and of the model"));
}

// --- overrides

RopeConfig overridden(const Json& json, const std::string& overrides) {
  return parse_config(json.dump(), "config.json", overrides).rope;
}

TEST(Overrides, ReplaceWholeMembers) {
  const std::string text = R"({"max_position_embeddings": 2048, "head_dim": 8})";
  const ModelConfig config = parse_config(llama().dump(), "config.json", text);
  EXPECT_EQ(config.max_positions, 2048);
  EXPECT_EQ(std::get<Gqa>(config.attention).head_dim, 8);
  EXPECT_THAT(
      error_of([] { overridden(llama(), R"({"max_positions": 2048})"); }),
      AllOf(HasSubstr("--hf-overrides"), HasSubstr("max_positions"), HasSubstr("change nothing")));
  EXPECT_THAT(error_of([] { overridden(llama(), "[]"); }), HasSubstr("not a JSON object"));
  EXPECT_THAT(error_of([] { overridden(llama(), "{"); }), HasSubstr("--hf-overrides"));
}

TEST(Overrides, RopeInEitherDialect) {
  Json before = llama();
  before["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 2.0}, {"beta_fast", 16}};
  Json after = llama();
  after.erase("rope_theta");
  after["rope_parameters"] = before["rope_scaling"];
  after["rope_parameters"]["rope_theta"] = 10000.0;
  for (const Json& json : {before, after}) {
    RopeConfig rope = overridden(json, R"({"rope_theta": 500000})");
    EXPECT_EQ(rope.theta, 5e5);
    EXPECT_EQ(rope.beta_fast, 16);
    // The old dictionary goes, the base stays.
    rope = overridden(json, R"({"rope_scaling": {"rope_type": "yarn", "factor": 4}})");
    EXPECT_EQ(rope.theta, 1e4);
    EXPECT_EQ(rope.factor, 4);
    EXPECT_EQ(rope.beta_fast, 32);
    rope = overridden(json, R"({"rope_parameters": {"rope_type": "linear", "factor": 3}})");
    EXPECT_EQ(rope.theta, 1e4);
    EXPECT_EQ(rope.kind, RopeConfig::Kind::linear);
    rope = overridden(json, R"({"rope_parameters": {"rope_type": "default", "rope_theta": 7e4}})");
    EXPECT_EQ(rope.theta, 7e4);
    EXPECT_EQ(rope.kind, RopeConfig::Kind::plain);
    EXPECT_EQ(overridden(json, R"({"rope_scaling": null})").kind, RopeConfig::Kind::plain);
  }
}

TEST(Overrides, OfThreeFlagsNoneIsLost) {
  EXPECT_EQ(merge_overrides("", "", 0), "");
  EXPECT_EQ(
      Json::parse(merge_overrides(R"({"head_dim": 8})", R"({"rope_type": "default"})", 5e5)),
      Json({{"head_dim", 8}, {"rope_theta", 5e5}, {"rope_scaling", {{"rope_type", "default"}}}}));
  EXPECT_THAT(error_of([] { merge_overrides(R"({"rope_theta": 1})", "", 2); }),
              AllOf(HasSubstr("--rope-theta"), HasSubstr("given twice")));
  EXPECT_THAT(error_of([] { merge_overrides("", "yarn", 0); }), HasSubstr("--rope-scaling"));
  EXPECT_THAT(error_of([] { merge_overrides("", "[1]", 0); }), HasSubstr("not a JSON object"));
}

}  // namespace
}  // namespace octet::model
