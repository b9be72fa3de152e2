// What this GPU can do right now: the rates that kernels are held against. Both change with clocks,
// power and temperature, so they are measured in the same run as what they judge, in turns: each
// call of measure() takes a few milliseconds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cuda/cuda_backend.h"

namespace octet::cuda {

// The time between two points of a stream.
class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream);
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  void start();
  double stop();  // waits; seconds since start()

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// Memory to read from, much larger than the L2.
class ReadProbe {
 public:
  explicit ReadProbe(CudaBackend& backend, size_t bytes = size_t{8} << 30);

  // GB/s (10^9) at which the buffer is read, front to back, as often as 2 ms allow, at least once.
  double measure();

 private:
  CudaBackend& backend_;
  Buffer buffer_, sink_;
  Stopwatch watch_;
};

// cuBLASLt's FP8 product at one shape: E4M3 with a scale for each row of x and of W, slow
// accumulation, BF16 outputs; random codes, as power and so clocks depend on the bits. For shapes
// that take the GPU longer than the host takes to enqueue them: 10 us, about 10 GFLOP.
class GemmProbe {
 public:
  // x [m, k] · W [n, k]ᵀ; k a multiple of 16, n of 8.
  GemmProbe(CudaBackend& backend, int64_t m, int64_t n, int64_t k);

  // TFLOP/s over about 2 ms.
  double measure();

 private:
  CudaBackend& backend_;
  int64_t m_, n_, k_;
  Buffer x_, w_, y_, x_scale_, w_scale_;
  Stopwatch watch_;
  int products_ = 0;  // in 2 ms; 0: not known yet
};

}  // namespace octet::cuda
