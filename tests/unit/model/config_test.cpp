#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/json.h"
#include "model/rope.h"
#include "unit/model/support.h"

namespace octet::model {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::source;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Json llama() {
  return parse_json(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "torch_dtype": "float16"})",
                    "llama");
}

Json deepseek_v3() {
  return parse_json(R"({
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
    "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "vocab_size": 100,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
    "n_routed_experts": 16, "n_shared_experts": 2, "num_experts_per_tok": 3, "n_group": 4,
    "topk_group": 2, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "first_k_dense_replace": 1,
    "moe_layer_freq": 1, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 12, "max_position_embeddings": 4096, "rope_theta": 10000,
    "num_nextn_predict_layers": 1})",
                    "v3");
}

Json deepseek_v2() {
  Json json = deepseek_v3();
  json["architectures"] = {"DeepseekV2ForCausalLM"};
  json["scoring_func"] = "softmax";
  json["topk_method"] = "group_limited_greedy";
  json["norm_topk_prob"] = false;
  json["routed_scaling_factor"] = 16.0;
  return json;
}

ModelConfig parse(const Json& json) {
  return parse_config(json.dump(), "config.json");
}

// The message when `key` is set to `value` (or removed, if discarded).
std::string fault_of(Json json, const char* key, const Json& value) {
  json[key] = value;
  return error_of([&] { parse(json); });
}
std::string fault_without(Json json, const char* key) {
  json.erase(key);
  return error_of([&] { parse(json); });
}

TEST(Config, LlamaFields) {
  const ModelConfig config = parse(llama());
  EXPECT_EQ(config.family, Family::llama);
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.hidden, 64);
  EXPECT_EQ(config.vocab, 100);
  EXPECT_EQ(config.max_positions, 512);
  EXPECT_FLOAT_EQ(config.norm_eps, 1e-5f);
  EXPECT_EQ(config.dtype, DType::f16);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_FALSE(config.quant);
  EXPECT_FALSE(config.bos);
  EXPECT_THAT(config.eos, IsEmpty());
  const auto& gqa = std::get<Gqa>(config.attention);
  EXPECT_EQ(gqa.heads, 4);
  EXPECT_EQ(gqa.kv_heads, 2);
  EXPECT_EQ(gqa.head_dim, 16);
  EXPECT_FALSE(gqa.bias);
  EXPECT_EQ(std::get<DenseFfn>(config.ffn).intermediate, 96);
  EXPECT_EQ(config.rope.kind, RopeConfig::Kind::plain);
  EXPECT_EQ(config.rope.theta, 10000.0);
  EXPECT_EQ(config.rope.dim, 16);
  EXPECT_FALSE(config.rope.interleaved);
  EXPECT_FALSE(config.is_moe_layer(1));
}

TEST(Config, LlamaDefaultsAndExplicitHeadDim) {
  Json json = llama();
  json.erase("num_key_value_heads");
  EXPECT_EQ(std::get<Gqa>(parse(json).attention).kv_heads, 4);
  json["head_dim"] = 24;
  json["attention_bias"] = true;
  json["mlp_bias"] = true;
  const ModelConfig config = parse(json);
  EXPECT_EQ(std::get<Gqa>(config.attention).head_dim, 24);
  EXPECT_EQ(config.rope.dim, 24);
  EXPECT_TRUE(std::get<Gqa>(config.attention).bias);
  EXPECT_TRUE(std::get<DenseFfn>(config.ffn).bias);
}

