// cuBLASLt: its handle, its workspace and the plans of the problems seen.
#pragma once

#include <cuda_runtime_api.h>
#include <library_types.h>

#include <compare>
#include <cstdint>
#include <memory>

namespace octet::cuda {

// Y [m, n] = X [m, k] · W [n, k]ᵀ, all row-major, summed in FP32. W is contiguous, rows of X and Y
// are `x_stride` and `y_stride` elements apart.
struct GemmProblem {
  // What multiplies FP8 products. The library takes scales from the device, where they lie like
  // this (`L` is ceil(k / 128), rounded up to a multiple of 4):
  //   scalar   x_scale [1], w_scale [1]; a null pointer is 1
  //   outer    x_scale [m], w_scale [n]
  //   block    x_scale [ceil(k / 128), m] for groups of 1x128, w_scale [ceil(n / 128), L] for
  //            blocks of 128x128
  enum class Scaling : uint8_t { scalar, outer, block };

  int64_t m = 0, n = 0, k = 0, x_stride = 0, y_stride = 0;
  cudaDataType_t x_type = CUDA_R_8F_E4M3, w_type = CUDA_R_8F_E4M3, y_type = CUDA_R_16BF;
  Scaling scaling = Scaling::scalar;
  // FP8 sums keep about 14 bits. Slow accumulation moves them to FP32 every 128 of k, fast never
  // does: 7 to 13% faster, and up to 7 or even 37% of error where products have one sign. So it is
  // never used for down projections, whose inputs are such; block scaling does not have it.
  bool fast = false;
  friend auto operator<=>(const GemmProblem&, const GemmProblem&) = default;
};

// All pointers lie at multiples of 16 bytes.
struct GemmOperands {
  const void *x = nullptr, *w = nullptr;
  void* y = nullptr;
  const float *x_scale = nullptr, *w_scale = nullptr;
};

class GemmLibrary {
 public:
  // On `stream`, for as long as it lives.
  explicit GemmLibrary(cudaStream_t stream);
  ~GemmLibrary();

  // Enqueues a product. A problem is planned the first time that it is seen, which takes the host
  // about 0.2 ms; its kernel is loaded then, too, so the first time must not be inside a capture.
  // Fault if the library cannot run it: k is a multiple of 16 (FP8) or 8, n of 8, m of 4 under
  // block scaling.
  void multiply(const GemmProblem& problem, const GemmOperands& operands);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace octet::cuda
