// parse_config on any text, quantization_config included: an Error, or a config whose derived
// values can be computed: layers, rotary frequencies, ignore lists.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "model/config.h"
#include "model/quant_schema.h"
#include "model/rope.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace octet::model;
  try {
    const ModelConfig config =
        parse_config(std::string(reinterpret_cast<const char*>(data), size), "input");
    if (config.layers < 1 || config.hidden < 1 || config.vocab < 1) std::abort();
    for (int64_t i = 0; i < config.layers; ++i) {
      config.is_moe_layer(i);
      if (config.window(i) < 0 || config.window(i) >= config.max_positions) std::abort();
    }
    for (const double frequency : rope_frequencies(config.rope)) {
      if (!std::isfinite(frequency)) std::abort();
    }
    rope_attention_factor(config.rope);
    if (config.quant) {
      policy_rows(*config.quant, config.recorded.weight_only);
      unmatched_ignores(*config.quant, {"lm_head", "model.layers.10.mlp.gate"});
    }
  } catch (const octet::Error&) {
  }
  return 0;
}
