// What a decode step adds to the GQA cache, as its attention kernel takes it: rope_kv_write and
// attention in one launch (Backend::rope_kv_attention). A sequence has one new row; the block of
// the cluster that has its position
//
//   before the wait   finds the scale in force, from what steps before left
//   after it          rotates K and rounds K and V to the cache's type, a warp each, and puts them
//                     into the cache and, as what the cache then holds, into its tile
//
// and every block rotates the queries that it has. Bits are those of few_rows_kernel (rope_kv.cu).
#pragma once

#include "backends/cuda/kernels/attention_memory.cuh"
#include "backends/cuda/kernels/kv_planes.cuh"

namespace octet::cuda {

struct FreshParams {
  bool here = false;  // else all rows are in the cache already
  paged::Planes<__nv_bfloat16> planes;
  paged::CacheShape shape;
  paged::Pages pages;
  paged::Angles angles;  // pairs (j, j + dim / 2)
};

// The angles of the elements that a lane has of a QueryRow<Dim>.
template <int Dim>
struct RowAngles {
  static constexpr int kRun = QueryRow<Dim>::kRun;
  float c[kRun], s[kRun];

  __device__ __forceinline__ void load(const paged::Angles& angles, int position) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int j = QueryRow<Dim>::kRuns == 1 ? lane % (kWarp / 2) * kRun : lane * kRun;
#pragma unroll
    for (int i = 0; i < kRun; ++i) c[i] = s[i] = NAN;
    if (position >= angles.positions) return;
    load_floats<kRun>(angles.cos.row(position) + j, c);
    load_floats<kRun>(angles.sin.row(position) + j, s);
  }
};

// The row of K or V that a warp brings into the cache, if it has one.
template <int Dim>
struct FreshRow {
  const paged::Plane<__nv_bfloat16>* plane = nullptr;
  paged::Running running;
  int64_t to = -1;  // byte of the cache where it goes; -1: the position has no block
  int at = 0;       // its row of the tile
  QueryRow<Dim> row;

  // Before the wait: the position of `span` of a head, whose scale is also the tile's.
  __device__ __forceinline__ void enter(const FreshParams& p, int which, int sequence,
                                        const Span& span, int head, int tile_row) {
    plane = &p.planes.of[which];
    at = tile_row;
    const int position = span.first_position;
    const int block = p.pages.block_of(sequence, position);
    if (block < 0) return;
    if (is_fp8(plane->type)) {
      running.enter(*plane, p.shape, p.pages, sequence, head, 0, position, block);
    }
    const int64_t slot = int64_t{block} * p.pages.block_tokens + position % p.pages.block_tokens;
    to = (slot * p.shape.kv_heads + head) * p.shape.dim * plane->element;
  }
  __device__ __forceinline__ void load(int64_t token, int head) {
    row.load(DType::bf16, plane->x.at(token, head), Dim, true);
  }
  // Writes it where it goes. T: what the tile holds.
  template <typename T>
  __device__ __forceinline__ void store(T* tile, int pitch) {
    constexpr int kRun = QueryRow<Dim>::kRun, kRuns = QueryRow<Dim>::kRuns;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    float x[kRuns][kRun];
    row.values(x);
    if (to < 0) {
#pragma unroll
      for (int c = 0; c < kRuns; ++c) {
#pragma unroll
        for (int i = 0; i < kRun; ++i) x[c][i] = 0.0f;
      }
    }
    const float inv = inverse_scale(running.scale);
    T* const own = tile + at * pitch;
#pragma unroll
    for (int c = 0; c < kRuns; ++c) {
      const int d = (c * kWarp + lane) * kRun;
      if (!is_fp8(plane->type)) {
        if (to >= 0) store_floats(reinterpret_cast<__nv_bfloat16*>(plane->cache + to) + d, x[c]);
        store_floats(own + d, x[c]);
        continue;
      }
      Vector<uint16_t, kRun / 2> codes;
      float held[kRun];
#pragma unroll
      for (int i = 0; i < kRun; i += 2) {
        const float low = __fmul_rn(x[c][i], inv), high = __fmul_rn(x[c][i + 1], inv);
        const bool e4m3 = plane->type == DType::e4m3;
        const auto pair = static_cast<uint16_t>(e4m3 ? encode_fp8x2<Code::e4m3>(low, high)
                                                     : encode_fp8x2<Code::e5m2>(low, high));
        codes.v[i / 2] = pair;
        const float2 values =
            __half22float2(e4m3 ? decode_fp8x2<Code::e4m3>(pair) : decode_fp8x2<Code::e5m2>(pair));
        held[i] = values.x;
        held[i + 1] = values.y;
      }
      if (to >= 0) store_vector(reinterpret_cast<uint16_t*>(plane->cache + to + d), codes);
      store_floats(own + d, held);
    }
    if (to < 0 || !is_fp8(plane->type)) return;
    if (running.begins && lane == 0) plane->scale[running.cell] = running.scale;
    if (!plane->groups()) return;
    uint32_t absmax = 0;
#pragma unroll
    for (int c = 0; c < kRuns; ++c) {
#pragma unroll
      for (int i = 0; i < kRun; ++i) absmax = max(absmax, finite_magnitude(x[c][i]));
    }
    absmax = max(running.absmax, warp_max(absmax));
    if (lane == 0) plane->absmax[running.cell] = __uint_as_float(absmax);
  }
};

}  // namespace octet::cuda
