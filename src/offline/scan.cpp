#include "offline/scan.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "numerics/code.h"
#include "numerics/e8m0.h"
#include "numerics/half.h"

namespace octet::offline {
namespace {

class Scanner {
 public:
  void add(float x, int64_t count = 1) {
    scan_.elements += count;
    if (std::isnan(x)) {
      scan_.nan += count;
    } else if (std::isinf(x)) {
      scan_.inf += count;
    } else {
      least_ = std::min(least_, x);
      most_ = std::max(most_, x);
      if (x == 0.0f) {
        scan_.zero += count;
      } else {
        magnitude_ = std::min(magnitude_, std::fabs(x));
      }
    }
  }

  TensorScan result() const {
    TensorScan scan = scan_;
    if (least_ <= most_) {
      scan.least = least_;
      scan.most = most_;
    }
    if (magnitude_ < kInfinity) scan.least_magnitude = magnitude_;
    return scan;
  }

 private:
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  TensorScan scan_;
  float least_ = kInfinity, most_ = -kInfinity, magnitude_ = kInfinity;
};

template <class T, class ToFloat>
TensorScan scan_as(const Tensor& tensor, ToFloat to_float) {
  Scanner scanner;
  const auto* bytes = tensor.as<const std::byte>();
  for (int64_t i = 0; i < tensor.count(); ++i) {
    T value;
    std::memcpy(&value, bytes + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    scanner.add(to_float(value));
  }
  return scanner.result();
}

// 256 different values: count them, then look at each once.
TensorScan scan_codes(const Tensor& tensor, Code type) {
  std::array<int64_t, 256> counts{};
  const auto* codes = tensor.as<const uint8_t>();
  for (int64_t i = 0; i < tensor.count(); ++i) ++counts[codes[i]];
  Scanner scanner;
  int64_t saturated = 0;
  for (size_t code = 0; code < counts.size(); ++code) {
    if (counts[code] == 0) continue;
    const float value = code_decode(type, static_cast<uint8_t>(code));
    if (std::fabs(value) == max_of(type)) saturated += counts[code];
    scanner.add(value, counts[code]);
  }
  TensorScan scan = scanner.result();
  scan.saturated = saturated;
  return scan;
}

}  // namespace

TensorScan scan(const Tensor& tensor) {
  switch (tensor.type) {
    case DType::f32:
      return scan_as<float>(tensor, [](float x) { return x; });
    case DType::bf16:
      return scan_as<bf16>(tensor, [](bf16 x) { return to_float(x); });
    case DType::f16:
      return scan_as<fp16>(tensor, [](fp16 x) { return to_float(x); });
    case DType::e4m3:
    case DType::e5m2:
    case DType::i8:
      return scan_codes(tensor, code_of(tensor.type));
    case DType::e8m0:
      return scan_as<uint8_t>(tensor, e8m0_decode);
    default:
      return {.elements = tensor.count()};
  }
}

}  // namespace octet::offline
