// Small helpers that kernels share: rows of any element type as floats, and scales by position.
//
// Weights may be mapped straight from a safetensors file, whose tensors are aligned to one byte
// only: everything is read with memcpy, which costs nothing where the address happens to be
// aligned.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "numerics/quantize.h"
#include "tensor/tensor.h"

namespace octet::cpu {

// n elements of a f32, bf16, f16, e4m3, e5m2 or i8 array as floats, exactly; and back, rounded once
// (f32, bf16, f16). Faults on other types.
void load_floats(DType type, const void* from, int64_t n, float* to);
void store_floats(DType type, const float* from, int64_t n, void* to);

inline bool is_float_type(DType type) {
  return type == DType::f32 || type == DType::bf16 || type == DType::f16;
}

inline float load_f32(const void* from) {
  float value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Element `index` of a float tensor's memory.
inline float load_element(DType type, const void* from) {
  float value;
  load_floats(type, from, 1, &value);
  return value;
}

// Address of row `row` of a tensor seen as a matrix. Callers in loops keep stride() themselves.
struct Rows {
  char* data;
  int64_t stride;  // bytes
  explicit Rows(const Tensor& tensor)
      : data(static_cast<char*>(tensor.data)),
        stride(tensor.row_stride() * static_cast<int64_t>(size_of(tensor.type))) {}
  char* operator[](int64_t row) const { return data + row * stride; }
};

// Address of head `head` of token `token` in a [T, heads, dim] tensor; a [T, dim] tensor has one
// head.
struct Heads {
  char* data;
  int64_t token_stride, head_stride;  // bytes
  explicit Heads(const Tensor& tensor)
      : data(static_cast<char*>(tensor.data)),
        token_stride(tensor.strides[0] * static_cast<int64_t>(size_of(tensor.type))),
        head_stride(tensor.shape.rank == 3
                        ? tensor.strides[1] * static_cast<int64_t>(size_of(tensor.type))
                        : 0) {}
  char* at(int64_t token, int64_t head) const {
    return data + token * token_stride + head * head_stride;
  }
};

// The scales of a quantized matrix, by element position and whatever their strides.
class ScaleView {
 public:
  explicit ScaleView(const QuantTensor& q)
      : data_(static_cast<const char*>(q.scales.data)), grid_(q.format.grid) {
    // One scale may come as a scalar, and a column of scales as a vector.
    const Tensor& s = q.scales;
    if (s.shape.rank >= 1) row_stride_ = 4 * s.strides[0];
    if (s.shape.rank >= 2) col_stride_ = 4 * s.strides[1];
  }
  float at(int64_t row, int64_t col) const { return cell(row_of(row), col_of(col)); }
  float cell(int64_t row, int64_t col) const {
    return load_f32(data_ + row * row_stride_ + col * col_stride_);
  }
  void set_cell(int64_t row, int64_t col, float value) const {
    std::memcpy(const_cast<char*>(data_) + row * row_stride_ + col * col_stride_, &value, 4);
  }
  int64_t row_of(int64_t row) const { return grid_.rows == 0 ? 0 : row / grid_.rows; }
  int64_t col_of(int64_t col) const { return grid_.cols == 0 ? 0 : col / grid_.cols; }

 private:
  const char* data_;
  int64_t row_stride_ = 0, col_stride_ = 0;  // bytes
  ScaleGrid grid_;
};

// "linear: no kernel takes x bf16[2, 8] cpu, w ..." as a Fault.
[[noreturn]] void unsupported(const std::string& op, const std::string& why,
                              std::initializer_list<std::pair<const char*, Tensor>> tensors);

}  // namespace octet::cpu
