// What each family reads from its config.json beside what all have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "model/config.h"
#include "unit/model/configs.h"

namespace octet::model {
namespace {

using test::deepseek_v3;
using test::error_of;
using test::fault_of;
using test::fault_without;
using test::llama;
using test::mistral;
using test::mixtral;
using test::parse;
using test::qwen2;
using test::qwen3;
using test::qwen3_moe;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int64_t> windows_of(const Json& json) {
  const ModelConfig config = parse(json);
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < config.layers; ++i) windows.push_back(config.window(i));
  return windows;
}

TEST(Families, Mistral) {
  Json json = mistral();
  const ModelConfig config = parse(json);
  EXPECT_EQ(config.family, Family::mistral);
  EXPECT_THAT(config.windows, IsEmpty());
  const auto& gqa = std::get<Gqa>(config.attention);
  EXPECT_FALSE(gqa.qkv_bias || gqa.o_bias || gqa.qk_norm);
  EXPECT_EQ(gqa.head_dim, 16);
  json["sliding_window"] = 128;
  json["head_dim"] = 24;
  EXPECT_THAT(windows_of(json), ElementsAre(128, 128));
  EXPECT_EQ(parse(json).rope.dim, 24);
  json["sliding_window"] = 512;  // no position leaves it
  EXPECT_THAT(windows_of(json), ElementsAre(0, 0));
  // HF would take 4096.
  EXPECT_THAT(fault_without(json, "sliding_window"),
              AllOf(HasSubstr("$.sliding_window"), HasSubstr("null for none")));
  for (const Json& wrong : {Json(0), Json(-1), Json("128"), Json(1.5)}) {
    EXPECT_THAT(fault_of(json, "sliding_window", wrong), HasSubstr("$.sliding_window"));
  }
  json["sliding_window"] = 128;
  EXPECT_EQ(fault_of(json, "layer_types", {"sliding_attention", "sliding_attention"}), "no error");
  EXPECT_THAT(fault_of(json, "layer_types", {"sliding_attention", "full_attention"}),
              HasSubstr("different things"));
}

TEST(Families, Mixtral) {
  Json json = mixtral();
  json["sliding_window"] = 64;
  const ModelConfig config = parse(json);
  EXPECT_EQ(config.family, Family::mixtral);
  EXPECT_THAT(windows_of(json), ElementsAre(64, 64));
  const auto& moe = std::get<MoeFfn>(config.ffn);
  EXPECT_EQ(moe.router.experts, 8);
  EXPECT_EQ(moe.router.top_k, 2);
  EXPECT_EQ(moe.router.scoring, ops::RouterSpec::Scoring::softmax);
  EXPECT_EQ(moe.router.method, ops::RouterSpec::Method::greedy);
  EXPECT_TRUE(moe.router.normalize);
  EXPECT_EQ(moe.router.scaling, 1.0f);
  EXPECT_EQ(moe.router_name, "block_sparse_moe.gate");
  EXPECT_EQ(moe.intermediate, 96);
  EXPECT_EQ(moe.shared, 0);
  EXPECT_FALSE(moe.router_bias);
  EXPECT_TRUE(config.is_moe_layer(0) && config.is_moe_layer(1));
  json.erase("sliding_window");  // HF's default is none
  EXPECT_THAT(windows_of(json), ElementsAre(0, 0));
  EXPECT_THAT(fault_without(json, "num_local_experts"), HasSubstr("$.num_local_experts"));
  EXPECT_THAT(fault_of(json, "num_experts_per_tok", 9), HasSubstr("1 to 8"));
}

TEST(Families, Qwen2) {
  const ModelConfig config = parse(qwen2());
  EXPECT_EQ(config.family, Family::qwen2);
  const auto& gqa = std::get<Gqa>(config.attention);
  EXPECT_TRUE(gqa.qkv_bias);
  EXPECT_FALSE(gqa.o_bias || gqa.qk_norm);
  EXPECT_FALSE(std::get<DenseFfn>(config.ffn).bias);
  EXPECT_THAT(config.windows, IsEmpty());  // there, but not used
}

TEST(Families, WindowsByLayer) {
  for (Json json : {qwen2(), qwen3()}) {
    json["use_sliding_window"] = true;
    json["sliding_window"] = 128;
    EXPECT_THAT(windows_of(json), ElementsAre(0, 0, 0, 128));
    json["max_window_layers"] = 0;
    EXPECT_THAT(windows_of(json), ElementsAre(128, 128, 128, 128));
    json["max_window_layers"] = 4;
    EXPECT_THAT(windows_of(json), ElementsAre(0, 0, 0, 0));
    json["layer_types"] = {"sliding_attention", "full_attention", "full_attention",
                           "sliding_attention"};
    EXPECT_THAT(windows_of(json), ElementsAre(128, 0, 0, 128));
    // Layers that slide, and no window to slide in.
    EXPECT_THAT(fault_of(json, "sliding_window", nullptr), HasSubstr("$.layer_types"));
    Json none = json;
    none["sliding_window"] = nullptr;
    none.erase("layer_types");
    EXPECT_THAT(windows_of(none), ElementsAre(0, 0, 0, 0));

    // HF would take 4096 and 28.
    EXPECT_THAT(fault_without(json, "sliding_window"), HasSubstr("no window is given"));
    EXPECT_THAT(fault_of(json, "layer_types", {"full_attention"}),
                HasSubstr("1 types for 4 layers"));
    EXPECT_THAT(fault_of(json, "layer_types", {"a", "b", "c", "d"}), HasSubstr("'a'"));
    // Layers that slide, and a switch that says that none does.
    EXPECT_THAT(fault_of(json, "use_sliding_window", false), HasSubstr("$.layer_types"));
    json.erase("layer_types");
    EXPECT_THAT(fault_without(json, "max_window_layers"), HasSubstr("$.max_window_layers"));
  }
}

TEST(Families, Qwen3) {
  const ModelConfig config = parse(qwen3());
  EXPECT_EQ(config.family, Family::qwen3);
  const auto& gqa = std::get<Gqa>(config.attention);
  EXPECT_TRUE(gqa.qk_norm);
  EXPECT_FALSE(gqa.qkv_bias || gqa.o_bias);
  EXPECT_EQ(gqa.head_dim, 24);
  Json json = qwen3();
  json["attention_bias"] = true;
  EXPECT_TRUE(std::get<Gqa>(parse(json).attention).qkv_bias);
  EXPECT_TRUE(std::get<Gqa>(parse(json).attention).o_bias);
  // HF would take 128.
  EXPECT_THAT(fault_without(json, "head_dim"), HasSubstr("$.head_dim"));
}

TEST(Families, Qwen3Moe) {
  Json json = qwen3_moe();
  const ModelConfig config = parse(json);
  EXPECT_EQ(config.family, Family::qwen3_moe);
  EXPECT_TRUE(std::get<Gqa>(config.attention).qk_norm);
  const auto& moe = std::get<MoeFfn>(config.ffn);
  EXPECT_EQ(moe.router.experts, 16);
  EXPECT_EQ(moe.router.top_k, 4);
  EXPECT_EQ(moe.router.scoring, ops::RouterSpec::Scoring::softmax);
  EXPECT_TRUE(moe.router.normalize);
  EXPECT_EQ(moe.router_name, "mlp.gate");
  EXPECT_EQ(moe.intermediate, 32);
  EXPECT_EQ(moe.dense_intermediate, 96);
  EXPECT_EQ(moe.shared, 0);

  const auto mixtures = [](const Json& json) { return std::get<MoeFfn>(parse(json).ffn).layers; };
  EXPECT_THAT(mixtures(json), ElementsAre(true, true, true, true));
  json["decoder_sparse_step"] = 2;
  EXPECT_THAT(mixtures(json), ElementsAre(false, true, false, true));
  json["mlp_only_layers"] = {1};
  EXPECT_THAT(mixtures(json), ElementsAre(false, false, false, true));
  EXPECT_THAT(fault_of(json, "mlp_only_layers", {4}), HasSubstr("0 to 3"));
  EXPECT_THAT(fault_of(json, "mlp_only_layers", {-1}), HasSubstr("$.mlp_only_layers"));
  EXPECT_THAT(fault_of(json, "decoder_sparse_step", 0), HasSubstr("$.decoder_sparse_step"));
  EXPECT_THAT(fault_without(json, "norm_topk_prob"), HasSubstr("$.norm_topk_prob"));
  EXPECT_THAT(fault_without(json, "num_experts"), HasSubstr("$.num_experts"));

  json["num_local_experts"] = json["num_experts"];  // as transformers 5 writes it
  json.erase("num_experts");
  EXPECT_EQ(std::get<MoeFfn>(parse(json).ffn).router.experts, 16);

  // Its window is that of all layers.
  json["use_sliding_window"] = true;
  json["sliding_window"] = 128;
  EXPECT_THAT(windows_of(json), ElementsAre(128, 128, 128, 128));
  EXPECT_THAT(fault_without(json, "sliding_window"), HasSubstr("no window is given"));
  json["use_sliding_window"] = false;
  EXPECT_THAT(windows_of(json), ElementsAre(0, 0, 0, 0));
  const std::vector<std::string> sliding(4, "sliding_attention");
  EXPECT_THAT(fault_of(json, "layer_types", sliding), HasSubstr("$.layer_types"));
}

TEST(Families, WithoutWindows) {
  for (const Json& base : {llama(), deepseek_v3()}) {
    EXPECT_THAT(fault_of(base, "sliding_window", 128), HasSubstr("no sliding-window attention"));
    EXPECT_EQ(fault_of(base, "sliding_window", nullptr), "no error");
    EXPECT_EQ(fault_of(base, "sliding_window", 4096), "no error");
    Json json = base;
    json["use_sliding_window"] = false;
    EXPECT_EQ(fault_of(json, "sliding_window", 128), "no error");
    json = base;
    json["num_hidden_layers"] = 2;
    EXPECT_EQ(fault_of(json, "layer_types", {"full_attention", "full_attention"}), "no error");
    EXPECT_THAT(fault_of(json, "layer_types", {"full_attention", "sliding_attention"}),
                HasSubstr("$.layer_types"));
    EXPECT_THAT(fault_of(json, "layer_types", {"linear_attention", "full_attention"}),
                HasSubstr("'linear_attention'"));
  }
}

TEST(Families, WhatIsNotSupportedIsRefusedByName) {
  for (const char* name : {"Qwen2MoeForCausalLM", "PhiForCausalLM", "Gemma3ForCausalLM"}) {
    EXPECT_THAT(fault_of(llama(), "architectures", {name}), HasSubstr(name));
  }
}

}  // namespace
}  // namespace octet::model
