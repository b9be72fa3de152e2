// Small helpers that kernels share: element types as floats, vectors of 4 to 16 bytes, reductions
// over a warp or a block, FP8 conversions that give the bits of numerics/, and the dispatch on
// element types.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"
#include "numerics/quantize.h"
#include "tensor/tensor.h"

namespace octet::cuda {

inline constexpr int kWarp = 32;

// --- element types as floats ---------------------------------------------------------------------

template <typename T>
__device__ __forceinline__ float to_float(T x) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __bfloat162float(x);
  } else if constexpr (std::is_same_v<T, __half>) {
    return __half2float(x);
  } else {
    static_assert(std::is_same_v<T, float>);
    return x;
  }
}

// Rounded to nearest, ties to even.
template <typename T>
__device__ __forceinline__ T from_float(float x) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else {
    static_assert(std::is_same_v<T, float>);
    return x;
  }
}

// N elements that lie at a multiple of their size: one load or store of up to 16 bytes, more where
// they are longer.
template <typename T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Vector {
  T v[N];
};
template <int N, typename T>
__device__ __forceinline__ Vector<T, N> load_vector(const T* from) {
  return *reinterpret_cast<const Vector<T, N>*>(from);
}
template <typename T, int N>
__device__ __forceinline__ void store_vector(T* to, const Vector<T, N>& x) {
  *reinterpret_cast<Vector<T, N>*>(to) = x;
}
// The same with conversion to and from floats.
template <int N, typename T>
__device__ __forceinline__ void load_floats(const T* from, float (&to)[N]) {
  const Vector<T, N> x = load_vector<N>(from);
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = to_float(x.v[i]);
}
template <int N, typename T>
__device__ __forceinline__ void store_floats(T* to, const float (&from)[N]) {
  Vector<T, N> x;
#pragma unroll
  for (int i = 0; i < N; ++i) x.v[i] = from_float<T>(from[i]);
  store_vector(to, x);
}

// --- reductions ----------------------------------------------------------------------------------

// Over the 32 lanes, all of which call it; every lane gets the same bits.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int apart = kWarp / 2; apart > 0; apart /= 2) x += __shfl_xor_sync(~0u, x, apart);
  return x;
}
// NaN is passed over unless all are NaN.
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int apart = kWarp / 2; apart > 0; apart /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, apart));
  return x;
}
// Of bits, as magnitudes are compared (finite_magnitude): one instruction.
__device__ __forceinline__ uint32_t warp_max(uint32_t x) {
  return __reduce_max_sync(~0u, x);
}

// Over a block of `Threads` threads, all of which call it; every thread gets the same bits.
// `shared` has a value for each warp (33 are always enough) and may be used again at once.
template <int Threads, typename T, typename Reduce>
__device__ __forceinline__ T block_reduce(T x, T* shared, T identity, Reduce reduce) {
  static_assert(Threads % kWarp == 0 && Threads <= 1024);
  constexpr int warps = Threads / kWarp;
  x = reduce(x);
  if constexpr (warps == 1) return x;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = reduce(lane < warps ? shared[lane] : identity);
  __syncthreads();
  return x;
}
template <int Threads>
__device__ __forceinline__ float block_sum(float x, float* shared) {
  return block_reduce<Threads>(x, shared, 0.0f, [](float y) { return warp_sum(y); });
}
template <int Threads>
__device__ __forceinline__ float block_max(float x, float* shared) {
  return block_reduce<Threads>(x, shared, -INFINITY, [](float y) { return warp_max(y); });
}
template <int Threads>
__device__ __forceinline__ uint32_t block_max(uint32_t x, uint32_t* shared) {
  return block_reduce<Threads>(x, shared, 0u, [](uint32_t y) { return warp_max(y); });
}

// --- FP8 -----------------------------------------------------------------------------------------

// Two codes, `low` in bits 0..7: cvt.rn.satfinite, which numerics/fp8.h describes. The instruction
// drops the sign of a NaN and has another NaN for E5M2, so NaNs take a way of their own.
template <Code F>
__device__ __forceinline__ uint32_t encode_fp8x2(float low, float high) {
  uint16_t codes;
  if constexpr (F == Code::e4m3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  }
  if (isunordered(low, high)) [[unlikely]] {
    if (low != low) {
      codes = static_cast<uint16_t>((codes & 0xFF00u) | fp8_encode<F>(low));
    }
    if (high != high) {
      codes = static_cast<uint16_t>((codes & 0x00FFu) | (uint32_t{fp8_encode<F>(high)} << 8));
    }
  }
  return codes;
}
template <Code F>
__device__ __forceinline__ uint8_t encode_fp8(float x) {
  return static_cast<uint8_t>(encode_fp8x2<F>(x, 0.0f));
}
__device__ __forceinline__ uint8_t encode_e4m3(float x) {
  return encode_fp8<Code::e4m3>(x);
}
__device__ __forceinline__ uint8_t encode_e5m2(float x) {
  return encode_fp8<Code::e5m2>(x);
}
// N codes of x[i] * inv: quantize_value of numerics/quantize.h.
template <Code F, int N>
__device__ __forceinline__ Vector<uint8_t, N> quantize_vector(const float (&x)[N], float inv) {
  Vector<uint8_t, N> codes;
  if constexpr (N == 1) {
    codes.v[0] = encode_fp8<F>(x[0] * inv);
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const uint32_t pair = encode_fp8x2<F>(x[i] * inv, x[i + 1] * inv);
      codes.v[i] = static_cast<uint8_t>(pair);
      codes.v[i + 1] = static_cast<uint8_t>(pair >> 8);
    }
  }
  return codes;
}

