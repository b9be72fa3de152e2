#include "model/recorded_calibration.h"

#include <filesystem>
#include <vector>

#include "model/config_read.h"
#include "model/gguf/checkpoint.h"

namespace octet::model {

std::optional<RecordedCalibration> read_calibration(const JsonView& octet, int64_t rotated) {
  constexpr int64_t most = int64_t{1} << 60;
  const std::optional<JsonView> json = octet.find("calibration");
  if (!json) return std::nullopt;
  require_known(*json, {"for", "longest", "samples", "tokens", "positions"});
  RecordedCalibration calibration;
  for (const std::string& measured : json->get<std::vector<std::string>>("for")) {
    if (measured == "kv_cache") {
      calibration.kv_cache = true;
    } else if (measured == "inputs") {
      calibration.inputs = true;
    } else if (measured == "rounding") {
      calibration.rounding = true;
    } else {
      json->refuse("for", "this version does not know what was measured",
                   "kv_cache, inputs, rounding");
    }
  }
  calibration.longest = json->integer("longest", 0, most);
  calibration.samples = json->integer("samples", 0, most);
  calibration.tokens = json->integer("tokens", 0, most);
  if (const std::optional<JsonView> positions = json->find("positions")) {
    ModelConfig then;
    then.max_positions = positions->integer("max_position_embeddings", 1, kMostPositions);
    read_positions(*positions, rotated, then);
    calibration.rope = then.rope;
  }
  return calibration;
}

std::optional<RecordedCalibration> read_calibration(const std::string& path,
                                                    const ModelConfig& config) {
  if (is_gguf(path)) return std::nullopt;
  std::filesystem::path file = path;
  if (std::filesystem::is_directory(file)) file /= "config.json";
  const Json json = parse_json_file(file);
  const JsonView view(json, file.string());
  const std::optional<JsonView> octet = view.find("octet");
  return octet ? read_calibration(*octet, config.rope.dim) : std::nullopt;
}

}  // namespace octet::model
