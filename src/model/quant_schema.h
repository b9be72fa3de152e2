// The `quantization_config` dialects of quantized checkpoints: DeepSeek's blocks, AutoFP8, HF's
// fine-grained FP8, compressed-tensors, ModelOpt, AWQ and GPTQ are read; DeepSeek's and
// compressed-tensors are written. In each of them the stored scale multiplies.
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

// The same from ModelOpt's side file, hf_quant_config.json.
QuantConfig read_modelopt_file(const nlohmann::json& object, const std::string& where);

// Writes it: DeepSeek's for FP8 blocks with groups, compressed-tensors for all others.
// `ignored` are the full module names that stay 16-bit.
nlohmann::ordered_json write_quant_config(const LinearFormat& format,
                                          const std::vector<std::string>& ignored);

// The group that holds this module by its targets, whether or not it is ignored; nullptr if none
// does. As compressed-tensors chooses: a group that names the module goes before one with a regular
// expression for it (of several, the first in the order of their text), and that before one with
// its class, "Linear". A name or expression may be of a module that engines make of several:
// "qkv_proj" for q_proj.
const QuantGroup* group_of(const QuantConfig& config, std::string_view module);

// Targets of groups with weights that match none of these modules, with their group's name:
// "group_1's target 're:.*mpl.*'".
std::vector<std::string> unmatched_targets(const QuantConfig& config,
                                           const std::vector<std::string>& modules);

// Whether the checkpoint's ignore list names this module ("model.layers.0.mlp.gate"), by the rules
// of its dialect (quant/ignore_list.h).
bool ignores(const QuantConfig& config, std::string_view module);

// The same by the loosest reading of the list, as some exporters meant it: true also where
// ignores() is. A module that is stored in 16 bits is not missed if this is true.
bool may_ignore(const QuantConfig& config, std::string_view module);

// Entries of the ignore list that match none of these modules. They may be typos, so a caller
// should show them.
std::vector<std::string> unmatched_ignores(const QuantConfig& config,
                                           const std::vector<std::string>& modules);

// Suffix of the scale tensor: ".weight_scale_inv" or ".weight_scale".
std::string_view scale_suffix(const QuantConfig& config);

// Policy rows that put the checkpoint's own precisions above the defaults. Linears that one of the
// globs `weight_only` names keep their inputs in 16 bits, whatever the quantization_config says.
std::vector<PolicyRow> policy_rows(const QuantConfig& config,
                                   const std::vector<std::string>& weight_only);

}  // namespace octet::model
