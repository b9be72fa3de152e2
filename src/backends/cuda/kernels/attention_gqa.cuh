// GQA attention by tiles: K and V of one KV head against all query heads that share it, so that its
// bytes are read once.
//
// In the split kernel four warps share a group of 16 rows; in the chunk kernel a warp has a group
// to itself (two share one where registers would not do):
//
//   positions  |0 .. 15|16 .. 31|32 .. 47|48 .. 63|   scores: a quarter of the tile each
//   warp           0        1        2        3
//   dims       |0 .. 31|32 .. 63|64 .. 95|96 ..127|   values: a quarter of the dims each
#pragma once

#include "backends/cuda/kernels/attention_rows.cuh"

namespace octet::cuda {

struct GqaParams : RowParams {
  HeadsView q;
  const uint8_t *k = nullptr, *v = nullptr;            // [blocks, block_tokens, kv_heads, dim]
  const float *k_scale = nullptr, *v_scale = nullptr;  // [blocks, kv_heads], or null
  DType cache = DType::bf16;
  bool vectors = false;  // rows of K and V begin at multiples of 16 bytes
};

template <typename T_, int Width_, int Dim, int Warps, int Groups, int Cluster>
struct GqaConfig : RowConfig<Dim, Warps, Groups, Cluster> {
  using T = T_;
  static constexpr int Width = Width_;
  static constexpr int Pitch = row_pitch<T>(Dim), PPitch = row_pitch<T>(kTile);
  // Of the split kernel on an SM, to hide the latency of memory; more would spill registers.
  static constexpr int MinBlocks = Dim > 128 ? 1 : Dim == 128 && Width == 2 ? 3 : 4;
  static_assert(Warps == 1 || Warps == 2 || Warps == 4);
};

template <class C>
struct alignas(16) GqaShared {
  using T = typename C::T;
  alignas(16) T k[kTile * C::Pitch];
  alignas(16) T v[kTile * C::Pitch];
  alignas(16) T q[C::Rows * C::Pitch];
  alignas(16) T p[C::Rows * C::PPitch];
  float k_scale[C::BlockTiles * kTile], v_scale[C::BlockTiles * kTile];
  int32_t slots[C::BlockTiles * kTile];  // of the positions in work
  float q_scale[C::Rows];
  float most[C::Groups][C::Warps][kGroupRows];  // a warp's largest scores
  float sums[C::Groups][4][kGroupRows];         // sum of p over 16 positions
  MoreShared<C> more;
};

template <class C>
class GqaWorker : public BlockRows<C> {
  using T = typename C::T;

  using Base = BlockRows<C>;
  using Base::first_, Base::last_, Base::kv_head_, Base::group_, Base::warp_, Base::g_, Base::j_;

 public:
  __device__ __forceinline__ GqaWorker(const GqaParams& params, GqaShared<C>& shared, int kv_head)
      : Base(params, kv_head), p_(params), s_(shared) {}

