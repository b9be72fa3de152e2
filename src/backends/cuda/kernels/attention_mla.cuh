// MLA attention by tiles, in absorbed form: the latents of 64 positions are K (with the rope part)
// and V at once, for all heads. Eight warps share a group of 16 rows:
//
//   positions  | 0..7 | 8..15 |  ...  | 56..63 |     scores: eight positions each
//   warp           0      1      ...       7
//   latents    | 0..63|64..127|  ...  |448..511|     values: an eighth of the latents each, so that
//   group      |      0       |  ...  3        |     a warp has outputs of one group of 128
//
// Every group has its own P, since the scales of the tokens enter it (step 5 of the rule).
#pragma once

#include "backends/cuda/kernels/attention_cluster.cuh"

namespace octet::cuda {

inline constexpr int kLatentGroup = static_cast<int>(attention_rule::kLatentGroup);
inline constexpr int kMaxRope = 64;

struct MlaParams : RowParams {
  HeadsView q_latent, q_pe;
  const uint8_t* latent = nullptr;      // [blocks, block_tokens, dim]
  const uint8_t* rope = nullptr;        // [blocks, block_tokens, rope_dim]
  const float* latent_scale = nullptr;  // [blocks, block_tokens, groups], or null
  DType cache = DType::bf16, rope_cache = DType::bf16;
  int rope_dim = 0, groups = 1;  // groups: ceil(dim / 128), or 1 without scales
  bool vectors = false;          // latents begin at multiples of 16 bytes
  bool rope_vectors = false;
};

// T: operands of the latents; R: of the rope part (BF16 or FP32).
template <typename T_, typename R_, int Width_, int Dim, int Cluster>
struct MlaConfig : RowConfig<Dim, 8, 1, Cluster> {
  using T = T_;
  using R = R_;
  static constexpr int Width = Width_;
  static constexpr int Groups128 = Dim / kLatentGroup;
  static constexpr int Pitch = row_pitch<T>(Dim), PPitch = row_pitch<T>(kTile);
  static constexpr int RopePitch = row_pitch<R>(kMaxRope);
  static_assert(Dim % kLatentGroup == 0 && Groups128 <= 4);
};

template <class C>
struct alignas(16) MlaShared {
  using T = typename C::T;
  using R = typename C::R;
  alignas(16) T latent[kTile * C::Pitch];
  alignas(16) R rope[kTile * C::RopePitch];
  alignas(16) T q[kGroupRows * C::Pitch];
  alignas(16) R q_pe[kGroupRows * C::RopePitch];
  alignas(16) T p[C::Groups128][kGroupRows * C::PPitch];
  int32_t slots[C::BlockTiles * kTile];  // of the positions in work
  float scale[C::Groups128][kTile];      // of the tile; 0 where no row sees the position
  float largest[C::Groups128][2];        // of the scales of each half of the tile
  float q_scale[kGroupRows];
  float most[8][kGroupRows];  // a warp's largest scores
  float sums[8][kGroupRows];  // sums of p over eight positions
  bool poisoned[8];           // a warp met a nonfinite latent
  MoreShared<C> more;
};

template <class C>
class MlaWorker : public BlockRows<C> {
  using T = typename C::T;
  using R = typename C::R;
  using Base = BlockRows<C>;
  using Base::warp_, Base::g_, Base::j_;

 public:
  __device__ __forceinline__ MlaWorker(const MlaParams& params, MlaShared<C>& shared, int kv_head)
      : Base(params, kv_head), p_(params), s_(shared) {}

