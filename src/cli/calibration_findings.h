// What a model's calibration has to say of how it is opened: for inspect, and for serve's log.
#pragma once

#include <string>
#include <vector>

#include "cli/open_model.h"
#include "offline/diagnose.h"

namespace octet::cli {

inline std::vector<offline::Finding> calibration_findings(const std::string& path,
                                                          const OpenModel& open) {
  const auto calibration = model::read_calibration(path, open.config());
  if (!calibration) return {};
  return offline::diagnose_calibration(
      *calibration,
      {.rope = open.config().rope,
       .length = open.max_model_len(),
       .fp8_inputs = open.load_options().compute == model::Compute::fp8,
       .e4m3_cache = open.kv_dtype() == DType::e4m3 && !model::has_token_heads(open.kv_type())});
}

}  // namespace octet::cli
