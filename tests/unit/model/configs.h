// Configurations as a test starts from: small, complete, and of every kind of family.
#pragma once

#include <string>

#include "base/json.h"
#include "model/config.h"
#include "unit/base/error_of.h"

namespace octet::test {

inline Json llama() {
  return parse_json(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "torch_dtype": "float16"})",
                    "llama");
}

inline Json deepseek_v3() {
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

inline Json deepseek_v2() {
  Json json = deepseek_v3();
  json["architectures"] = {"DeepseekV2ForCausalLM"};
  json["scoring_func"] = "softmax";
  json["topk_method"] = "group_limited_greedy";
  json["norm_topk_prob"] = false;
  json["routed_scaling_factor"] = 16.0;
  return json;
}

// The other families, with the fields that their published configurations have.
inline Json mistral() {
  Json json = llama();
  json["architectures"] = {"MistralForCausalLM"};
  json["model_type"] = "mistral";
  json["sliding_window"] = nullptr;
  return json;
}

inline Json mixtral() {
  Json json = mistral();
  json["architectures"] = {"MixtralForCausalLM"};
  json["model_type"] = "mixtral";
  json["num_local_experts"] = 8;
  json["num_experts_per_tok"] = 2;
  return json;
}

inline Json qwen2() {
  Json json = llama();
  json["architectures"] = {"Qwen2ForCausalLM"};
  json["model_type"] = "qwen2";
  json["num_hidden_layers"] = 4;
  json["use_sliding_window"] = false;
  json["sliding_window"] = 128;
  json["max_window_layers"] = 3;
  return json;
}

inline Json qwen3() {
  Json json = qwen2();
  json["architectures"] = {"Qwen3ForCausalLM"};
  json["model_type"] = "qwen3";
  json["head_dim"] = 24;
  json["attention_bias"] = false;
  json["sliding_window"] = nullptr;
  return json;
}

inline Json qwen3_moe() {
  Json json = qwen3();
  json["architectures"] = {"Qwen3MoeForCausalLM"};
  json["model_type"] = "qwen3_moe";
  json["num_experts"] = 16;
  json["num_experts_per_tok"] = 4;
  json["moe_intermediate_size"] = 32;
  json["norm_topk_prob"] = true;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = Json::array();
  return json;
}

inline model::ModelConfig parse(const Json& json) {
  return model::parse_config(json.dump(), "config.json");
}

// The message when `key` is set to `value` (or removed, if discarded).
inline std::string fault_of(Json json, const char* key, const Json& value) {
  json[key] = value;
  return error_of([&] { parse(json); });
}
inline std::string fault_without(Json json, const char* key) {
  json.erase(key);
  return error_of([&] { parse(json); });
}

}  // namespace octet::test