// The values of two codes, exact: every E4M3 and E5M2 value is an FP16 value.
template <Code F>
__device__ __forceinline__ __half2 decode_fp8x2(uint16_t codes) {
  uint32_t halves;
  if constexpr (F == Code::e4m3) {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
  } else {
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(codes));
  }
  return *reinterpret_cast<const __half2*>(&halves);
}
template <Code F>
__device__ __forceinline__ float decode_fp8(uint8_t code) {
  return __low2float(decode_fp8x2<F>(code));
}
__device__ __forceinline__ float decode_e4m3(uint8_t code) {
  return decode_fp8<Code::e4m3>(code);
}
__device__ __forceinline__ float decode_e5m2(uint8_t code) {
  return decode_fp8<Code::e5m2>(code);
}

// choose_scale of numerics/quantize.h: its division is IEEE's on the device, too.
__device__ __forceinline__ float choose_scale_device(float absmax, const QuantFormat& format) {
  return choose_scale(absmax, format);
}

// x / (1 + e^-x), at most 10 units in the last place off; -Inf gives NaN as on the CPU. e^-|x| is
// 2^t for t = -|x| log2(e) in two parts: ex2 alone would lose |x| units to the rounding of t.
__device__ __forceinline__ float silu(float x) {
  constexpr float log2e = 0x1.715476p0f, log2e_low = 0x1.4ae0cp-26f, ln2 = 0x1.62e43p-1f;
  const float a = fminf(fabsf(x), 150.0f);
  const float t = -a * log2e;
  const float rest = fmaf(-a, log2e, -t) - a * log2e_low;
  float e = exp2f(t);
  e = fmaf(e, rest * ln2, e);
  return x * __fdividef(x < 0.0f ? e : 1.0f, 1.0f + e);
}

// --- dispatch on the host ------------------------------------------------------------------------

inline bool is_float_type(DType type) {
  return type == DType::f32 || type == DType::bf16 || type == DType::f16;
}

template <typename T>
struct TypeTag {
  using type = T;
};
// use(TypeTag<float>{}), of __nv_bfloat16 or of __half. Fault for other types; check before, to
// name the op.
template <typename Use>
decltype(auto) visit_float_type(DType type, Use&& use) {
  switch (type) {
    case DType::f32:
      return use(TypeTag<float>{});
    case DType::bf16:
      return use(TypeTag<__nv_bfloat16>{});
    case DType::f16:
      return use(TypeTag<__half>{});
    default:
      throw Fault("not a float type: " + std::string(name_of(type)));
  }
}
// f32 and bf16 alone: what activations are.
template <typename Use>
decltype(auto) visit_activation_type(DType type, Use&& use) {
  switch (type) {
    case DType::f32:
      return use(TypeTag<float>{});
    case DType::bf16:
      return use(TypeTag<__nv_bfloat16>{});
    default:
      throw Fault("activations are f32 or bf16, not " + std::string(name_of(type)));
  }
}
// use(std::integral_constant<Code, F>{}).
template <typename Use>
decltype(auto) visit_fp8(Code type, Use&& use) {
  return type == Code::e4m3 ? use(std::integral_constant<Code, Code::e4m3>{})
                            : use(std::integral_constant<Code, Code::e5m2>{});
}

// Fault "op: why: x bf16[2, 8] cuda, w ...".
[[noreturn]] inline void unsupported(
    const std::string& op, const std::string& why,
    std::initializer_list<std::pair<const char*, Tensor>> tensors) {
  std::string text = op + ": " + why;
  const char* separator = ": ";
  for (const auto& [name, tensor] : tensors) {
    text += separator + std::string(name) + " " + (tensor ? to_string(tensor) : "absent");
    separator = ", ";
  }
  throw Fault(text);
}

// True if vectors of `bytes` may be used on all rows of a tensor: base and strides are multiples.
inline bool rows_aligned(const Tensor& tensor, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(tensor.data) % bytes != 0) return false;
  for (int axis = 0; axis + 1 < tensor.shape.rank; ++axis) {
    const auto stride = static_cast<uint64_t>(tensor.strides[static_cast<size_t>(axis)]);
    if (tensor.shape[axis] > 1 && stride * size_of(tensor.type) % bytes != 0) return false;
  }
  return true;
}

}  // namespace octet::cuda
