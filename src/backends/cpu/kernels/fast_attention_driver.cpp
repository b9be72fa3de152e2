#include "backends/cpu/kernels/fast_attention_driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "backends/cpu/kernels/fast_attention_amx.h"

namespace octet::cpu::attention {
namespace {

namespace rule = attention_rule;

// Rows of one sequence and KV head that share every tile they load. Rows are (token, head), tokens
// outermost:
//
//   row      0 .. group-1 | group .. 2 group-1 | ...
//   token    first_row    | first_row + 1      | ...
//
// How many rows a block has, and which thread computes it, changes no bit of any row.
struct RowBlock {
  int64_t sequence = 0, kv_head = 0;
  int64_t first = 0, count = 0;  // rows
  int64_t begin = 0, end = 0;    // positions that any of the rows sees
  int64_t partials = -1;         // index of its first partial result, -1 if it has none
  int64_t first_split() const { return begin / rule::kSplitTokens; }
  int64_t end_split() const { return (end - 1) / rule::kSplitTokens + 1; }
  int64_t splits() const { return end_split() - first_split(); }
};

// The same rows of `heads` KV heads, whose row blocks follow each other, over some splits.
struct Task {
  size_t block = 0, heads = 1;
  int64_t split_begin = 0, split_end = 0;
  int64_t cost = 0;  // positions times rows
};

int64_t rows_of(const Problem& problem, const ops::SequenceRows& sequence) {
  return sequence.rows * problem.group;
}
int64_t position_of(const Problem& problem, const ops::SequenceRows& sequence, int64_t row) {
  return sequence.first_position + row / problem.group;
}

std::vector<RowBlock> cut_rows(const Problem& problem, int64_t block_rows) {
  std::vector<RowBlock> blocks;
  const auto& sequences = problem.batch->sequences;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const int64_t rows = rows_of(problem, sequences[s]);
    for (int64_t first = 0; first < rows; first += block_rows) {
      RowBlock block;
      block.sequence = static_cast<int64_t>(s);
      block.first = first;
      block.count = std::min(block_rows, rows - first);
      block.begin =
          rule::visible(position_of(problem, sequences[s], first), problem.math.window).begin;
      block.end = position_of(problem, sequences[s], first + block.count - 1) + 1;
      for (block.kv_head = 0; block.kv_head < problem.kv_heads; ++block.kv_head) {
        blocks.push_back(block);
      }
    }
  }
  return blocks;
}

constexpr int64_t kFewRows = 24;      // of a block, as few as threads make it
constexpr int64_t kBundleRows = 192;  // of the heads of a task: what they have summed stays in L2

// What one thread works in.
struct Scratch {
  Tile tile;
  float* q = nullptr;
  uint32_t* q16 = nullptr;
  int q16_rows = 0;
  int tiles = 0;  // Rows::tiles
  float* q_scale = nullptr;
  int64_t* position = nullptr;
  Rows split, total;
  int q_stride = 0;

  static size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }
  // Of q16: an odd number of cache lines, so that its rows do not fall into few sets of the cache.
  static size_t padded_rows(int64_t rows) { return static_cast<size_t>(rows + 15) / 16 * 16 | 16; }
  static size_t bytes(const TileShape& shape, int64_t rows) {
    const auto n = static_cast<size_t>(rows);
    const auto dims = static_cast<size_t>(shape.padded_k() + shape.padded_rope());
    return aligned(Tile::bytes(shape)) + n * dims * 4 + padded_rows(rows) * dims * 2 +
           aligned(n * 4) + aligned(n * 8) +
           2 * (aligned(n * 4) + n * 64 + n * static_cast<size_t>(shape.v_stride()) * 4);
  }
  Scratch(const TileShape& shape, int64_t rows, std::byte* memory) {
    const auto n = static_cast<size_t>(rows);
    const auto cut = [&](size_t bytes) {
      std::byte* piece = memory;
      memory += aligned(bytes);
      return piece;
    };
    const auto floats = [&](size_t count) { return reinterpret_cast<float*>(cut(count * 4)); };
    tile = Tile::place(shape, cut(Tile::bytes(shape)));
    q_stride = shape.padded_k() + shape.padded_rope();
    q = floats(n * static_cast<size_t>(q_stride));
    q16_rows = static_cast<int>(padded_rows(rows));
    q16 = reinterpret_cast<uint32_t*>(cut(padded_rows(rows) * static_cast<size_t>(q_stride) * 2));
    q_scale = floats(n);
    position = reinterpret_cast<int64_t*>(cut(n * 8));
    split.q = q;
    split.q_stride = q_stride;
    split.q16 = q16;
    split.q16_rows = q16_rows;
    split.tiles = &tiles;
    split.q_scale = q_scale;
    split.position = position;
    total = split;
    const auto place_state = [&](Rows& state) {
      state.max = floats(n);
      state.sum = floats(n * 16);
      state.value = floats(n * static_cast<size_t>(shape.v_stride()));
    };
    place_state(split);
    place_state(total);
  }
};

