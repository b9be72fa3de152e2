#include "tensor/tensor.h"

#include <fmt/format.h>

namespace octet {

Shape::Shape(std::initializer_list<int64_t> values) {
  invariant(values.size() <= kMaxRank, "a shape has at most four dimensions");
  for (int64_t value : values) dims[static_cast<size_t>(rank++)] = value;
}

int64_t Shape::count() const {
  int64_t product = 1;
  for (int axis = 0; axis < rank; ++axis) product *= (*this)[axis];
  return product;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int axis = 0; axis < shape.rank; ++axis) {
    text += fmt::format("{}{}", axis ? ", " : "", shape[axis]);
  }
  return text + "]";
}

Tensor::Tensor(void* memory, DType element, Shape dimensions, Device where)
    : data(memory), type(element), device(where), shape(dimensions) {
  int64_t stride = 1;
  for (int axis = shape.rank - 1; axis >= 0; --axis) {
    strides[static_cast<size_t>(axis)] = stride;
    stride *= shape[axis];
  }
}

bool Tensor::contiguous() const {
  int64_t expected = 1;
  for (int axis = shape.rank - 1; axis >= 0; --axis) {
    if (shape[axis] != 1 && strides[static_cast<size_t>(axis)] != expected) return false;
    expected *= shape[axis];
  }
  return true;
}

int64_t Tensor::row_stride() const {
  if (shape.rank < 2) return cols();
  // Walk outwards: each axis must step over exactly the rows of the axes inside it.
  const auto inner = static_cast<size_t>(shape.rank - 2);
  int64_t expected = strides[inner] * shape[shape.rank - 2];
  for (int axis = shape.rank - 3; axis >= 0; --axis) {
    invariant(shape[axis] == 1 || strides[static_cast<size_t>(axis)] == expected,
              "the rows of this view have no single stride");
    expected *= shape[axis];
  }
  return strides[inner];
}

Tensor Tensor::slice(int64_t begin, int64_t count) const {
  invariant(shape.rank > 0 && begin >= 0 && count >= 0 && begin + count <= shape[0],
            "slice leaves the tensor");
  Tensor view = *this;
  view.shape.dims[0] = count;
  view.data = static_cast<char*>(data) + begin * strides[0] * static_cast<int64_t>(size_of(type));
  return view;
}

Tensor Tensor::columns(int64_t begin, int64_t count) const {
  invariant(shape.rank > 0 && begin >= 0 && count >= 0 && begin + count <= cols(),
            "columns leave the tensor");
  const auto last = static_cast<size_t>(shape.rank - 1);
  Tensor view = *this;
  view.shape.dims[last] = count;
  view.data =
      static_cast<char*>(data) + begin * strides[last] * static_cast<int64_t>(size_of(type));
  return view;
}

Tensor Tensor::reshape(Shape dimensions) const {
  invariant(contiguous() && dimensions.count() == count(),
            "reshape needs the same contiguous data");
  return Tensor(data, type, dimensions, device);
}

Tensor Tensor::split_last(int64_t outer, int64_t inner) const {
  invariant(shape.rank > 0 && shape.rank < kMaxRank && outer * inner == cols(),
            "split_last needs outer * inner == cols");
  Tensor view = *this;
  const auto last = static_cast<size_t>(shape.rank - 1);
  view.shape.dims[last] = outer;
  view.strides[last] = strides[last] * inner;
  view.shape.dims[last + 1] = inner;
  view.strides[last + 1] = strides[last];
  view.shape.rank = shape.rank + 1;
  return view;
}

std::string to_string(const Tensor& tensor) {
  return fmt::format("{}{} {}", name_of(tensor.type), to_string(tensor.shape),
                     tensor.device.kind == DeviceKind::cpu ? "cpu" : "cuda");
}

QuantTensor QuantTensor::slice_rows(int64_t begin, int64_t count) const {
  QuantTensor view{codes.slice(begin, count), scales, format};
  const int64_t cell = format.grid.rows;
  if (cell > 0) {
    invariant(begin % cell == 0, "slice_rows must begin on the edge of a scale cell");
    view.scales = scales.slice(begin / cell, (count + cell - 1) / cell);
  }
  return view;
}

}  // namespace octet
