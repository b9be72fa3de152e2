// MLA's per-head products on AVX-512 and AMX against loops in double precision.
#include "backends/cpu/kernels/fast_mla_absorb.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "backends/cpu/select.h"
#include "numerics/fp8.h"
#include "numerics/half.h"

namespace octet::cpu {
namespace {

bool have_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

struct Shape3 {
  int64_t tokens, heads, nope, v, lora;
};

struct Weights {
  ops::Linear linear;
  std::vector<std::byte> data;
  std::vector<float> scales, values;  // values: dequantized, in FP32
};

Weights make_weights(const Shape3& s, DType type, ScaleGrid grid) {
  Weights w;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const int64_t rows = s.heads * (s.nope + s.v), count = rows * s.lora;
  w.data.resize(static_cast<size_t>(count) * size_of(type));
  w.values.resize(static_cast<size_t>(count));
  w.linear.out = rows;
  w.linear.in = s.lora;
  const ScaleShape shape = scale_shape(grid, rows, s.lora);
  for (int64_t i = 0; i < shape.count(); ++i) w.scales.push_back(0.01f + 0.001f * float(i % 7));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < s.lora; ++c) {
      const auto i = static_cast<size_t>(r * s.lora + c);
      const float x = normal(random);
      if (type == DType::f32) {
        std::memcpy(&w.data[4 * i], &x, 4);
        w.values[i] = x;
      } else if (type == DType::bf16) {
        const bf16 h = to_bf16(x);
        std::memcpy(&w.data[2 * i], &h, 2);
        w.values[i] = to_float(h);
      } else {
        const Code fp8 = type == DType::e4m3 ? Code::e4m3 : Code::e5m2;
        const uint8_t code = fp8_encode(fp8, 50.0f * x);
        w.data[i] = std::byte{code};
        const int64_t cell = (grid.rows == 0 ? 0 : r / grid.rows) * shape.cols +
                             (grid.cols == 0 ? 0 : c / grid.cols);
        w.values[i] = fp8_decode(fp8, code) * w.scales[static_cast<size_t>(cell)];
      }
    }
  }
  if (is_fp8(type)) {
    w.linear.quant.codes = Tensor(w.data.data(), type, {rows, s.lora});
    w.linear.quant.scales = Tensor(w.scales.data(), DType::f32, {shape.rows, shape.cols});
    w.linear.quant.format = {type == DType::e4m3 ? Code::e4m3 : Code::e5m2, grid, ScaleType::f32};
  } else {
    w.linear.plain = Tensor(w.data.data(), type, {rows, s.lora});
  }
  return w;
}

// Activations [tokens, heads, dims] in their type, and as floats.
struct Activations {
  std::vector<std::byte> data;
  std::vector<float> values;
  Tensor tensor;
  Activations(DType type, int64_t tokens, int64_t heads, int64_t dims, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto count = static_cast<size_t>(tokens * heads * dims);
    data.resize(count * size_of(type));
    for (size_t i = 0; i < count; ++i) {
      const float x = normal(random);
      const bf16 h = to_bf16(x);
      if (type == DType::bf16) std::memcpy(&data[2 * i], &h, 2);
      if (type == DType::f32) std::memcpy(&data[4 * i], &x, 4);
      values.push_back(type == DType::bf16 ? to_float(h) : x);
    }
    tensor = Tensor(data.data(), type, {tokens, heads, dims});
  }
  float get(size_t i) const {
    if (tensor.type == DType::bf16) return to_float(tensor.as<const bf16>()[i]);
    return tensor.as<const float>()[i];
  }
};

// A pair of functions that compute both products.
struct Kernels {
  decltype(&fast_mla_absorb) absorb, expand;
};

void check(const Kernels& kernels, const Shape3& s, DType weight, ScaleGrid grid, DType activation,
           DType out_type) {
  const Weights w = make_weights(s, weight, grid);
  const int64_t rope = 3;  // columns of q behind nope, which nobody reads
  const Activations q(activation, s.tokens, s.heads, s.nope + rope, 1);
  const Activations o(activation, s.tokens, s.heads, s.lora, 2);
  const double rounding = out_type == DType::bf16 ? 0x1p-8 : 0.0;
  std::vector<float> first;
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    CpuCaps caps{true, true, threads};
    KernelContext context{pool, caps};
    Activations absorbed(out_type, s.tokens, s.heads, s.lora, 3);
    Activations expanded(out_type, s.tokens, s.heads, s.v, 4);
    kernels.absorb(context, q.tensor, w.linear, s.nope, absorbed.tensor);
    kernels.expand(context, o.tensor, w.linear, s.nope, expanded.tensor);
    std::vector<float> got;
    for (int64_t t = 0; t < s.tokens; ++t) {
      for (int64_t h = 0; h < s.heads; ++h) {
        const auto weights = [&](int64_t r, int64_t c) {
          return double{w.values[static_cast<size_t>((h * (s.nope + s.v) + r) * s.lora + c)]};
        };
        const int64_t row = t * s.heads + h;
        for (int64_t c = 0; c < s.lora; ++c) {
          double want = 0.0, size = 0.0;
          for (int64_t n = 0; n < s.nope; ++n) {
            const double p =
                q.values[static_cast<size_t>(row * (s.nope + rope) + n)] * weights(n, c);
            want += p;
            size += std::abs(p);
          }
          got.push_back(absorbed.get(static_cast<size_t>(row * s.lora + c)));
          ASSERT_NEAR(got.back(), want, 1e-6 * size + rounding * std::abs(want)) << t << " " << h;
        }
        for (int64_t j = 0; j < s.v; ++j) {
          double want = 0.0, size = 0.0;
          for (int64_t c = 0; c < s.lora; ++c) {
            const double p =
                o.values[static_cast<size_t>(row * s.lora + c)] * weights(s.nope + j, c);
            want += p;
            size += std::abs(p);
          }
          got.push_back(expanded.get(static_cast<size_t>(row * s.v + j)));
          ASSERT_NEAR(got.back(), want, 1e-6 * size + rounding * std::abs(want)) << t << " " << h;
        }
      }
    }
    if (first.empty()) first = got;
    ASSERT_EQ(0, std::memcmp(first.data(), got.data(), got.size() * 4)) << threads;
    // One token alone gets the bits that it got among others.
    const int64_t last = s.tokens - 1;
    Activations alone(out_type, 1, s.heads, s.lora, 5);
    kernels.absorb(context, q.tensor.slice(last, 1), w.linear, s.nope, alone.tensor);
    const size_t bytes = alone.data.size();
    ASSERT_EQ(0, std::memcmp(alone.data.data(),
                             absorbed.data.data() + static_cast<size_t>(last) * bytes, bytes));
  }
}

