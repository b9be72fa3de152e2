#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/json.h"
#include "model/recorded_calibration.h"
#include "unit/model/configs.h"
#include "unit/model/support.h"

namespace octet::model {
namespace {

namespace fs = std::filesystem;
using test::deepseek_v2;
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
using ::testing::IsEmpty;

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
  EXPECT_FALSE(gqa.qkv_bias);
  EXPECT_FALSE(gqa.o_bias);
  EXPECT_FALSE(gqa.qk_norm);
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
  EXPECT_TRUE(std::get<Gqa>(config.attention).qkv_bias);
  EXPECT_TRUE(std::get<Gqa>(config.attention).o_bias);
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
                    HasSubstr("LlamaForCausalLM, MistralForCausalLM, MixtralForCausalLM"),
                    HasSubstr("DeepseekV3ForCausalLM, DeepseekV2ForCausalLM")));
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
  EXPECT_THAT(fault_of(llama(), "quantization_config", {{"quant_method", "bitnet"}}),
              AllOf(HasSubstr("config.json, quantization_config, $.quant_method"),
                    HasSubstr("bitnet"), HasSubstr("compressed-tensors")));
  EXPECT_THAT(fault_of(deepseek_v3(), "attention_bias", true), HasSubstr("$.attention_bias"));
  EXPECT_THAT(fault_of(deepseek_v3(), "qk_rope_head_dim", 7), HasSubstr("even"));
  EXPECT_THAT(error_of([] { parse_config("[]", "config.json"); }), HasSubstr("not a JSON object"));
  EXPECT_THAT(error_of([] { parse_config("{", "config.json"); }), HasSubstr("config.json, line 1"));
}

