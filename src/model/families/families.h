// The table of model families: one file and one row each.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "model/decoder.h"

namespace octet::model {

struct FamilyRow {
  Family family;
  std::string_view name;                        // "llama"
  std::vector<std::string_view> architectures;  // of config.json
  DecoderWeights (*bind)(Binder& binder);
};

std::span<const FamilyRow> families();

DecoderWeights bind_llama(Binder& binder);
DecoderWeights bind_deepseek(Binder& binder);

}  // namespace octet::model
