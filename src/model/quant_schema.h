// The `quantization_config` dialects of FP8 checkpoints, read and written: DeepSeek block FP8 and
// compressed-tensors (conventions.md A(1), A(2)). In each of them the stored scale multiplies.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "model/checkpoint.h"
#include "model/config.h"

namespace octet::model {

// Reads config.json's "quantization_config". Throws Error for an unknown method, an unsupported
// strategy, block sizes that are not positive, or a field of the wrong type.
QuantConfig read_quant_config(const nlohmann::json& object, const std::string& where);

// Writes it: DeepSeek's for 128x128 blocks, compressed-tensors for channel and tensor scales.
// `ignored` are the full module names that stay 16-bit.
nlohmann::ordered_json write_quant_config(const LinearFormat& format,
                                          const std::vector<std::string>& ignored);

// Whether the checkpoint's schema leaves this module ("model.layers.0.mlp.gate") unquantized, by
// the schema's own rules: exact and `re:` match-at-start for compressed-tensors; for DeepSeek
// blocks `modules_to_not_convert` if present, else what the stored dtypes say.
bool ignores(const QuantConfig& config, std::string_view module);

// Entries of the ignore list that match none of these modules. They may be typos, so a caller
// should show them.
std::vector<std::string> unmatched_ignores(const QuantConfig& config,
                                           const std::vector<std::string>& modules);

// Suffix of the scale tensor: ".weight_scale_inv" or ".weight_scale".
std::string_view scale_suffix(const QuantConfig& config);

// Policy rows that put the checkpoint's own precisions above the defaults.
std::vector<PolicyRow> policy_rows(const QuantConfig& config);

}  // namespace octet::model
