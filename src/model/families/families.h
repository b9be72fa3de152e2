// The table of model families: one file and one row each.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "model/decoder.h"

namespace octet::model {

struct FamilyRow {
  Family family;
  std::string_view name;                        // "llama"
  std::vector<std::string_view> architectures;  // of config.json
  std::vector<std::string_view> model_types;    // that transformers gives these
  // Reads what the family's config.json has beside the common fields: attention, positions and FFN
  // at least.
  void (*read)(const JsonView& config, ModelConfig& model);
  DecoderWeights (*bind)(Binder& binder);
};

std::span<const FamilyRow> families();

void read_llama(const JsonView& config, ModelConfig& model);
void read_mistral(const JsonView& config, ModelConfig& model);
void read_mixtral(const JsonView& config, ModelConfig& model);
void read_qwen2(const JsonView& config, ModelConfig& model);
void read_qwen3(const JsonView& config, ModelConfig& model);
void read_qwen3_moe(const JsonView& config, ModelConfig& model);
void read_deepseek(const JsonView& config, ModelConfig& model);

DecoderWeights bind_llama(Binder& binder);
DecoderWeights bind_mistral(Binder& binder);
DecoderWeights bind_mixtral(Binder& binder);
DecoderWeights bind_qwen2(Binder& binder);
DecoderWeights bind_qwen3(Binder& binder);
DecoderWeights bind_deepseek(Binder& binder);

}  // namespace octet::model
