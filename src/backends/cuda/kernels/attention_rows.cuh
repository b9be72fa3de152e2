// What the GQA and MLA kernels share beyond the tile: which rows a block has, what becomes of the
// tiles, and where results go.
//
// Rows are (token, head) pairs of one sequence whose heads share K and V, flattened: row f is token
// f / group, head f % group of its KV head (MLA has one KV head). A block takes up to Groups * 16.
//
//   split kernel   sequences of few rows (decode): a block or a cluster for 16 rows, a KV head and
//   a
//                  split of 1024 tokens. A cluster of 4 or 8 blocks shares out the 16 tiles, keeps
//                  what each tile gave in shared memory, and folds it in ascending order in the end
//   merge kernel   the splits of a row, ascending; not needed where there can be only one
//   chunk kernel   sequences of more rows (prefill): a block goes over all tiles
//
// Which of them computes a row, and with how many warps and blocks, does not change a bit of it:
// see attention_tile.cuh.
#pragma once

#include <cooperative_groups.h>

#include <algorithm>

#include "backends/cuda/kernels/attention_tile.cuh"
#include "backends/cuda/kernels/launch.cuh"

namespace octet::cuda {

struct RowParams {
  HeadsView out;
  bool out_pairs = false;  // two outputs may be stored at once
  float* lse = nullptr;    // [T, heads], rows `lse_stride` apart, or null
  int64_t lse_stride = 0;
  PagedRows pages;
  const int32_t *spans = nullptr, *row_sequence = nullptr;
  int rows = 0, sequences = 0, kv_heads = 1, group = 0, dim = 0, window = 0;
  float scale = 1.0f;  // times log2(e)
  bool fp8 = false;
  RoundP round = RoundP::none;
  // Sequences of at most `few` rows are the split kernel's: it computes `range` of them from
  // `first_sequence` on, `packs` groups of 16 rows each.
  int few = 1, packs = 1, first_sequence = 0, range = 0;
  bool chunks = false;    // there may be others
  bool one_split = true;  // no sequence goes beyond split 0
  // If there may be more slots than one, split s leaves its sums in slot s % slots:
  int slots = 1;
  float* part_o = nullptr;    // [slots, range, kv_heads, few * group, dim]
  float2* part_ml = nullptr;  // the same without dim: M and l

  __device__ __forceinline__ int64_t part(int slot, int sequence, int kv_head, int row) const {
    const int64_t at = static_cast<int64_t>(slot) * range + (sequence - first_sequence);
    return (at * kv_heads + kv_head) * (few * group) + row;
  }
};

// Fault-free part of the host's work: everything in `p` but the types of operands. q, out
// [T, heads, dim]; `blocks` and `block_tokens` are the cache's.
void plan_rows(const ops::Batch& batch, const ops::AttentionSpec& spec, const Tensor& out,
               const Tensor& lse, int64_t kv_heads, int64_t blocks, int64_t block_tokens,
               RowParams& p);
// The next range of sequences: as many as the workspace holds the splits of. False at the end.
bool next_range(const KernelContext& context, RowParams& p);
// The merge kernel for that range.
void merge_splits(const KernelContext& context, const RowParams& p);
// What is wrong with the arguments that both ops have; null if nothing is.
const char* refuse_rows(const ops::Batch& batch, const Tensor& q, const Tensor& out,
                        const Tensor& lse);

// --- on the device -------------------------------------------------------------------------------

// Warps: how many share a group of 16 rows. Cluster: blocks that share a split; 0 = chunk kernel.
template <int Dim_, int Warps_, int Groups_, int Cluster_>
struct RowConfig {
  static constexpr int Dim = Dim_, Warps = Warps_, Groups = Groups_, Cluster = Cluster_;
  static constexpr int Threads = Warps * Groups * kWarp;
  static constexpr int Rows = Groups * kGroupRows;
  static constexpr int ScoreTiles = kTile / 8 / Warps;  // 8-column tiles of C that a warp computes
  static constexpr int ValueTiles = Dim / 8 / Warps;
  static constexpr int BlockTiles = Cluster == 0 ? kSplitTiles : kSplitTiles / Cluster;
  // Where a chunk keeps the total of the splits before the one in work.
  static constexpr bool TotalInRegisters = ValueTiles <= 8;
};

// What the blocks of a cluster tell each other: a split's tiles, each by itself.
template <class C>
struct alignas(16) ClusterTiles {
  float o[C::BlockTiles][kGroupRows][C::Dim];
  float max[C::BlockTiles][kGroupRows], sum[C::BlockTiles][kGroupRows];
};
template <class C>
struct ChunkTotal {
  float o[C::ValueTiles * 4][C::Threads];  // each thread's own
};
struct NoMore {};
// The last member of a kernel's shared memory.
template <class C>
using MoreShared = std::conditional_t<
    (C::Cluster > 1), ClusterTiles<C>,
    std::conditional_t<C::Cluster == 0 && !C::TotalInRegisters, ChunkTotal<C>, NoMore>>;

// What one tile gives to the two rows of a lane.
template <class C>
struct TileResult {
  float max[2], sum[2], value_scale[2];
  float o[C::ValueTiles][4];  // to be multiplied by value_scale
};

// The rows of a block, and which of them a lane has.
template <class C>
class BlockRows {
 public:
  __device__ __forceinline__ BlockRows(const RowParams& params, int kv_head)
      : r_(params), kv_head_(kv_head) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    group_ = warp / C::Warps;
    warp_ = warp % C::Warps;
    g_ = static_cast<int>(threadIdx.x) % kWarp / 4;
    j_ = static_cast<int>(threadIdx.x) % 4;
  }

