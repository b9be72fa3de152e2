// Test data on a device: random values, uploads and downloads, and the error table.
#pragma once

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/philox.h"
#include "numerics/tolerance.h"
#include "ops/backend.h"

namespace octet::conformance {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

// n values of a bell-shaped distribution with standard deviation 1.
Floats random_values(uint64_t seed, int64_t n, float scale = 1.0f);
// The same values after one rounding to `type` (f32, bf16, f16, e4m3, e5m2).
Floats rounded(DType type, const Floats& values);
Doubles to_doubles(const Floats& values);

// Codes and scales on the host, and the values that they stand for, in float64.
struct HostQuant {
  QuantFormat format;
  int64_t rows = 0, cols = 0;
  std::vector<uint8_t> codes;
  Floats scales;
  Doubles values;
};
HostQuant quantized(const QuantFormat& format, int64_t rows, int64_t cols, const Floats& values);

// Owns the device memory of one case.
class Rig {
 public:
  explicit Rig(ops::Backend& backend) : backend_(backend) {}

  ops::Backend& backend() { return backend_; }
  // Values on the device, rounded to `type`. `misalign` puts them at an odd address.
  Tensor put(DType type, const Shape& shape, const Floats& values, bool misalign = false);
  Tensor put(const Shape& shape, const std::vector<int32_t>& values);
  QuantTensor put(const HostQuant& quant, bool misalign = false);
  Tensor put_bytes(DType type, const Shape& shape, const std::vector<uint8_t>& bytes);
  // Uninitialized results are NaN (or -1) in every type.
  Tensor make(DType type, const Shape& shape);
  QuantTensor make(const QuantFormat& format, int64_t rows, int64_t cols);
  Floats get(const Tensor& tensor);
  std::vector<int32_t> get_ints(const Tensor& tensor);
  std::vector<uint8_t> get_bytes(const Tensor& tensor);

 private:
  Tensor upload(const Tensor& host, bool misalign);

  ops::Backend& backend_;
  std::vector<Buffer> buffers_;
};

// Calls run(backend, kernel) with each kernel of a subject that accepts `desc`.
void for_each_kernel(const std::string& op, const ops::OpDesc& desc,
                     const std::function<void(ops::Backend&, const std::string& kernel)>& run);
// The same for ops that have one kernel.
void for_each_backend(const std::function<void(ops::Backend&, const std::string& subject)>& run);
// And with those that choose what is fastest.
void for_each_backend_and_fastest(
    const std::function<void(ops::Backend&, const std::string& subject)>& run);

// Adds a line to the error table, and fails the test if the share exceeds 1.
void report(const std::string& op, const std::string& kernel, const std::string& name,
            double share);

// The largest share of their budgets that elements use. budget(i) gives that of element i.
template <typename BudgetOf>
double worst(const Floats& got, const Doubles& want, BudgetOf budget) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  double share = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    share = std::max(share, share_of_budget(got[i], want[i], budget(i)));
  }
  return share;
}

// The share of a result that has no budget: it is equal, or beyond every limit.
inline double same(bool equal) {
  return equal ? 0.0 : std::numeric_limits<double>::infinity();
}

// What rounding a result to `type` adds to its budget.
inline Budget with_output(Budget budget, DType type) {
  if (type == DType::bf16) budget.rel += budgets::kBf16Rounding;
  return budget;
}

}  // namespace octet::conformance
