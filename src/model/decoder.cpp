#include "model/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "model/quant_schema.h"

namespace octet::model {

Decoder::Decoder(Binder& binder, DecoderWeights weights)
    : config_(binder.config()),
      activation_(binder.activation()),
      fp8_attention_(binder.options().compute == Compute::fp8 && binder.options().fp8_attention),
      kv_group_tokens_(binder.options().kv_group_tokens),
      memory_(binder.take_memory()),
      weights_(std::move(weights)) {
  const int64_t positions =
      binder.options().max_positions ? binder.options().max_positions : config_.max_positions;
  rope_ = build_rope_table(binder.backend(), config_.rope, positions);
  if (std::optional<std::string> notice = rope_notice(config_.rope)) {
    weights_.notices.push_back(std::move(*notice));
  }
  // Those that quantizers name in every list, whether or not a tied model has both.
  std::vector<std::string> modules = {"lm_head", "model.embed_tokens"};
  for (const LinearUse& use : linears()) {
    precisions_.push_back(resolve(binder.policy(), use.linear->role, use.linear->name));
    modules.push_back(use.linear->name);
  }
  std::vector<std::string>& notices = weights_.notices;
  for (const int32_t id : config_.eos) {
    if (id < config_.vocab) continue;
    notices.push_back(fmt::format(
        "the end token {} lies beyond the vocabulary of {} tokens, and so ends nothing: look at "
        "eos_token_id of config.json and generation_config.json",
        id, config_.vocab));
  }
  if (config_.quant) {
    notices.insert(notices.end(), config_.quant->notes.begin(), config_.quant->notes.end());
    for (std::string& pattern : unmatched_ignores(*config_.quant, modules)) {
      notices.push_back("quantization_config ignores '" + shortened(std::move(pattern), 200) +
                        "', which matches no module");
    }
    for (std::string& target : unmatched_targets(*config_.quant, modules)) {
      notices.push_back("quantization_config: " + shortened(std::move(target), 200) +
                        " matches no module");
    }
  }
  for (const std::string& name : config_.recorded.weight_only) {
    if (std::ranges::find(precisions_, name, &PolicyRow::name) != precisions_.end()) continue;
    notices.push_back(
        fmt::format("octet.weight_only of config.json names '{}', which decides no linear's "
                    "precision",
                    shortened(name, 200)));
  }
  for (std::string& notice : notices) notice = shortened(std::move(notice), 1000);
}

int64_t Decoder::parameters() const {
  int64_t total = 0;
  const auto count = [&](const Tensor& tensor) { total += tensor ? tensor.count() : 0; };
  if (!config_.tied_embeddings) count(weights_.embedding);
  for (const LinearUse& use : linears()) {
    total += use.linear->out * use.linear->in;
    count(use.linear->bias);
  }
  for (const DecoderLayer& layer : weights_.layers) {
    count(layer.attention_norm.weight);
    count(layer.ffn_norm.weight);
    if (const auto* gqa = std::get_if<GqaLayer>(&layer.attention)) {
      count(gqa->q_norm.weight);
      count(gqa->k_norm.weight);
    }
    if (const auto* mla = std::get_if<MlaLayer>(&layer.attention)) {
      count(mla->q_a_norm.weight);
      count(mla->kv_a_norm.weight);
    }
    if (const auto* moe = std::get_if<MoeLayer>(&layer.ffn)) count(moe->router_bias);
  }
  count(weights_.final_norm.weight);
  return total;
}

std::vector<LinearUse> Decoder::linears() const {
  std::vector<LinearUse> uses;
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    const auto use = [&](const ops::Linear& linear, double per_token = 1.0) {
      if (linear) uses.push_back({&linear, layer, per_token});
    };
    const auto use_mlp = [&](const ops::GatedMlp& mlp, double per_token = 1.0) {
      for (const ops::Linear* linear : {&mlp.gate, &mlp.up, &mlp.down}) use(*linear, per_token);
    };
    if (const auto* gqa = std::get_if<GqaLayer>(&weights_.layers[i].attention)) {
      for (const ops::Linear* linear : {&gqa->q, &gqa->k, &gqa->v, &gqa->o}) use(*linear);
    } else {
      const auto& mla = std::get<MlaLayer>(weights_.layers[i].attention);
      for (const ops::Linear* linear : {&mla.q, &mla.q_a, &mla.q_b, &mla.kv_a, &mla.kv_b, &mla.o}) {
        use(*linear);
      }
    }
    if (const auto* dense = std::get_if<ops::GatedMlp>(&weights_.layers[i].ffn)) {
      use_mlp(*dense);
    } else {
      const auto& moe = std::get<MoeLayer>(weights_.layers[i].ffn);
      use(moe.router);
      const double share = static_cast<double>(moe.spec.top_k) / moe.spec.experts;
      for (const ops::GatedMlp& expert : moe.experts) use_mlp(expert, share);
      if (moe.shared) use_mlp(*moe.shared);
    }
  }
  uses.push_back({&weights_.head, -1, 1.0});
  return uses;
}

