#include "model/gguf/blocks.h"

#include <cstring>

#include "numerics/half.h"

namespace octet::model::gguf {
namespace {

float half_at(const std::byte* p) {
  fp16 value;
  std::memcpy(&value, p, sizeof value);
  return to_float(value);
}

uint32_t u32_at(const std::byte* p) {
  uint32_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

int u8_at(const std::byte* p) {
  return static_cast<int>(*p);
}

int i8_at(const std::byte* p) {
  return static_cast<int8_t>(*p);
}

// Blocks of 32: byte j of `codes` holds element j in its low half and element j + 16 in its high.
constexpr int kHalf = 16;

void decode_q4_0(const std::byte* block, float* out) {
  const float d = half_at(block);
  for (int j = 0; j < kHalf; ++j) {
    const int code = u8_at(block + 2 + j);
    out[j] = d * static_cast<float>((code & 15) - 8);
    out[j + kHalf] = d * static_cast<float>((code >> 4) - 8);
  }
}

void decode_q4_1(const std::byte* block, float* out) {
  const float d = half_at(block), m = half_at(block + 2);
  for (int j = 0; j < kHalf; ++j) {
    const int code = u8_at(block + 4 + j);
    out[j] = d * static_cast<float>(code & 15) + m;
    out[j + kHalf] = d * static_cast<float>(code >> 4) + m;
  }
}

// The fifth bits of all 32 codes are one word: bit j is that of element j.
int fifth_bit(uint32_t word, int j) {
  return static_cast<int>(word >> j & 1) << 4;
}

void decode_q5_0(const std::byte* block, float* out) {
  const float d = half_at(block);
  const uint32_t high = u32_at(block + 2);
  for (int j = 0; j < kHalf; ++j) {
    const int code = u8_at(block + 6 + j);
    out[j] = d * static_cast<float>(((code & 15) | fifth_bit(high, j)) - 16);
    out[j + kHalf] = d * static_cast<float>((code >> 4 | fifth_bit(high, j + kHalf)) - 16);
  }
}

void decode_q5_1(const std::byte* block, float* out) {
  const float d = half_at(block), m = half_at(block + 2);
  const uint32_t high = u32_at(block + 4);
  for (int j = 0; j < kHalf; ++j) {
    const int code = u8_at(block + 8 + j);
    out[j] = d * static_cast<float>((code & 15) | fifth_bit(high, j)) + m;
    out[j + kHalf] = d * static_cast<float>(code >> 4 | fifth_bit(high, j + kHalf)) + m;
  }
}

void decode_q8_0(const std::byte* block, float* out) {
  const float d = half_at(block);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(i8_at(block + 2 + j));
}

// Q4_K and Q5_K: eight groups of 32, each with a scale and a minimum of six bits, in 12 bytes.
struct GroupScale {
  float scale, min;
};

GroupScale group_scale(const std::byte* block, int group) {
  const float d = half_at(block), dmin = half_at(block + 2);
  const std::byte* packed = block + 4;
  int scale, min;
  if (group < 4) {
    scale = u8_at(packed + group) & 63;
    min = u8_at(packed + group + 4) & 63;
  } else {
    const int low = u8_at(packed + group + 4);
    scale = (low & 15) | (u8_at(packed + group - 4) >> 6) << 4;
    min = low >> 4 | (u8_at(packed + group) >> 6) << 4;
  }
  return {d * static_cast<float>(scale), dmin * static_cast<float>(min)};
}

void decode_q4_k(const std::byte* block, float* out) {
  const std::byte* codes = block + 16;
  for (int group = 0; group < 8; ++group) {
    const auto [scale, min] = group_scale(block, group);
    for (int j = 0; j < 32; ++j) {
      const int pair = u8_at(codes + 32 * (group / 2) + j);
      const int code = group % 2 == 0 ? pair & 15 : pair >> 4;
      out[32 * group + j] = scale * static_cast<float>(code) - min;
    }
  }
}

void decode_q5_k(const std::byte* block, float* out) {
  const std::byte *high = block + 16, *codes = block + 48;
  for (int group = 0; group < 8; ++group) {
    const auto [scale, min] = group_scale(block, group);
    for (int j = 0; j < 32; ++j) {
      const int pair = u8_at(codes + 32 * (group / 2) + j);
      const int low = group % 2 == 0 ? pair & 15 : pair >> 4;
      const int code = low | (u8_at(high + j) >> group & 1) << 4;
      out[32 * group + j] = scale * static_cast<float>(code) - min;
    }
  }
}

// Eight groups of 32 codes of six bits; a scale for each 16. Half of the block, four groups, shares
// 64 bytes of low bits and 32 of high bits.
void decode_q6_k(const std::byte* block, float* out) {
  const std::byte *low = block, *high = block + 128, *scales = block + 192;
  const float d = half_at(block + 208);
  for (int group = 0; group < 8; ++group) {
    const int half = group / 4, part = group % 4;
    for (int j = 0; j < 32; ++j) {
      const int pair = u8_at(low + 64 * half + 32 * (part % 2) + j);
      const int four = part < 2 ? pair & 15 : pair >> 4;
      const int code = four | (u8_at(high + 32 * half + j) >> 2 * part & 3) << 4;
      const float scale = d * static_cast<float>(i8_at(scales + 2 * group + j / 16));
      out[32 * group + j] = scale * static_cast<float>(code - 32);
    }
  }
}

constexpr BlockType kTypes[] = {
    {0, "F32", 1, 4, DType::f32, nullptr},
    {1, "F16", 1, 2, DType::f16, nullptr},
    {2, "Q4_0", 32, 18, std::nullopt, decode_q4_0},
    {3, "Q4_1", 32, 20, std::nullopt, decode_q4_1},
    {6, "Q5_0", 32, 22, std::nullopt, decode_q5_0},
    {7, "Q5_1", 32, 24, std::nullopt, decode_q5_1},
    {8, "Q8_0", 32, 34, std::nullopt, decode_q8_0},
    {12, "Q4_K", 256, 144, std::nullopt, decode_q4_k},
    {13, "Q5_K", 256, 176, std::nullopt, decode_q5_k},
    {14, "Q6_K", 256, 210, std::nullopt, decode_q6_k},
    {30, "BF16", 1, 2, DType::bf16, nullptr},
};

}  // namespace

const BlockType* find_block_type(uint32_t id) {
  for (const BlockType& type : kTypes) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

std::string block_type_names() {
  std::string names;
  for (const BlockType& type : kTypes) {
    if (!names.empty()) names += ", ";
    names += type.name;
  }
  return names;
}

}  // namespace octet::model::gguf