class Runner {
 public:
  Runner(const KernelContext& context, const Problem& problem)
      : context_(context), problem_(problem), shape_(problem.shape) {}

  void run() {
    plan();
    const auto threads = static_cast<size_t>(context_.threads.size());
    const size_t bytes = Scratch::bytes(shape_, task_rows_);
    std::byte* memory = context_.scratch.take(0, threads * bytes);
    if (partials_ > 0) {
      partial_ = context_.scratch.take<float>(
          1, static_cast<size_t>(partials_) * static_cast<size_t>(partial_stride()));
    }
    std::atomic<size_t> next{0};
    context_.threads.run([&](int thread) {
      Scratch scratch(shape_, task_rows_, memory + static_cast<size_t>(thread) * bytes);
      for (size_t i = next++; i < tasks_.size(); i = next++) attend(tasks_[i], scratch);
    });
    if (partials_ == 0) return;
    next = 0;
    context_.threads.run([&](int thread) {
      Scratch scratch(shape_, task_rows_, memory + static_cast<size_t>(thread) * bytes);
      for (size_t i = next++; i < blocks_.size(); i = next++) {
        if (blocks_[i].partials >= 0) join(blocks_[i], scratch);
      }
    });
  }

 private:
  // A partial result: M in the first of 16 floats, l in 16 parts, O.
  int64_t partial_stride() const { return 32 + shape_.v_stride(); }
  float* partial(const RowBlock& block, int64_t split, int64_t row) const {
    return partial_ +
           (block.partials + (split - block.first_split()) * block.count + row) * partial_stride();
  }

  // Enough tasks to keep the threads busy: smaller row blocks first (tiles are converted more
  // often), then one task a split (partial results travel through memory).
  void plan() {
    const int64_t wanted = context_.threads.size() == 1 ? 1 : 2 * context_.threads.size();
    block_rows_ = shape_.k_dims <= 160 ? kBundleRows : kBundleRows / 2;
    blocks_ = cut_rows(problem_, block_rows_);
    while (std::ssize(blocks_) < wanted && block_rows_ > kFewRows) {
      block_rows_ /= 2;
      blocks_ = cut_rows(problem_, block_rows_);
    }
    task_rows_ = block_rows_;
    const bool split = std::ssize(blocks_) < wanted;
    int64_t all = 0;
    for (const RowBlock& block : blocks_) all += cost_of(block);
    const auto heads = static_cast<size_t>(problem_.kv_heads);
    for (size_t first = 0; first < blocks_.size(); first += heads) {  // the same rows of all heads
      if (blocks_[first].count <= kFewRows) {
        plan_few(first, heads, std::max<int64_t>(all / wanted, 1));
      } else {
        plan_tasks(first, heads, 1, split ? 1 : blocks_[first].splits());
      }
    }
    std::stable_sort(tasks_.begin(), tasks_.end(),
                     [](const Task& a, const Task& b) { return a.cost > b.cost; });
  }

  static int64_t cost_of(const RowBlock& block) { return block.count * (block.end - block.begin); }