  // Rows [flat, flat + count) of the sequence.
  __device__ __forceinline__ void set_rows(int sequence, const Span& span, int flat, int count) {
    sequence_ = sequence;
    span_ = span;
    flat_ = flat;
    count_ = count;
    first_ = position_of(0);
    last_ = position_of(count - 1);
    const int group_count = min(count - group_ * kGroupRows, kGroupRows);
    group_first_ = position_of(group_ * kGroupRows);
    group_last_ = group_count > 0 ? position_of(group_ * kGroupRows + group_count - 1) : -1;
#pragma unroll
    for (int h = 0; h < 2; ++h) position_[h] = row(h) < count ? position_of(row(h)) : -1;
  }

  // The tiles that some row of the block sees.
  __device__ __forceinline__ int first_tile() const {
    return first_position() / kTile;
  }
  __device__ __forceinline__ int end_tile() const {
    return last_ / kTile + 1;
  }

  // Column of output tile n that this lane holds in c[0] and c[2]; c[1] and c[3] lie beside it.
  __device__ __forceinline__ int column(int n) const {
    return (warp_ * C::ValueTiles + n) * 8 + 2 * j_;
  }
  __device__ __forceinline__ int row(int h) const {
    return group_ * kGroupRows + g_ + 8 * h;
  }
  __device__ __forceinline__ bool has_row(int h) const {
    return position_[h] >= 0;
  }
  __device__ __forceinline__ bool is_first_of_row() const {
    return warp_ == 0 && j_ == 0;
  }
  __device__ __forceinline__ int token_of(int row) const {
    return span_.first_row + (flat_ + row) / r_.group;
  }
  __device__ __forceinline__ int head_of(int row) const {
    return kv_head_ * r_.group + (flat_ + row) % r_.group;
  }
  __device__ __forceinline__ int64_t part_of(int row, int split) const {
    return r_.part(split % r_.slots, sequence_, kv_head_, flat_ + row);
  }

