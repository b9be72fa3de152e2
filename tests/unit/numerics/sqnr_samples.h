// The three kinds of data on which formats are measured.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace octet::test {

constexpr int64_t kSampleRows = 512, kSampleCols = 4096;

inline std::vector<float> gaussian() {
  std::mt19937 random(1234);
  std::normal_distribution<float> normal;
  std::vector<float> x(kSampleRows * kSampleCols);
  for (float& value : x) value = normal(random);
  return x;
}

// 4 of 4096 channels are 50 times as large.
inline std::vector<float> outlier_channels() {
  std::vector<float> x = gaussian();
  for (int64_t r = 0; r < kSampleRows; ++r) {
    for (const int64_t c : {17, 1000, 2048, 4000})
      x[static_cast<size_t>(r * kSampleCols + c)] *= 50.0f;
  }
  return x;
}

// Each token has its own log-normal scale.
inline std::vector<float> lognormal_tokens() {
  std::vector<float> x = gaussian();
  std::mt19937 random(99);
  std::normal_distribution<float> normal;
  for (int64_t r = 0; r < kSampleRows; ++r) {
    const float scale = std::exp(normal(random));
    for (int64_t c = 0; c < kSampleCols; ++c) x[static_cast<size_t>(r * kSampleCols + c)] *= scale;
  }
  return x;
}

}  // namespace octet::test
