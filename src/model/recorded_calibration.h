// "calibration" of config.json's "octet": the data on which `octet quantize` measured scales or
// roundings, so that whoever serves the checkpoint can be told where he leaves it. Nothing that
// computes needs it, so ModelConfig lacks it.
#pragma once

#include <optional>
#include <string>

#include "base/json.h"
#include "model/config.h"

namespace octet::model {

struct RecordedCalibration {
  bool kv_cache = false, inputs = false, rounding = false;  // what was measured
  int64_t longest = 0;                                      // sample, in tokens; 0: not known
  int64_t samples = 0, tokens = 0;
  std::optional<RopeConfig> rope;  // in force then; absent: not recorded
};

// Of the object "octet". `rotated`: what a head rotates (RopeConfig::dim). Throws Error naming file
// and key for what this version does not know.
std::optional<RecordedCalibration> read_calibration(const JsonView& octet, int64_t rotated);

// Of a model directory or a config.json; `config` is the same, read. Nothing of a GGUF file, or
// where nothing is recorded.
std::optional<RecordedCalibration> read_calibration(const std::string& path,
                                                    const ModelConfig& config);

}  // namespace octet::model
