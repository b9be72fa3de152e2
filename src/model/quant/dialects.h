// One reader for each dialect of `quantization_config`; quant_schema.h picks among them. All throw
// Error naming file, key, value and what is accepted.
#pragma once

#include "base/json.h"
#include "model/config.h"

namespace octet::model {

// quant_method "fp8": DeepSeek's blocks, AutoFP8 and HF's fine-grained FP8 (conventions A(1),
// A(3)).
QuantConfig read_fp8_config(const JsonView& view);
// "compressed-tensors" (A(2)): float-quantized, int-quantized, mxfp8-quantized and pack-quantized.
QuantConfig read_compressed_config(const JsonView& view);
OrderedJson write_compressed_config(const LinearFormat& format,
                                    const std::vector<std::string>& ignored);
// "modelopt" (A(4)): config.json's form, or the "quantization" object of hf_quant_config.json.
QuantConfig read_modelopt_config(const JsonView& view);
// "awq" and "gptq": 4-bit weights, models-numerics D.2.
QuantConfig read_awq_config(const JsonView& view);
QuantConfig read_gptq_config(const JsonView& view);

// Parts that they share.

inline constexpr int32_t kLargestBlock = 1 << 20;
// An extent of a block or group: 1 to kLargestBlock.
int32_t read_extent(const JsonView& view, std::string_view key, int64_t value);
// [128, 128]
ScaleGrid read_block(const JsonView& view, std::string_view key);
std::vector<std::string> read_names(const JsonView& view, std::string_view key);
// What a config that announces KV scales says to people.
inline constexpr const char* kKvNote =
    "kv_cache_scheme: stored k_scale and v_scale are used where they exist";

}  // namespace octet::model