  template <typename Use>
  __device__ __forceinline__ void for_each_tile(int first, int end, Use use) {
    const int tid = static_cast<int>(threadIdx.x);
    __syncthreads();  // what was read before has been used
    this->find_slots(first * kTile, (end - first) * kTile, s_.slots);
    __syncthreads();
    const int64_t latent_bytes = this->latent_bytes(), rope_bytes = this->rope_bytes();
    LatentReader latent;
    RopeReader rope;
    const bool ahead = C::Width > 0 && p_.vectors, rope_ahead = kRopeWidth > 0 && p_.rope_vectors;
    // A scale a thread: of position tid % 64 and group tid / 64.
    const int scale_t = tid % kTile, scale_g = tid / kTile;
    float scale = 0.0f;
    const auto load = [&](const int32_t* slots) {
      if (ahead) latent.load(p_.latent, latent_bytes, p_.dim, slots);
      if (rope_ahead) rope.load(p_.rope, rope_bytes, p_.rope_dim, slots);
      scale = load_scale(slots[scale_t], scale_g);
    };
    if (first < end) load(s_.slots);
    if (!has_queries_) load_queries();  // while the tile is on its way
    has_queries_ = true;
    for (int tile = first; tile < end; ++tile) {
      const int start = tile * kTile;
      const int32_t* const slots = s_.slots + (tile - first) * kTile;
      const bool mixed = this->is_mixed(max(start, this->first_position()),
                                        min(start + kTile, this->end_position()));
      __syncthreads();  // the tile before has been used
      bool nonfinite;
      if (ahead) {
        nonfinite = latent.store(s_.latent, p_.cache, mixed);
      } else {
        nonfinite = LatentReader::copy(p_.latent, latent_bytes, p_.dim, slots, s_.latent, p_.cache);
      }
      if (rope_ahead) {
        rope.store(s_.rope, p_.rope_cache, false);
      } else {
        RopeReader::copy(p_.rope, rope_bytes, p_.rope_dim, slots, s_.rope, p_.rope_cache);
      }
      store_scale(scale);
      const bool poisoned = __syncthreads_or(mixed && nonfinite) != 0;
      if (tile + 1 < end) load(slots + kTile);
      TileResult<C> result;
      compute(start, mixed, poisoned, result);
      use(tile - first, result);
    }
  }

  // For the cluster kernel: see attention_cluster.cuh.
  __device__ __forceinline__ void prepare(int origin, int first, int end) {
    origin_ = origin;
    tile_ = first;
    end_ = end;
    this->find_slots(origin * kTile, C::BlockTiles * kTile, s_.slots);
    for (int row = this->count_ + warp_; row < kGroupRows; row += C::Threads / kWarp) zero_row(row);
    __syncthreads();
    next_scale_ = load_tile(tile_);
    find_fresh();
    nonfinite_ = store_tile();
    scale_ = next_scale_;
    if (tile_ + 1 < end_) next_scale_ = load_tile(tile_ + 1);
  }