  // The end of a row: its outputs from `d` on, and its log-sum-exp.
  template <int N>
  __device__ __forceinline__ void write(int row, int d, const float (&o)[N], float sum) const {
    void* const to = r_.out.at(token_of(row), head_of(row));
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      if (d + i >= r_.dim) continue;
      const float pair[2] = {normalized(o[i], sum), normalized(o[i + 1], sum)};
      if (r_.out_pairs) {
        store_pair(r_.out.type, to, d + i, pair);
      } else {
        store_element(r_.out.type, to, d + i, pair[0]);
        if (d + i + 1 < r_.dim) store_element(r_.out.type, to, d + i + 1, pair[1]);
      }
    }
  }
  __device__ __forceinline__ void write_lse(int row, float max, float sum) const {
    if (r_.lse) r_.lse[token_of(row) * r_.lse_stride + head_of(row)] = log_sum_exp(max, sum);
  }

 protected:
  __device__ __forceinline__ int position_of(int row) const {
    return span_.first_position + (flat_ + row) / r_.group;
  }
  // Positions [first_position, end_position) are seen by some row of the block.
  __device__ __forceinline__ int first_position() const {
    return visible_begin(first_, r_.window);
  }
  __device__ __forceinline__ int end_position() const {
    return last_ + 1;
  }
  // Rows of the block see different ones of the positions [from, to).
  __device__ __forceinline__ bool is_mixed(int from, int to) const {
    return first_ + 1 < to || visible_begin(last_, r_.window) > from;
  }
  __device__ __forceinline__ bool group_sees(int start) const {
    return group_last_ >= start && visible_begin(group_first_, r_.window) < start + kTile;
  }
  __device__ __forceinline__ void set_seen(int start, Seen (&seen)[2]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) seen[h] = seen_of(position_[h], r_.window, start);
  }
  // Slots of the positions [origin, origin + count), -1 for those that no row sees.
  __device__ __forceinline__ void find_slots(int origin, int count, int32_t* slots) const {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += C::Threads) {
      const int position = origin + i;
      const bool seen = position >= first_position() && position < end_position();
      slots[i] = seen ? r_.pages.slot_of(sequence_, position) : -1;
    }
  }
  // The warps that share a group wait for each other.
  __device__ __forceinline__ void group_barrier() const {
    if constexpr (C::Warps == 1) {
      __syncwarp();
    } else if constexpr (C::Groups == 1) {
      __syncthreads();
    } else {
      asm volatile("bar.sync %0, %1;" ::"r"(1 + group_), "n"(C::Warps * kWarp) : "memory");
    }
  }

  const RowParams& r_;
  int kv_head_, group_, warp_, g_, j_;
  int sequence_ = 0, flat_ = 0, count_ = 0;
  int first_ = 0, last_ = 0, group_first_ = 0, group_last_ = 0;  // positions of first and last rows
  Span span_{};
  int position_[2] = {-1, -1};  // of the lane's rows
};

// M, l and O of a lane's two rows.
template <class C>
struct RowSums {
  float max[2] = {attention_rule::kNoMax, attention_rule::kNoMax}, sum[2] = {0.0f, 0.0f};
  float o[C::ValueTiles][4] = {};

  __device__ __forceinline__ void add(const TileResult<C>& tile) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const attention_rule::MergeFactors f = join(max[h], sum[h], tile.max[h], tile.sum[h]);
#pragma unroll
      for (int n = 0; n < C::ValueTiles; ++n) {
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; ++e)
          o[n][e] = join(o[n][e], __fmul_rn(tile.o[n][e], tile.value_scale[h]), f);
      }
    }
  }
};

// Rows that nobody reads get zeros, which are finite.
__device__ __forceinline__ void zero_padding_rows(const RowParams& p, int kv_head, int first,
                                                  int step) {
  for (int row = first; row < p.rows; row += step) {
    if (p.row_sequence[row] >= 0) continue;
    for (int i = static_cast<int>(threadIdx.x); i < p.group * p.dim;
         i += static_cast<int>(blockDim.x)) {
      const int head = kv_head * p.group + i / p.dim;
      store_element(p.out.type, p.out.at(row, head), i % p.dim, 0.0f);
      if (p.lse && i % p.dim == 0) p.lse[row * p.lse_stride + head] = 0.0f;
    }
  }
}

