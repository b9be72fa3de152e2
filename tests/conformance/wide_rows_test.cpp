// Rows as wide as models have them: codes and scales of fused ops are those of their FP32 results,
// bit for bit, whichever way a kernel divides such a row.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "conformance/rig.h"
#include "numerics/quantize.h"

namespace octet::conformance {
namespace {

const std::vector<QuantFormat> kFormats = {{Code::e4m3, grids::row, ScaleType::f32},
                                           {Code::e4m3, grids::group128, ScaleType::f32},
                                           {Code::e5m2, grids::row, ScaleType::e8m0},
                                           {Code::e4m3, grids::block128, ScaleType::f32}};
constexpr int64_t kWidths[] = {1024, 2048, 4096, 8192, 14336, 18432, 28672};

// Codes and scales that an op left, against those of its plain f32 output.
void check(Rig& rig, const std::string& op, const std::string& name, const ops::Activation& out) {
  const Floats plain = rig.get(out.plain);
  const int64_t rows = out.rows(), cols = out.cols();
  std::vector<uint8_t> codes(plain.size());
  Floats scales(static_cast<size_t>(scale_shape(out.quant.format.grid, rows, cols).count()));
  quantize(plain, rows, cols, out.quant.format, codes, scales);
  const bool same = rig.get_bytes(out.quant.codes) == codes && rig.get(out.quant.scales) == scales;
  report(op, name, fmt::format("{}x{} {}", rows, cols, octet::to_string(out.quant.format)),
         same ? 0.0 : std::numeric_limits<double>::infinity());
}

TEST(WideRows, CodesAreThoseOfTheFp32Result) {
  for (const int64_t cols : kWidths) {
    for (const QuantFormat& format : kFormats) {
      for_each_backend([&](ops::Backend& backend, const std::string& name) {
        Rig rig(backend);
        const int64_t rows = 3;
        const auto values = [&](uint64_t seed) {
          return rig.put(DType::f32, {rows, cols}, random_values(seed, rows * cols, 4.0f));
        };
        const Tensor x = values(1), y = values(2);
        const ops::NormWeight norm{rig.put(DType::bf16, {cols}, random_values(3, cols)), 1e-5f};
        const auto output = [&] {
          return ops::Activation(rig.make(DType::f32, {rows, cols}), rig.make(format, rows, cols));
        };
        const ops::Activation product = output(), normed = output(), sum = output();
        backend.silu_mul(x, y, product);
        check(rig, "silu_mul", name, product);
        backend.rms_norm(x, norm, normed);
        check(rig, "rms_norm", name, normed);
        backend.add_rms_norm(x, y, norm, sum);
        check(rig, "add_rms_norm", name, sum);
        const ops::Activation quantized(y, rig.make(format, rows, cols));
        backend.quantize(y, quantized.quant, {});
        check(rig, "quantize", name, quantized);
      });
    }
  }
}

}  // namespace
}  // namespace octet::conformance