  // Few rows wait for memory, where the heads of a token lie side by side: as many heads as a task
  // of cost `most` can take go through a tile together, then as many splits.
  void plan_few(size_t first, size_t heads, int64_t most) {
    const RowBlock& rows = blocks_[first];
    const int64_t split = std::max<int64_t>(cost_of(rows) / rows.splits(), 1);  // of one head
    const int64_t bundle = std::clamp<int64_t>(
        std::min((most + split / 2) / split, kBundleRows / rows.count), 1, problem_.kv_heads);
    const int64_t step = std::clamp<int64_t>(most / (bundle * split), 1, rows.splits());
    plan_tasks(first, heads, static_cast<size_t>(bundle), step);
  }

  // Tasks of `bundle` heads and `step` splits for the row blocks [first, first + heads).
  void plan_tasks(size_t first, size_t heads, size_t bundle, int64_t step) {
    const RowBlock rows = blocks_[first];
    task_rows_ = std::max(task_rows_, rows.count * static_cast<int64_t>(bundle));
    for (size_t b = first; step < rows.splits() && b < first + heads; ++b) {
      blocks_[b].partials = partials_;
      partials_ += rows.splits() * rows.count;
    }
    for (int64_t s = rows.first_split(); s < rows.end_split(); s += step) {
      const int64_t end = std::min(s + step, rows.end_split());
      for (size_t h = 0; h < heads; h += bundle) {
        const size_t count = std::min(bundle, heads - h);
        const int64_t cost = cost_of(rows) * (end - s) / rows.splits();
        tasks_.push_back({first + h, count, s, end, cost * static_cast<int64_t>(count)});
      }
    }
  }

  // Rows [at, at + block.count) of the scratch.
  void load_rows(const RowBlock& block, Scratch& s, int64_t at) const {
    const ops::SequenceRows& sequence = sequence_of(block);
    const bool bf16 = problem_.q.type == DType::bf16;
    for (int64_t r = 0; r < block.count; ++r) {
      float* q = s.q + (at + r) * s.q_stride;
      s.position[at + r] = position_of(problem_, sequence, block.first + r);
      s.q_scale[at + r] =
          load_query(row_of(problem_.q, block, r), bf16, shape_.k_dims, problem_.quantize_q, q);
      if (shape_.codes && !shape_.amx) order_query(shape_.k_dims, q);
      if (shape_.rope_dims > 0) {
        load_query(row_of(problem_.q_pe, block, r), problem_.q_pe.type == DType::bf16,
                   shape_.rope_dims, false, q + shape_.padded_k());
      }
      if (!shape_.amx) continue;
      uint32_t* const q16 = s.q16 + at + r;
      pair_query(shape_.k_dims, shape_.padded_k(), q, s.q16_rows, q16);
      pair_query(shape_.rope_dims, shape_.padded_rope(), q + shape_.padded_k(), s.q16_rows,
                 q16 + shape_.padded_k() / 2 * s.q16_rows);
    }
  }

  void attend(const Task& task, Scratch& s) const {
    if (shape_.amx) prepare_tiles(s.split);
    const RowBlock& rows = blocks_[task.block];
    const auto heads = static_cast<int64_t>(task.heads);
    const TileSource source = source_of(rows);
    const int stride = shape_.v_stride();
    TilePlaces places[2];
    find_tile(rows, source, first_tile(rows, task.split_begin), places[0]);
    for (int64_t h = 0; h < heads; ++h) {
      prefetch_tile(source, shape_, places[0], rows.kv_head + h);
    }
    for (int64_t h = 0; h < heads; ++h) {
      load_rows(blocks_[task.block + static_cast<size_t>(h)], s, h * rows.count);
    }
    for (int64_t r = 0; r < heads * rows.count; ++r) {
      clear_row(shape_, s.total.max[r], s.total.sum + r * 16, s.total.value + r * stride);
    }
    int now = 0;
    for (int64_t split = task.split_begin; split < task.split_end; ++split) {
      now = attend_split(rows, heads, source, split, split + 1 < task.split_end, places, now, s);
      for (int64_t r = 0; r < heads * rows.count; ++r) {
        const RowBlock& block = blocks_[task.block + static_cast<size_t>(r / rows.count)];
        if (block.partials >= 0) {
          float* out = partial(block, split, r % rows.count);
          out[0] = s.split.max[r];
          std::memcpy(out + 16, s.split.sum + r * 16, 64);
          std::memcpy(out + 32, s.split.value + r * stride, static_cast<size_t>(stride) * 4);
        } else {
          merge_row(shape_, s.total.max[r], s.total.sum + r * 16, s.total.value + r * stride,
                    s.split.max[r], s.split.sum + r * 16, s.split.value + r * stride);
        }
      }
    }
    for (int64_t h = 0; h < heads; ++h) {
      const RowBlock& block = blocks_[task.block + static_cast<size_t>(h)];
      if (block.partials < 0) finish(block, s, h * rows.count);
    }
    if (shape_.amx) release_tiles(s.split);
  }

