#include "cli/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/hash.h"
#include "base/mapped_file.h"

namespace octet::cli {
namespace {

namespace fs = std::filesystem;

void add_samples(Hash64& hash, const fs::path& path) {
  constexpr uintmax_t kSample = 4096, kSamples = 100;
  const uintmax_t size = fs::file_size(path);
  hash.add(fmt::format("{} {};", path.filename().string(), size));
  std::ifstream file(path, std::ios::binary);
  std::string sample(kSample, '\0');
  for (uintmax_t i = 0; i < kSamples; ++i) {
    const uintmax_t room = size > kSample ? size - kSample : 0;
    file.clear();
    file.seekg(static_cast<std::streamoff>(room / (kSamples - 1) * i));
    file.read(sample.data(), kSample);
    hash.add(std::string_view(sample).substr(0, static_cast<size_t>(file.gcount())));
    if (room == 0) break;
  }
}

// The files that make a model, by name.
std::vector<fs::path> files_of(const fs::path& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path)) {
    const fs::path extension = entry.path().extension();
    if (extension == ".safetensors" || extension == ".json") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

}  // namespace

std::string fingerprint_of(const ModelOptions& model, const BackendOptions& device) {
  Hash64 hash;
  for (const fs::path& path : files_of(model.path)) add_samples(hash, path);
  hash.add(fmt::format("{};{};{};{};{};{};{};{};{};{};{};{};{};{};{}", model.random_weights,
                       model.seed, model.compute, model.scheme, model.quantization, model.attention,
                       model.kv_cache_dtype, model.kv_scale, model.max_model_len,
                       model.hf_overrides, model.rope_scaling, model.rope_theta, device.device,
                       device.kernels, fmt::join(device.pins, ",")));
  if (!model.policy.empty()) hash.add(read_text(model.policy));
  return hash.hex();
}

}  // namespace octet::cli
