#include "backends/cpu/kernels/fast_attention_driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

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

struct Task {
  size_t block = 0;
  int64_t split_begin = 0, split_end = 0;
  int64_t cost = 0;  // tiles times rows
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

constexpr int64_t kFewRows = 24;  // of a block, as few as threads make it

// What one thread works in.
struct Scratch {
  Tile tile;
  float* q = nullptr;
  float* q_scale = nullptr;
  int64_t* position = nullptr;
  Rows split, total;
  int q_stride = 0;

  static size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }
  static size_t bytes(const TileShape& shape, int64_t rows) {
    const auto n = static_cast<size_t>(rows);
    const int dims = shape.padded_k() + shape.padded_rope();
    return aligned(Tile::bytes(shape)) + n * static_cast<size_t>(dims) * 4 + aligned(n * 4) +
           aligned(n * 8) +
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
    q_scale = floats(n);
    position = reinterpret_cast<int64_t*>(cut(n * 8));
    split = {q, q_stride, q_scale, position};
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
    const size_t bytes = Scratch::bytes(shape_, block_rows_);
    std::byte* memory = context_.scratch.take(0, threads * bytes);
    if (partials_ > 0) {
      partial_ = context_.scratch.take<float>(
          1, static_cast<size_t>(partials_) * static_cast<size_t>(partial_stride()));
    }
    std::atomic<size_t> next{0};
    context_.threads.run([&](int thread) {
      Scratch scratch(shape_, block_rows_, memory + static_cast<size_t>(thread) * bytes);
      for (size_t i = next++; i < tasks_.size(); i = next++) attend(tasks_[i], scratch);
    });
    if (partials_ == 0) return;
    next = 0;
    context_.threads.run([&](int thread) {
      Scratch scratch(shape_, block_rows_, memory + static_cast<size_t>(thread) * bytes);
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
  // often), then one task a split (partial results travel through memory). Few rows that look far
  // back are split as well, and all heads attend to a split before the next: a token's heads lie
  // side by side, and the pages of a split, but not those of the context, have room in the TLB.
  void plan() {
    const auto wanted =
        static_cast<size_t>(context_.threads.size() == 1 ? 1 : 2 * context_.threads.size());
    block_rows_ = shape_.k_dims <= 160 ? 192 : 96;
    blocks_ = cut_rows(problem_, block_rows_);
    while (blocks_.size() < wanted && block_rows_ > kFewRows) {
      block_rows_ /= 2;
      blocks_ = cut_rows(problem_, block_rows_);
    }
    const bool split = blocks_.size() < wanted;
    const auto heads = static_cast<size_t>(problem_.kv_heads);
    for (size_t first = 0; first < blocks_.size(); first += heads) {  // the same rows of all heads
      const RowBlock rows = blocks_[first];
      const int64_t cost = rows.count * (rows.end - rows.begin);
      const bool far = heads > 1 && rows.count <= kFewRows;
      const bool parts = rows.splits() > 1 && (split || far);
      for (size_t b = first; parts && b < first + heads; ++b) {
        blocks_[b].partials = partials_;
        partials_ += rows.splits() * rows.count;
      }
      const int64_t step = parts ? 1 : rows.splits();
      for (int64_t s = rows.first_split(); s < rows.end_split(); s += step) {
        for (size_t b = first; b < first + heads; ++b) {
          tasks_.push_back({b, s, s + step, cost * step / rows.splits()});
        }
      }
    }
    std::stable_sort(tasks_.begin(), tasks_.end(),
                     [](const Task& a, const Task& b) { return a.cost > b.cost; });
  }

  void load_rows(const RowBlock& block, Scratch& s) const {
    const ops::SequenceRows& sequence = sequence_of(block);
    const bool bf16 = problem_.q.type == DType::bf16;
    for (int64_t r = 0; r < block.count; ++r) {
      float* q = s.q + r * s.q_stride;
      s.position[r] = position_of(problem_, sequence, block.first + r);
      s.q_scale[r] =
          load_query(row_of(problem_.q, block, r), bf16, shape_.k_dims, problem_.quantize_q, q);
      if (shape_.rope_dims > 0) {
        load_query(row_of(problem_.q_pe, block, r), problem_.q_pe.type == DType::bf16,
                   shape_.rope_dims, false, q + shape_.padded_k());
      }
    }
  }

  void attend(const Task& task, Scratch& s) const {
    const RowBlock& block = blocks_[task.block];
    const TileSource source = source_of(block);
    const int stride = shape_.v_stride();
    prefetch_first(block, source, task.split_begin);
    load_rows(block, s);
    for (int64_t r = 0; r < block.count; ++r) {
      clear_row(shape_, s.total.max[r], s.total.sum + r * 16, s.total.value + r * stride);
    }
    for (int64_t split = task.split_begin; split < task.split_end; ++split) {
      attend_split(block, source, split, s);
      for (int64_t r = 0; r < block.count; ++r) {
        if (block.partials >= 0) {
          float* out = partial(block, split, r);
          out[0] = s.split.max[r];
          std::memcpy(out + 16, s.split.sum + r * 16, 64);
          std::memcpy(out + 32, s.split.value + r * stride, static_cast<size_t>(stride) * 4);
        } else {
          merge_row(shape_, s.total.max[r], s.total.sum + r * 16, s.total.value + r * stride,
                    s.split.max[r], s.split.sum + r * 16, s.split.value + r * stride);
        }
      }
    }
    if (block.partials < 0) finish(block, s);
  }

  void prefetch_first(const RowBlock& block, const TileSource& source, int64_t split) const {
    const int64_t from = std::max(block.begin, split * rule::kSplitTokens);
    const int64_t to = std::min(block.end, (split + 1) * rule::kSplitTokens);
    const int64_t first = from / kTile * kTile;
    prefetch_tile(source, shape_, first, static_cast<int>(from - first),
                  static_cast<int>(std::min<int64_t>(to - first, kTile)));
  }

  void attend_split(const RowBlock& block, const TileSource& source, int64_t split,
                    Scratch& s) const {
    for (int64_t r = 0; r < block.count; ++r) {
      clear_row(shape_, s.split.max[r], s.split.sum + r * 16,
                s.split.value + r * shape_.v_stride());
    }
    const int64_t from = std::max(block.begin, split * rule::kSplitTokens);
    const int64_t to = std::min(block.end, (split + 1) * rule::kSplitTokens);
    int row_begin = 0, row_end = 0;  // the rows that see some of the tile; both only grow
    const int rows = static_cast<int>(block.count);
    for (int64_t first = from / kTile * kTile; first < to; first += kTile) {
      const auto begin = static_cast<int>(std::max(from, first) - first);
      const auto end = static_cast<int>(std::min(to, first + kTile) - first);
      load_tile(source, shape_, first, begin, end, block.end, s.tile);
      while (row_begin < rows && s.position[row_begin] < first) ++row_begin;
      while (row_end < rows &&
             rule::visible(s.position[row_end], problem_.math.window).begin < first + kTile) {
        ++row_end;
      }
      attend_tile(shape_, problem_.math, s.tile, first, s.split, row_begin, row_end);
    }
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
    finish(block, s);
  }

  void finish(const RowBlock& block, const Scratch& s) const {
    for (int64_t r = 0; r < block.count; ++r) {
      void* out = row_of(problem_.out, block, r);
      const bool bf16 = problem_.out.type == DType::bf16;
      float* const lse =
          problem_.lse ? static_cast<float*>(row_of(problem_.lse, block, r)) : nullptr;
      finish_row(shape_, s.total.max[r], s.total.sum + r * 16,
                 s.total.value + r * shape_.v_stride(), bf16 ? nullptr : static_cast<float*>(out),
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
    source.k += block.kv_head * problem_.k_head;
    if (source.v) source.v += block.kv_head * problem_.v_head;
    if (source.k_scale) source.k_scale += block.kv_head * problem_.scale_head;
    if (source.v_scale) source.v_scale += block.kv_head * problem_.scale_head;
    const Tensor& table = problem_.batch->block_table;
    source.blocks = table.as<const int32_t>() + block.sequence * table.strides[0];
    return source;
  }

  const KernelContext& context_;
  const Problem& problem_;
  const TileShape& shape_;
  int64_t block_rows_ = 0;
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

double estimate_us(const ops::OpDesc& desc, const CpuCaps& caps) {
  const double products = 2.0 * 1024.0 * static_cast<double>(desc.m * desc.n * desc.k);
  return products / (30e3 * caps.threads);  // 30 multiply-adds a nanosecond
}

RoundP round_of(const ops::AttentionSpec& spec, DType activation, DType cache) {
  if (spec.fp8) return RoundP::e4m3;
  return activation == DType::bf16 && cache != DType::f32 ? RoundP::bf16 : RoundP::none;
}

}  // namespace octet::cpu::attention