  // Where a block's part of a split starts, as the position of a tile.
  int64_t first_tile(const RowBlock& block, int64_t split) const {
    return std::max(block.begin, split * rule::kSplitTokens) / kTile * kTile;
  }
  void find_tile(const RowBlock& block, const TileSource& source, int64_t first,
                 TilePlaces& places) const {
    find_places(source, first, static_cast<int>(std::max(block.begin, first) - first),
                static_cast<int>(std::min(block.end, first + kTile) - first), places);
  }

  // places[now] is the first tile. Returns where the place of the next split's first tile is, if
  // there is `more`.
  int attend_split(const RowBlock& rows, int64_t heads, const TileSource& source, int64_t split,
                   bool more, TilePlaces (&places)[2], int now, Scratch& s) const {
    const auto count = static_cast<int>(rows.count);
    for (int64_t r = 0; r < heads * rows.count; ++r) {
      clear_row(shape_, s.split.max[r], s.split.sum + r * 16,
                s.split.value + r * shape_.v_stride());
    }
    const int64_t to = std::min(rows.end, (split + 1) * rule::kSplitTokens);
    int row_begin = 0, row_end = 0;  // the rows that see some of the tile; both only grow
    for (int64_t first = first_tile(rows, split); first < to; first += kTile, now ^= 1) {
      const bool last = first + kTile >= to && !more;
      if (!last) find_tile(rows, source, first + kTile, places[now ^ 1]);
      while (row_begin < count && s.position[row_begin] < first) ++row_begin;
      while (row_end < count &&
             rule::visible(s.position[row_end], problem_.math.window).begin < first + kTile) {
        ++row_end;
      }
      for (int64_t h = 0; h < heads; ++h) {
        const auto at = static_cast<int>(h * rows.count);
        load_tile(source, shape_, places[now], last ? nullptr : &places[now ^ 1], heads > 1,
                  rows.kv_head + h, s.tile);
        attend_tile(shape_, problem_.math, s.tile, first, s.split, at + row_begin, at + row_end);
      }
    }
    return now;
  }

  void join(const RowBlock& block, Scratch& s) const {
    const int stride = shape_.v_stride();
    for (int64_t r = 0; r < block.count; ++r) {
      clear_row(shape_, s.total.max[r], s.total.sum + r * 16, s.total.value + r * stride);
      for (int64_t split = block.first_split(); split < block.end_split(); ++split) {
        const float* part = partial(block, split, r);
        merge_row(shape_, s.total.max[r], s.total.sum + r * 16, s.total.value + r * stride, part[0],
                  part + 16, part + 32);
      }
    }
    finish(block, s, 0);
  }

  // From rows [at, at + block.count) of the scratch.
  void finish(const RowBlock& block, const Scratch& s, int64_t at) const {
    for (int64_t r = 0; r < block.count; ++r) {
      void* out = row_of(problem_.out, block, r);
      const bool bf16 = problem_.out.type == DType::bf16;
      float* const lse =
          problem_.lse ? static_cast<float*>(row_of(problem_.lse, block, r)) : nullptr;
      const int64_t from = at + r;
      finish_row(shape_, s.total.max[from], s.total.sum + from * 16,
                 s.total.value + from * shape_.v_stride(),
                 bf16 ? nullptr : static_cast<float*>(out),
                 bf16 ? static_cast<uint16_t*>(out) : nullptr, lse);
    }
  }

