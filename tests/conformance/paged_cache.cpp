#include "conformance/paged_cache.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "numerics/half.h"

namespace octet::conformance {

Doubles Plane::store(int64_t slot, int64_t first, const Floats& values, float scale) {
  Doubles stored;
  const float inv = inverse_scale(scale);
  for (size_t i = 0; i < values.size(); ++i) {
    uint8_t* const to =
        bytes.data() + (static_cast<size_t>(slot * width + first) + i) * size_of(type);
    if (is_code(type)) {
      *to = quantize_value(code_of(type), values[i], inv);
      stored.push_back(double{code_decode(code_of(type), *to)} * double{scale});
    } else if (type == DType::bf16) {
      const bf16 value = to_bf16(values[i]);
      std::memcpy(to, &value, 2);
      stored.push_back(double{to_float(value)});
    } else {
      std::memcpy(to, &values[i], 4);
      stored.push_back(double{values[i]});
    }
  }
  return stored;
}

void Plane::set_nan(int64_t slot, int64_t element) {
  // 0x7F is NaN in both FP8 formats, 0x7FFF and 0x7FFFFFFF are in the wider ones.
  const size_t size = size_of(type);
  uint8_t* const to = bytes.data() + static_cast<size_t>(slot * width + element) * size;
  std::memset(to, 0xFF, size);
  to[size - 1] = 0x7F;
}

std::string broken_rows_differ(const Floats& out, const Floats& lse, const Floats& out_before,
                               const Floats& lse_before, const std::function<bool(size_t)>& nan) {
  const size_t dim = out.size() / lse.size();
  for (size_t row = 0; row < lse.size(); ++row) {
    const bool bad = nan(row);
    if (bad ? !std::isnan(lse[row]) : std::memcmp(&lse[row], &lse_before[row], 4) != 0) {
      return fmt::format("row {}: lse is {}, was {}", row, lse[row], lse_before[row]);
    }
    for (size_t i = row * dim; i < (row + 1) * dim; ++i) {
      if (bad ? !std::isnan(out[i]) : std::memcmp(&out[i], &out_before[i], 4) != 0) {
        return fmt::format("row {}, output {}: {}, was {}", row, i % dim, out[i], out_before[i]);
      }
    }
  }
  return "";
}

}  // namespace octet::conformance