// The split kernel. A Worker is BlockRows with
//   for_each_tile(first, end, use)   use(i, TileResult) for tile first + i of one split, for
//                                    [first, end) in ascending order; groups of rows that see
//                                    nothing of a tile leave it out
// Grid: (kv_heads * Cluster, range * packs, slots).
template <class Worker, class C, class Params, class Shared>
__device__ __forceinline__ void split_rows(const Params& p, Shared& s) {
  static_assert(C::Groups == 1);
  const int rank = static_cast<int>(blockIdx.x) % C::Cluster;
  const int kv_head = static_cast<int>(blockIdx.x) / C::Cluster;
  const int sequence = p.first_sequence + static_cast<int>(blockIdx.y) / p.packs;
  const int flat = static_cast<int>(blockIdx.y) % p.packs * kGroupRows;
  allow_next();
  wait_for_previous();
  if (rank == 0 && blockIdx.z == 0) {
    zero_padding_rows(p, kv_head, static_cast<int>(blockIdx.y), static_cast<int>(gridDim.y));
  }
  const Span span = load_span(p.spans, sequence);
  const int count = min(span.rows * p.group - flat, kGroupRows);
  if (span.rows > p.few || count <= 0) return;
  const int first_seen = visible_begin(span.first_position + flat / p.group, p.window);
  const int split = first_seen / kSplit + static_cast<int>(blockIdx.z);
  Worker worker(p, s, kv_head);
  if (split * kSplit > span.first_position + (flat + count - 1) / p.group) return;
  worker.set_rows(sequence, span, flat, count);
  const int first = max(worker.first_tile(), split * kSplitTiles);
  const int end = min(worker.end_tile(), (split + 1) * kSplitTiles);

  const auto write = [&]<int N>(int row, int d, const float(&o)[N], float sum) {
    if (p.slots == 1) {
      worker.write(row, d, o, sum);
    } else {
      float* const to = p.part_o + worker.part_of(row, split) * p.dim;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (d + i < p.dim) to[d + i] = o[i];
      }
    }
  };
  const auto write_sums = [&](int row, float max, float sum) {
    if (p.slots == 1) {
      worker.write_lse(row, max, sum);
    } else {
      p.part_ml[worker.part_of(row, split)] = {max, sum};
    }
  };

  if constexpr (C::Cluster == 1) {
    RowSums<C> sums;
    worker.for_each_tile(first, end, [&](int, const TileResult<C>& tile) { sums.add(tile); });
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (!worker.has_row(h)) continue;
      if (worker.is_first_of_row()) write_sums(worker.row(h), sums.max[h], sums.sum[h]);
#pragma unroll
      for (int n = 0; n < C::ValueTiles; ++n) {
        const float pair[2] = {sums.o[n][2 * h], sums.o[n][2 * h + 1]};
        write(worker.row(h), worker.column(n), pair, sums.sum[h]);
      }
    }
  } else {
    const auto cluster = cooperative_groups::this_cluster();
    const int origin = split * kSplitTiles + rank * C::BlockTiles;
    const int own = max(first, origin);
    worker.for_each_tile(
        own, min(end, origin + C::BlockTiles), [&](int i, const TileResult<C>& tile) {
          const int at = own + i - origin;
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            if (!worker.has_row(h)) continue;
            const int row = worker.row(h);
            if (worker.is_first_of_row()) {
              s.more.max[at][row] = tile.max[h];
              s.more.sum[at][row] = tile.sum[h];
            }
#pragma unroll
            for (int n = 0; n < C::ValueTiles; ++n) {
              *reinterpret_cast<float2*>(&s.more.o[at][row][worker.column(n)]) =
                  make_float2(__fmul_rn(tile.o[n][2 * h], tile.value_scale[h]),
                              __fmul_rn(tile.o[n][2 * h + 1], tile.value_scale[h]));
            }
          }
        });
    cluster.sync();
    // Four outputs of a row a thread, from all tiles of the split.
    constexpr int kQuads = C::Dim / 4;
    for (int i = rank * C::Threads + static_cast<int>(threadIdx.x); i < count * kQuads;
         i += C::Cluster * C::Threads) {
      const int row = i / kQuads, d = i % kQuads * 4;
      float tile_max[kSplitTiles], tile_sum[kSplitTiles];
      float4 tile_o[kSplitTiles];
#pragma unroll
      for (int t = 0; t < kSplitTiles; ++t) {
        const int tile = split * kSplitTiles + t;
        if (tile < first || tile >= end) continue;
        const auto* const from = cluster.map_shared_rank(&s.more, t / C::BlockTiles);
        tile_max[t] = from->max[t % C::BlockTiles][row];
        tile_sum[t] = from->sum[t % C::BlockTiles][row];
        tile_o[t] = *reinterpret_cast<const float4*>(&from->o[t % C::BlockTiles][row][d]);
      }
      float max = attention_rule::kNoMax, sum = 0.0f, o[4] = {};
#pragma unroll
      for (int t = 0; t < kSplitTiles; ++t) {
        const int tile = split * kSplitTiles + t;
        if (tile < first || tile >= end) continue;
        const attention_rule::MergeFactors f = join(max, sum, tile_max[t], tile_sum[t]);
        o[0] = join(o[0], tile_o[t].x, f);
        o[1] = join(o[1], tile_o[t].y, f);
        o[2] = join(o[2], tile_o[t].z, f);
        o[3] = join(o[3], tile_o[t].w, f);
      }
      write(row, d, o, sum);
      if (d == 0) write_sums(row, max, sum);
    }
    cluster.sync();  // others may still read this block's shared memory
  }
}