Tensor Decoder::forward(const Exec& exec, const LayerObserver& observer) const {
  auto& [ops, arena, kv, batch] = exec;
  ops::AttentionSpec attention;
  attention.scale = weights_.attention_scale;
  attention.fp8 = fp8_attention_;
  const LayerContext context{exec, activation_, rope_.table, attention};

  auto stream = ops::ResidualStream::in(arena, activation_, batch.rows, config_.hidden);
  if (observer) stream.moments = {};  // it wants the sum before attention
  ops.embed(weights_.embedding, batch.tokens, stream.sum);
  const auto observe = [&](size_t layer, const Tensor& attention) {
    if (!observer) return;
    Buffer hosts[2];
    const auto to_host = [&](const Tensor& x, Buffer& host) {
      if (!x || x.device.kind == DeviceKind::cpu) return x;
      host = ops.alloc_host(static_cast<size_t>(x.bytes()), "what a layer is observed by");
      const Tensor seen = host.tensor(x.type, x.shape);
      ops.copy(x, seen);
      return seen;
    };
    const Tensor residual = to_host(stream.sum, hosts[0]), added = to_host(attention, hosts[1]);
    ops.sync();
    observer(static_cast<int64_t>(layer), residual, added);
  };

  const size_t layers = weights_.layers.size();
  for (size_t i = 0; i < layers; ++i) {
    const DecoderLayer& layer = weights_.layers[i];
    const ops::NormWeight& next =
        i + 1 < layers ? weights_.layers[i + 1].attention_norm : weights_.final_norm;
    run_attention(context, layer.attention, static_cast<int64_t>(i),
                  {layer.attention_norm, layer.ffn_norm}, stream);
    observe(i, stream.delta);  // what attention adds is not in the sum yet
    run_ffn(context, layer.ffn, {layer.ffn_norm, next}, stream);
  }
  if (!batch.logits_rows) return {};

  // Only the rows whose logits are wanted go through the last norm and the head.
  if (stream.delta) ops.add(stream.sum, stream.delta, stream.sum);
  observe(layers, {});
  const int64_t wanted = batch.logits_rows.count();
  const Tensor logits = arena.take(DType::f32, {wanted, config_.vocab});
  const Arena::Scope scratch(arena);
  const Tensor rows = arena.take(activation_, {wanted, config_.hidden});
  ops.gather_rows(stream.sum, batch.logits_rows, rows);
  const Tensor normed = arena.take(activation_, {wanted, config_.hidden});
  ops.rms_norm(rows, weights_.final_norm, normed);
  ops.head_linear(normed, weights_.head, logits);
  return logits;
}

void bind_ends(Binder& binder, DecoderWeights& weights) {
  const ModelConfig& config = binder.config();
  weights.embedding =
      binder.plain("model.embed_tokens.weight", {config.vocab, config.hidden}, Role::embedding);
  weights.final_norm = binder.norm("model.norm.weight", config.hidden, config.norm_eps);
  weights.head.role = Role::lm_head;
  weights.head.out = config.vocab;
  weights.head.in = config.hidden;
  // A tied model has no head of its own, as a rule. One that stores a head all the same means it:
  // HF 5.x computes with the stored head and warns.
  const bool stored = binder.has("lm_head.weight", {config.vocab, config.hidden});
  if (config.tied_embeddings && stored) {
    weights.notices.emplace_back(
        "tie_word_embeddings is set, but lm_head.weight is stored as well: the stored head is "
        "used");
  }
  weights.head.name = config.tied_embeddings && !stored ? "model.embed_tokens" : "lm_head";
  weights.head.plain = config.tied_embeddings && !stored
                           ? weights.embedding
                           : binder.head("lm_head", config.vocab, config.hidden);
}

}  // namespace octet::model
