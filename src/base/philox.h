// Philox4x32-10 (Salmon et al., 2011): a counter-based random generator. Draw number n of stream s
// is a pure function of (seed, s, n), so a sampled token depends on neither its batch mates nor
// the thread or device that drew it. Integer and IEEE float operations only: the same bits
// everywhere, host or device.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace octet {

using Philox4 = std::array<uint32_t, 4>;

// The 128 random bits at `counter` under `key`.
constexpr Philox4 philox(Philox4 counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

// The same, as seed, stream and position.
constexpr Philox4 philox(uint64_t seed, uint64_t stream, uint64_t position) {
  return philox({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                 static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

// 32 random bits → a float in (0, 1], a multiple of 2^-24.
constexpr float uniform_from(uint32_t bits) {
  return static_cast<float>((bits >> 8) + 1) * 0x1p-24f;
}

// -log(1 - v) for v = (bits + 1/2) / 2^32: exponential with mean 1, always positive and finite,
// within 2 ulp. Small results keep their full precision, so that the argmax of p / exponential
// (a sample from p) can still choose a token of probability 1e-9.
constexpr float exponential_from(uint32_t bits) {
  // 1 - v = 2^e * (1 + f), f in [sqrt(1/2) - 1, sqrt(2) - 1].
  int e = 0;
  float f = -((static_cast<float>(bits) + 0.5f) * 0x1p-32f);
  if (f < -0.29289321f) {
    const uint32_t u = std::bit_cast<uint32_t>((static_cast<float>(~bits) + 0.5f) * 0x1p-32f);
    e = static_cast<int>(u >> 23) - 126;
    float m = std::bit_cast<float>((u & 0x007FFFFF) | 0x3F000000);  // [1/2, 1)
    if (m < 0.70710678f) {
      m += m;
      e -= 1;
    }
    f = m - 1.0f;
  }
  // log(1 + f) = f - f^2/2 + f^3 * P(f); P from Cephes' logf.
  float p = 7.0376836292e-2f;
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  const float f2 = f * f;
  float tail = f * f2 * p;
  tail += static_cast<float>(e) * -2.12194440e-4f;
  tail -= 0.5f * f2;
  return -((f + tail) + static_cast<float>(e) * 0.693359375f);
}

// A sequential generator over one stream, for filling tensors and for tests.
class Philox {
 public:
  constexpr explicit Philox(uint64_t seed, uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  constexpr uint32_t bits() {
    if (position_ % 4 == 0) block_ = philox(seed_, stream_, position_ / 4);
    return block_[position_++ % 4];
  }
  constexpr float uniform() { return uniform_from(bits()); }          // (0, 1]
  constexpr float exponential() { return exponential_from(bits()); }  // mean 1

 private:
  uint64_t seed_, stream_, position_ = 0;
  Philox4 block_{};
};

}  // namespace octet
