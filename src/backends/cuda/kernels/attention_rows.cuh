// What the GQA and MLA kernels share beyond the tile: which rows a block has, what becomes of the
// tiles, and where results go.
//
// Rows are (token, head) pairs of one sequence whose heads share K and V, flattened: row f is token
// f / group, head f % group of its KV head (MLA has one KV head). A block takes up to Groups * 16.
//
//   split kernel   sequences of few rows (decode): a block for 16 rows, a KV head and a split of
//                  1024 tokens; or, where that leaves SMs idle, a cluster: attention_cluster.cuh
//   merge kernel   the splits of a row, ascending; not needed where there can be only one
//   chunk kernel   sequences of more rows (prefill): a block goes over all tiles
//
// Which of them computes a row, and with how many warps and blocks, does not change a bit of it:
// see attention_tile.cuh.
#pragma once

#include <algorithm>

#include "backends/cuda/kernels/attention_memory.cuh"
#include "backends/cuda/kernels/cluster.cuh"
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
  Divisor by_group;    // group
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
// Sets: tiles that a block works on at once, with Warps warps each; 1 unless Groups is 1.
template <int Dim_, int Warps_, int Groups_, int Cluster_, int Sets_ = 1>
struct RowConfig {
  static constexpr int Dim = Dim_, Warps = Warps_, Groups = Groups_, Cluster = Cluster_;
  static constexpr int Sets = Sets_;
  static constexpr int SetThreads = Warps * Groups * kWarp, Threads = SetThreads * Sets;
  static constexpr int Rows = Groups * kGroupRows;
  static constexpr int Units = Groups * Sets;           // each with a group of rows and a tile
  static constexpr int ScoreTiles = kTile / 8 / Warps;  // 8-column tiles of C that a warp computes
  static constexpr int ValueTiles = Dim / 8 / Warps;
  static constexpr int BlockTiles = Cluster == 0 ? kSplitTiles : kSplitTiles / Cluster;
  // Where a chunk keeps the total of the splits before the one in work.
  static constexpr bool TotalInRegisters = ValueTiles <= 8;
  static constexpr bool OneToken = false;  // the rows of a block are heads of one token
  static_assert(Groups == 1 || Sets == 1);
};

