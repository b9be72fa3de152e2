#include "model/identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/hash.h"
#include "base/mapped_file.h"

namespace octet::model {
namespace {

namespace fs = std::filesystem;

// What changes answers, beside the weights.
constexpr std::string_view kParts[] = {"config.json",           "generation_config.json",
                                       "hf_quant_config.json",  "tokenizer.json",
                                       "tokenizer_config.json", "chat_template.jinja",
                                       "chat_template.json",    "model.safetensors.index.json"};

// By name, so that the order of a directory does not count.
std::vector<fs::path> files_of(const fs::path& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    const bool part = std::ranges::find(kParts, name) != std::end(kParts);
    if (part || name.ends_with(".safetensors")) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

uint64_t hash_of_file(const fs::path& path) {
  if (fs::is_regular_file(path) && fs::is_empty(path)) return hash_of_many({});  // not to be mapped
  const MappedFile map(path);
  map.advise(MappedFile::Advice::sequential);
  return hash_of_many(map.bytes());
}

}  // namespace

std::string identity_of(const std::string& path) {
  Hash64 hash;
  const bool folder = fs::is_directory(path);
  for (const fs::path& file : files_of(path)) {
    hash.add(
        fmt::format("{} {:016x}\n", folder ? file.filename().string() : "", hash_of_file(file)));
  }
  return hash.hex();
}

}  // namespace octet::model
