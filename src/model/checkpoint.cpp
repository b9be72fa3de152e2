#include "model/checkpoint.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "base/json.h"
#include "model/gguf/checkpoint.h"

namespace octet::model {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// A shard's name is one that the index may choose, so it must stay inside the directory.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos &&
         name != "." && name != "..";
}

// What lies in the directory instead of a checkpoint, for the message.
std::string describe_contents(const fs::path& directory) {
  std::string safetensors, pickles, gguf;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string(),
                      extension = entry.path().extension().string();
    if (extension == ".safetensors") safetensors = name;
    if (extension == ".bin" || extension == ".pt" || extension == ".pth") pickles = name;
    if (extension == ".gguf") gguf = name;
  }
  if (!gguf.empty()) return fmt::format("a GGUF file ({})", gguf);
  if (!safetensors.empty()) return fmt::format("{}, but no index", safetensors);
  if (!pickles.empty()) return fmt::format("a PyTorch pickle ({})", pickles);
  return "neither of the two";
}

}  // namespace

std::map<std::string, std::string> parse_weight_map(std::string_view text,
                                                    const std::string& where) {
  const Json json = parse_json(text, where);
  const JsonView index(json, where);
  const JsonView map = index.at("weight_map");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : map.json().items()) {
    if (!file.is_string() || !is_plain_file_name(file.get_ref<const std::string&>())) {
      map.refuse(tensor, "the index names a shard that is no plain file name",
                 "the name of a file in the same directory, such as "
                 "model-00001-of-00002.safetensors");
    }
    files.emplace_hint(files.end(), tensor, file.get<std::string>());
  }
  if (files.empty()) index.refuse("weight_map", "the index names no tensor", "tensor to file");
  return files;
}

std::shared_ptr<const WeightSource> open_weights(const std::string& path) {
  if (is_gguf(path)) return std::make_shared<GgufCheckpoint>(path);
  return std::make_shared<Checkpoint>(path);
}

Checkpoint::Checkpoint(const std::string& directory) : directory_(directory) {
  const fs::path root(directory);
  std::error_code ignored;
  if (!fs::is_directory(root, ignored)) {
    throw Error(
        {.what = "a checkpoint is a directory",
         .where = directory,
         .value = is_there(root) ? "a file" : "no such file or directory",
         .accepted = fmt::format("a directory with config.json and {} or {}", kSingle, kIndex)});
  }
  if (is_there(root / kSingle)) {
    add_shard(root / kSingle);
    return;
  }
  const fs::path index = root / kIndex;
  if (!is_there(index)) {
    throw Error(
        {.what = "the directory holds no checkpoint that Octet can read",
         .where = directory,
         .value = describe_contents(root),
         .accepted = fmt::format("{}, or {} and the files that it names", kSingle, kIndex),
         .fix = "download the safetensors files of the model, convert it to safetensors, or name a "
                "GGUF file itself"});
  }

  std::map<std::string, std::vector<std::string>> shards;  // file -> tensors
  for (auto& [tensor, file] : parse_weight_map(read_text(index), index.string())) {
    shards[file].push_back(tensor);
  }
  for (const auto& [file, tensors] : shards) {
    if (is_there(root / file)) continue;
    throw Error({.what = "a shard of the checkpoint is missing",
                 .where = (root / file).string(),
                 .value = "no such file",
                 .accepted = fmt::format("a file with {} tensors ('{}', ...), as {} says",
                                         tensors.size(), tensors.front(), kIndex),
                 .fix = fmt::format("download it: the checkpoint has {} files", shards.size())});
  }
  for (const auto& [file, tensors] : shards) add_shard(root / file, &tensors);
}

// Adds the tensors `wanted` of a file, which must all be there, or all that it has.
void Checkpoint::add_shard(const fs::path& path, const std::vector<std::string>* wanted) {
  const size_t index = files_.size();
  files_.emplace_back(path);
  std::map<std::string, Tensor> stored;
  for (StoredTensor& tensor : parse_safetensors(files_.back().bytes(), path.string())) {
    stored.emplace(std::move(tensor.name), tensor.tensor);
  }
  if (!wanted) {
    for (auto& [name, tensor] : stored) tensors_.emplace(name, Entry{tensor, index});
    return;
  }
  for (const std::string& name : *wanted) {
    const auto it = stored.find(name);
    if (it == stored.end()) {
      throw Error({.what = "a shard lacks a tensor that the index places there",
                   .where = fmt::format("tensor '{}' in {}", name, path.string()),
                   .value = fmt::format("{} other tensors", stored.size()),
                   .accepted = "the tensor",
                   .fix = fmt::format(
                       "download the shard and {} again: they do not belong together", kIndex)});
    }
    tensors_.emplace(name, Entry{it->second, index});
  }
}

const Tensor* Checkpoint::find(std::string_view name, const Shape&) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second.tensor;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, entry] : tensors_) names.push_back(name);
  return names;
}

std::string Checkpoint::locate(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? directory_ : files_[it->second.file].path().string();
}

int64_t Checkpoint::bytes() const {
  int64_t total = 0;
  for (const auto& [name, entry] : tensors_) total += entry.tensor.bytes();
  return total;
}

}  // namespace octet::model
