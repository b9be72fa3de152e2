// A quantized checkpoint of which some linears are those of the 16-bit one that it was made of: so
// that a choice of precisions can be run, and judged, before it is written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/json.h"
#include "model/checkpoint.h"
#include "model/config.h"

namespace octet::offline {

using Modules = std::set<std::string, std::less<>>;

class MixedCheckpoint {
 public:
  // `quantized` is what quantize_checkpoint made of `source`.
  MixedCheckpoint(const std::string& source, std::string quantized);

  // The linears that `quantized` has as codes, with the bytes that both forms take, scales
  // included.
  struct Sizes {
    int64_t high = 0, low = 0;
  };
  const std::map<std::string, Sizes, std::less<>>& modules() const { return modules_; }

  // From now on the inputs of these of modules() stay in 16 bits, which config.json records.
  void leave_inputs(Modules modules) { weight_only_ = std::move(modules); }

  // The model whose linears `kept` are those of the source. Each of them is one of modules().
  model::ModelConfig config(const Modules& kept) const;
  std::shared_ptr<const model::WeightSource> weights(const Modules& kept) const;
  int64_t bytes(const Modules& kept) const;  // of all tensors

  // Writes that model into a directory, which exists. Its tensors are those of weights(kept).
  void write(const Modules& kept, const std::filesystem::path& directory, int64_t shard_bytes,
             const std::function<void(int64_t, int64_t)>& progress = {}) const;

 private:
  OrderedJson config_json(const Modules& kept) const;

  std::string quantized_;
  std::shared_ptr<const model::WeightSource> high_, low_;
  std::string scale_suffix_;
  std::map<std::string, Sizes, std::less<>> modules_;
  Modules weight_only_;
};

}  // namespace octet::offline
