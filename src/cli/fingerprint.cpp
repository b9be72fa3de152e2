#include "cli/fingerprint.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/hash.h"
#include "base/mapped_file.h"
#include "model/identity.h"

namespace octet::cli {

std::string identity_of(const ModelOptions& model) {
  if (!model.random_weights) return model::identity_of(model.path);
  namespace fs = std::filesystem;
  const fs::path config =
      fs::is_directory(model.path) ? fs::path(model.path) / "config.json" : fs::path(model.path);
  Hash64 hash;
  hash.add(fmt::format("{};random;{}", model::identity_of(config.string()), model.seed));
  return hash.hex();
}

std::string fingerprint_of(const ModelOptions& model, const BackendOptions& device) {
  Hash64 hash;
  hash.add(fmt::format("{};{};{};{};{};{};{};{};{};{};{};{};{};{};{};{};{};{}", OCTET_VERSION,
                       identity_of(model), model.random_weights, model.seed, model.compute,
                       model.scheme, model.quantization, model.attention, model.kv_cache_dtype,
                       model.kv_scale, model.max_model_len, model.hf_overrides, model.rope_scaling,
                       model.rope_theta, device.device, device.kernels, device.deterministic,
                       device.fast_accumulation));
  hash.add(fmt::format(";{}", fmt::join(device.pins, ",")));
  if (model.kv_group_tokens) hash.add(fmt::format(";groups of {}", *model.kv_group_tokens));
  if (!model.policy.empty()) hash.add(read_text(model.policy));
  return hash.hex();
}

}  // namespace octet::cli
