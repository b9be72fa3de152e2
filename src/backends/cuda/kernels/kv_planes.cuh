// The planes of a GQA cache, K and V, as kernels write them (ops/kv_layout.h), and the angles of
// rotary positions.
#pragma once

#include "backends/cuda/kernels/paged_write.cuh"

namespace octet::cuda::paged {

struct Angles {
  Matrix<const float> cos, sin;  // [positions, half]
  int positions, half;
  bool interleaved;

  // Where pair j lies in a head.
  __device__ __forceinline__ int first(int j) const { return interleaved ? 2 * j : j; }
  __device__ __forceinline__ int second(int j) const { return interleaved ? 2 * j + 1 : j + half; }
};
inline Angles angles_of(const ops::RopeTable& table) {
  return {{table.cos.as<const float>(), table.cos.row_stride()},
          {table.sin.as<const float>(), table.sin.row_stride()},
          static_cast<int>(table.cos.rows()),
          static_cast<int>(table.cos.cols()),
          table.interleaved};
}

// (a, b) turned by an angle; spelt out, so that all kernels round alike.
__device__ __forceinline__ void rotate(float& a, float& b, float c, float s) {
  const float turned = __fmaf_rn(a, c, -__fmul_rn(b, s));
  b = __fmaf_rn(b, c, __fmul_rn(a, s));
  a = turned;
}

// K or V: this step's rows, and where they go.
template <typename T>
struct Plane {
  Heads<T> x;      // [T, kv_heads, dim]
  uint8_t* cache;  // [blocks, block_tokens, kv_heads, dim] of `type`
  DType type;
  int element;         // bytes
  float* scale;        // [blocks, kv_heads]; FP8 only
  float* absmax;       // the same; null unless block groups choose scales
  const float* fixed;  // [kv_heads], or null

  __device__ bool groups() const { return absmax != nullptr; }
};

// K and V. Kernels take them as __grid_constant__, so that choosing one at run time copies nothing.
template <typename T>
struct Planes {
  Plane<T> of[2];
};

struct CacheShape {
  int kv_heads, dim, group_tokens;
};

// The scale of a group that starts, from the absmax of all before it: one bit of headroom.
__device__ __forceinline__ float group_scale(float absmax, DType type) {
  if (absmax == 0.0f) return 1.0f;
  const float scale =
      2.0f * ceil_pow2(absmax / max_of(type == DType::e4m3 ? Code::e4m3 : Code::e5m2));
  return scale < kMinScale ? kMinScale : scale;
}

// The scale in force and the running absmax of one head, as its warp goes along a sequence.
struct Running {
  float scale = 1.0f;
  uint32_t absmax = 0;
  int64_t cell = 0;     // of the block: index into the plane's scale and absmax
  bool begins = false;  // the block begins here, so that its scale is to be stored

  // At the position of row `i` of a span, in `block`. Reads what steps before left, and no more.
  template <typename T>
  __device__ void enter(const Plane<T>& plane, const CacheShape& shape, const Pages& pages,
                        int sequence, int head, int i, int position, int block) {
    const int slot = position % pages.block_tokens;
    begins = slot == 0;
    if (i != 0 && slot != 0) return;
    cell = int64_t{block} * shape.kv_heads + head;
    if (i == 0 && position > 0 && (slot != 0 || plane.groups())) {
      const int before = slot != 0 ? block : pages.block_of(sequence, position - 1);
      const int64_t last = int64_t{max(before, 0)} * shape.kv_heads + head;
      scale = plane.scale[last];
      if (plane.groups()) absmax = __float_as_uint(plane.absmax[last]);
    }
    if (slot != 0) return;
    if (!plane.groups()) {
      scale = plane.fixed[head];
    } else if (position % shape.group_tokens == 0) {
      scale = position == 0 ? 1.0f : group_scale(__uint_as_float(absmax), plane.type);
    }
  }
};

// Fault unless x, its cache and its scales fit.
template <typename T>
Plane<T> plane_of(const char* op, const Tensor& x, const Tensor& cache, const Tensor& scale,
                  const Tensor& absmax, const Tensor& fixed, int64_t group_tokens, int64_t rows) {
  const bool fp8 = is_fp8(cache.type);
  bool fits = x && cache && cache.shape.rank == 4 && cache.contiguous() && x.shape.rank == 3 &&
              x.shape[0] == rows && x.shape[1] == cache.shape[2] && x.shape[2] == cache.shape[3];
  if (fits && fp8) {
    const int64_t cells = cache.shape[0] * cache.shape[2];
    fits = scale && scale.count() == cells && scale.contiguous() && scale.type == DType::f32 &&
           (fixed ? fixed.count() == cache.shape[2] && fixed.type == DType::f32
                  : absmax && absmax.count() == cells && absmax.contiguous() &&
                        absmax.type == DType::f32 && group_tokens > 0 &&
                        group_tokens % cache.shape[1] == 0);
  } else if (fits) {
    fits = is_float_type(cache.type);
  }
  if (!fits) {
    unsupported(
        op, "shapes, types or scales do not fit",
        {{"x", x}, {"cache", cache}, {"scale", scale}, {"absmax", absmax}, {"fixed", fixed}});
  }
  const bool groups = fp8 && !fixed;
  return {heads_of<T>(x),
          cache.as<uint8_t>(),
          cache.type,
          static_cast<int>(size_of(cache.type)),
          fp8 ? scale.as<float>() : nullptr,
          groups ? absmax.as<float>() : nullptr,
          fp8 && fixed ? fixed.as<const float>() : nullptr};
}

}  // namespace octet::cuda::paged