TEST(Config, DeepseekV3Fields) {
  Json json = deepseek_v3();
  json["head_dim"] = 8;  // as transformers 5 writes it
  const ModelConfig config = parse(json);
  EXPECT_EQ(config.family, Family::deepseek);
  const auto& mla = std::get<Mla>(config.attention);
  EXPECT_EQ(mla.q_lora, 24);
  EXPECT_EQ(mla.kv_lora, 32);
  EXPECT_EQ(mla.nope, 16);
  EXPECT_EQ(mla.rope, 8);
  EXPECT_EQ(mla.v, 12);
  const auto& moe = std::get<MoeFfn>(config.ffn);
  EXPECT_EQ(moe.router.experts, 16);
  EXPECT_EQ(moe.router.top_k, 3);
  EXPECT_EQ(moe.router.groups, 4);
  EXPECT_EQ(moe.router.top_groups, 2);
  EXPECT_EQ(moe.router.scoring, ops::RouterSpec::Scoring::sigmoid);
  EXPECT_EQ(moe.router.method, ops::RouterSpec::Method::noaux_tc);
  EXPECT_TRUE(moe.router.normalize);
  EXPECT_FLOAT_EQ(moe.router.scaling, 2.5f);
  EXPECT_TRUE(moe.router_bias);
  EXPECT_EQ(moe.intermediate, 32);
  EXPECT_EQ(moe.shared, 2);
  EXPECT_EQ(moe.dense_intermediate, 96);
  EXPECT_EQ(config.mtp_layers, 1);
  EXPECT_EQ(config.rope.dim, 8);
  EXPECT_TRUE(config.rope.interleaved);
  EXPECT_FALSE(config.is_moe_layer(0));
  EXPECT_TRUE(config.is_moe_layer(1));
  json["rope_interleave"] = false;
  EXPECT_FALSE(parse(json).rope.interleaved);
}

TEST(Config, MoeLayerRule) {
  Json json = deepseek_v3();
  json["num_hidden_layers"] = 8;
  json["first_k_dense_replace"] = 3;
  json["moe_layer_freq"] = 2;
  const ModelConfig config = parse(json);
  std::vector<int64_t> layers;
  for (int64_t i = 0; i < 8; ++i) {
    if (config.is_moe_layer(i)) layers.push_back(i);
  }
  EXPECT_THAT(layers, ElementsAre(4, 6));
}

TEST(Config, DeepseekNulls) {
  Json json = deepseek_v3();
  json["q_lora_rank"] = nullptr;
  json["n_shared_experts"] = nullptr;
  EXPECT_EQ(std::get<Mla>(parse(json).attention).q_lora, 0);
  EXPECT_EQ(std::get<MoeFfn>(parse(json).ffn).shared, 0);
  json["n_routed_experts"] = nullptr;
  EXPECT_EQ(std::get<DenseFfn>(parse(json).ffn).intermediate, 96);
  // HF would take 1536 for an absent key.
  EXPECT_THAT(fault_without(deepseek_v3(), "q_lora_rank"),
              AllOf(HasSubstr("$.q_lora_rank"), HasSubstr("null for one q_proj")));
}

TEST(Config, RoutersOfDeepseekV3) {
  // Absent names mean the only router that V3 has...
  Json json = deepseek_v3();
  json.erase("scoring_func");
  json.erase("topk_method");
  EXPECT_EQ(std::get<MoeFfn>(parse(json).ffn).router.method, ops::RouterSpec::Method::noaux_tc);
  // ... and numbers are never guessed.
  for (const char* key : {"n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor"}) {
    EXPECT_THAT(fault_without(deepseek_v3(), key), HasSubstr(key));
  }
  EXPECT_THAT(fault_of(deepseek_v3(), "scoring_func", "softmax"), HasSubstr("sigmoid"));
  EXPECT_THAT(fault_of(deepseek_v3(), "topk_method", "greedy"), HasSubstr("noaux_tc"));
  EXPECT_THAT(fault_of(deepseek_v3(), "n_group", 5), HasSubstr("divisor of n_routed_experts, 16"));
  EXPECT_THAT(fault_of(deepseek_v3(), "n_group", 16), HasSubstr("two best experts"));
  EXPECT_THAT(fault_of(deepseek_v3(), "topk_group", 5), HasSubstr("1 to 4"));
  EXPECT_THAT(fault_of(deepseek_v3(), "num_experts_per_tok", 9), HasSubstr("at most 8"));
  EXPECT_THAT(fault_of(deepseek_v3(), "num_experts_per_tok", 17), HasSubstr("1 to 16"));
  EXPECT_THAT(fault_of(deepseek_v3(), "routed_scaling_factor", 0), HasSubstr("positive"));
}

