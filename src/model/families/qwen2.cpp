// Qwen2 and Qwen2.5: Llama with biases on q, k and v, whatever attention_bias says, and a sliding
// window in the upper layers of those that use one (HF qwen2/modeling_qwen2.py).
#include "model/config_read.h"
#include "model/families/families.h"
#include "model/families/parts.h"

namespace octet::model {

void read_qwen2(const JsonView& config, ModelConfig& model) {
  read_gqa(config, model).qkv_bias = true;
  read_window_by_layer(config, model);
  model.ffn = DenseFfn{.intermediate = read_width(config, "intermediate_size")};
}

DecoderWeights bind_qwen2(Binder& binder) {
  return bind_gqa_decoder(binder);
}

}  // namespace octet::model
