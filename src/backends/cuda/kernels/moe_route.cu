// Which experts a token goes to: a warp for each row, everything in FP32, as exact_router.cpp does.
#include "backends/cuda/kernels/device_math.cuh"
#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/kernels/ops.h"

namespace octet::cuda {
namespace {

using Method = ops::RouterSpec::Method;
using Scoring = ops::RouterSpec::Scoring;

constexpr int kMostExperts = 1024;
constexpr int kWarps = 4;  // rows of a block

// Orders values as unsigned numbers, and equal values (0 and -0 too) by the lower index: the
// largest key is the best. No key is 0, which marks what was taken.
__device__ __forceinline__ uint64_t key_of(float value, int index) {
  const uint32_t bits = __float_as_uint(value + 0.0f);
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(index));
}
__device__ __forceinline__ int index_of(uint64_t key) {
  return static_cast<int>(0xFFFFFFFFu - static_cast<uint32_t>(key));
}

__device__ __forceinline__ uint64_t warp_max_key(uint64_t key) {
#pragma unroll
  for (int apart = kWarp / 2; apart > 0; apart /= 2) {
    const uint64_t other = __shfl_xor_sync(~0u, key, apart);
    key = other > key ? other : key;
  }
  return key;
}

// The index of the best of keys[0..count), which is taken out. All lanes get it.
__device__ __forceinline__ int take_best(uint64_t* keys, int count, int lane) {
  uint64_t best = 0;
  for (int i = lane; i < count; i += kWarp) best = keys[i] > best ? keys[i] : best;
  const int index = index_of(warp_max_key(best));
  __syncwarp();
  if (lane == 0) keys[index] = 0;
  __syncwarp();
  return index;
}

// 1 / (1 + e^-x) with small relative error on both sides.
__device__ __forceinline__ float sigmoid(float x) {
  const float e = expf(x < 0.0f ? x : -x);
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

// logits [rows, experts] -> ids and weights [rows, top_k]. Shared memory of each warp: keys
// u64 [experts + groups], then scores and choices f32 [experts].
__global__ void __launch_bounds__(kWarps* kWarp)
    route_kernel(Matrix<const float> logits, const float* bias, ops::RouterSpec spec, int rows,
                 Matrix<int32_t> ids, Matrix<float> weights) {
  extern __shared__ uint64_t memory[];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int row = static_cast<int>(blockIdx.x) * kWarps + warp;
  const int experts = spec.experts, groups = spec.groups;
  uint64_t* const keys = memory + warp * (experts + groups + experts);
  uint64_t* const group_keys = keys + experts;
  float* const scores = reinterpret_cast<float*>(group_keys + groups);
  float* const choice = scores + experts;
  wait_for_previous();
  allow_next();
  if (row >= rows) return;

  const float* const x = logits.row(row);
  if (spec.scoring == Scoring::sigmoid) {
    for (int e = lane; e < experts; e += kWarp) scores[e] = sigmoid(x[e]);
  } else {
    float most = -INFINITY;
    for (int e = lane; e < experts; e += kWarp) most = fmaxf(most, x[e]);
    most = warp_max(most);
    float sum = 0.0f;
    for (int e = lane; e < experts; e += kWarp) {
      scores[e] = expf(x[e] - most);
      sum += scores[e];
    }
    sum = warp_sum(sum);
    for (int e = lane; e < experts; e += kWarp) scores[e] /= sum;
  }
  const bool biased = spec.method == Method::noaux_tc && bias != nullptr;
  for (int e = lane; e < experts; e += kWarp) {
    const float c = biased ? scores[e] + bias[e] : scores[e];
    choice[e] = c == c ? c : -INFINITY;
    keys[e] = key_of(choice[e], e);
  }
  __syncwarp();

  if (spec.method != Method::greedy && groups > 1) {
    // Groups by their best score (V2) or the sum of their two best (V3).
    const int size = experts / groups;
    for (int g = lane; g < groups; g += kWarp) {
      float first = -INFINITY, second = -INFINITY;
      for (int e = g * size; e < (g + 1) * size; ++e) {
        const float c = choice[e];
        if (c > first) {
          second = first;
          first = c;
        } else if (c > second) {
          second = c;
        }
      }
      const bool both = spec.method == Method::noaux_tc && size > 1;
      group_keys[g] = key_of(both ? first + second : first, g);
    }
    __syncwarp();
    for (int i = 0; i < spec.top_groups; ++i) take_best(group_keys, groups, lane);
    // The groups that were not taken are masked; their experts may still fill up the k.
    for (int e = lane; e < experts; e += kWarp) {
      if (group_keys[e / size] != 0) keys[e] = key_of(-INFINITY, e);
    }
    __syncwarp();
  }

  float sum = 0.0f;
  for (int i = 0; i < spec.top_k; ++i) {
    const int e = take_best(keys, experts, lane);
    sum += scores[e];
    if (lane == 0) ids.row(row)[i] = e;
  }
  __syncwarp();
  for (int i = lane; i < spec.top_k; i += kWarp) {
    float weight = scores[ids.row(row)[i]];
    if (spec.normalize) weight /= sum + 1e-20f;
    weights.row(row)[i] = weight * spec.scaling;
  }
}

}  // namespace

void moe_route(const KernelContext& context, const Tensor& logits, const Tensor& bias,
               const ops::RouterSpec& spec, const ops::Routing& out) {
  const int64_t rows = logits.rows();
  if (logits.type != DType::f32 || logits.cols() != spec.experts || spec.top_k < 1 ||
      spec.top_k > spec.experts || spec.experts > kMostExperts || spec.groups < 1 ||
      spec.experts % spec.groups != 0 || spec.top_groups < 1 || spec.top_groups > spec.groups ||
      (bias && (bias.type != DType::f32 || bias.count() != spec.experts || !bias.contiguous())) ||
      out.experts.type != DType::i32 || out.weights.type != DType::f32 ||
      out.experts.rows() != rows || out.weights.rows() != rows ||
      out.experts.cols() != spec.top_k || out.weights.cols() != spec.top_k) {
    unsupported(
        "moe_route", "shapes, types or the router's numbers do not fit",
        {{"logits", logits}, {"bias", bias}, {"experts", out.experts}, {"weights", out.weights}});
  }
  if (rows == 0) return;
  const auto words = static_cast<size_t>(2 * spec.experts + spec.groups);
  launch(context, route_kernel, dim3(static_cast<unsigned>((rows + kWarps - 1) / kWarps)),
         dim3(kWarps * kWarp), kWarps * words * sizeof(uint64_t),
         Matrix<const float>{logits.as<const float>(), logits.row_stride()}, bias.as<const float>(),
         spec, static_cast<int>(rows),
         Matrix<int32_t>{out.experts.as<int32_t>(), out.experts.row_stride()},
         Matrix<float>{out.weights.as<float>(), out.weights.row_stride()});
}

}  // namespace octet::cuda
