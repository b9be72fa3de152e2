// The split kernel of steps that would leave SMs idle (decode of few sequences): a cluster of 4 or
// 8 blocks for 16 rows, a KV head and a split of 1024 tokens. What counts is the time from the end
// of the kernel before to the end of this one, so
//
//   * what steps before left (the cache below the positions of this step), and the batch itself, is
//     read before wait_for_previous(): it was there before this step's input was copied to the
//     device. After the wait only queries and this step's own tokens are on their way;
//   * blocks without tiles leave at once. The others, `active` of them, send what each tile gave to
//     the block that folds it, all tiles of the split in ascending order:
//
//       columns   |0..7|8..15|16..23| ...         block n % active folds column tile n
//       block       0     1      2
#pragma once

#include "backends/cuda/kernels/attention_rows.cuh"

namespace octet::cuda {

// Tiles of a split that are in sight, and the blocks of the cluster that have them.
struct SplitTiles {
  int first = 0, end = 0;           // tiles, from the split's beginning
  int first_block = 0, active = 0;  // blocks
  // Divided before the wait: how many column tiles this block folds, and where the first one of a
  // warp goes, the `part`th of block `block`.
  int parts = 0, part = 0, block = 0;
};

// Sends one tile's results to the blocks that fold them; a block alone keeps them.
template <class C>
__device__ __forceinline__ void send_tile(const BlockRows<C>& rows, ClusterExchange<C>& own,
                                          const SplitTiles& tiles, int tile, int count,
                                          const TileResult<C>& result) {
  const auto send = [&](float2& to, float x, float y, int block) {
    if (tiles.active == 1) {
      to = make_float2(x, y);
    } else {
      cluster::send(&to, make_float2(x, y), own.mailbox, tiles.first_block + block);
    }
  };
  const int slots = tiles.active * C::BlockTiles, slot = tile - tiles.first_block * C::BlockTiles;
  int part = tiles.part, block = tiles.block;
#pragma unroll
  for (int n = 0; n < C::ValueTiles; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (!rows.has_row(h)) continue;
      float* const to = &own.o[(part * slots + slot) * count + rows.row(h)][rows.column(n) % 8];
      send(*reinterpret_cast<float2*>(to), __fmul_rn(result.o[n][2 * h], result.value_scale[h]),
           __fmul_rn(result.o[n][2 * h + 1], result.value_scale[h]), block);
    }
    if (++block == tiles.active) {
      block = 0;
      ++part;
    }
  }
  // All lanes of a row have its maximum and sum: each sends them to another block.
  static_assert(C::Warps * 4 >= C::Cluster);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (rows.sharer() < tiles.active && rows.has_row(h))
      send(own.max_sum[slot][rows.row(h)], result.max[h], result.sum[h], rows.sharer());
  }
}

// Folds the column tiles of block `block` of the active ones, and writes them: two columns of a row
// a thread.
template <class C>
__device__ __forceinline__ void fold_tiles(const RowParams& p, const BlockRows<C>& rows,
                                           const ClusterExchange<C>& from, const SplitTiles& tiles,
                                           int block, int split, int count, bool rehearsal) {
  const int slots = tiles.active * C::BlockTiles, origin = tiles.first_block * C::BlockTiles;
  const int shift = count == 1 ? 0 : kWarp - __clz(count - 1);  // rows, to a power of two
  for (int i = static_cast<int>(threadIdx.x); i < tiles.parts << (shift + 2); i += C::Threads) {
    const int column = i % 4 * 2, row = (i / 4) & ((1 << shift) - 1), part = i >> (shift + 2);
    if (row >= count) continue;
    float max = attention_rule::kNoMax, sum = 0.0f, o[2] = {0.0f, 0.0f};
    // Short code, which runs once a launch: to fetch it takes as long as to run it.
    const int end = tiles.end - origin;
    const auto load = [&](int slot, float2& ml, float2& o) {
      ml = from.max_sum[slot][row];
      o = *reinterpret_cast<const float2*>(&from.o[(part * slots + slot) * count + row][column]);
    };
    float2 ml, next, ml_ahead, next_ahead;
    load(tiles.first - origin, ml_ahead, next_ahead);
#pragma unroll 1
    for (int slot = tiles.first - origin; slot < end; ++slot) {
      ml = ml_ahead;
      next = next_ahead;
      load(min(slot + 1, end - 1), ml_ahead, next_ahead);
      const attention_rule::MergeFactors f = join(max, sum, ml.x, ml.y);
      o[0] = join(o[0], next.x, f);
      o[1] = join(o[1], next.y, f);
    }
    if (rehearsal) continue;
    const int d = (block + part * tiles.active) * 8 + column;
    write_split<2, C>(p, rows, split, row, d, o, sum);
    if (d == 0) write_split_sums<C>(p, rows, split, row, max, sum);
  }
}