// Every case by AVX-512, and by AMX what it takes, where it can be used.
void check(const Shape3& s, DType weight, ScaleGrid grid, DType activation, DType out_type) {
  check({fast_mla_absorb, fast_mla_expand}, s, weight, grid, activation, out_type);
  ops::OpDesc desc;
  desc.weight = weight;
  desc.activation = activation;
  if (is_fp8(weight)) desc.weight_format = QuantFormat{Code::e4m3, grid, ScaleType::f32};
  if (amx_mla_absorb_refuses(desc, detect_caps())) return;
  check({amx_mla_absorb, amx_mla_expand}, s, weight, grid, activation, out_type);
}

TEST(FastMlaAbsorb, MatchesDoubles) {
  if (!have_avx512()) GTEST_SKIP() << "needs AVX-512 BF16";
  const DType f32 = DType::f32, b16 = DType::bf16;
  check({7, 2, 64, 64, 128}, DType::e4m3, grids::block128, b16, b16);
  check({33, 6, 64, 64, 128}, DType::e4m3, grids::row, b16, b16);
  check({1, 3, 128, 128, 512}, DType::e4m3, grids::block128, b16, f32);
  check({200, 1, 40, 24, 72}, DType::e4m3, grids::row, f32, f32);
  check({200, 1, 40, 24, 72}, DType::e4m3, grids::row, b16, f32);
  check({5, 2, 33, 17, 80}, DType::e5m2, grids::tensor, f32, b16);
  check({5, 2, 33, 17, 80}, DType::e5m2, grids::tensor, b16, b16);
  check({5, 2, 32, 48, 64}, DType::e4m3, {1, 32}, b16, f32);
  check({5, 2, 32, 48, 320}, DType::e4m3, {1, 64}, b16, f32);
  check({9, 2, 20, 70, 130}, b16, {}, b16, b16);
  check({9, 2, 16, 16, 32}, f32, {}, f32, f32);
}

TEST(FastMlaAbsorb, AmxTakesWhatBf16HoldsExactly) {
  ops::OpDesc desc;
  desc.weight = DType::e4m3;
  desc.weight_format = QuantFormat{Code::e4m3, grids::row, ScaleType::f32};
  desc.activation = DType::bf16;
  CpuCaps caps{true, true, 1};
  EXPECT_TRUE(amx_mla_absorb_refuses(desc, caps).has_value());
  caps.amx_bf16 = true;
  EXPECT_FALSE(amx_mla_absorb_refuses(desc, caps).has_value());
  desc.weight_format->grid = {1, 32};
  EXPECT_TRUE(amx_mla_absorb_refuses(desc, caps).has_value());
  desc.weight_format.reset();
  desc.weight = DType::f32;
  EXPECT_TRUE(amx_mla_absorb_refuses(desc, caps).has_value());
  desc.weight = DType::bf16;
  EXPECT_FALSE(amx_mla_absorb_refuses(desc, caps).has_value());
  desc.activation = DType::f32;
  EXPECT_TRUE(amx_mla_absorb_refuses(desc, caps).has_value());
}

TEST(FastMlaAbsorb, RefusesWhatItCannotRun) {
  ops::Linear kv_b;
  float value = 0.0f;
  kv_b.plain = Tensor(&value, DType::f32, {1, 1});
  Tensor x(&value, DType::f32, {1, 1, 1});
  EXPECT_TRUE(fast_mla_absorb_refuses(x, kv_b, CpuCaps{true, false, 1}).has_value());
  EXPECT_FALSE(fast_mla_absorb_refuses(x, kv_b, CpuCaps{true, true, 1}).has_value());
  kv_b.plain.type = DType::f16;
  EXPECT_TRUE(fast_mla_absorb_refuses(x, kv_b, CpuCaps{true, true, 1}).has_value());
}

}  // namespace
}  // namespace octet::cpu