  template <typename Use>
  __device__ __forceinline__ void for_each_tile(int first, int end, Use use) {
    const int positions = (end - first) * kTile, tid = static_cast<int>(threadIdx.x);
    __syncthreads();  // what was read before has been used
    this->find_slots(first * kTile, positions, s_.slots);
    __syncthreads();
    const int64_t row_bytes = int64_t{p_.kv_heads} * p_.dim * element_bytes();
    const int64_t offset = int64_t{kv_head_} * p_.dim * element_bytes();
    Reader k, v;
    const bool ahead = C::Width > 0 && p_.vectors;
    if (ahead && first < end) {
      k.load(p_.k + offset, row_bytes, p_.dim, s_.slots);
      v.load(p_.v + offset, row_bytes, p_.dim, s_.slots);
    }
    for (int i = tid; i < positions; i += C::Threads) {
      const int32_t slot = s_.slots[i];
      float k_scale = 0.0f, v_scale = 0.0f;
      if (slot >= 0) {
        const int64_t cell = int64_t{slot / p_.pages.block_tokens} * p_.kv_heads + kv_head_;
        k_scale = p_.k_scale ? p_.k_scale[cell] : 1.0f;
        v_scale = p_.v_scale ? p_.v_scale[cell] : 1.0f;
      }
      s_.k_scale[i] = k_scale;
      s_.v_scale[i] = v_scale;
    }
    if (!has_queries_) load_queries();  // while K and V are on their way
    has_queries_ = true;
    for (int tile = first; tile < end; ++tile) {
      const int at = (tile - first) * kTile, start = tile * kTile;
      const int from = max(start, this->first_position());
      const bool mixed = this->is_mixed(from, min(start + kTile, this->end_position()));
      __syncthreads();  // the tile before has been used
      bool nonfinite;
      if (ahead) {
        k.store(s_.k, p_.cache, false);
        nonfinite = v.store(s_.v, p_.cache, mixed);
      } else {
        Reader::copy(p_.k + offset, row_bytes, p_.dim, s_.slots + at, s_.k, p_.cache);
        nonfinite = Reader::copy(p_.v + offset, row_bytes, p_.dim, s_.slots + at, s_.v, p_.cache);
      }
      const float v_scale = s_.v_scale[at + from - start];
      const bool differs =
          tid < kTile && s_.slots[at + tid] >= 0 && s_.v_scale[at + tid] != v_scale;
      const bool varied = __syncthreads_or(differs) != 0;
      const bool poisoned = mixed && __syncthreads_or(nonfinite) != 0;
      if (ahead && tile + 1 < end) {
        k.load(p_.k + offset, row_bytes, p_.dim, s_.slots + at + kTile);
        v.load(p_.v + offset, row_bytes, p_.dim, s_.slots + at + kTile);
      }
      if (!this->group_sees(start)) continue;
      TileResult<C> result;
      compute(at, start, varied, v_scale, poisoned, result);
      use(tile - first, result);
    }
  }

 private:
  using Reader = TileReader<T, C::Width, C::Dim, C::Threads>;

  __device__ __forceinline__ int element_bytes() const {
    if constexpr (C::Width > 0) return C::Width;
    return p_.cache == DType::f32 ? 4 : p_.cache == DType::bf16 || p_.cache == DType::f16 ? 2 : 1;
  }

  __device__ __forceinline__ void load_queries() {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int row = static_cast<int>(threadIdx.x) / kWarp; row < C::Rows;
         row += C::Threads / kWarp) {
      T* const to = s_.q + row * C::Pitch;
      float scale = 1.0f;
      if (row < this->count_) {
        const void* const from = p_.q.at(this->token_of(row), this->head_of(row));
        scale = load_query<C::Dim>(p_.q.type, from, p_.dim, p_.fp8, to);
      } else {
        for (int d = lane; d < C::Dim; d += kWarp) to[d] = from_float<T>(0.0f);
      }
      if (lane == 0) s_.q_scale[row] = scale;
    }
  }

