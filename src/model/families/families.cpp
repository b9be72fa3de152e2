#include "model/families/families.h"

namespace octet::model {

std::span<const FamilyRow> families() {
  static const FamilyRow rows[] = {
      {Family::llama, "llama", {"LlamaForCausalLM"}, bind_llama},
      {Family::deepseek,
       "deepseek",
       {"DeepseekV3ForCausalLM", "DeepseekV2ForCausalLM"},
       bind_deepseek},
  };
  return rows;
}

}  // namespace octet::model