  template <typename Use>
  __device__ __forceinline__ void for_each_prepared(Use use, bool) {
    wait_for_previous();
    // Queries and fresh tokens, all at once.
    constexpr int kQueries = kGroupRows / (C::Threads / kWarp);
    load_fresh();
    QueryLoads queries[kQueries];
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      const int row = warp_ + i * (C::Threads / kWarp);
      if (row < this->count_) queries[i].start(*this, row);
    }
    nonfinite_ |= copy_tile();
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      const int row = warp_ + i * (C::Threads / kWarp);
      if (row < this->count_) queries[i].finish(*this, row);
    }
    nonfinite_ |= store_fresh();
    note_poison();
    __syncthreads();
    while (true) {
      const int start = tile_ * kTile;
      const bool mixed = is_mixed_tile();
      bool poisoned = false;
      for (int w = 0; mixed && w < 8; ++w) poisoned |= s_.poisoned[w];
      TileResult<C> result;
      compute(start, mixed, poisoned, result);
      use(tile_, result);
      if (++tile_ >= end_) break;
      __syncthreads();  // the tile before has been used
      find_fresh();
      load_fresh();
      nonfinite_ = store_tile();
      nonfinite_ |= copy_tile();
      scale_ = next_scale_;
      if (tile_ + 1 < end_) next_scale_ = load_tile(tile_ + 1);
      nonfinite_ |= store_fresh();
      note_poison();
      __syncthreads();
    }
  }

 private:
  static constexpr int kRopeWidth = std::is_same_v<R, __nv_bfloat16> ? 2 : 0;
  using LatentReader = TileReader<T, C::Width, C::Dim, C::Threads>;
  using RopeReader = TileReader<R, kRopeWidth, kMaxRope, C::Threads>;

  __device__ __forceinline__ int64_t latent_bytes() const {
    return int64_t{p_.dim} * bytes_of(p_.cache);
  }
  __device__ __forceinline__ int64_t rope_bytes() const {
    return int64_t{p_.rope_dim} * bytes_of(p_.rope_cache);
  }
  // A thread has a scale of each tile: of position t = tid % 64 and group tid / 64.
  __device__ __forceinline__ float load_scale(int32_t slot, int group) const {
    if (slot < 0 || group >= p_.groups) return 0.0f;
    return p_.latent_scale ? p_.latent_scale[int64_t{slot} * p_.groups + group] : 1.0f;
  }
  __device__ __forceinline__ void store_scale(float scale) {
    const int t = static_cast<int>(threadIdx.x) % kTile, g = static_cast<int>(threadIdx.x) / kTile;
    const float largest = warp_max(scale);
    if (g >= C::Groups128) return;
    s_.scale[g][t] = scale;
    if (t % kWarp == 0) s_.largest[g][t / kWarp] = largest;
  }

  // Of a prepared tile: the rows that this step wrote, and whether it is mixed.
  __device__ __forceinline__ TileRows fresh_rows(int tile) const {
    const int start = tile * kTile;
    return {max(this->span_.first_position - start, 0), min(this->end_position() - start, kTile)};
  }
  __device__ __forceinline__ bool is_mixed_tile() const {
    const int start = tile_ * kTile;
    return this->is_mixed(max(start, this->first_position()),
                          min(start + kTile, this->end_position()));
  }
  __device__ __forceinline__ const int32_t* tile_slots() const {
    return s_.slots + (tile_ - origin_) * kTile;
  }
  __device__ __forceinline__ bool latents_ahead() const {
    return C::Width > 0 && p_.vectors;
  }
  __device__ __forceinline__ bool ropes_ahead() const {
    return kRopeWidth > 0 && p_.rope_vectors;
  }
  // The others of a tile: begins to load them, and returns the thread's scale.
  __device__ __forceinline__ float load_tile(int tile) {
    const TileRows fresh = fresh_rows(tile);
    const int32_t* const slots = s_.slots + (tile - origin_) * kTile;
    const int t = static_cast<int>(threadIdx.x) % kTile, g = static_cast<int>(threadIdx.x) / kTile;
    if (latents_ahead()) latent_.load(p_.latent, latent_bytes(), p_.dim, slots, fresh);
    if (ropes_ahead()) rope_.load(p_.rope, rope_bytes(), p_.rope_dim, slots, fresh);
    return fresh.has(t) ? 0.0f : load_scale(slots[t], g);
  }
  // Puts them into shared memory, as well as zeros where no row sees the position.
  __device__ __forceinline__ bool store_tile() {
    if (ropes_ahead()) rope_.store(s_.rope, p_.rope_cache, false, fresh_rows(tile_));
    return latents_ahead() &&
           latent_.store(s_.latent, p_.cache, is_mixed_tile(), fresh_rows(tile_));
  }
  // All rows, where they cannot be read in pieces.
  __device__ __forceinline__ bool copy_tile() {
    if (!ropes_ahead())
      RopeReader::copy(p_.rope, rope_bytes(), p_.rope_dim, tile_slots(), s_.rope, p_.rope_cache);
    return !latents_ahead() &&
           LatentReader::copy(p_.latent, latent_bytes(), p_.dim, tile_slots(), s_.latent, p_.cache);
  }
  __device__ __forceinline__ void find_fresh() {
    const TileRows fresh = fresh_rows(tile_);
    if (latents_ahead())
      fresh_latent_at_ = LatentReader::find_left(latent_bytes(), p_.dim, tile_slots(), fresh);
    if (ropes_ahead())
      fresh_rope_at_ = RopeReader::find_left(rope_bytes(), p_.rope_dim, tile_slots(), fresh);
  }
  __device__ __forceinline__ void load_fresh() {
    const int t = static_cast<int>(threadIdx.x) % kTile, g = static_cast<int>(threadIdx.x) / kTile;
    fresh_latent_.load_left(p_.latent, fresh_latent_at_);
    fresh_rope_.load_left(p_.rope, fresh_rope_at_);
    fresh_scale_ = fresh_rows(tile_).has(t) ? load_scale(tile_slots()[t], g) : 0.0f;
  }
  __device__ __forceinline__ bool store_fresh() {
    const TileRows fresh = fresh_rows(tile_);
    bool nonfinite = false;
    if (latents_ahead()) {
      nonfinite = fresh_latent_.store_left(p_.latent, latent_bytes(), p_.dim, tile_slots(), fresh,
                                           s_.latent, p_.cache, is_mixed_tile());
    }
    if (ropes_ahead()) {
      fresh_rope_.store_left(p_.rope, rope_bytes(), p_.rope_dim, tile_slots(), fresh, s_.rope,
                             p_.rope_cache, false);
    }
    const bool is_fresh = fresh.has(static_cast<int>(threadIdx.x) % kTile);
    store_scale(is_fresh ? fresh_scale_ : scale_);
    return nonfinite;
  }
  __device__ __forceinline__ void note_poison() {
    const bool any = __ballot_sync(~0u, nonfinite_) != 0;
    if (threadIdx.x % kWarp == 0) s_.poisoned[warp_] = any;
  }

  __device__ __forceinline__ static int bytes_of(DType type) {
    return type == DType::f32 ? 4 : type == DType::bf16 || type == DType::f16 ? 2 : 1;
  }

  // S of step 5 for the lane's two rows and each group.
  __device__ __forceinline__ void find_value_scales(bool mixed, const Seen (&seen)[2],
                                                    float (&s)[C::Groups128][2]) const {
    if (!mixed) {
#pragma unroll
      for (int g = 0; g < C::Groups128; ++g) {
        s[g][0] = ceil_pow2(fmaxf(s_.largest[g][0], s_.largest[g][1]));
        s[g][1] = s[g][0];
      }
      return;
    }
    // The four lanes of a row take a group each.
    float own[2] = {0.0f, 0.0f};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      for (int t = seen[h].begin; t < seen[h].end && j_ < C::Groups128; ++t)
        own[h] = fmaxf(own[h], s_.scale[j_][t]);
    }
