#include "conformance/rig.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>

#include "conformance/subject.h"
#include "numerics/half.h"
#include "numerics/quantize.h"

namespace octet::conformance {
namespace {

struct Line {
  int cases = 0;
  double worst = 0.0;
  std::string name;
};

// The table, printed when all tests have run.
class Table : public testing::Environment {
 public:
  std::map<std::pair<std::string, std::string>, Line> lines;
  void TearDown() override {
    fmt::print("\nLargest error of each kernel, as a share of its budget:\n\n");
    fmt::print("{:<18} {:<26} {:>5} {:>9}  {}\n", "op", "kernel", "cases", "share", "worst case");
    for (const auto& [key, line] : lines) {
      fmt::print("{:<18} {:<26} {:>5} {:>9.4f}  {}\n", key.first, key.second, line.cases,
                 line.worst, line.name);
    }
  }
};
Table* const table = static_cast<Table*>(testing::AddGlobalTestEnvironment(new Table));

std::vector<uint8_t> encode(DType type, const Floats& values) {
  std::vector<uint8_t> bytes(values.size() * size_of(type));
  for (size_t i = 0; i < values.size(); ++i) {
    uint8_t* const to = bytes.data() + i * size_of(type);
    if (type == DType::f32) {
      std::memcpy(to, &values[i], 4);
    } else if (type == DType::bf16) {
      const bf16 value = to_bf16(values[i]);
      std::memcpy(to, &value, 2);
    } else if (type == DType::f16) {
      const fp16 value = to_fp16(values[i]);
      std::memcpy(to, &value, 2);
    } else {
      *to = fp8_encode(type == DType::e4m3 ? Code::e4m3 : Code::e5m2, values[i]);
    }
  }
  return bytes;
}

float decode(DType type, const uint8_t* from) {
  if (type == DType::bf16) {
    bf16 value;
    std::memcpy(&value, from, 2);
    return to_float(value);
  }
  if (type == DType::f16) {
    fp16 value;
    std::memcpy(&value, from, 2);
    return to_float(value);
  }
  if (is_fp8(type)) return fp8_decode(type == DType::e4m3 ? Code::e4m3 : Code::e5m2, *from);
  float value;
  std::memcpy(&value, from, 4);
  return value;
}

Tensor host_tensor(const void* data, DType type, const Shape& shape) {
  return Tensor(const_cast<void*>(data), type, shape);
}

}  // namespace

Floats random_values(uint64_t seed, int64_t n, float scale) {
  Philox random(seed, 77);
  Floats values(static_cast<size_t>(n));
  for (float& value : values) {
    float sum = -4.0f;  // eight uniforms have variance 8/12
    for (int i = 0; i < 8; ++i) sum += random.uniform();
    value = sum * 1.2247449f * scale;
  }
  return values;
}

Floats rounded(DType type, const Floats& values) {
  const std::vector<uint8_t> bytes = encode(type, values);
  Floats result(values.size());
  for (size_t i = 0; i < values.size(); ++i)
    result[i] = decode(type, bytes.data() + i * size_of(type));
  return result;
}

Doubles to_doubles(const Floats& values) {
  return Doubles(values.begin(), values.end());
}

HostQuant quantized(const QuantFormat& format, int64_t rows, int64_t cols, const Floats& values) {
  HostQuant quant{format, rows, cols, {}, {}, {}};
  quant.codes.resize(values.size());
  quant.scales.resize(static_cast<size_t>(scale_shape(format.grid, rows, cols).count()));
  quantize(values, rows, cols, format, quant.codes, quant.scales);
  const int64_t cell_rows = format.grid.rows ? format.grid.rows : rows;
  const int64_t cell_cols = format.grid.cols ? format.grid.cols : cols;
  const int64_t scale_cols = scale_shape(format.grid, rows, cols).cols;
  quant.values.resize(values.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const auto i = static_cast<size_t>(r * cols + c);
      const auto s = static_cast<size_t>(r / cell_rows * scale_cols + c / cell_cols);
      quant.values[i] = double{code_decode(format.code, quant.codes[i])} * double{quant.scales[s]};
    }
  }
  return quant;
}

Tensor Rig::upload(const Tensor& host, bool misalign) {
  const size_t offset = misalign ? 1 : 0;
  buffers_.push_back(backend_.alloc(static_cast<size_t>(host.bytes()) + offset, "conformance"));
  const Tensor tensor = buffers_.back().tensor(host.type, host.shape, offset);
  backend_.copy(host, tensor);
  backend_.sync();  // the host's copy may go now
  return tensor;
}