// A Worker is BlockRows with
//   prepare(origin, first, end)   the block has the tiles [first, end) of those from `origin` on;
//                                 loads and converts what may be before the wait
//   for_each_prepared(use, rehearsal)
//                                 waits for the kernel before; then use(tile, TileResult), by the
//                                 warps that computed the tile; a rehearsal (OneToken) does neither
// Grid: (kv_heads * Cluster, range * packs, slots).
template <class Worker, class C, class Params, class Shared>
__device__ __forceinline__ void cluster_rows(const Params& p, Shared& s) {
  allow_next();
  if (threadIdx.x == 0) cluster::open(s.more.mailbox);
  cluster::arrive();
  const int rank = static_cast<int>(blockIdx.x) % C::Cluster;
  const int kv_head = static_cast<int>(blockIdx.x) / C::Cluster;
  const SplitItem item = split_item(p);
  const int base = item.split * kSplitTiles, origin = base + rank * C::BlockTiles;
  Worker worker(p, s, kv_head);
  SplitTiles tiles;
  if (item.count > 0) {
    worker.set_rows(item.sequence, item.span, item.flat, item.count);
    tiles.first = max(worker.first_tile() - base, 0);
    tiles.end = min(worker.end_tile() - base, kSplitTiles);
    tiles.first_block = tiles.first / C::BlockTiles;
    tiles.active = (tiles.end + C::BlockTiles - 1) / C::BlockTiles - tiles.first_block;
  }
  const int first = max(base + tiles.first, origin);
  const int end = min(base + tiles.end, origin + C::BlockTiles);
  // One block at least waits for the kernel before, and so does whoever waits for this one.
  const bool leads = rank == 0 && blockIdx.z == 0;
  cluster::wait();  // all blocks have begun: their shared memory may be written
  const int own = rank - tiles.first_block;
  if (first < end) {
    tiles.parts = (C::Dim / 8 - own + tiles.active - 1) / tiles.active;
    tiles.part = worker.column_tile(0) / tiles.active;
    tiles.block = worker.column_tile(0) - tiles.part * tiles.active;
    if (threadIdx.x == 0) {
      const int row_bytes = tiles.parts * 32 + 8;
      cluster::expect(s.more.mailbox, (tiles.end - tiles.first) * item.count * row_bytes);
    }
    worker.prepare(origin, first, end);
  } else if (!leads) {
    return;
  }
  bool padding = false;
  for (int row = static_cast<int>(blockIdx.y); leads && row < p.rows;
       row += static_cast<int>(gridDim.y)) {
    padding |= p.row_sequence[row] < 0;
  }
  if (first >= end) {
    wait_for_previous();
  } else {
    // Instructions run once a launch, and to fetch them takes as long as to run them: where blocks
    // begin long before the kernel before has ended, a rehearsal over whatever is there fetches
    // them. It leaves nothing that is read later.
#pragma unroll 1
    for (int pass = C::OneToken ? 0 : 1; pass < 2; ++pass) {
      const bool rehearsal = C::OneToken && pass == 0;
      worker.for_each_prepared(
          [&](int tile, const TileResult<C>& result) {
            send_tile<C>(worker, s.more, tiles, tile - base, item.count, result);
          },
          rehearsal);
      if (tiles.active == 1 || rehearsal) {
        __syncthreads();
      } else {
        cluster::receive(s.more.mailbox);
      }
      fold_tiles<C>(p, worker, s.more, tiles, own, item.split, item.count, rehearsal);
    }
  }
  if (padding) {
    zero_padding_rows(p, kv_head, static_cast<int>(blockIdx.y), static_cast<int>(gridDim.y));
  }
}

}  // namespace octet::cuda