TEST(Config, RoutersOfDeepseekV2) {
  auto router = std::get<MoeFfn>(parse(deepseek_v2()).ffn).router;
  EXPECT_EQ(router.scoring, ops::RouterSpec::Scoring::softmax);
  EXPECT_EQ(router.method, ops::RouterSpec::Method::group_limited_greedy);
  EXPECT_EQ(router.groups, 4);
  EXPECT_FALSE(router.normalize);
  EXPECT_FLOAT_EQ(router.scaling, 16.0f);
  EXPECT_FALSE(std::get<MoeFfn>(parse(deepseek_v2()).ffn).router_bias);

  Json json = deepseek_v2();
  json["topk_method"] = "greedy";
  router = std::get<MoeFfn>(parse(json).ffn).router;
  EXPECT_EQ(router.method, ops::RouterSpec::Method::greedy);
  EXPECT_EQ(router.groups, 1);
  EXPECT_EQ(router.top_groups, 1);
  // DeepSeek's code normalises or scales, not both.
  json["norm_topk_prob"] = true;
  router = std::get<MoeFfn>(parse(json).ffn).router;
  EXPECT_TRUE(router.normalize);
  EXPECT_FLOAT_EQ(router.scaling, 1.0f);

  EXPECT_THAT(fault_of(deepseek_v2(), "scoring_func", "sigmoid"), HasSubstr("softmax"));
  EXPECT_THAT(fault_of(deepseek_v2(), "topk_method", "noaux_tc"),
              HasSubstr("greedy, group_limited_greedy"));
}

TEST(Config, ErrorsNameFileKeyValueAndWhatIsAccepted) {
  EXPECT_THAT(fault_of(llama(), "architectures", {"GptForCausalLM"}),
              AllOf(HasSubstr("config.json, $.architectures"), HasSubstr("GptForCausalLM"),
                    HasSubstr("LlamaForCausalLM, DeepseekV3ForCausalLM, DeepseekV2ForCausalLM")));
  EXPECT_THAT(fault_without(llama(), "architectures"), HasSubstr("$.architectures"));
  EXPECT_THAT(fault_of(llama(), "architectures", Json::array()), HasSubstr("no architecture"));
  EXPECT_THAT(fault_of(llama(), "num_hidden_layers", 0), HasSubstr("1 to 10000"));
  EXPECT_THAT(fault_of(llama(), "num_hidden_layers", 10001), HasSubstr("10001"));
  EXPECT_THAT(fault_of(llama(), "num_hidden_layers", "2"), HasSubstr("an integer"));
  EXPECT_THAT(fault_of(llama(), "hidden_size", -64), HasSubstr("$.hidden_size"));
  EXPECT_THAT(fault_of(llama(), "vocab_size", 0), HasSubstr("$.vocab_size"));
  EXPECT_THAT(fault_of(llama(), "rms_norm_eps", 0), HasSubstr("$.rms_norm_eps"));
  EXPECT_THAT(fault_of(llama(), "hidden_act", "gelu"), AllOf(HasSubstr("gelu"), HasSubstr("silu")));
  EXPECT_THAT(
      fault_of(llama(), "num_key_value_heads", 3),
      AllOf(HasSubstr("$.num_key_value_heads"), HasSubstr("divisor of num_attention_heads, 4")));
  EXPECT_THAT(fault_of(llama(), "num_attention_heads", 6), HasSubstr("$.head_dim"));
  EXPECT_THAT(fault_of(llama(), "head_dim", 15), HasSubstr("even"));
  EXPECT_THAT(fault_of(llama(), "torch_dtype", "float8_e4m3fn"), HasSubstr("bfloat16"));
  EXPECT_THAT(fault_of(llama(), "quantization_config", {{"quant_method", "gptq"}}),
              AllOf(HasSubstr("config.json, quantization_config, $.quant_method"),
                    HasSubstr("gptq"), HasSubstr("compressed-tensors")));
  EXPECT_THAT(fault_of(deepseek_v3(), "attention_bias", true), HasSubstr("$.attention_bias"));
  EXPECT_THAT(fault_of(deepseek_v3(), "qk_rope_head_dim", 7), HasSubstr("even"));
  EXPECT_THAT(error_of([] { parse_config("[]", "config.json"); }), HasSubstr("not a JSON object"));
  EXPECT_THAT(error_of([] { parse_config("{", "config.json"); }), HasSubstr("config.json, line 1"));
}

