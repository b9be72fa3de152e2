// Mixtral: Mistral's attention and a mixture of experts in every layer, under names of its own
// (HF mixtral/modeling_mixtral.py).
#include <fmt/format.h>

#include "model/config_read.h"
#include "model/families/families.h"
#include "model/families/parts.h"

namespace octet::model {
namespace {

// w1 is the gate, w3 goes up and w2 down.
ops::GatedMlp bind_expert(Binder& binder, const std::string& prefix) {
  const int64_t hidden = binder.config().hidden;
  const int64_t width = std::get<MoeFfn>(binder.config().ffn).intermediate;
  return {.gate = binder.linear(prefix + ".w1", Role::expert_gate_up, width, hidden),
          .up = binder.linear(prefix + ".w3", Role::expert_gate_up, width, hidden),
          .down = binder.linear(prefix + ".w2", Role::expert_down, hidden, width)};
}

Ffn bind_block(Binder& binder, const std::string& layer, int64_t) {
  const auto& ffn = std::get<MoeFfn>(binder.config().ffn);
  MoeLayer bound;
  bound.spec = ffn.router;
  bound.router = binder.linear(fmt::format("{}.{}", layer, ffn.router_name), Role::router,
                               ffn.router.experts, binder.config().hidden);
  for (int64_t e = 0; e < ffn.router.experts; ++e) {
    bound.experts.push_back(
        bind_expert(binder, fmt::format("{}.block_sparse_moe.experts.{}", layer, e)));
  }
  return bound;
}

}  // namespace

void read_mixtral(const JsonView& config, ModelConfig& model) {
  read_gqa(config, model);
  read_window(config, model);
  MoeFfn moe;
  moe.router = read_softmax_router(config, "num_local_experts");
  moe.router.normalize = true;  // always
  moe.router_name = "block_sparse_moe.gate";
  moe.intermediate = read_width(config, "intermediate_size");
  moe.layers.assign(static_cast<size_t>(model.layers), true);
  model.ffn = moe;
}

DecoderWeights bind_mixtral(Binder& binder) {
  return bind_gqa_decoder(binder, bind_block);
}

}  // namespace octet::model