  // Steps 1 to 6 of the rule for the group's rows, but for what joins the tile to others.
  __device__ __forceinline__ void compute(int at, int start, bool varied, float v_scale,
                                          bool poisoned, TileResult<C>& r) {
    constexpr int kScores = C::ScoreTiles, kWarpTokens = kTile / C::Warps;
    const T* const q = s_.q + group_ * kGroupRows * C::Pitch;
    T* const p = s_.p + group_ * kGroupRows * C::PPitch;
    const int first = warp_ * kWarpTokens;  // of the warp's positions in the tile
    Seen seen[2];
    this->set_seen(start, seen);

    float x[kScores][4] = {};
    multiply_keys<kScores, C::Dim>(q, C::Pitch, s_.k + first * C::Pitch, C::Pitch, x);
    float most[2] = {-INFINITY, -INFINITY};
    const float q_scale[2] = {s_.q_scale[this->row(0)], s_.q_scale[this->row(1)]};
#pragma unroll
    for (int n = 0; n < kScores; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int t = first + n * 8 + 2 * j_ + e % 2, h = e / 2;
        const float score =
            __fmul_rn(__fmul_rn(__fmul_rn(s_.k_scale[at + t], x[n][e]), q_scale[h]), p_.scale);
        x[n][e] = seen[h].has(t) ? score : -INFINITY;
        most[h] = fmaxf(most[h], x[n][e]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) most[h] = quad_max(most[h]);
    if constexpr (C::Warps > 1) {
      if (j_ == 0) {
        s_.most[group_][warp_][g_] = most[0];
        s_.most[group_][warp_][g_ + 8] = most[1];
      }
      this->group_barrier();
#pragma unroll
      for (int w = 0; w < C::Warps; ++w) {
        most[0] = fmaxf(most[0], s_.most[group_][w][g_]);
        most[1] = fmaxf(most[1], s_.most[group_][w][g_ + 8]);
      }
    }
    r.max[0] = tile_max(most[0]);
    r.max[1] = tile_max(most[1]);
#pragma unroll
    for (int n = 0; n < kScores; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[n][e] = exp2_fast(__fsub_rn(x[n][e], r.max[e / 2]));
    }

    // Sums over 16 positions each, then over those, ascending.
    constexpr int kSums = 4 / C::Warps;
    float sums[kSums][2];
#pragma unroll
    for (int u = 0; u < kSums; ++u) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sums[u][h] = quad_sum(__fadd_rn(__fadd_rn(x[2 * u][2 * h], x[2 * u][2 * h + 1]),
                                        __fadd_rn(x[2 * u + 1][2 * h], x[2 * u + 1][2 * h + 1])));
      }
      if (C::Warps > 1 && j_ == 0) {
        s_.sums[group_][warp_ * kSums + u][g_] = sums[u][0];
        s_.sums[group_][warp_ * kSums + u][g_ + 8] = sums[u][1];
      }
    }

    // Scales of V that differ within the tile: rows weigh them against the largest they see.
    float value_scale[2] = {v_scale, v_scale};
    if (varied) [[unlikely]] {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        value_scale[h] = 0.0f;
        for (int t = seen[h].begin; t < seen[h].end; ++t)
          value_scale[h] = fmaxf(value_scale[h], s_.v_scale[at + t]);
      }
#pragma unroll
      for (int n = 0; n < kScores; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int t = first + n * 8 + 2 * j_ + e % 2, h = e / 2;
          if (seen[h].has(t))
            x[n][e] = __fmul_rn(x[n][e], __fdiv_rn(s_.v_scale[at + t], value_scale[h]));
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h)
      r.value_scale[h] = p_.round == RoundP::e4m3
                             ? __fmul_rn(value_scale[h], 1.0f / attention_rule::kPScale)
                             : value_scale[h];
#pragma unroll
    for (int n = 0; n < kScores; ++n) {
      T* const to = p + g_ * C::PPitch + first + n * 8 + 2 * j_;
      store_p(to, x[n][0], x[n][1], p_.round);
      store_p(to + 8 * C::PPitch, x[n][2], x[n][3], p_.round);
    }
    this->group_barrier();

#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if constexpr (C::Warps == 1) {
        r.sum[h] = __fadd_rn(__fadd_rn(__fadd_rn(sums[0][h], sums[1][h]), sums[2][h]), sums[3][h]);
      } else {
        const int at_row = g_ + 8 * h;
        r.sum[h] =
            __fadd_rn(__fadd_rn(__fadd_rn(s_.sums[group_][0][at_row], s_.sums[group_][1][at_row]),
                                s_.sums[group_][2][at_row]),
                      s_.sums[group_][3][at_row]);
      }
    }
#pragma unroll
    for (int n = 0; n < C::ValueTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) r.o[n][e] = 0.0f;
    }
    multiply_values(p, C::PPitch, s_.v + warp_ * C::ValueTiles * 8, C::Pitch, poisoned, seen, r.o);
  }

  const GqaParams& p_;
  GqaShared<C>& s_;
  bool has_queries_ = false;
};