template <class C>
struct ChunkTotal {
  float o[C::ValueTiles * 4][C::Threads];  // each thread's own
};
// What the blocks of a cluster send each other: attention_cluster.cuh.
template <class C>
struct ClusterExchange {
  // Column tiles that all tiles of the split have in a block, whatever the number of blocks at
  // work.
  static constexpr int Parts = C::BlockTiles * (C::Dim / 8 + C::Cluster - 1);
  float2 max_sum[kSplitTiles][kGroupRows];
  cluster::Mailbox mailbox;
  // [part, slot, row] of 8: the last, so that a launch of fewer rows needs no more than it uses.
  alignas(16) float o[Parts * kGroupRows][8];
  static constexpr size_t unused(int rows) {
    return sizeof(float[8]) * Parts * static_cast<size_t>(kGroupRows - rows);
  }
};
struct NoMore {};
template <class C>
auto more_shared() {
  if constexpr (C::Cluster > 1) {
    return ClusterExchange<C>{};
  } else if constexpr (C::Cluster == 0 && !C::TotalInRegisters) {
    return ChunkTotal<C>{};
  } else {
    return NoMore{};
  }
}
// The last member of a kernel's shared memory.
template <class C>
using MoreShared = decltype(more_shared<C>());

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
    unit_ = warp / C::Warps;
    group_ = C::Sets > 1 ? 0 : unit_;
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
    return column_tile(n) * 8 + 2 * j_;
  }
  __device__ __forceinline__ int column_tile(int n) const {
    return warp_ * C::ValueTiles + n;
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
  // Among the 4 * Warps lanes that hold parts of the same row.
  __device__ __forceinline__ int sharer() const {
    return warp_ * 4 + j_;
  }
  __device__ __forceinline__ int token_of(int row) const {
    return span_.first_row + token_in_span(row);
  }
  __device__ __forceinline__ int head_of(int row) const {
    return (kv_head_ - token_in_span(row)) * r_.group + flat_ + row;
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
  __device__ __forceinline__ int token_in_span(int row) const {
    return C::OneToken ? 0 : (flat_ + row) / r_.by_group;
  }
  __device__ __forceinline__ int position_of(int row) const {
    return span_.first_position + token_in_span(row);
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
    if (C::OneToken) return false;
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
  // The warps that share a group and a tile wait for each other.
  __device__ __forceinline__ void unit_barrier() const {
    if constexpr (C::Warps == 1) {
      __syncwarp();
    } else if constexpr (C::Units == 1) {
      __syncthreads();
    } else {
      asm volatile("bar.sync %0, %1;" ::"r"(1 + unit_), "n"(C::Warps * kWarp) : "memory");
    }
  }

  const RowParams& r_;
  int kv_head_, unit_, group_, warp_, g_, j_;
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

// Which rows and which split a block of the split kernels has.
struct SplitItem {
  int sequence = 0, flat = 0, count = 0, split = 0;  // nothing to do if count <= 0
  Span span{};
};
__device__ __forceinline__ SplitItem split_item(const RowParams& p) {
  SplitItem item;
  item.sequence = p.first_sequence + static_cast<int>(blockIdx.y) / p.packs;
  item.flat = static_cast<int>(blockIdx.y) % p.packs * kGroupRows;
  item.span = load_span(p.spans, item.sequence);
  if (item.span.rows > p.few) return item;
  item.count = min(item.span.rows * p.group - item.flat, kGroupRows);
  const int first_seen = visible_begin(item.span.first_position + item.flat / p.by_group, p.window);
  item.split = first_seen / kSplit + static_cast<int>(blockIdx.z);
  const int last = item.span.first_position + (item.flat + item.count - 1) / p.by_group;
  if (item.split * kSplit > last) item.count = 0;
  return item;
}

// Where the split kernels put a row: its end, or its part for the merge kernel.
template <int N, class C>
__device__ __forceinline__ void write_split(const RowParams& p, const BlockRows<C>& rows, int split,
                                            int row, int d, const float (&o)[N], float sum) {
  if (p.slots == 1) {
    rows.write(row, d, o, sum);
    return;
  }
  float* const to = p.part_o + rows.part_of(row, split) * p.dim;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (d + i < p.dim) to[d + i] = o[i];
  }
}
template <class C>
__device__ __forceinline__ void write_split_sums(const RowParams& p, const BlockRows<C>& rows,
                                                 int split, int row, float max, float sum) {
  if (p.slots == 1) {
    rows.write_lse(row, max, sum);
  } else {
    p.part_ml[rows.part_of(row, split)] = make_float2(max, sum);
  }
}

// The split kernel. A Worker is BlockRows with
//   for_each_tile(first, end, use)   use(i, TileResult) for tile first + i of one split, for
//                                    [first, end) in ascending order; groups of rows that see
//                                    nothing of a tile leave it out
// Grid: (kv_heads, range * packs, slots).
template <class Worker, class C, class Params, class Shared>
__device__ __forceinline__ void split_rows(const Params& p, Shared& s) {
  static_assert(C::Groups == 1 && C::Cluster == 1);
  const int kv_head = static_cast<int>(blockIdx.x);
  allow_next();
  const SplitItem item = split_item(p);
  wait_for_previous();
  if (blockIdx.z == 0) {
    zero_padding_rows(p, kv_head, static_cast<int>(blockIdx.y), static_cast<int>(gridDim.y));
  }
  if (item.count <= 0) return;
  Worker worker(p, s, kv_head);
  worker.set_rows(item.sequence, item.span, item.flat, item.count);
  const int first = max(worker.first_tile(), item.split * kSplitTiles);
  const int end = min(worker.end_tile(), (item.split + 1) * kSplitTiles);

  RowSums<C> sums;
  worker.for_each_tile(first, end, [&](int, const TileResult<C>& tile) { sums.add(tile); });
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (!worker.has_row(h)) continue;
    const int row = worker.row(h);
    if (worker.is_first_of_row())
      write_split_sums<C>(p, worker, item.split, row, sums.max[h], sums.sum[h]);
#pragma unroll
    for (int n = 0; n < C::ValueTiles; ++n) {
      const float pair[2] = {sums.o[n][2 * h], sums.o[n][2 * h + 1]};
      write_split<2, C>(p, worker, item.split, row, worker.column(n), pair, sums.sum[h]);
    }
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