TEST(Config, WindowsAndLayerTypes) {
  EXPECT_THAT(fault_of(llama(), "sliding_window", 128), HasSubstr("sliding-window"));
  EXPECT_EQ(fault_of(llama(), "sliding_window", nullptr), "no error");
  EXPECT_EQ(fault_of(llama(), "sliding_window", 512), "no error");
  Json json = llama();
  json["use_sliding_window"] = false;
  EXPECT_EQ(fault_of(json, "sliding_window", 128), "no error");
  EXPECT_EQ(fault_of(llama(), "layer_types", {"full_attention", "full_attention"}), "no error");
  EXPECT_THAT(fault_of(llama(), "layer_types", {"full_attention", "sliding_attention"}),
              HasSubstr("'sliding_attention'"));
}

TEST(Config, Types) {
  Json json = llama();
  json.erase("torch_dtype");
  EXPECT_EQ(parse(json).dtype, DType::bf16);
  json["dtype"] = "float32";
  json["torch_dtype"] = "float16";
  EXPECT_EQ(parse(json).dtype, DType::f32);  // transformers 5 writes dtype
}

TEST(Config, TokenIds) {
  Json json = llama();
  json["bos_token_id"] = 1;
  json["eos_token_id"] = 2;
  EXPECT_EQ(parse(json).bos, 1);
  EXPECT_THAT(parse(json).eos, ElementsAre(2));
  json["eos_token_id"] = {2, 5};
  EXPECT_THAT(parse(json).eos, ElementsAre(2, 5));
  EXPECT_THAT(fault_of(json, "eos_token_id", -1), HasSubstr("$.eos_token_id"));
  EXPECT_THAT(fault_of(json, "eos_token_id", "</s>"), HasSubstr("$.eos_token_id"));

  const test::TempDir dir;
  dir.file("config.json", json.dump());
  EXPECT_THAT(read_config(dir.path().string()).eos, ElementsAre(2, 5));
  dir.file("generation_config.json", R"({"eos_token_id": [7, 5]})");
  EXPECT_THAT(read_config(dir.path().string()).eos, ElementsAre(2, 5, 7));
  // A file alone is a shape, without its neighbours.
  EXPECT_THAT(read_config((dir / "config.json").string()).eos, ElementsAre(2, 5));
  dir.file("generation_config.json", R"({"eos_token_id": "x"})");
  EXPECT_THAT(error_of([&] { read_config(dir.path().string()); }),
              HasSubstr("generation_config.json, $.eos_token_id"));
}

TEST(Config, Paths) {
  const test::TempDir dir;
  EXPECT_THAT(error_of([&] { read_config(dir.path().string()); }), HasSubstr("no config.json"));
  EXPECT_THAT(error_of([&] { read_config((dir / "none").string()); }),
              AllOf(HasSubstr("none"), HasSubstr("no such file")));
  EXPECT_THAT(error_of([&] { read_config((dir / "none.json").string()); }), HasSubstr("none.json"));
  EXPECT_THAT(error_of([&] { read_config(dir.file("model.bin", "x").string()); }),
              HasSubstr("a directory with config.json"));
}

// --- RoPE
// -----------------------------------------------------------------------------------------