template <class C>
__global__ void __launch_bounds__(C::Threads)
    gqa_chunk_kernel(const __grid_constant__ GqaParams p) {
  extern __shared__ __align__(16) uint8_t memory[];
  chunk_rows<GqaWorker<C>, C>(p, *reinterpret_cast<GqaShared<C>*>(memory));
}
template <class C>
__global__ void __launch_bounds__(C::Threads, C::MinBlocks)
    gqa_split_kernel(const __grid_constant__ GqaParams p) {
  extern __shared__ __align__(16) uint8_t memory[];
  split_rows<GqaWorker<C>, C>(p, *reinterpret_cast<GqaShared<C>*>(memory));
}
template <class C>
__global__ void __cluster_dims__(C::Cluster, 1, 1) __launch_bounds__(C::Threads)
    gqa_cluster_kernel(const __grid_constant__ GqaParams p) {
  extern __shared__ __align__(16) uint8_t memory[];
  split_rows<GqaWorker<C>, C>(p, *reinterpret_cast<GqaShared<C>*>(memory));
}

// How the chunk kernel is cut: less where shared memory or registers would not do.
template <typename T, int Dim>
struct ChunkShape {
  static constexpr bool narrow = std::is_same_v<T, float> || Dim > 128;
  static constexpr int warps = narrow ? 2 : 1;
  static constexpr int groups = std::is_same_v<T, float> && Dim > 128 ? 2 : narrow ? 4 : 8;
};

template <typename T, int Width, int Dim>
void launch_gqa_split_dim(const KernelContext& context, const GqaParams& p) {
  const int units = p.kv_heads * p.range * p.packs * p.slots;
  const dim3 grid(static_cast<unsigned>(p.kv_heads), static_cast<unsigned>(p.range * p.packs),
                  static_cast<unsigned>(p.slots));
  const auto in_clusters = [&]<int Cluster>(std::integral_constant<int, Cluster>) {
    using C = GqaConfig<T, Width, Dim, 4, 1, Cluster>;
    launch(context, gqa_cluster_kernel<C>, dim3(grid.x * Cluster, grid.y, grid.z), C::Threads,
           sizeof(GqaShared<C>), p);
  };
  // Few units: several blocks each, so that about two blocks an SM are at work.
  if constexpr (!std::is_same_v<T, float>) {
    if (units * 4 <= context.caps.sms * 2) return in_clusters(std::integral_constant<int, 8>{});
    if (units <= context.caps.sms * 2) return in_clusters(std::integral_constant<int, 4>{});
  }
  using C = GqaConfig<T, Width, Dim, 4, 1, 1>;
  launch(context, gqa_split_kernel<C>, grid, C::Threads, sizeof(GqaShared<C>), p);
}

template <typename T, int Width, int Dim>
void launch_gqa_chunk_dim(const KernelContext& context, const GqaParams& p) {
  using Shape = ChunkShape<T, Dim>;
  using C = GqaConfig<T, Width, Dim, Shape::warps, Shape::groups, 0>;
  static_assert(sizeof(GqaShared<C>) <= 227 * 1024);
  // The total of the splits lies at the end, and is not needed if there is one.
  const size_t shared = sizeof(GqaShared<C>) - (p.one_split ? sizeof(MoreShared<C>) : 0);
  launch(context, gqa_chunk_kernel<C>, dim3(static_cast<unsigned>(p.kv_heads * chunk_items<C>(p))),
         C::Threads, shared, p);
}

// The two launches for one T and Width; each pair is compiled in a file of its own.
template <typename T, int Width>
void launch_gqa_split(const KernelContext& context, const GqaParams& p) {
  if (p.dim <= 64) return launch_gqa_split_dim<T, Width, 64>(context, p);
  if (p.dim <= 128) return launch_gqa_split_dim<T, Width, 128>(context, p);
  launch_gqa_split_dim<T, Width, 256>(context, p);
}
template <typename T, int Width>
void launch_gqa_chunk(const KernelContext& context, const GqaParams& p) {
  if (p.dim <= 64) return launch_gqa_chunk_dim<T, Width, 64>(context, p);
  if (p.dim <= 128) return launch_gqa_chunk_dim<T, Width, 128>(context, p);
  launch_gqa_chunk_dim<T, Width, 256>(context, p);
}

}  // namespace octet::cuda
