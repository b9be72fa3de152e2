#include "offline/scan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>

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
        // Subnormals count as the least exponent.
        const auto exponent = static_cast<int>(std::bit_cast<uint32_t>(x) >> 23 & 0xFF) - 127;
        if (x != 1.0f) exponents_ += exponent * count, measured_ += count;
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
    if (measured_ > 0) {
      scan.mean_exponent = static_cast<double>(exponents_) / static_cast<double>(measured_);
    }
    return scan;
  }

 private:
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  TensorScan scan_;
  float least_ = kInfinity, most_ = -kInfinity, magnitude_ = kInfinity;
  int64_t exponents_ = 0, measured_ = 0;
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

using CodeCounts = std::array<int64_t, 256>;

// The codes' magnitudes in descending order, each with how often it is there.
std::map<float, int64_t, std::greater<>> by_magnitude(const CodeCounts& counts, Code type) {
  std::map<float, int64_t, std::greater<>> magnitudes;
  for (size_t code = 0; code < counts.size(); ++code) {
    const float value = std::fabs(code_decode(type, static_cast<uint8_t>(code)));
    if (value <= max_of(type)) magnitudes[value] += counts[code];
  }
  return magnitudes;
}

void describe_end(const CodeCounts& counts, Code type, TensorScan& scan) {
  const auto magnitudes = by_magnitude(counts, type);
  int64_t place = 0;
  for (const auto& [value, count] : magnitudes) {
    if (place == 0) scan.at_end = count;
    if (place >= 1 && place <= 3) scan.near_end = std::max(scan.near_end, count);
    if (count > 0) ++scan.magnitudes;
    ++place;
  }
}

// 256 different values: count them, then look at each once.
TensorScan scan_codes(const Tensor& tensor, Code type) {
  CodeCounts counts{}, varied{};
  const auto* codes = tensor.as<const uint8_t>();
  const int64_t cols = tensor.cols();
  for (int64_t row = 0; row < tensor.rows(); ++row, codes += cols) {
    CodeCounts of_row{};
    for (int64_t i = 0; i < cols; ++i) ++of_row[codes[i]];
    const bool same = of_row[codes[0]] == cols;
    for (size_t code = 0; code < counts.size(); ++code) {
      counts[code] += of_row[code];
      if (!same) varied[code] += of_row[code];
    }
  }
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
  describe_end(varied, type, scan);
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