#pragma unroll
    for (int g = 0; g < C::Groups128; ++g) {
#pragma unroll
      for (int h = 0; h < 2; ++h) s[g][h] = ceil_pow2(__shfl_sync(~0u, own[h], g, 4));
    }
  }

  __device__ __forceinline__ void load_queries() {
    for (int row = warp_; row < kGroupRows; row += C::Threads / kWarp) {
      if (row >= this->count_) {
        zero_row(row);
        continue;
      }
      QueryLoads loads;
      loads.start(*this, row);
      loads.finish(*this, row);
    }
  }
  __device__ __forceinline__ void zero_row(int row) {
    zero_query<C::Dim>(s_.q + row * C::Pitch);
    zero_query<kMaxRope>(s_.q_pe + row * C::RopePitch);
    if (threadIdx.x % kWarp == 0) s_.q_scale[row] = 1.0f;
  }
  // Both parts of one row, by a warp.
  struct QueryLoads {
    QueryRow<C::Dim> latent;
    QueryRow<kMaxRope> pe;
    __device__ __forceinline__ void start(const MlaWorker& w, int row) {
      const MlaParams& p = w.p_;
      const int token = w.token_of(row), head = w.head_of(row);
      latent.load(p.q_latent.type, p.q_latent.at(token, head), p.dim, p.q_latent.vectors);
      pe.load(p.q_pe.type, p.q_pe.at(token, head), p.rope_dim, p.q_pe.vectors);
    }
    __device__ __forceinline__ void finish(const MlaWorker& w, int row) const {
      const MlaParams& p = w.p_;
      const float scale = latent.finish(p.q_latent.type, p.fp8, w.s_.q + row * C::Pitch);
      pe.finish(p.q_pe.type, false, w.s_.q_pe + row * C::RopePitch);
      if (threadIdx.x % kWarp == 0) w.s_.q_scale[row] = scale;
    }
  };

  // Steps 1 to 6 of the rule, but for what joins the tile to others.
  __device__ __forceinline__ void compute(int start, bool mixed, bool poisoned, TileResult<C>& r) {
    const int t = warp_ * 8 + 2 * j_;  // of c[0] and c[2]; c[1] and c[3] are of the next position
    Seen seen[2];
    this->set_seen(start, seen);

    float parts[C::Groups128][1][4] = {};
#pragma unroll
    for (int g = 0; g < C::Groups128; ++g) {
      multiply_keys<1, kLatentGroup>(s_.q + g * kLatentGroup, C::Pitch,
                                     s_.latent + warp_ * 8 * C::Pitch + g * kLatentGroup, C::Pitch,
                                     parts[g]);
    }
    float pe[1][4] = {};
    multiply_keys<1, kMaxRope>(s_.q_pe, C::RopePitch, s_.rope + warp_ * 8 * C::RopePitch,
                               C::RopePitch, pe);
    float x[4], most[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int h = e / 2;
      // Without scales all groups are one, whose scale is 1.
      x[e] = __fmul_rn(s_.scale[0][t + e % 2], parts[0][0][e]);
#pragma unroll
      for (int g = 1; g < C::Groups128; ++g)
        x[e] = __fmaf_rn(p_.latent_scale ? s_.scale[g][t + e % 2] : 1.0f, parts[g][0][e], x[e]);
      x[e] = __fmul_rn(__fmaf_rn(x[e], s_.q_scale[g_ + 8 * h], pe[0][e]), p_.scale);
      if (!seen[h].has(t + e % 2)) x[e] = -INFINITY;
      most[h] = fmaxf(most[h], x[e]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      most[h] = quad_max(most[h]);
      if (j_ == 0) s_.most[warp_][g_ + 8 * h] = most[h];
    }
    this->unit_barrier();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int w = 0; w < 8; ++w) most[h] = fmaxf(most[h], s_.most[w][g_ + 8 * h]);
      r.max[h] = tile_max(most[h]);
      x[2 * h] = exp2_fast(__fsub_rn(x[2 * h], r.max[h]));
      x[2 * h + 1] = exp2_fast(__fsub_rn(x[2 * h + 1], r.max[h]));
      const float sum = quad_sum(__fadd_rn(x[2 * h], x[2 * h + 1]));
      if (j_ == 0) s_.sums[warp_][g_ + 8 * h] = sum;
    }

    const float unit = p_.round == RoundP::e4m3 ? 1.0f / attention_rule::kPScale : 1.0f;
    const int own_group = p_.latent_scale ? warp_ * C::ValueTiles * 8 / kLatentGroup : 0;
    r.value_scale[0] = r.value_scale[1] = unit;
    if (p_.latent_scale) {
      float s[C::Groups128][2];
      find_value_scales(mixed, seen, s);
#pragma unroll
      for (int g = 0; g < C::Groups128; ++g) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float inv = __fdiv_rn(1.0f, s[g][h]);  // of a power of two: exact
          float p[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float ratio = __fmul_rn(s_.scale[g][t + e], inv);
            p[e] = seen[h].has(t + e) ? __fmul_rn(x[2 * h + e], ratio) : 0.0f;
          }
          store_p(s_.p[g] + (g_ + 8 * h) * C::PPitch + t, p[0], p[1], p_.round);
          if (g == own_group) r.value_scale[h] = __fmul_rn(s[g][h], unit);
        }
      }
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        store_p(s_.p[0] + (g_ + 8 * h) * C::PPitch + t, x[2 * h], x[2 * h + 1], p_.round);
    }
    this->unit_barrier();

