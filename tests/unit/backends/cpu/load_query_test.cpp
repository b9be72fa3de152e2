// Queries of FP8 attention: rounded by vectors, held to the rule.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "backends/cpu/kernels/fast_attention_core.h"
#include "backends/cpu/select.h"
#include "numerics/attention_rule.h"

namespace octet::cpu {
namespace {

namespace rule = attention_rule;

// By vectors as one by one: the values of the codes, NaN and infinities as they are encoded.
TEST(LoadQuery, GivesTheValuesOfTheCodes) {
  if (!detect_caps().avx512_bf16) GTEST_SKIP() << "needs AVX-512 BF16";
  std::mt19937 engine(5);
  std::normal_distribution<float> normal;
  for (int trial = 0; trial < 400; ++trial) {
    const int dims = 1 + trial % 193;
    std::vector<float> x(static_cast<size_t>(dims)), out(static_cast<size_t>(dims) + 16);
    const float spread = std::ldexp(1.0f, trial % 60 - 40);
    for (float& v : x)
      v = normal(engine) * spread * std::ldexp(1.0f, static_cast<int>(engine() % 20));
    if (trial % 3 == 1) x[engine() % x.size()] = -0.0f;
    if (trial % 5 == 1) x[engine() % x.size()] = std::nanf("");
    if (trial % 5 == 2) x[engine() % x.size()] = -INFINITY;
    if (trial % 7 == 1) std::fill(x.begin(), x.end(), 0.0f);
    const float scale = attention::load_query(x.data(), false, dims, true, out.data());
    EXPECT_EQ(scale, choose_scale(finite_absmax(x.data(), dims), rule::kQueryFormat));
    for (int d = 0; d < dims; ++d) {
      const float want = fp8_decode<Code::e4m3>(
          quantize_value<Code::e4m3>(x[static_cast<size_t>(d)], inverse_scale(scale)));
      const float found = out[static_cast<size_t>(d)];
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(found));
      } else {
        EXPECT_EQ(std::bit_cast<uint32_t>(found), std::bit_cast<uint32_t>(want))
            << x[static_cast<size_t>(d)];
      }
    }
  }
}

}  // namespace
}  // namespace octet::cpu
