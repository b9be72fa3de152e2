#include <algorithm>

#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/probe.h"

namespace octet::cuda {
namespace {

constexpr double kSlice = 2e-3;  // seconds of a measurement
constexpr int kThreads = 512;
constexpr int kLoads = 8;  // of 16 bytes, all in flight before the first is used
constexpr int64_t kBlockBytes = int64_t{kThreads} * kLoads * 16;

// A block reads kBlockBytes, once: faster than fewer blocks in a loop.
__global__ void __launch_bounds__(kThreads) read_kernel(const uint4* from, uint32_t* sink) {
  const uint4* const p = from + int64_t{blockIdx.x} * (kThreads * kLoads) + threadIdx.x;
  uint4 x[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) x[i] = __ldcs(p + i * kThreads);
  uint32_t all = 0;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) all |= x[i].x ^ x[i].y ^ x[i].z ^ x[i].w;
  // Memory holds equal bytes, so this never happens, which the compiler does not know.
  if (all != 0) *sink = all;
}

// Codes of magnitudes from 2^-3 to 2, signs and mantissas at random.
__global__ void codes_kernel(uint8_t* to, int64_t count, uint32_t seed) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  uint32_t h = static_cast<uint32_t>(i) * 2654435761u ^ seed;
  h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
  h = (h ^ (h >> 13)) * 0xC2B2AE35u;
  to[i] = static_cast<uint8_t>((h & 0x80u) | (0x20u + (h >> 8) % 0x20u));
}
__global__ void ones_kernel(float* to, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) to[i] = 1.0f;
}

dim3 blocks_for(int64_t count) {
  return dim3(static_cast<unsigned>((count + 255) / 256));
}

void fill_codes(const KernelContext& context, const Buffer& buffer, uint32_t seed) {
  const auto count = static_cast<int64_t>(buffer.bytes());
  codes_kernel<<<blocks_for(count), 256, 0, context.stream>>>(static_cast<uint8_t*>(buffer.data()),
                                                              count, seed);
  check(cudaGetLastError(), "codes_kernel");
}
void fill_ones(const KernelContext& context, const Buffer& buffer) {
  const auto count = static_cast<int64_t>(buffer.bytes() / sizeof(float));
  ones_kernel<<<blocks_for(count), 256, 0, context.stream>>>(static_cast<float*>(buffer.data()),
                                                             count);
  check(cudaGetLastError(), "ones_kernel");
}

}  // namespace

Stopwatch::Stopwatch(cudaStream_t stream) : stream_(stream) {
  check(cudaEventCreate(&begin_), "cudaEventCreate");
  check(cudaEventCreate(&end_), "cudaEventCreate");
}
Stopwatch::~Stopwatch() {
  if (begin_) cudaEventDestroy(begin_);
  if (end_) cudaEventDestroy(end_);
}
void Stopwatch::start() {
  check(cudaEventRecord(begin_, stream_), "cudaEventRecord");
}
double Stopwatch::stop() {
  check(cudaEventRecord(end_, stream_), "cudaEventRecord");
  check(cudaEventSynchronize(end_), "cudaEventSynchronize");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
  return double{milliseconds} * 1e-3;
}

ReadProbe::ReadProbe(CudaBackend& backend, size_t bytes)
    : backend_(backend),
      buffer_(backend.alloc(bytes, "read probe")),
      sink_(backend.alloc(sizeof(uint32_t), "read probe")),
      watch_(backend.context().stream) {
  invariant(static_cast<int64_t>(bytes) >= kBlockBytes, "the read probe needs more memory");
  check(cudaMemsetAsync(buffer_.data(), 0x5A, bytes, backend.context().stream), "cudaMemsetAsync");
}

double ReadProbe::measure() {
  const int64_t blocks = static_cast<int64_t>(buffer_.bytes()) / kBlockBytes;
  const double bytes = static_cast<double>(blocks * kBlockBytes);
  // At 5 TB/s, about what this memory can do.
  const int passes = std::max(1, static_cast<int>(kSlice * 5e12 / bytes));
  watch_.start();
  for (int i = 0; i < passes; ++i) {
    read_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, backend_.context().stream>>>(
        static_cast<const uint4*>(buffer_.data()), static_cast<uint32_t*>(sink_.data()));
    check(cudaGetLastError(), "read_kernel");
  }
  return bytes * passes / watch_.stop() * 1e-9;
}

GemmProbe::GemmProbe(CudaBackend& backend, int64_t m, int64_t n, int64_t k)
    : backend_(backend),
      m_(m),
      n_(n),
      k_(k),
      x_(backend.alloc(static_cast<size_t>(m * k), "product probe")),
      w_(backend.alloc(static_cast<size_t>(n * k), "product probe")),
      y_(backend.alloc(static_cast<size_t>(m * n) * 2, "product probe")),
      x_scale_(backend.alloc(static_cast<size_t>(m) * sizeof(float), "product probe")),
      w_scale_(backend.alloc(static_cast<size_t>(n) * sizeof(float), "product probe")),
      watch_(backend.context().stream) {
  const KernelContext& context = backend.context();
  fill_codes(context, x_, 1);
  fill_codes(context, w_, 2);
  fill_ones(context, x_scale_);
  fill_ones(context, w_scale_);
}

double GemmProbe::measure() {
  GemmProblem problem;
  problem.m = m_;
  problem.n = n_;
  problem.k = problem.x_stride = k_;
  problem.y_stride = n_;
  problem.scaling = GemmProblem::Scaling::outer;
  const GemmOperands operands{x_.data(), w_.data(), y_.data(),
                              static_cast<const float*>(x_scale_.data()),
                              static_cast<const float*>(w_scale_.data())};
  const auto seconds = [&](int products) {
    watch_.start();
    for (int i = 0; i < products; ++i) backend_.context().gemm->multiply(problem, operands);
    return watch_.stop();
  };
  if (products_ == 0) {
    seconds(1);  // plans, and loads the kernel
    products_ = std::clamp(static_cast<int>(kSlice / (seconds(4) / 4)), 1, 1000);
  }
  const double flops =
      2.0 * static_cast<double>(m_) * static_cast<double>(n_) * static_cast<double>(k_) * products_;
  return flops / seconds(products_) * 1e-12;
}

}  // namespace octet::cuda