#pragma unroll
    for (int h = 0; h < 2; ++h) {
      r.sum[h] = s_.sums[0][g_ + 8 * h];
#pragma unroll
      for (int w = 1; w < 8; ++w) r.sum[h] = __fadd_rn(r.sum[h], s_.sums[w][g_ + 8 * h]);
    }
#pragma unroll
    for (int n = 0; n < C::ValueTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) r.o[n][e] = 0.0f;
    }
    multiply_values(s_.p[own_group], C::PPitch, s_.latent + warp_ * C::ValueTiles * 8, C::Pitch,
                    poisoned, seen, r.o);
  }

  const MlaParams& p_;
  MlaShared<C>& s_;
  bool has_queries_ = false;
  // Of the cluster kernel: the tile that is on its way.
  int origin_ = 0, tile_ = 0, end_ = 0;
  LatentReader latent_, fresh_latent_;
  RopeReader rope_, fresh_rope_;
  float scale_ = 0.0f, next_scale_ = 0.0f, fresh_scale_ = 0.0f;
  bool nonfinite_ = false;
  int64_t fresh_latent_at_ = -1, fresh_rope_at_ = -1;
};

template <class C>
__global__ void __launch_bounds__(C::Threads)
    mla_chunk_kernel(const __grid_constant__ MlaParams p) {
  extern __shared__ __align__(16) uint8_t memory[];
  chunk_rows<MlaWorker<C>, C>(p, *reinterpret_cast<MlaShared<C>*>(memory));
}
template <class C>
__global__ void __launch_bounds__(C::Threads)
    mla_split_kernel(const __grid_constant__ MlaParams p) {
  extern __shared__ __align__(16) uint8_t memory[];
  split_rows<MlaWorker<C>, C>(p, *reinterpret_cast<MlaShared<C>*>(memory));
}
template <class C>
__global__ void __cluster_dims__(C::Cluster, 1, 1) __launch_bounds__(C::Threads)
    mla_cluster_kernel(const __grid_constant__ MlaParams p) {
  extern __shared__ __align__(16) uint8_t memory[];
  cluster_rows<MlaWorker<C>, C>(p, *reinterpret_cast<MlaShared<C>*>(memory));
}

