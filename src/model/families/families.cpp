#include "model/families/families.h"

namespace octet::model {

std::span<const FamilyRow> families() {
  static const FamilyRow rows[] = {
      {Family::llama, "llama", {"LlamaForCausalLM"}, read_llama, bind_llama},
      {Family::mistral, "mistral", {"MistralForCausalLM"}, read_mistral, bind_mistral},
      {Family::mixtral, "mixtral", {"MixtralForCausalLM"}, read_mixtral, bind_mixtral},
      {Family::qwen2, "qwen2", {"Qwen2ForCausalLM"}, read_qwen2, bind_qwen2},
      {Family::qwen3, "qwen3", {"Qwen3ForCausalLM"}, read_qwen3, bind_qwen3},
      {Family::qwen3_moe, "qwen3_moe", {"Qwen3MoeForCausalLM"}, read_qwen3_moe, bind_qwen3},
      {Family::deepseek,
       "deepseek",
       {"DeepseekV3ForCausalLM", "DeepseekV2ForCausalLM"},
       read_deepseek,
       bind_deepseek},
  };
  return rows;
}

}  // namespace octet::model
