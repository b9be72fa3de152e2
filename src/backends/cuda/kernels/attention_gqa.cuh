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

#include "backends/cuda/kernels/attention_cluster.cuh"
#include "backends/cuda/kernels/attention_fresh.cuh"

namespace octet::cuda {

struct GqaParams : RowParams {
  HeadsView q;
  const uint8_t *k = nullptr, *v = nullptr;            // [blocks, block_tokens, kv_heads, dim]
  const float *k_scale = nullptr, *v_scale = nullptr;  // [blocks, kv_heads], or null
  DType cache = DType::bf16;
  bool vectors = false;  // rows of K and V begin at multiples of 16 bytes
  FreshParams fresh;     // in the cluster kernels alone
};

// Fresh: of a step that brings its own rows, one a sequence (attention_fresh.cuh).
template <typename T_, int Width_, int Dim, int Warps, int Groups, int Cluster, int Sets = 1,
          bool Fresh_ = false>
struct GqaConfig : RowConfig<Dim, Warps, Groups, Cluster, Sets> {
  using T = T_;
  static constexpr int Width = Width_;
  static constexpr bool Fresh = Fresh_, OneToken = Fresh;
  static constexpr int Pitch = row_pitch<T>(Dim), PPitch = row_pitch<T>(kTile);
  // Of the split kernel on an SM, to hide the latency of memory; more would spill registers.
  static constexpr int MinBlocks = Dim > 128 ? 1 : Sets > 1 ? 2 : Dim == 128 && Width == 2 ? 3 : 4;
  static_assert(Warps == 1 || Warps == 2 || Warps == 4);
  static_assert(!Fresh || (Cluster > 1 && Width > 0 && Warps >= 2));
};

template <class C>
struct alignas(16) GqaShared {
  using T = typename C::T;
  alignas(16) T k[C::Sets * kTile * C::Pitch];
  alignas(16) T v[C::Sets * kTile * C::Pitch];
  alignas(16) T q[C::Rows * C::Pitch];
  alignas(16) T p[C::Units * kGroupRows * C::PPitch];
  float k_scale[C::BlockTiles * kTile], v_scale[C::BlockTiles * kTile];
  int32_t slots[C::BlockTiles * kTile];  // of the positions in work
  float q_scale[C::Rows];
  float most[C::Units][C::Warps][kGroupRows];  // a warp's largest scores
  float sums[C::Units][4][kGroupRows];         // sum of p over 16 positions
  bool poisoned[C::Threads / kWarp];           // a warp met a nonfinite V
  MoreShared<C> more;
};

template <class C>
class GqaWorker : public BlockRows<C> {
  using T = typename C::T;

  using Base = BlockRows<C>;
  using Base::first_, Base::last_, Base::kv_head_, Base::group_, Base::unit_, Base::warp_;
  using Base::g_, Base::j_;

 public:
  __device__ __forceinline__ GqaWorker(const GqaParams& params, GqaShared<C>& shared, int kv_head)
      : Base(params, kv_head), p_(params), s_(shared) {}

