// The kernels of the benchmark itself: random operands, the read probe and the slow reference.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace octet::cuda {
namespace {

__device__ uint32_t mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xFF51AFD7ED558CCDull;
  x ^= x >> 33;
  x *= 0xC4CEB9FE1A85EC53ull;
  return static_cast<uint32_t>(x >> 32);
}

// Codes that are numbers of one to two digits, as quantized weights are: no NaN, few zeros.
__global__ void fill_codes(uint32_t* to, int64_t words, uint64_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t word = 0;
    for (int byte = 0; byte < 4; ++byte) {
      const uint32_t random = mix(seed + static_cast<uint64_t>(i) * 4 + byte);
      const uint32_t magnitude = 0x30 + (random & 0x3F) % 0x4E;  // up to 0x6F: 240
      word |= (magnitude | (random >> 8 & 0x80)) << 8 * byte;
    }
    to[i] = word;
  }
}
__global__ void fill_bf16(__nv_bfloat16* to, int64_t count, uint64_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    to[i] = __float2bfloat16_rn(
        static_cast<float>(static_cast<int32_t>(mix(seed + static_cast<uint64_t>(i)))) * 0x1p-31f);
  }
}
__global__ void fill_scales(float* to, int64_t count, uint64_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    to[i] = 0.5f + static_cast<float>(mix(seed + static_cast<uint64_t>(i))) * 0x1p-32f;
  }
}

// Reads `count` vectors, 8 at a time of each thread.
__global__ void __launch_bounds__(512)
    read_kernel(const uint4* from, int64_t count, uint32_t* out) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  uint32_t all = 0;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 7 * step < count; i += 8 * step) {
    uint4 v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = __ldcs(from + i + j * step);
#pragma unroll
    for (int j = 0; j < 8; ++j) all ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  for (; i < count; i += step) all ^= from[i].x;
  if (all == 0x12345678u) *out = all;
}

struct Reference {
  const void *w, *x;
  const float *w_scale, *x_scale;  // or null
  int64_t n, k, w_scale_cols, x_scale_cols;
  int w_cell_rows, w_cell_cols, x_cell_cols;
  bool w_codes, x_codes;
  bool fp8_sums;  // the tensor core's, for 128 of k
};
__device__ double value_at(const void* data, bool codes, int64_t i) {
  if (!codes)
    return static_cast<double>(__bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]));
  const __half_raw half =
      __nv_cvt_fp8_to_halfraw(static_cast<const __nv_fp8_storage_t*>(data)[i], __NV_E4M3);
  return static_cast<double>(__half2float(__half(half)));
}
// One warp: the sum of an output in FP64 and that of its magnitudes; worst[0] receives, as bits,
// the greatest error as a share of the budget of its sums (numerics/tolerance.h).
template <typename Out>
__global__ void reference_kernel(Reference r, const Out* out, int64_t out_stride, int64_t step,
                                 uint32_t* worst) {
  const int64_t n = (int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32) * step;
  const int64_t m = blockIdx.y;
  if (n >= r.n) return;
  double sum = 0, magnitude = 0;
  for (int64_t k = threadIdx.x % 32; k < r.k; k += 32) {
    double product = value_at(r.w, r.w_codes, n * r.k + k) * value_at(r.x, r.x_codes, m * r.k + k);
    if (r.w_scale) product *= r.w_scale[n / r.w_cell_rows * r.w_scale_cols + k / r.w_cell_cols];
    if (r.x_scale) product *= r.x_scale[m * r.x_scale_cols + k / r.x_cell_cols];
    sum += product;
    magnitude += fabs(product);
  }
  for (int apart = 16; apart > 0; apart /= 2) {
    sum += __shfl_xor_sync(~0u, sum, apart);
    magnitude += __shfl_xor_sync(~0u, magnitude, apart);
  }
  if (threadIdx.x % 32 != 0) return;
  const double got = static_cast<double>(static_cast<float>(out[m * out_stride + n]));
  double budget = 0x1p-24 * (4 * sqrt(static_cast<double>(r.k)) * magnitude + 4 * fabs(sum));
  if (r.fp8_sums) budget += 0x1p-9 * magnitude;
  if (sizeof(Out) == 2) budget += 0x1p-8 * fabs(sum);
  const double share = fabs(got - sum) / budget;
  atomicMax(worst, __float_as_uint(isfinite(got) ? static_cast<float>(share) : INFINITY));
}

}  // namespace
}  // namespace octet::cuda
