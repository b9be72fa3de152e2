// What the families' files are made of.
#pragma once

#include <string>

#include "model/decoder.h"

namespace octet::model {

// Grouped-query attention under Llama's names: PREFIX.{q,k,v,o}_proj, and PREFIX.{q,k}_norm where
// the configuration has qk_norm.
GqaLayer bind_gqa(Binder& binder, const std::string& prefix, int64_t layer);

// A mixture of experts under DeepSeek's names: PREFIX.gate (with e_score_correction_bias where the
// configuration has it), PREFIX.experts.E.{gate,up,down}_proj and PREFIX.shared_experts.
MoeLayer bind_moe(Binder& binder, const std::string& prefix);

using Ffn = std::variant<ops::GatedMlp, MoeLayer>;

// LAYER.mlp: dense as the configuration says, or bind_moe where the layer is a mixture.
Ffn bind_ffn(Binder& binder, const std::string& layer, int64_t index);

// Embedding, layers (norms and attention named as in Llama, FFN by `ffn`), final norm, head, and
// the KV scales if the checkpoint has those of every layer.
DecoderWeights bind_gqa_decoder(Binder& binder, Ffn (*ffn)(Binder&, const std::string& layer,
                                                           int64_t index) = bind_ffn);

}  // namespace octet::model
