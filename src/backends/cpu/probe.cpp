#include "backends/cpu/probe.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <numeric>
#include <vector>

#if defined(__x86_64__)
#include "backends/cpu/kernels/simd_amx.h"
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

// Eight pages side by side and the same places of the next eight prefetched: a tenth faster than
// one stream, as the hardware's own prefetch stops at every page.
OCTET_AVX512 uint64_t read_avx512(const std::byte* p, int64_t bytes) {
  constexpr int pages = 8;
  constexpr int64_t page = 4096;
  __m512i sum[pages];
  for (__m512i& s : sum) s = _mm512_setzero_si512();
  const int64_t whole = bytes / (pages * page) * (pages * page);
  for (int64_t begin = 0; begin < whole; begin += pages * page) {
    for (int64_t line = begin; line < begin + page; line += 64) {
#pragma GCC unroll 8
      for (int i = 0; i < pages; ++i) {
        const int64_t at = line + i * page;
        _mm_prefetch(reinterpret_cast<const char*>(p + std::min(at + pages * page, bytes - 1)),
                     _MM_HINT_T0);
        sum[i] = _mm512_xor_si512(sum[i], _mm512_loadu_si512(p + at));
      }
    }
  }
  for (int i = 1; i < pages; ++i) sum[0] = _mm512_xor_si512(sum[0], sum[i]);
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(sum[0])) +
         read_plain(p + whole, bytes - whole);
}

OCTET_AVX512 float dot_avx512(int64_t rounds) {
  __m512 acc[kChains];
  for (__m512& a : acc) a = _mm512_setzero_ps();
  const auto ones = (__m512bh)_mm512_set1_epi16(0x3F80);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (__m512& a : acc) a = _mm512_dpbf16_ps(a, ones, ones);
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
    for (__m512& a : acc) a = _mm512_fmadd_ps(a, half, half);
  }
  float sum = 0;
  for (const __m512& a : acc) sum += _mm512_reduce_add_ps(a);
  return sum;
}

// On tiles of zeros: four sums, as many as the products of two tiles of W and two of x have.
OCTET_AMX float tiles_amx(int64_t rounds) {
  simd::TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.set(tile, 16, 16);
  config.load();
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t i = 0; i < rounds; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 0;
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

double bf16_tile_peak([[maybe_unused]] ThreadPool& threads, const CpuCaps& caps,
                      [[maybe_unused]] Timing timing, [[maybe_unused]] double milliseconds) {
  if (!caps.amx_bf16) return 0;
#if defined(__x86_64__)
  return peak(threads, timing, milliseconds, 4 * 2.0 * 16 * 16 * 32, tiles_amx);
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
