#include "model/families/families.h"

namespace octet::model {

std::span<const FamilyRow> families() {
  static const FamilyRow rows[] = {
      {Family::llama, "llama", {"LlamaForCausalLM"}, {"llama"}, read_llama, bind_llama},
      {Family::mistral, "mistral", {"MistralForCausalLM"}, {"mistral"}, read_mistral, bind_mistral},
      {Family::mixtral, "mixtral", {"MixtralForCausalLM"}, {"mixtral"}, read_mixtral, bind_mixtral},
      {Family::qwen2, "qwen2", {"Qwen2ForCausalLM"}, {"qwen2"}, read_qwen2, bind_qwen2},
      {Family::qwen3, "qwen3", {"Qwen3ForCausalLM"}, {"qwen3"}, read_qwen3, bind_qwen3},
      {Family::qwen3_moe,
       "qwen3_moe",
       {"Qwen3MoeForCausalLM"},
       {"qwen3_moe"},
       read_qwen3_moe,
       bind_qwen3},
      {Family::deepseek,
       "deepseek",
       {"DeepseekV3ForCausalLM", "DeepseekV2ForCausalLM"},
       {"deepseek_v3", "deepseek_v2"},
       read_deepseek,
       bind_deepseek},
  };
  return rows;
}

}  // namespace octet::model