TEST(Config, RopeThetaIsNeverGuessed) {
  EXPECT_THAT(fault_without(llama(), "rope_theta"),
              AllOf(HasSubstr("rope_theta is missing"), HasSubstr("config.json"),
                    HasSubstr("Llama 1 and 2 have 10000.0")));
  EXPECT_THAT(fault_of(llama(), "rope_theta", 1.0), HasSubstr("$.rope_theta"));
  EXPECT_THAT(fault_of(llama(), "rope_theta", "1e4"), HasSubstr("a number"));
}

TEST(Config, BothRopeDialectsAreEqual) {
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

TEST(Config, RopeScalings) {
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

  EXPECT_THAT(rope_fault({{"rope_type", "dynamic"}, {"factor", 2}}),
              AllOf(HasSubstr("not supported yet"), HasSubstr("dynamic"), HasSubstr("llama3")));
  EXPECT_THAT(rope_fault({{"rope_type", "longrope"}, {"factor", 2}}),
              HasSubstr("not supported yet"));
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
  EXPECT_THAT(rope_fault({{"full_attention", {{"rope_type", "default"}}}}),
              HasSubstr("differ by layer"));
  EXPECT_THAT(fault_of(llama(), "partial_rotary_factor", 0.5), HasSubstr("partial_rotary_factor"));
}

// What HF transformers computes: tests/golden/generate_rope.py. Its values are FP32.
TEST(Config, RopeGoldens) {
  const Json golden = parse_json_file(source("tests/golden/rope.json"));
  int compared = 0;
  for (const auto& [name, entry] : golden["ropes"].items()) {
    SCOPED_TRACE(name);
    Json json = llama();
    json["head_dim"] = entry["dim"];
    json["rope_theta"] = entry["rope_theta"];
    json["max_position_embeddings"] = entry["max_position_embeddings"];
    json["rope_scaling"] = entry["rope_scaling"];
    const auto kind = entry["rope_scaling"].value("rope_type", "default");
    if (kind == "dynamic" || kind == "longrope") {
      EXPECT_THAT(error_of([&] { parse(json); }), HasSubstr("not supported yet"));
      continue;
    }
    const RopeConfig rope = parse(json).rope;
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
  EXPECT_GE(compared, 8);
}

// --- the models of the repository
// -----------------------------------------------------------------

TEST(Config, EveryModelOfTheRepositoryParses) {
  int count = 0;
  for (const char* root : {"models", "models/configs", "tests/golden"}) {
    for (const auto& entry : fs::directory_iterator(source(root))) {
      if (!fs::exists(entry.path() / "config.json")) continue;
      SCOPED_TRACE(entry.path().string());
      EXPECT_NO_THROW(read_config(entry.path().string()));
      ++count;
    }
  }
  EXPECT_GE(count, 16);
}

TEST(Config, DeepseekV3AsPublished) {
  const ModelConfig config = read_config(source("models/configs/deepseek-v3").string());
  EXPECT_EQ(config.layers, 61);
  EXPECT_EQ(config.mtp_layers, 1);
  EXPECT_EQ(config.rope.kind, RopeConfig::Kind::yarn);
  EXPECT_EQ(config.rope.factor, 40);
  EXPECT_EQ(config.rope.original_positions, 4096);
  const auto& moe = std::get<MoeFfn>(config.ffn);
  EXPECT_EQ(moe.dense_layers, 3);
  EXPECT_EQ(moe.router.groups, 8);
  EXPECT_EQ(moe.router.top_groups, 4);
}

TEST(Config, TransformersFiveDialect) {
  const ModelConfig config =
      read_config(source("tests/golden/deepseek_v3_rope_parameters").string());
  EXPECT_EQ(config.rope.theta, 500.0);
  EXPECT_EQ(config.rope.dim, 12);
  EXPECT_EQ(config.rope.factor, 8.0);
  EXPECT_FALSE(config.rope.truncate);
  EXPECT_EQ(config.dtype, DType::f32);
  EXPECT_EQ(std::get<Mla>(config.attention).v, 20);
}

}  // namespace
}  // namespace octet::model
