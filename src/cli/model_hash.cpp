#include "cli/model_hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/hash.h"

namespace octet::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kSamples = 64;
constexpr std::streamsize kSampleBytes = 4096;

void add_file(Hash64& hash, const fs::path& path) {
  const auto size = static_cast<int64_t>(fs::file_size(path));
  hash.add(fmt::format("{} {}\n", path.filename().string(), size));
  std::ifstream file(path, std::ios::binary);
  std::vector<char> part(kSampleBytes);
  for (int i = 0; i < kSamples; ++i) {
    file.clear();
    const int64_t last = std::max<int64_t>(0, size - kSampleBytes);
    file.seekg(last * i / (kSamples - 1));  // the first and the last bytes among them
    file.read(part.data(), kSampleBytes);
    hash.add(std::string_view(part.data(), static_cast<size_t>(file.gcount())));
  }
}

}  // namespace

std::string model_hash(const ModelOptions& options) {
  const fs::path path = options.path;
  Hash64 hash;
  std::vector<fs::path> files;
  if (!fs::is_directory(path)) {
    files.push_back(path);
  } else {
    for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
      const std::string name = entry.path().filename().string();
      const bool weights = name.ends_with(".safetensors") && !options.random_weights;
      if (weights || name == "config.json") files.push_back(entry.path());
    }
  }
  std::ranges::sort(files);
  for (const fs::path& file : files) add_file(hash, file);
  if (options.random_weights) hash.add(fmt::format("random {}", options.seed));
  return hash.hex();
}

}  // namespace octet::cli
