// Tensors are views: they never own memory and are copied freely. Buffer owns.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/error.h"
#include "numerics/dtype.h"
#include "numerics/quant_format.h"

namespace octet {

enum class DeviceKind : uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

inline constexpr int kMaxRank = 4;

// Up to four dimensions, outermost first. Rank 0 is a scalar.
struct Shape {
  std::array<int64_t, kMaxRank> dims{};
  int rank = 0;

  Shape() = default;
  Shape(std::initializer_list<int64_t> values);  // Fault if there are more than four
  int64_t operator[](int axis) const { return dims[static_cast<size_t>(axis)]; }
  int64_t count() const;  // product of the dimensions; 1 for a scalar
  friend bool operator==(const Shape&, const Shape&) = default;
};
std::string to_string(const Shape& shape);  // "[576, 7168]"

// A strided view. Strides are in elements; the last axis of every tensor that reaches an op is
// contiguous (stride 1). A default-constructed tensor is "absent", and optional arguments of ops
// use that.
struct Tensor {
  void* data = nullptr;
  DType type = DType::f32;
  Device device;
  Shape shape;
  std::array<int64_t, kMaxRank> strides{};

  Tensor() = default;
  // A contiguous row-major tensor over `data`.
  Tensor(void* data, DType type, Shape shape, Device device = {});

  explicit operator bool() const { return data != nullptr; }
  int64_t count() const { return shape.count(); }
  int64_t bytes() const { return count() * static_cast<int64_t>(size_of(type)); }
  bool contiguous() const;

  // As a matrix: all axes but the last are rows.
  int64_t cols() const { return shape.rank == 0 ? 1 : shape[shape.rank - 1]; }
  int64_t rows() const { return cols() == 0 ? 0 : count() / cols(); }
  // Elements from one row of the matrix to the next. Fault if the leading axes are not uniform.
  int64_t row_stride() const;

  // Views. They share the memory and cost nothing. Fault where the view would leave the tensor.
  Tensor slice(int64_t begin, int64_t count) const;       // along the first axis
  Tensor columns(int64_t begin, int64_t count) const;     // along the last axis
  Tensor reshape(Shape shape) const;                      // contiguous only
  Tensor split_last(int64_t outer, int64_t inner) const;  // [.., outer*inner] -> [.., outer, inner]

  // The memory as T. No check of the type: kernels switch on `type` first.
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};
std::string to_string(const Tensor& tensor);  // "bf16[3, 576] cpu"

// A quantized matrix: value[r, c] = codes[r, c] * scales[r / grid.rows, c / grid.cols].
// `scales` is f32 [scale_shape(...)], with any strides: the GPU wants some of them column-major.
struct QuantTensor {
  Tensor codes, scales;
  QuantFormat format;

  explicit operator bool() const { return static_cast<bool>(codes); }
  QuantTensor slice_rows(int64_t begin, int64_t count) const;  // begin on a cell's edge
};

}  // namespace octet