  const ops::SequenceRows& sequence_of(const RowBlock& block) const {
    return problem_.batch->sequences[static_cast<size_t>(block.sequence)];
  }
  // Address of a row of q, out (rank 3) or lse (rank 2).
  void* row_of(const Tensor& tensor, const RowBlock& block, int64_t r) const {
    const int64_t row = block.first + r;
    const int64_t token = sequence_of(block).first_row + row / problem_.group;
    const int64_t head = block.kv_head * problem_.group + row % problem_.group;
    return static_cast<std::byte*>(tensor.data) +
           (token * tensor.strides[0] + head * tensor.strides[1]) *
               static_cast<int64_t>(size_of(tensor.type));
  }
  TileSource source_of(const RowBlock& block) const {
    TileSource source = problem_.source;
    const Tensor& table = problem_.batch->block_table;
    source.blocks = table.as<const int32_t>() + block.sequence * table.strides[0];
    return source;
  }

  const KernelContext& context_;
  const Problem& problem_;
  const TileShape& shape_;
  int64_t block_rows_ = 0, task_rows_ = 0;  // the most rows of a block, and of a task
  std::vector<RowBlock> blocks_;
  std::vector<Task> tasks_;
  int64_t partials_ = 0;
  float* partial_ = nullptr;
};

// A wrong id would read another sequence's memory.
void check_blocks(const Problem& problem) {
  const Tensor& table = problem.batch->block_table;
  const auto& sequences = problem.batch->sequences;
  const int64_t block_tokens = problem.source.block_tokens;
  for (size_t s = 0; s < sequences.size(); ++s) {
    if (sequences[s].rows == 0) continue;
    const int64_t begin =
        rule::visible(sequences[s].first_position, problem.math.window).begin / block_tokens;
    const int64_t end = (sequences[s].context() - 1) / block_tokens + 1;
    const int32_t* ids = table.as<const int32_t>() + static_cast<int64_t>(s) * table.strides[0];
    for (int64_t b = begin; b < end; ++b) {
      if (b < table.shape[1] && ids[b] >= 0 && ids[b] < problem.blocks) continue;
      throw Fault(fmt::format("the block table of sequence {} has no block for position {}", s,
                              b * block_tokens));
    }
  }
}

}  // namespace

void run(const KernelContext& context, const Problem& problem) {
  check_blocks(problem);
  Runner(context, problem).run();
}

std::optional<std::string> refuses(const ops::OpDesc& desc, const CpuCaps& caps) {
  if (!caps.avx512_bf16) return "needs avx512_bf16, which this CPU lacks";
  if (desc.activation != DType::f32 && desc.activation != DType::bf16) {
    return fmt::format("takes queries in f32 or bf16, not {}", name_of(desc.activation));
  }
  if (!is_fp8(desc.weight) && desc.weight != DType::bf16 && desc.weight != DType::f32) {
    return fmt::format("takes a cache in e4m3, e5m2, bf16 or f32, not {}", name_of(desc.weight));
  }
  return std::nullopt;
}

std::optional<std::string> amx_refuses(const ops::OpDesc& desc, const CpuCaps& caps) {
  if (!caps.amx_bf16) return "needs amx_bf16, which this CPU lacks";
  if (desc.activation != DType::bf16) {
    return fmt::format("takes queries in bf16, not {}", name_of(desc.activation));
  }
  if (!is_fp8(desc.weight) && desc.weight != DType::bf16) {
    return fmt::format("takes a cache in e4m3, e5m2 or bf16, not {}", name_of(desc.weight));
  }
  return std::nullopt;
}

double estimate_us(const ops::OpDesc& desc, const CpuCaps& caps) {
  const double products = 2.0 * 1024.0 * static_cast<double>(desc.m * desc.n * desc.k);
  return products / (30e3 * caps.threads);  // 30 multiply-adds a nanosecond
}

double amx_estimate_us(const ops::OpDesc& desc, const CpuCaps& caps) {
  return 0.5 * estimate_us(desc, caps);  // softmax and the tiles' conversion are the same
}

RoundP round_of(const ops::AttentionSpec& spec, DType activation, DType cache) {
  if (spec.fp8) return RoundP::e4m3;
  return activation == DType::bf16 && cache != DType::f32 ? RoundP::bf16 : RoundP::none;
}

}  // namespace octet::cpu::attention
