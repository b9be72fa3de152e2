// A GGUF file as a checkpoint: the tensors, names and orders of rows of the Hugging Face model that
// it was converted from.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "base/mapped_file.h"
#include "model/checkpoint.h"
#include "model/gguf/tensor_names.h"
#include "tensor/reserved_memory.h"

namespace octet::model {

// Whether `path` is a file that ends in ".gguf" or begins with the format's magic bytes.
bool is_gguf(const std::string& path);

// What is stored in F32, F16 or BF16, in HF's order of rows, is a view of the mapped file. All else
// is made by read(): blocks of codes are decoded to FP32 and rounded once to BF16, rows that the
// converter permuted go back to their places. So each tensor takes memory once, from read() to
// release().
class GgufCheckpoint final : public WeightSource {
 public:
  explicit GgufCheckpoint(const std::string& path);

  const Tensor* find(std::string_view name, const Shape& expected = {}) const override;
  std::vector<std::string> names() const override;
  std::string locate(std::string_view name) const override;
  Tensor read(std::string_view name, const Tensor& found) const override;
  void release(std::string_view name) const override;
  int64_t made_bytes() const;  // of the tensors that read() made and release() has not taken back

 private:
  struct Entry {
    gguf::NamedTensor source;
    Tensor tensor;
    std::optional<size_t> reserved;  // its offset in memory_; none: a view of the file
    mutable bool made = false;
  };
  const Entry& entry(std::string_view name) const;
  void make(const Entry& entry) const;

  MappedFile file_;
  gguf::File parsed_;
  std::map<std::string, Entry, std::less<>> entries_;
  mutable ReservedMemory memory_;
};

// What config.json says of the model in the GGUF file `path`.
std::string gguf_config(const std::string& path);

// What was taken for granted where `path`, a GGUF file, says nothing: one sentence each.
// `rope_theta` is the base in force, which an override may have set.
std::vector<std::string> gguf_notes(const std::string& path, double rope_theta);

// tokenizer.json and tokenizer_config.json; empty if the file holds no tokenizer.
std::map<std::string, std::string> gguf_tokenizer(const std::string& path);

}  // namespace octet::model
