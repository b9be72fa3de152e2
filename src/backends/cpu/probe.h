// What this machine can do right now: the rates that kernels are held against. Both change with
// whatever else runs here, so they are measured in the same run as what they judge, in turns.
#pragma once

#include <cstddef>

#include "backends/cpu/kernels/kernel.h"
#include "base/thread_pool.h"
#include "tensor/buffer.h"

namespace octet::cpu {

// What a rate is per: seconds on the wall, or seconds that the threads really had a core. The
// latter judges a kernel on a machine that others use too.
enum class Timing { wall, processor };

// Memory to read from, touched by the threads that will read it: much larger than any cache for the
// rate of memory, as large as what one wants to know the cache of for that of the cache.
class ReadProbe {
 public:
  explicit ReadProbe(ThreadPool& threads, size_t bytes = size_t{1} << 30);

  // GB/s (10^9) at which all threads together read the buffer once, front to back.
  double measure(ThreadPool& threads, Timing timing = Timing::wall) const;
  size_t bytes() const { return buffer_.bytes(); }

 private:
  Buffer buffer_;
};

// GFLOP/s of all threads together, from registers only, over about `milliseconds`. vdpbf16ps is 0
// where the processor lacks it. Which of the two is higher differs: on AMD since Zen 4 vdpbf16ps
// does twice the work of FMA, on Intel half of it. Products of AMX tiles are far above both, and 0
// where there are none.
double bf16_dot_peak(ThreadPool& threads, const CpuCaps& caps, Timing timing = Timing::wall,
                     double milliseconds = 5);
double bf16_tile_peak(ThreadPool& threads, const CpuCaps& caps, Timing timing = Timing::wall,
                      double milliseconds = 5);
double fp32_fma_peak(ThreadPool& threads, const CpuCaps& caps, Timing timing = Timing::wall,
                     double milliseconds = 5);

}  // namespace octet::cpu
