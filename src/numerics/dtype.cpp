#include "numerics/dtype.h"

#include <iterator>

#include "base/error.h"

namespace octet {
namespace {

struct Row {
  DType type;
  size_t bytes;
  std::string_view name;
  std::string_view safetensors;  // Source: safetensors, tensor.rs, enum Dtype
};

// In the order of the enum.
constexpr Row kRows[] = {
    {DType::boolean, 1, "bool", "BOOL"}, {DType::u8, 1, "u8", "U8"},
    {DType::i8, 1, "i8", "I8"},          {DType::i16, 2, "i16", "I16"},
    {DType::u16, 2, "u16", "U16"},       {DType::i32, 4, "i32", "I32"},
    {DType::u32, 4, "u32", "U32"},       {DType::i64, 8, "i64", "I64"},
    {DType::u64, 8, "u64", "U64"},       {DType::e4m3, 1, "e4m3", "F8_E4M3"},
    {DType::e5m2, 1, "e5m2", "F8_E5M2"}, {DType::e8m0, 1, "e8m0", "F8_E8M0"},
    {DType::f16, 2, "f16", "F16"},       {DType::bf16, 2, "bf16", "BF16"},
    {DType::f32, 4, "f32", "F32"},       {DType::f64, 8, "f64", "F64"},
};

constexpr bool in_order() {
  for (size_t i = 0; i < std::size(kRows); ++i) {
    if (static_cast<size_t>(kRows[i].type) != i) return false;
  }
  return true;
}
static_assert(in_order() && std::size(kRows) == static_cast<size_t>(DType::f64) + 1);

const Row& row_of(DType type) {
  const auto index = static_cast<size_t>(type);
  invariant(index < std::size(kRows), "not a DType");
  return kRows[index];
}

}  // namespace

size_t size_of(DType type) {
  return row_of(type).bytes;
}

std::string_view name_of(DType type) {
  return row_of(type).name;
}

std::optional<DType> parse_safetensors_dtype(std::string_view text) {
  for (const Row& row : kRows) {
    if (row.safetensors == text) return row.type;
  }
  return std::nullopt;
}

std::string_view safetensors_name(DType type) {
  return row_of(type).safetensors;
}

}  // namespace octet
