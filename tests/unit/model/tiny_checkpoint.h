// A tiny checkpoint in memory that a test damages or rewrites before it is written and loaded.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/model.h"
#include "model/quant_schema.h"
#include "model/random_weights.h"
#include "numerics/scheme.h"
#include "unit/model/host_backend.h"
#include "unit/model/support.h"

namespace octet::test {

inline constexpr const char* kLlama = R"({
  "architectures": ["LlamaForCausalLM"], "hidden_size": 160, "intermediate_size": 96,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
  "vocab_size": 50, "max_position_embeddings": 64, "rope_theta": 10000.0})";

inline constexpr const char* kDeepseek = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
  "moe_intermediate_size": 32, "vocab_size": 50, "num_hidden_layers": 2, "num_attention_heads": 2,
  "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1,
  "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
  "first_k_dense_replace": 1, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
  "qk_rope_head_dim": 8, "v_head_dim": 12, "max_position_embeddings": 64, "rope_theta": 10000})";

inline constexpr const char* kQ = "model.layers.0.self_attn.q_proj";

// A checkpoint in memory that can be changed before it is written and loaded.
struct Tiny {
  Json config;
  std::map<std::string, Tensor> tensors;
  std::shared_ptr<model::RandomWeights> memory;

  // Random weights of `text`'s shape in `scheme`'s format ("" = 16-bit).
  explicit Tiny(const char* text, const std::string& scheme = "") : config(Json::parse(text)) {
    model::ModelConfig parsed = model::parse_config(text, "tiny");
    if (!scheme.empty()) {
      const LinearFormat format = scheme_named(scheme).format;
      parsed = model::with_scheme(parsed, format);
      config["quantization_config"] =
          Json::parse(model::write_quant_config(format, parsed.quant->ignored).dump());
    }
    memory = std::make_shared<model::RandomWeights>(parsed);
    HostBackend backend;
    model::load_model(parsed, memory, backend, {});
    for (const std::string& name : memory->names()) tensors[name] = *memory->find(name, {});
  }

  void retype(const std::string& name, DType type, Shape shape) {
    tensors.at(name) = Tensor(tensors.at(name).data, type, shape);
  }

  void write(const TempDir& dir) const {
    dir.file("config.json", config.dump());
    std::vector<model::PendingTensor> pending;
    for (const auto& [name, tensor] : tensors) {
      pending.push_back({name, tensor.type, tensor.shape, [tensor = tensor] {
                           const auto* data = static_cast<const std::byte*>(tensor.data);
                           return std::vector<std::byte>(data, data + tensor.bytes());
                         }});
    }
    model::write_checkpoint(dir.path().string(), pending, int64_t{1} << 30);
  }
};

inline std::unique_ptr<model::Model> load(const TempDir& dir, HostBackend& backend,
                                          model::LoadOptions options = {}) {
  const model::ModelConfig config = model::read_config(dir.path().string());
  return model::load_model(config, std::make_shared<model::Checkpoint>(dir.path().string()),
                           backend, options);
}

// The message of loading `tiny`, which must name the file.
inline std::string fault_of(const Tiny& tiny) {
  const TempDir dir;
  tiny.write(dir);
  HostBackend backend;
  return error_of([&] { load(dir, backend); });
}

}  // namespace octet::test