TEST(Config, WhatItsMakerRecordedOfTheArithmetic) {
  Json json = llama();
  EXPECT_EQ(parse(json).recorded.attention, "");
  EXPECT_EQ(parse(json).recorded.kv_cache_dtype, "");
  json["octet"] = {{"attention", "bf16"}, {"kv_cache_dtype", "fp8"}};
  EXPECT_EQ(parse(json).recorded.attention, "bf16");
  EXPECT_EQ(parse(json).recorded.kv_cache_dtype, "fp8");
  json["octet"] = {{"attention", nullptr}};
  EXPECT_EQ(parse(json).recorded.attention, "");
  const auto fault = [&](Json recorded) { return fault_of(llama(), "octet", std::move(recorded)); };
  EXPECT_THAT(fault("bf16"), AllOf(HasSubstr("$.octet"), HasSubstr("object")));
  EXPECT_THAT(fault({{"attention", "int8"}}),
              AllOf(HasSubstr("$.octet.attention"), HasSubstr("int8"), HasSubstr("fp8, bf16")));
  EXPECT_THAT(fault({{"attention", ""}}), HasSubstr("$.octet.attention"));
  EXPECT_THAT(fault({{"attention", 16}}), HasSubstr("$.octet.attention"));
  EXPECT_THAT(fault({{"kv_cache_dtype", "auto"}}), HasSubstr("$.octet.kv_cache_dtype"));
  EXPECT_THAT(fault({{"atention", "bf16"}}),
              AllOf(HasSubstr("$.octet.atention"), HasSubstr("attention, kv_cache_dtype")));
  EXPECT_THAT(fault({{"attention", "fp8"}, {"kv_cache_dtype", "bf16"}}),
              HasSubstr("FP8 attention reads an FP8 KV cache"));
  // Linears whose inputs stay in 16 bits, of a checkpoint that has codes.
  EXPECT_THAT(fault({{"weight_only", {"*.o_proj"}}}),
              AllOf(HasSubstr("$.octet.weight_only"), HasSubstr("quantization_config")));
  json["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  json["octet"] = {{"weight_only", {"*.o_proj"}}};
  EXPECT_THAT(parse(json).recorded.weight_only, ElementsAre("*.o_proj"));
  EXPECT_THAT(fault_of(json, "octet", {{"weight_only", "*.o_proj"}}),
              HasSubstr("$.octet.weight_only"));
  EXPECT_THAT(fault_of(json, "octet", {{"weight_only", {""}}}), HasSubstr("$.octet.weight_only"));
}

TEST(Config, WhatItsMakerRecordedOfTheCalibration) {
  Json json = llama();
  const test::TempDir dir;
  const auto read_from = [&](const Json& config) {
    dir.file("config.json", config.dump());
    const std::string path = dir.path().string();
    return read_calibration(path, read_config(path));
  };
  EXPECT_FALSE(read_from(json));
  const Json good = {{"for", {"kv_cache", "rounding"}},
                     {"longest", 512},
                     {"samples", 3},
                     {"tokens", 1000},
                     {"positions",
                      {{"max_position_embeddings", 256},
                       {"rope_parameters",
                        {{"rope_type", "yarn"},
                         {"rope_theta", 7000},
                         {"factor", 4},
                         {"original_max_position_embeddings", 128}}}}}};
  json["octet"]["calibration"] = good;
  const auto read = read_from(json);
  ASSERT_TRUE(read && read->rope);
  EXPECT_TRUE(read->kv_cache && read->rounding && !read->inputs);
  EXPECT_EQ(read->longest, 512);
  EXPECT_EQ(read->samples, 3);
  EXPECT_EQ(read->tokens, 1000);
  EXPECT_EQ(read->rope->kind, RopeConfig::Kind::yarn);
  EXPECT_EQ(read->rope->theta, 7000);
  EXPECT_EQ(read->rope->dim, parse(json).rope.dim);
  EXPECT_EQ(read->rope->length, 512);  // 4 times 128
  json["octet"]["calibration"].erase("positions");
  EXPECT_FALSE(read_from(json)->rope);

  const auto fault = [&](const char* key, Json value) {
    Json calibration = good;
    calibration[key] = std::move(value);
    return fault_of(llama(), "octet", {{"calibration", calibration}});
  };
  EXPECT_THAT(fault("for", {"weights"}), HasSubstr("kv_cache, inputs, rounding"));
  EXPECT_THAT(fault("longest", -1), HasSubstr("$.octet.calibration.longest"));
  EXPECT_THAT(fault("samples", nullptr), HasSubstr("$.octet.calibration.samples"));
  EXPECT_THAT(fault("window", 3), HasSubstr("$.octet.calibration.window"));
  EXPECT_THAT(fault("positions", {{"max_position_embeddings", 256}}), HasSubstr("rope_theta"));
}

TEST(Config, TwoNamesOfTwoModelsAreRefused) {
  for (const char* type : {"qwen2", "mistral", "deepseek_v3"}) {
    EXPECT_THAT(fault_of(llama(), "model_type", type),
                AllOf(HasSubstr("$.model_type"), HasSubstr(type), HasSubstr("LlamaForCausalLM")));
  }
  Json json = llama();
  json["model_type"] = "something_that_computes_like_llama";
  EXPECT_EQ(parse(json).family, Family::llama);
  EXPECT_THAT(fault_of(llama(), "architectures", {"UnheardOfForCausalLM"}),
              AllOf(HasSubstr("UnheardOfForCausalLM"), HasSubstr("LlamaForCausalLM")));
}

TEST(Config, ALinkToItselfIsSaidToBeOne) {
  const test::TempDir dir;
  fs::create_symlink("config.json", dir.path() / "config.json");
  EXPECT_THAT(error_of([&] { read_config(dir.path().string()); }),
              AllOf(HasSubstr("config.json cannot be read"), HasSubstr("symbolic links")));
}

// Layers of different shapes have no place in a configuration of one.
TEST(Config, HeadsThatDifferByLayerAreRefused) {
  EXPECT_THAT(fault_of(llama(), "head_dim", {16, 32}),
              AllOf(HasSubstr("$.head_dim"), HasSubstr("[16,32]")));
  EXPECT_THAT(fault_of(llama(), "num_key_value_heads", {2, 4}),
              AllOf(HasSubstr("$.num_key_value_heads"), HasSubstr("[2,4]")));
  EXPECT_THAT(fault_of(llama(), "num_attention_heads", {4, 2}), HasSubstr("$.num_attention_heads"));
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
  EXPECT_FALSE(config.is_moe_layer(2));
  EXPECT_TRUE(config.is_moe_layer(3));
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
