// Mistral: Llama without biases and with a sliding window (HF mistral/modeling_mistral.py).
#include "model/config_read.h"
#include "model/families/families.h"
#include "model/families/parts.h"

namespace octet::model {

void read_mistral(const JsonView& config, ModelConfig& model) {
  read_gqa(config, model);
  // HF gives an absent key the window of the first Mistral, 4096, which is a guess.
  if (!config.json().contains("sliding_window")) {
    config.refuse("sliding_window", "a required field is missing",
                  "a number of tokens, or null for none");
  }
  read_window(config, model);
  model.ffn = DenseFfn{.intermediate = read_width(config, "intermediate_size")};
}

DecoderWeights bind_mistral(Binder& binder) {
  return bind_gqa_decoder(binder);
}

}  // namespace octet::model
