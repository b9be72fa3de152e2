// Llama 2, 3 and 3.x, and what is built like them: SmolLM2, for one (models-numerics A.3; HF
// llama/modeling_llama.py).
#include "model/config_read.h"
#include "model/families/families.h"
#include "model/families/parts.h"

namespace octet::model {

void read_llama(const JsonView& config, ModelConfig& model) {
  Gqa& attention = read_gqa(config, model);
  attention.qkv_bias = attention.o_bias = config.get<bool>("attention_bias", false);
  refuse_window(config, model);
  model.ffn = DenseFfn{.intermediate = read_width(config, "intermediate_size"),
                       .bias = config.get<bool>("mlp_bias", false)};
}

DecoderWeights bind_llama(Binder& binder) {
  return bind_gqa_decoder(binder);
}

}  // namespace octet::model