template <typename T, typename R, int Width, int Dim>
void launch_mla_split_dim(const KernelContext& context, const MlaParams& p) {
  const int units = p.range * p.packs * p.slots;
  const dim3 grid(1, static_cast<unsigned>(p.range * p.packs), static_cast<unsigned>(p.slots));
  if constexpr (!std::is_same_v<T, float>) {
    if (units * 4 <= context.caps.sms * 2) {
      using C = MlaConfig<T, R, Width, Dim, 8>;
      static_assert(sizeof(MlaShared<C>) <= 227 * 1024);
      return launch(context, mla_cluster_kernel<C>, dim3(8, grid.y, grid.z), C::Threads,
                    sizeof(MlaShared<C>), p);
    }
  }
  using C = MlaConfig<T, R, Width, Dim, 1>;
  static_assert(sizeof(MlaShared<C>) <= 227 * 1024);
  launch(context, mla_split_kernel<C>, grid, C::Threads, sizeof(MlaShared<C>), p);
}

// The two launches for one T, R and Width; each pair is compiled in a file of its own.
template <typename T, typename R, int Width>
void launch_mla_split(const KernelContext& context, const MlaParams& p) {
  if (p.dim <= 256) return launch_mla_split_dim<T, R, Width, 256>(context, p);
  launch_mla_split_dim<T, R, Width, 512>(context, p);
}
template <typename T, typename R, int Width>
void launch_mla_chunk(const KernelContext& context, const MlaParams& p) {
  const auto run = [&]<int Dim>(std::integral_constant<int, Dim>) {
    using C = MlaConfig<T, R, Width, Dim, 0>;
    static_assert(C::TotalInRegisters && sizeof(MlaShared<C>) <= 227 * 1024);
    launch(context, mla_chunk_kernel<C>, dim3(static_cast<unsigned>(chunk_items<C>(p))), C::Threads,
           sizeof(MlaShared<C>), p);
  };
  if (p.dim <= 256) return run(std::integral_constant<int, 256>{});
  run(std::integral_constant<int, 512>{});
}

}  // namespace octet::cuda
