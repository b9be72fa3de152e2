#include "conformance/paged_cache.h"

#include <cstring>

#include "numerics/half.h"

namespace octet::conformance {

Doubles Plane::store(int64_t slot, int64_t first, const Floats& values, float scale) {
  Doubles stored;
  const float inv = inverse_scale(scale);
  for (size_t i = 0; i < values.size(); ++i) {
    uint8_t* const to =
        bytes.data() + (static_cast<size_t>(slot * width + first) + i) * size_of(type);
    if (is_fp8(type)) {
      const Fp8 fp8 = type == DType::e4m3 ? Fp8::e4m3 : Fp8::e5m2;
      *to = quantize_value(fp8, values[i], inv);
      stored.push_back(double{fp8_decode(fp8, *to)} * double{scale});
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

}  // namespace octet::conformance
