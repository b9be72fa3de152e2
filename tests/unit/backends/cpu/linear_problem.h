// Random linears for the tests of the fast kernels, and what they should give, in double.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/kernels/kernel.h"
#include "numerics/half.h"
#include "numerics/quantize.h"

namespace octet::cpu::test {

// A matrix that ends exactly where its allocation does, so that AddressSanitizer sees a read past
// the end, and that starts `misalign` bytes off.
struct Stored {
  std::unique_ptr<std::byte[]> memory;
  Tensor tensor;
  std::vector<float> scale_memory;
  QuantTensor quant;
  std::vector<double> values;

  double at(int64_t r, int64_t c) const {
    return values[static_cast<size_t>(r * tensor.cols() + c)];
  }
};

inline Stored store(const std::vector<float>& x, int64_t rows, int64_t cols, DType type,
                    int64_t misalign = 0) {
  Stored out;
  const auto size = static_cast<int64_t>(size_of(type));
  out.memory = std::make_unique<std::byte[]>(static_cast<size_t>(rows * cols * size + misalign));
  out.tensor = Tensor(out.memory.get() + misalign, type, {rows, cols});
  for (size_t i = 0; i < x.size(); ++i) {
    std::byte* to = out.memory.get() + misalign + static_cast<int64_t>(i) * size;
    double value = x[i];
    if (type == DType::f32) {
      std::memcpy(to, &x[i], 4);
    } else if (type == DType::bf16) {
      const bf16 h = to_bf16(x[i]);
      std::memcpy(to, &h, 2);
      value = to_float(h);
    } else {
      const fp16 h = to_fp16(x[i]);
      std::memcpy(to, &h, 2);
      value = to_float(h);
    }
    out.values.push_back(value);
  }
  return out;
}

inline Stored store(const std::vector<float>& x, int64_t rows, int64_t cols,
                    const QuantFormat& format, int64_t misalign = 0) {
  Stored out;
  const auto count = static_cast<size_t>(rows * cols);
  out.memory = std::make_unique<std::byte[]>(count + static_cast<size_t>(misalign));
  const ScaleShape shape = scale_shape(format.grid, rows, cols);
  out.scale_memory.resize(static_cast<size_t>(shape.count()));
  auto* codes = reinterpret_cast<uint8_t*>(out.memory.get() + misalign);
  quantize(x, rows, cols, format, {codes, count}, out.scale_memory);
  std::vector<float> back(count);
  dequantize({codes, count}, rows, cols, format, out.scale_memory, back);
  out.values.assign(back.begin(), back.end());
  out.tensor = Tensor(codes, dtype_of(format.code), {rows, cols});
  out.quant = {out.tensor, Tensor(out.scale_memory.data(), DType::f32, {shape.rows, shape.cols}),
               format};
  return out;
}

inline std::vector<float> random_values(int64_t count, uint32_t seed, float spread = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = normal(random);
  return x;
}

// What a matrix is made of: a plain type, or a quantized format.
struct Form {
  std::string name;
  DType type = DType::f32;
  std::optional<QuantFormat> format;

  Stored make(const std::vector<float>& x, int64_t rows, int64_t cols, int64_t misalign = 0) const {
    return format ? store(x, rows, cols, *format, misalign) : store(x, rows, cols, type, misalign);
  }
};

inline const Form f32_form{"f32", DType::f32, {}};
inline const Form bf16_form{"bf16", DType::bf16, {}};
inline const Form f16_form{"f16", DType::f16, {}};
inline Form code_form(ScaleGrid grid, Code type = Code::e4m3, ScaleType scale = ScaleType::f32) {
  const QuantFormat format{type, grid, scale};
  return {to_string(format), dtype_of(type), format};
}

struct LinearProblem {
  Stored x, w, bias;
  int64_t m, n, k;
  ops::Linear linear;
  Form x_form, w_form;

  LinearProblem(const Form& x_as, const Form& w_as, int64_t rows, int64_t outputs, int64_t inputs,
                bool with_bias = false, int64_t misalign = 0, uint32_t seed = 1)
      : m(rows), n(outputs), k(inputs), x_form(x_as), w_form(w_as) {
    x = x_as.make(random_values(m * k, seed), m, k);
    w = w_as.make(random_values(n * k, seed + 1, 0.05f), n, k, misalign);
    linear.name = "test";
    linear.role = Role::mlp_down;
    linear.out = n;
    linear.in = k;
    if (w.quant) {
      linear.quant = w.quant;
    } else {
      linear.plain = w.tensor;
    }
    if (x.quant) linear.input = x_as.format;
    if (with_bias) {
      bias = store(random_values(n, seed + 2), 1, n, DType::bf16);
      linear.bias = bias.tensor.reshape({n});
    }
  }
  ops::Activation input() const { return x.quant ? ops::Activation(x.quant) : x.tensor; }
  ops::OpDesc desc(const std::string& op = "linear") const {
    return {.op = op,
            .m = m,
            .n = n,
            .k = k,
            .weight = w_form.type,
            .weight_format = w_form.format,
            .input_format = x_form.format,
            .activation = x.quant ? DType::bf16 : x_form.type};
  }
  // For every output the sum, and the sum of magnitudes that bounds its rounding.
  struct Expected {
    double sum, magnitude;
  };
  std::vector<Expected> expected() const {
    std::vector<Expected> out;
    for (int64_t row = 0; row < m; ++row) {
      for (int64_t col = 0; col < n; ++col) {
        Expected e{bias.memory ? bias.values[static_cast<size_t>(col)] : 0.0, 0.0};
        e.magnitude = std::abs(e.sum);
        for (int64_t i = 0; i < k; ++i) {
          const double product = x.at(row, i) * w.at(col, i);
          e.sum += product;
          e.magnitude += std::abs(product);
        }
        out.push_back(e);
      }
    }
    return out;
  }
};

}  // namespace octet::cpu::test