  template <typename Use>
  __device__ __forceinline__ void for_each_tile(int first, int end, Use use) {
    const int positions = (end - first) * kTile, tid = static_cast<int>(threadIdx.x);
    __syncthreads();  // what was read before has been used
    this->find_slots(first * kTile, positions, s_.slots);
    __syncthreads();
    const int64_t row_bytes = this->row_bytes(), offset = this->offset();
    Reader k, v;
    const bool ahead = C::Width > 0 && p_.vectors;
    if (ahead && first < end) {
      k.load(p_.k + offset, row_bytes, p_.dim, s_.slots);
      v.load(p_.v + offset, row_bytes, p_.dim, s_.slots);
    }
    for (int i = tid; i < positions; i += C::Threads) {
      const int32_t slot = s_.slots[i];
      float k_scale = 0.0f, v_scale = 0.0f;
      if (slot >= 0) load_scales(slot, k_scale, v_scale);
      s_.k_scale[i] = k_scale;
      s_.v_scale[i] = v_scale;
    }
    if (!has_queries_) load_queries(tid / kWarp, C::Rows);  // while K and V are on their way
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

  // For the cluster kernel: see attention_cluster.cuh.
  __device__ __forceinline__ void prepare(int origin, int first, int end) {
    static_assert(C::BlockTiles * kTile <= C::Threads);
    origin_ = origin;
    tile_ = origin + unit_;
    while (tile_ < first) tile_ += C::Sets;
    end_ = end;
    const int tid = static_cast<int>(threadIdx.x);
    this->find_slots(origin * kTile, C::BlockTiles * kTile, s_.slots);
    for (int row = this->count_ + tid / kWarp; row < C::Rows; row += C::Threads / kWarp)
      zero_query<C::Dim>(s_.q + row * C::Pitch);
    if (tid < C::Rows) s_.q_scale[tid] = 1.0f;
    __syncthreads();
    if (tile_ < end_) {
      load_tile(tile_);
      fresh_at_ = find_fresh(tile_);
    }
    if constexpr (C::Fresh) prepare_fresh(first);
    const int32_t slot = tid < C::BlockTiles * kTile ? s_.slots[tid] : -1;
    float k_scale = 0.0f, v_scale = 0.0f;
    if (slot >= 0) {
      const int64_t cell = cell_of(slot);
      if (origin * kTile + tid >= this->span_.first_position) {
        fresh_cell_ = cell;  // its scales: of the fresh row's warps, or in the cache by and by
      } else {
        load_cell(cell, k_scale, v_scale);
      }
    }
    const int row = tid / kWarp;
    if (row < this->count_) query_ = p_.q.at(this->token_of(row), this->head_of(row));
    if (tile_ < end_) {
      nonfinite_ = store_tile(tile_);
      load_next_tile();
    }
    if (tid < C::BlockTiles * kTile && fresh_cell_ < 0) {
      s_.k_scale[tid] = k_scale;
      s_.v_scale[tid] = v_scale;
    }
  }

  template <typename Use>
  __device__ __forceinline__ void for_each_prepared(Use use, bool rehearsal) {
    if constexpr (C::Fresh) return for_each_fresh(use, rehearsal);
    wait_for_previous();
    const int tid = static_cast<int>(threadIdx.x), lane = tid % kWarp, row = tid / kWarp;
    // Queries and fresh tokens, all at once.
    Reader k_fresh, v_fresh;
    k_fresh.load_left(p_.k + offset(), fresh_at_);
    v_fresh.load_left(p_.v + offset(), fresh_at_);
    QueryRow<C::Dim> query;
    if (query_) query.load(p_.q.type, query_, p_.dim, p_.q.vectors);
    float k_scale = 0.0f, v_scale = 0.0f;
    if (fresh_cell_ >= 0) load_cell(fresh_cell_, k_scale, v_scale);
    if (tile_ < end_) nonfinite_ |= copy_tile(tile_);
    if (query_) {
      const float scale = query.finish(p_.q.type, p_.fp8, s_.q + row * C::Pitch);
      if (lane == 0) s_.q_scale[row] = scale;
    }
    load_queries(row + C::Threads / kWarp, this->count_);
    if (tile_ < end_) nonfinite_ |= store_fresh(tile_, k_fresh, v_fresh);
    if (fresh_cell_ >= 0) {
      s_.k_scale[tid] = k_scale;
      s_.v_scale[tid] = v_scale;
    }
    note_poison();
    __syncthreads();
    while (tile_ < end_) {
      TileResult<C> result;
      compute_prepared(result);
      use(tile_, result);
      tile_ += C::Sets;
      if constexpr (C::BlockTiles > C::Sets) {
        if (tile_ >= end_) break;
        this->unit_barrier();  // the tile before has been used
        fresh_at_ = find_fresh(tile_);
        k_fresh.load_left(p_.k + offset(), fresh_at_);
        v_fresh.load_left(p_.v + offset(), fresh_at_);
        nonfinite_ = store_tile(tile_);
        nonfinite_ |= copy_tile(tile_);
        load_next_tile();
        nonfinite_ |= store_fresh(tile_, k_fresh, v_fresh);
        note_poison();
        this->unit_barrier();
      }
    }
  }

 private:
  // The tile in work, whose scales of V may differ.
  __device__ __forceinline__ void compute_prepared(TileResult<C>& result) {
    const int start = tile_ * kTile, at = start - origin_ * kTile;
    const float v_scale = s_.v_scale[at + max(this->first_position() - start, 0)];
    bool differs = false;
#pragma unroll
    for (int t = static_cast<int>(threadIdx.x) % kWarp; t < kTile; t += kWarp) {
      const float scale = s_.v_scale[at + t];  // 0: no row sees the position
      differs |= scale != 0.0f && scale != v_scale;
    }
    const bool varied = __ballot_sync(~0u, differs) != 0;
    bool poisoned = false;
    if (is_mixed_tile(tile_)) {
      for (int w = 0; w < C::Warps; ++w) poisoned |= s_.poisoned[unit_ * C::Warps + w];
    }
    compute(at, start, varied, v_scale, poisoned, result);
  }

  // The same where this step brings its rows.
  template <typename Use>
  __device__ __forceinline__ void for_each_fresh(Use use, bool rehearsal) {
    const int tid = static_cast<int>(threadIdx.x), lane = tid % kWarp, row = tid / kWarp;
    if (!rehearsal) wait_for_previous();
    QueryRow<C::Dim> query;
    if (query_) query.load(DType::bf16, query_, C::Dim, true);
    if (fresh_.plane) fresh_.load(this->span_.first_row, kv_head_);
    if (fresh_.plane == p_.fresh.planes.of) fresh_.row.rotate(angles_.c, angles_.s);
    if (query_) {
      query.rotate(angles_.c, angles_.s);
      const float scale = query.finish(DType::bf16, kFp8 || p_.fp8, s_.q + row * C::Pitch);
      if (lane == 0) s_.q_scale[row] = scale;
    }
    if (!rehearsal) {
      put_fresh();
      load_queries(row + C::Threads / kWarp, this->count_);
    }
    __syncthreads();
    TileResult<C> result;
    if (tile_ < end_) {
      compute_prepared(result);
      if (!rehearsal) use(tile_, result);
    }
    if constexpr (C::BlockTiles > C::Sets) {
      if (rehearsal) return;
      for (tile_ += C::Sets; tile_ < end_; tile_ += C::Sets) {
        this->unit_barrier();  // the tile before has been used
        store_tile(tile_);
        load_next_tile();
        put_fresh();
        this->unit_barrier();
        compute_prepared(result);
        use(tile_, result);
      }
    }
  }

  // The row of this warp, if the tile in work has it, into the cache and the tile.
  __device__ __forceinline__ void put_fresh() {
    if (!fresh_.plane || this->span_.first_position / kTile != tile_) return;
    T* const tiles = fresh_.plane == p_.fresh.planes.of ? s_.k : s_.v;
    fresh_.store(tiles + set() * kTile * C::Pitch, C::Pitch);
  }

  static constexpr bool kFp8 = std::is_same_v<T, __half>;
  using Reader = TileReader<T, C::Width, C::Dim, C::SetThreads>;

  __device__ __forceinline__ int set() const {
    return C::Sets > 1 ? unit_ : 0;
  }
  __device__ __forceinline__ int64_t row_bytes() const {
    return int64_t{p_.kv_heads} * dim() * element_bytes();
  }
  __device__ __forceinline__ int64_t offset() const {
    return int64_t{kv_head_} * dim() * element_bytes();
  }
  __device__ __forceinline__ void load_scales(int32_t slot, float& k_scale, float& v_scale) const {
    load_cell(cell_of(slot), k_scale, v_scale);
  }
  __device__ __forceinline__ int64_t cell_of(int32_t slot) const {
    return int64_t{slot / p_.pages.block_tokens} * p_.kv_heads + kv_head_;
  }
  __device__ __forceinline__ void load_cell(int64_t cell, float& k_scale, float& v_scale) const {
    k_scale = p_.k_scale ? p_.k_scale[cell] : 1.0f;
    v_scale = p_.v_scale ? p_.v_scale[cell] : 1.0f;
  }

  // Of a step that brings its own rows: the angles of their position, and the row of this warp,
  // which is of the set that has its tile. [first, end_) are the block's tiles.
  __device__ __forceinline__ void prepare_fresh(int first) {
    const int position = this->span_.first_position, tile = position / kTile;
    angles_.load(p_.fresh.angles, position);
    const int which = C::Warps - 1 - warp_;  // K, V
    if (tile < first || tile >= end_ || (tile - origin_) % C::Sets != set() || which > 1) return;
    fresh_.enter(p_.fresh, which, this->sequence_, this->span_, kv_head_, position - tile * kTile);
    if (threadIdx.x % kWarp == 0) {
      (which == 0 ? s_.k_scale : s_.v_scale)[position - origin_ * kTile] =
          fresh_.to < 0 ? 0.0f : fresh_.running.scale;
    }
  }

  // Of a prepared tile: the rows that this step wrote, and whether it is mixed.
  __device__ __forceinline__ TileRows fresh_rows(int tile) const {
    const int start = tile * kTile;
    return {max(this->span_.first_position - start, 0), min(this->end_position() - start, kTile)};
  }
  __device__ __forceinline__ bool is_mixed_tile(int tile) const {
    const int start = tile * kTile;
    return this->is_mixed(max(start, this->first_position()),
                          min(start + kTile, this->end_position()));
  }
  // Known where the kernel is compiled for steps that bring their rows.
  __device__ __forceinline__ int dim() const {
    return C::Fresh ? C::Dim : p_.dim;
  }
  __device__ __forceinline__ bool vectors() const {
    return C::Fresh || p_.vectors;
  }
  // The others of a tile: begins to load them, and puts them into shared memory, as well as zeros
  // where no row sees the position.
  __device__ __forceinline__ void load_tile(int tile) {
    if (!vectors()) return;
    const int32_t* const slots = s_.slots + (tile - origin_) * kTile;
    k_.load(p_.k + offset(), row_bytes(), dim(), slots, fresh_rows(tile));
    v_.load(p_.v + offset(), row_bytes(), dim(), slots, fresh_rows(tile));
  }
  __device__ __forceinline__ void load_next_tile() {
    if constexpr (C::BlockTiles > C::Sets) {
      if (tile_ + C::Sets < end_) load_tile(tile_ + C::Sets);
    }
  }
  __device__ __forceinline__ bool store_tile(int tile) {
    if (!vectors()) return false;
    k_.store(s_.k + set() * kTile * C::Pitch, p_.cache, false, fresh_rows(tile));
    return v_.store(s_.v + set() * kTile * C::Pitch, p_.cache, is_mixed_tile(tile),
                    fresh_rows(tile));
  }
  // All rows, where they cannot be read in pieces.
  __device__ __forceinline__ bool copy_tile(int tile) {
    if (vectors()) return false;
    T* const k = s_.k + set() * kTile * C::Pitch;
    T* const v = s_.v + set() * kTile * C::Pitch;
    const int32_t* const slots = s_.slots + (tile - origin_) * kTile;
    Reader::copy(p_.k + offset(), row_bytes(), p_.dim, slots, k, p_.cache);
    return Reader::copy(p_.v + offset(), row_bytes(), p_.dim, slots, v, p_.cache);
  }
  // The fresh ones: where the thread's piece lies in K and V, -1 if it has none.
  __device__ __forceinline__ int64_t find_fresh(int tile) const {
    if (!vectors() || C::Fresh) return -1;
    return Reader::find_left(row_bytes(), p_.dim, s_.slots + (tile - origin_) * kTile,
                             fresh_rows(tile));
  }
  __device__ __forceinline__ bool store_fresh(int tile, Reader& k, Reader& v) {
    if (!vectors()) return false;
    const int32_t* const slots = s_.slots + (tile - origin_) * kTile;
    const TileRows fresh = fresh_rows(tile);
    k.store_left(p_.k + offset(), row_bytes(), p_.dim, slots, fresh,
                 s_.k + set() * kTile * C::Pitch, p_.cache, false);
    return v.store_left(p_.v + offset(), row_bytes(), p_.dim, slots, fresh,
                        s_.v + set() * kTile * C::Pitch, p_.cache, is_mixed_tile(tile));
  }
  __device__ __forceinline__ void note_poison() {
    const bool any = __ballot_sync(~0u, nonfinite_) != 0;
    if (threadIdx.x % kWarp == 0) s_.poisoned[threadIdx.x / kWarp] = any;
  }

  __device__ __forceinline__ int element_bytes() const {
    if constexpr (C::Width > 0) return C::Width;
    return p_.cache == DType::f32 ? 4 : p_.cache == DType::bf16 || p_.cache == DType::f16 ? 2 : 1;
  }

  // Rows [first, end); every warp has every (Threads / 32)th.
  __device__ __forceinline__ void load_queries(int first, int end) {
    for (int row = first; row < end; row += C::Threads / kWarp) {
      T* const to = s_.q + row * C::Pitch;
      if (row < this->count_) {
        const void* const from = p_.q.at(this->token_of(row), this->head_of(row));
        QueryRow<C::Dim> query;
        const DType type = C::Fresh ? DType::bf16 : p_.q.type;
        query.load(type, from, dim(), C::Fresh || p_.q.vectors);
        if constexpr (C::Fresh) query.rotate(angles_.c, angles_.s);
        const float scale = query.finish(type, (C::Fresh && kFp8) || p_.fp8, to);
        if (threadIdx.x % kWarp == 0) s_.q_scale[row] = scale;
      } else {
        zero_query<C::Dim>(to);
        if (threadIdx.x % kWarp == 0) s_.q_scale[row] = 1.0f;
      }
    }
  }

  // Steps 1 to 6 of the rule for the group's rows, but for what joins the tile to others.
  __device__ __forceinline__ void compute(int at, int start, bool varied, float v_scale,
                                          bool poisoned, TileResult<C>& r) {
    constexpr int kScores = C::ScoreTiles, kWarpTokens = kTile / C::Warps;
    const T* const q = s_.q + group_ * kGroupRows * C::Pitch;
    T* const p = s_.p + unit_ * kGroupRows * C::PPitch;
    const T* const k = s_.k + set() * kTile * C::Pitch;
    const T* const v = s_.v + set() * kTile * C::Pitch;
    const int first = warp_ * kWarpTokens;  // of the warp's positions in the tile
    Seen seen[2];
    this->set_seen(start, seen);

    float x[kScores][4] = {};
    multiply_keys<kScores, C::Dim>(q, C::Pitch, k + first * C::Pitch, C::Pitch, x);
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
        s_.most[unit_][warp_][g_] = most[0];
        s_.most[unit_][warp_][g_ + 8] = most[1];
      }
      this->unit_barrier();
#pragma unroll
      for (int w = 0; w < C::Warps; ++w) {
        most[0] = fmaxf(most[0], s_.most[unit_][w][g_]);
        most[1] = fmaxf(most[1], s_.most[unit_][w][g_ + 8]);
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
        s_.sums[unit_][warp_ * kSums + u][g_] = sums[u][0];
        s_.sums[unit_][warp_ * kSums + u][g_ + 8] = sums[u][1];
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
    this->unit_barrier();

#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if constexpr (C::Warps == 1) {
        r.sum[h] = __fadd_rn(__fadd_rn(__fadd_rn(sums[0][h], sums[1][h]), sums[2][h]), sums[3][h]);
      } else {
        const int at_row = g_ + 8 * h;
        r.sum[h] =
            __fadd_rn(__fadd_rn(__fadd_rn(s_.sums[unit_][0][at_row], s_.sums[unit_][1][at_row]),
                                s_.sums[unit_][2][at_row]),
                      s_.sums[unit_][3][at_row]);
      }
    }
#pragma unroll
    for (int n = 0; n < C::ValueTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) r.o[n][e] = 0.0f;
    }
    multiply_values(p, C::PPitch, v + warp_ * C::ValueTiles * 8, C::Pitch, poisoned, seen, r.o);
  }

  const GqaParams& p_;
  GqaShared<C>& s_;
  bool has_queries_ = false;
  // Of the cluster kernel: the tile in work, the one on its way, and what is to be loaded after the
  // wait. A thread has the scales of one position.
  int origin_ = 0, tile_ = 0, end_ = 0;
  Reader k_, v_;
  const void* query_ = nullptr;              // the warp's first row
  int64_t fresh_at_ = -1, fresh_cell_ = -1;  // to be loaded after the wait
  bool nonfinite_ = false;
  RowAngles<C::Dim> angles_;
  FreshRow<C::Dim> fresh_;
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
__global__ void __cluster_dims__(C::Cluster, 1, 1) __launch_bounds__(C::Threads, C::MinBlocks)
    gqa_cluster_kernel(const __grid_constant__ GqaParams p) {
  extern __shared__ __align__(16) uint8_t memory[];
  cluster_rows<GqaWorker<C>, C>(p, *reinterpret_cast<GqaShared<C>*>(memory));
}

}  // namespace octet::cuda
