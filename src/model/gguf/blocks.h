// How GGUF stores the values of a tensor: plain floats, or blocks of codes with their scales
// (models-numerics A.10; ggml-common.h, ggml-quants.c of llama.cpp). Every block type is decoded to
// the very FP32 values that llama.cpp's reference decoder gives: one product and one sum a value,
// in its order, never fused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "numerics/dtype.h"

namespace octet::model::gguf {

struct BlockType {
  uint32_t id;  // in the file
  std::string_view name;
  int64_t elements, bytes;  // of one block
  std::optional<DType> plain;
  // Decodes one block to `elements` floats, at any alignment; absent for plain types.
  void (*decode)(const std::byte* block, float* out);
};

// The type of this id, or nullptr if Octet does not read it.
const BlockType* find_block_type(uint32_t id);

// "F32, F16, ...": all that are read, for error texts.
std::string block_type_names();

}  // namespace octet::model::gguf
