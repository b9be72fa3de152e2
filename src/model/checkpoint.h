// A checkpoint on disk: safetensors files, mapped and never copied, behind one name -> tensor
// table.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "model/config.h"
#include "tensor/tensor.h"

namespace octet::model {

// One tensor of a file: a view of the map. `data` is only 1-byte aligned in general.
struct StoredTensor {
  std::string name;
  Tensor tensor;
  size_t file_offset = 0;  // of its first byte, for error texts
};

// Parses and validates one safetensors file (models-numerics A.1): header length, JSON, duplicate
// keys, dtypes, shapes, and that the tensors tile the data buffer without hole or overlap. Throws
// Error naming file, tensor, offset, expected and found.
std::vector<StoredTensor> parse_safetensors(std::span<const std::byte> bytes,
                                            const std::string& where);

// The "weight_map" of model.safetensors.index.json: tensor -> file. Throws Error unless every file
// is a plain name, without path separators.
std::map<std::string, std::string> parse_weight_map(std::string_view text,
                                                    const std::string& where);

// What a model's weights come from: a checkpoint, or random numbers at the same shapes.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // The tensor of that name, or nullptr if there is none. `expected` is the shape that the model
  // wants: a checkpoint ignores it (the binder compares), random weights are made to it.
  virtual const Tensor* find(std::string_view name, const Shape& expected) const = 0;
  // The tensor that find() gave under this name, with its values: what find() gives may only be
  // type, shape and an address that must not be touched yet. The values stay until release().
  virtual Tensor read(std::string_view name, const Tensor& found) const {
    static_cast<void>(name);
    return found;
  }
  // What read() gave is not needed any more, and may be read again.
  virtual void release(std::string_view name) const { static_cast<void>(name); }
  virtual std::vector<std::string> names() const = 0;
  // "models/octet-demo/model-00001-of-00003.safetensors": where a tensor lies, for error texts.
  virtual std::string locate(std::string_view name) const = 0;
};

// The source of the model at `path`: a directory in Hugging Face layout, or a GGUF file.
std::shared_ptr<const WeightSource> open_weights(const std::string& path);

// All shards of a model directory: model.safetensors, or model.safetensors.index.json and the files
// that its weight_map names. A missing shard, a tensor that the index names and its file lacks, and
// a path separator in a file name are Errors.
class Checkpoint : public WeightSource {
 public:
  explicit Checkpoint(const std::string& directory);

  const Tensor* find(std::string_view name, const Shape& expected = {}) const override;
  std::vector<std::string> names() const override;
  std::string locate(std::string_view name) const override;
  const std::string& directory() const { return directory_; }
  int64_t bytes() const;  // of all tensors

 private:
  struct Entry {
    Tensor tensor;
    size_t file;
  };
  void add_shard(const std::filesystem::path& path,
                 const std::vector<std::string>* wanted = nullptr);

  std::string directory_;
  std::vector<MappedFile> files_;
  std::map<std::string, Entry, std::less<>> tensors_;
};

// One tensor to write. Its bytes come from `produce` when its turn comes, in the caller's order, so
// that a quantizer holds one tensor at a time: a weight's codes and scales stand side by side.
struct PendingTensor {
  std::string name;
  DType type = DType::f32;
  Shape shape;
  std::function<std::vector<std::byte>()> produce;
};

// Writes `directory`/model-0000i-of-0000n.safetensors (or model.safetensors when all fits one
// shard) and the index. The caller wraps the directory in an atomic rename (base/atomic_directory).
// `progress(done_bytes, total_bytes)` is called after each tensor.
void write_checkpoint(const std::string& directory, const std::vector<PendingTensor>& tensors,
                      int64_t shard_bytes,
                      const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace octet::model
