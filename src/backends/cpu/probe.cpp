#include "backends/cpu/probe.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <numeric>
#include <vector>

#if defined(__x86_64__)
#include "backends/cpu/kernels/simd_avx512.h"
#endif

namespace octet::cpu {
namespace {

// Of the calling thread.
double now(Timing timing) {
  timespec time{};
  clock_gettime(timing == Timing::wall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Results go here, so that no compiler drops the work.
std::atomic<uint64_t> sink{0};

uint64_t read_plain(const std::byte* p, int64_t bytes) {
  uint64_t sum[8] = {};
  for (int64_t i = 0; i + 64 <= bytes; i += 64) {
    uint64_t words[8];
    std::memcpy(words, p + i, 64);
    for (int j = 0; j < 8; ++j) sum[j] ^= words[j];
  }
  uint64_t all = 0;
  for (const uint64_t s : sum) all ^= s;
  return all;
}

constexpr int kChains = 16;  // independent accumulators: latency times rate of every such CPU

// Plain C++: what the vectorizer makes of it on any CPU.
float multiply_add_plain(int64_t rounds) {
  float acc[64] = {};
  for (int64_t i = 0; i < rounds; ++i) {
    for (float& a : acc) a = a * 0.5f + 1.0f;
  }
  float sum = 0;
  for (const float a : acc) sum += a;
  return sum;
}

#if defined(__x86_64__)

OCTET_AVX512 uint64_t read_avx512(const std::byte* p, int64_t bytes) {
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  for (int64_t i = 0; i + 256 <= bytes; i += 256) {
    // Far enough ahead to cover the memory's latency; the hardware stops at every page.
    for (int64_t line = 0; line < 256; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(p + std::min(i + 4096 + line, bytes - 1)),
                   _MM_HINT_T0);
    }
    a = _mm512_xor_si512(a, _mm512_loadu_si512(p + i));
    b = _mm512_xor_si512(b, _mm512_loadu_si512(p + i + 64));
    c = _mm512_xor_si512(c, _mm512_loadu_si512(p + i + 128));
    d = _mm512_xor_si512(d, _mm512_loadu_si512(p + i + 192));
  }
  a = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(a));
}

OCTET_AVX512 float dot_avx512(int64_t rounds) {
  __m512 acc[kChains];
  for (__m512& a : acc) a = _mm512_setzero_ps();
  const auto ones = (__m512bh)_mm512_set1_epi16(0x3F80);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j) acc[j] = _mm512_dpbf16_ps(acc[j], ones, ones);
  }
  float sum = 0;
  for (const __m512& a : acc) sum += _mm512_reduce_add_ps(a);
  return sum;
}

OCTET_AVX512 float fma_avx512(int64_t rounds) {
  __m512 acc[kChains];
  for (__m512& a : acc) a = _mm512_setzero_ps();
  const __m512 half = _mm512_set1_ps(0.5f);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j) acc[j] = _mm512_fmadd_ps(acc[j], half, half);
  }
  float sum = 0;
  for (const __m512& a : acc) sum += _mm512_reduce_add_ps(a);
  return sum;
}

#endif

// Every thread repeats `work` (rounds -> result) for about `milliseconds` by its own clock; the sum
// of their rates in 10^9 FLOPs a second. Nobody waits for a thread that lost its core.
template <class Work>
double peak(ThreadPool& threads, Timing timing, double milliseconds, double flops_per_round,
            Work work) {
  constexpr int64_t batch = 2000;
  std::vector<double> rates(static_cast<size_t>(threads.size()));
  threads.run([&](int thread) {
    sink.fetch_add(static_cast<uint64_t>(work(batch)));  // wakes the vector units
    const double start = now(timing);
    int64_t rounds = 0;
    double seconds = 0;
    for (; seconds * 1e3 < milliseconds; seconds = now(timing) - start) {
      sink.fetch_add(static_cast<uint64_t>(work(batch)));
      rounds += batch;
    }
    rates[static_cast<size_t>(thread)] = flops_per_round * static_cast<double>(rounds) / seconds;
  });
  return std::accumulate(rates.begin(), rates.end(), 0.0) / 1e9;
}

}  // namespace

ReadProbe::ReadProbe(ThreadPool& threads, size_t bytes) : buffer_(host_buffer(bytes)) {
  threads.parallel_for(static_cast<int64_t>(bytes), 4096, [&](int64_t begin, int64_t end, int) {
    std::memset(static_cast<std::byte*>(buffer_.data()) + begin, 1,
                static_cast<size_t>(end - begin));
  });
}

double ReadProbe::measure(ThreadPool& threads, Timing timing) const {
  auto* read = read_plain;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16")) read = read_avx512;
#endif
  std::vector<double> busy(static_cast<size_t>(threads.size()));
  const double start = now(Timing::wall);
  threads.parallel_for(static_cast<int64_t>(buffer_.bytes()), 4096,
                       [&](int64_t begin, int64_t end, int thread) {
                         const auto* p = static_cast<const std::byte*>(buffer_.data());
                         const double began = now(Timing::processor);
                         sink.fetch_add(read(p + begin, end - begin));
                         busy[static_cast<size_t>(thread)] = now(Timing::processor) - began;
                       });
  const double seconds = timing == Timing::wall
                             ? now(Timing::wall) - start
                             : std::accumulate(busy.begin(), busy.end(), 0.0) / threads.size();
  return static_cast<double>(buffer_.bytes()) / seconds / 1e9;
}

double bf16_dot_peak([[maybe_unused]] ThreadPool& threads, const CpuCaps& caps,
                     [[maybe_unused]] Timing timing, [[maybe_unused]] double milliseconds) {
  if (!caps.avx512_bf16) return 0;
#if defined(__x86_64__)
  return peak(threads, timing, milliseconds, kChains * 64.0, dot_avx512);
#else
  return 0;
#endif
}

double fp32_fma_peak(ThreadPool& threads, const CpuCaps& caps, Timing timing, double milliseconds) {
#if defined(__x86_64__)
  if (caps.avx512_bf16) return peak(threads, timing, milliseconds, kChains * 32.0, fma_avx512);
#endif
  return peak(threads, timing, milliseconds, 64 * 2.0, multiply_add_plain);
}

}  // namespace octet::cpu