Tensor Rig::put(DType type, const Shape& shape, const Floats& values, bool misalign) {
  EXPECT_EQ(shape.count(), static_cast<int64_t>(values.size()));
  const std::vector<uint8_t> bytes = encode(type, values);
  return upload(host_tensor(bytes.data(), type, shape), misalign);
}

Tensor Rig::put(const Shape& shape, const std::vector<int32_t>& values) {
  EXPECT_EQ(shape.count(), static_cast<int64_t>(values.size()));
  return upload(host_tensor(values.data(), DType::i32, shape), false);
}

Tensor Rig::put_bytes(DType type, const Shape& shape, const std::vector<uint8_t>& bytes) {
  EXPECT_EQ(static_cast<size_t>(shape.count()) * size_of(type), bytes.size());
  return upload(host_tensor(bytes.data(), type, shape), false);
}

QuantTensor Rig::put(const HostQuant& quant, bool misalign) {
  const ScaleShape cells = scale_shape(quant.format.grid, quant.rows, quant.cols);
  return {
      upload(host_tensor(quant.codes.data(), dtype_of(quant.format.code), {quant.rows, quant.cols}),
             misalign),
      upload(host_tensor(quant.scales.data(), DType::f32, {cells.rows, cells.cols}), misalign),
      quant.format};
}

Tensor Rig::make(DType type, const Shape& shape) {
  buffers_.push_back(
      backend_.alloc(static_cast<size_t>(shape.count()) * size_of(type), "conformance"));
  const Tensor tensor = buffers_.back().tensor(type, shape);
  backend_.fill(tensor, 0xFF);
  return tensor;
}

QuantTensor Rig::make(const QuantFormat& format, int64_t rows, int64_t cols) {
  const ScaleShape cells = scale_shape(format.grid, rows, cols);
  return {make(dtype_of(format.code), {rows, cols}), make(DType::f32, {cells.rows, cells.cols}),
          format};
}

std::vector<uint8_t> Rig::get_bytes(const Tensor& tensor) {
  std::vector<uint8_t> bytes(static_cast<size_t>(tensor.bytes()));
  backend_.copy(tensor, host_tensor(bytes.data(), tensor.type, tensor.shape));
  backend_.sync();
  return bytes;
}

Floats Rig::get(const Tensor& tensor) {
  const std::vector<uint8_t> bytes = get_bytes(tensor);
  Floats values(static_cast<size_t>(tensor.count()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = decode(tensor.type, bytes.data() + i * size_of(tensor.type));
  }
  return values;
}

std::vector<int32_t> Rig::get_ints(const Tensor& tensor) {
  const std::vector<uint8_t> bytes = get_bytes(tensor);
  std::vector<int32_t> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

void for_each_kernel(const std::string& op, const ops::OpDesc& desc,
                     const std::function<void(ops::Backend&, const std::string&)>& run) {
  // Backends are kept: threads and workspaces are not made anew for every case.
  static std::map<std::string, std::unique_ptr<ops::Backend>> backends;
  for (const Subject& subject : subjects()) {
    for (const std::string& kernel : subject.kernels(desc)) {
      auto& backend = backends[subject.name + " " + op + " " + kernel];
      if (!backend) backend = subject.make(op, kernel);
      run(*backend, subject.name + " " + kernel);
    }
  }
}

void for_each_backend(const std::function<void(ops::Backend&, const std::string&)>& run) {
  static std::map<std::string, std::unique_ptr<ops::Backend>> backends;
  for (const Subject& subject : subjects()) {
    auto& backend = backends[subject.name];
    if (!backend) backend = subject.make("", "");
    run(*backend, subject.name);
  }
}

void for_each_backend_and_fastest(
    const std::function<void(ops::Backend&, const std::string&)>& run) {
  for_each_backend(run);
  static std::map<std::string, std::unique_ptr<ops::Backend>> backends;
  for (const Subject& subject : subjects()) {
    if (!subject.make_fastest) continue;
    auto& backend = backends[subject.name];
    if (!backend) backend = subject.make_fastest();
    run(*backend, subject.name + " fastest");
  }
}

void report(const std::string& op, const std::string& kernel, const std::string& name,
            double share) {
  fmt::print("{:<18} {:<26} {:>9.4f}  {}\n", op, kernel, share, name);
  Line& line = table->lines[{op, kernel}];
  ++line.cases;
  if (line.cases == 1 || !(share <= line.worst)) {
    line.worst = share;
    line.name = name;
  }
  EXPECT_LE(share, 1.0) << op << " by " << kernel << ": " << name;
}

}  // namespace octet::conformance
