// What the verbs that write a checkpoint share: which directory may become one, reading the
// source's tensors one at a time, and what belongs to a model beside its weights.
#pragma once

#include <filesystem>
#include <string>

#include "base/json.h"
#include "model/checkpoint.h"

namespace octet::offline {

// Throws Error unless `out` may become a checkpoint made from `source`: with `overwrite` it may
// exist if it is empty or a checkpoint, and neither is nor holds the source. Whether it exists
// without `overwrite` is AtomicDirectory's to say.
void refuse_target(const std::string& source, const std::string& out, bool overwrite);

// config.json of a directory, or of a GGUF file. Throws Error.
OrderedJson read_config_json(const std::string& source);

// Writes `config` as config.json, and beside it what else the source has: generation_config.json,
// the tokenizer's files, the licence. Throws Error.
void write_companions(const std::string& source, const OrderedJson& config,
                      const std::filesystem::path& out);

// A tensor of a source with its values, for as long as it is looked at.
class Reading {
 public:
  Reading(const model::WeightSource& source, std::string name);
  ~Reading() { source_.release(name_); }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

  const Tensor& tensor() const { return tensor_; }

 private:
  const model::WeightSource& source_;
  std::string name_;
  Tensor tensor_;
};

// Of all tensors of a source, as they are read.
int64_t total_bytes(const model::WeightSource& source);

}  // namespace octet::offline