// The chunk kernel. Grid: kv_heads * (bound of the items).
template <class Worker, class C, class Params, class Shared>
__device__ __forceinline__ void chunk_rows(const Params& p, Shared& s) {
  allow_next();
  wait_for_previous();
  const int index = static_cast<int>(blockIdx.x) / p.kv_heads;
  const Item item = find_item(p.spans, p.sequences, index, p.few, p.group, C::Rows);
  if (item.sequence < 0) return;
  Worker worker(p, s, static_cast<int>(blockIdx.x) % p.kv_heads);
  const int flat = item.item * C::Rows;
  worker.set_rows(item.sequence, item.span, flat, min(item.span.rows * p.group - flat, C::Rows));
  const int begin = worker.first_tile(), end = worker.end_tile();
  const int first_split = begin / kSplitTiles, last_split = (end - 1) / kSplitTiles;

  float max[2] = {attention_rule::kNoMax, attention_rule::kNoMax}, sum[2] = {0.0f, 0.0f};
  RowSums<C> sums;
  float total[C::TotalInRegisters ? C::ValueTiles * 4 : 1];
  for (int split = first_split; split <= last_split; ++split) {
    if (split > first_split) sums = RowSums<C>{};
    const int first = ::max(begin, split * kSplitTiles);
    const int stop = ::min(end, (split + 1) * kSplitTiles);
    worker.for_each_tile(first, stop, [&](int, const TileResult<C>& tile) { sums.add(tile); });
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (split == first_split) {
        max[h] = sums.max[h];
        sum[h] = sums.sum[h];
      }
      // One split alone stays in registers.
      if (first_split == last_split) continue;
      attention_rule::MergeFactors f{};
      if (split > first_split) f = join(max[h], sum[h], sums.max[h], sums.sum[h]);
#pragma unroll
      for (int n = 0; n < C::ValueTiles; ++n) {
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; ++e) {
          float* before;
          if constexpr (C::TotalInRegisters) {
            before = &total[n * 4 + e];
          } else {
            before = &s.more.o[n * 4 + e][threadIdx.x];
          }
          const float o = split == first_split ? sums.o[n][e] : join(*before, sums.o[n][e], f);
          if (split == last_split) {
            sums.o[n][e] = o;
          } else {
            *before = o;
          }
        }
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (!worker.has_row(h)) continue;
    if (worker.is_first_of_row()) worker.write_lse(worker.row(h), max[h], sum[h]);
#pragma unroll
    for (int n = 0; n < C::ValueTiles; ++n) {
      const float pair[2] = {sums.o[n][2 * h], sums.o[n][2 * h + 1]};
      worker.write(worker.row(h), worker.column(n), pair, sum[h]);
    }
  }
}

// A bound of the chunk kernel's items: each sequence has one at most that is not full.
template <class C>
int chunk_items(const RowParams& p) {
  return static_cast<int>(int64_t{p.rows} * p.group / C::Rows) + p.sequences;
}

}  // namespace octet::cuda
