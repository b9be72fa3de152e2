// Causal GQA attention over the paged cache: the reference of attention_rule.h.
#include <algorithm>
#include <vector>

#include "backends/cpu/kernels/exact_softmax.h"
#include "backends/cpu/kernels/kernel.h"
#include "backends/cpu/kernels/paged.h"

namespace octet::cpu {
namespace {

using attention_rule::kSplitTokens;
using attention_rule::kTileTokens;

constexpr int64_t kRowChunk = 8;  // tokens of a sequence that share the decoding of a tile

// Rows [first, first + count) of one sequence against one KV head.
struct Task {
  int64_t sequence, kv_head, first, count;
};

struct Problem {
  const Tensor& q;
  const ops::GqaCache& cache;
  const ops::Batch& batch;
  const ops::AttentionSpec& spec;
  const Tensor& out;
  const Tensor& lse;
  int64_t heads, kv_heads, dim, group;  // group: query heads of a KV head
};

// Positions [begin, end) of one tile, decoded, for one KV head.
class Tile {
 public:
  Tile(const Problem& problem, const Segments& segments)
      : problem_(problem),
        segments_(segments),
        k(static_cast<size_t>(kTileTokens * segments.stride())),
        v(static_cast<size_t>(kTileTokens * problem.dim)),
        k_scale(kTileTokens, 1.0f),
        v_scale(kTileTokens, 1.0f) {}

  void load(const BlockTable& table, int64_t kv_head, int64_t from, int64_t to) {
    begin = from;
    tokens = to - from;
    const ops::GqaCache& cache = problem_.cache;
    const int64_t dim = problem_.dim, heads = problem_.kv_heads;
    const auto element = static_cast<int64_t>(size_of(cache.k.type));
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t row = table.slot_of(from + t) * heads + kv_head;
      float* const k_row = k.data() + t * segments_.stride();
      load_floats(cache.k.type, static_cast<const char*>(cache.k.data) + row * dim * element, dim,
                  k_row);
      std::fill(k_row + dim, k_row + segments_.stride(), 0.0f);
      load_floats(cache.v.type, static_cast<const char*>(cache.v.data) + row * dim * element, dim,
                  v.data() + t * dim);
      if (is_code(cache.k.type)) {
        const int64_t cell = cache.token_heads() ? row : table.block_of(from + t) * heads + kv_head;
        k_scale[static_cast<size_t>(t)] = cache.k_scale.as<const float>()[cell];
        v_scale[static_cast<size_t>(t)] = cache.v_scale.as<const float>()[cell];
      }
    }
  }

 private:
  const Problem& problem_;
  const Segments& segments_;

 public:
  std::vector<float> k, v, k_scale, v_scale;
  int64_t begin = 0, tokens = 0;
};

class Worker {
 public:
  explicit Worker(const Problem& problem)
      : p_(problem),
        segments_(segments_of(problem.dim)),
        tile_(problem, segments_),
        round_(round_of(problem.spec, problem.q.type, problem.cache.k.type)),
        rows_(static_cast<size_t>(kRowChunk * problem.group), RowSoftmax(problem.dim)),
        q_(rows_.size() * static_cast<size_t>(segments_.stride())),
        q_scale_(rows_.size(), 1.0f),
        scores_(rows_.size() * kTileTokens),
        values_(static_cast<size_t>(problem.dim)) {}

  void run(const Task& task) {
    const ops::SequenceRows& rows = p_.batch.sequences[static_cast<size_t>(task.sequence)];
    const BlockTable table(p_.batch, task.sequence, p_.cache.k.shape[1], p_.cache.k.shape[0]);
    const int64_t first = rows.first_position + task.first, last = first + task.count - 1;
    load_queries(task, rows);
    const int64_t begin = attention_rule::visible(first, p_.spec.window).begin, end = last + 1;
    for (int64_t start = begin / kTileTokens * kTileTokens; start < end; start += kTileTokens) {
      if (start % kSplitTokens == 0) end_splits(task);
      tile_.load(table, task.kv_head, std::max(start, begin), std::min(start + kTileTokens, end));
      dot_rows(segments_, {q_.data(), nullptr, task.count * p_.group},
               {tile_.k.data(), nullptr, tile_.tokens}, scores_.data(), kTileTokens);
      for (int64_t i = 0; i < task.count; ++i) add_tile(task, first + i, i);
    }
    end_splits(task);
    store(task, rows);
  }

 private:
  void load_queries(const Task& task, const ops::SequenceRows& rows) {
    const Heads q_heads(p_.q);
    for (int64_t i = 0; i < task.count * p_.group; ++i) {
      float* const q = q_.data() + i * segments_.stride();
      load_floats(p_.q.type,
                  q_heads.at(rows.first_row + task.first + i / p_.group,
                             task.kv_head * p_.group + i % p_.group),
                  p_.dim, q);
      std::fill(q + p_.dim, q + segments_.stride(), 0.0f);
      if (p_.spec.fp8) q_scale_[static_cast<size_t>(i)] = quantize_query(q, p_.dim);
      rows_[static_cast<size_t>(i)].reset();
    }
  }

  // The query heads of one token against the tile.
  void add_tile(const Task&, int64_t position, int64_t i) {
    const attention_rule::Visible seen = attention_rule::visible(position, p_.spec.window);
    const int64_t begin = std::max(seen.begin - tile_.begin, int64_t{0});
    const int64_t n = std::min(seen.end - tile_.begin, tile_.tokens) - begin;
    if (n <= 0) return;
    const float* const k_scale = tile_.k_scale.data() + begin;
    const float* const v_scale = tile_.v_scale.data() + begin;
    const float c = p_.spec.scale * attention_rule::kLog2e;
    const float s = attention_rule::value_scale(*std::max_element(v_scale, v_scale + n), false);
    float ratio[kTileTokens], rounded[kTileTokens];
    for (int64_t t = 0; t < n; ++t) ratio[t] = v_scale[t] / s;
    for (int64_t row = i * p_.group; row < (i + 1) * p_.group; ++row) {
      float* const x = scores_.data() + row * kTileTokens + begin;
      const float q_scale = q_scale_[static_cast<size_t>(row)];
      for (int64_t t = 0; t < n; ++t) x[t] = ((k_scale[t] * x[t]) * q_scale) * c;
      RowSoftmax& softmax = rows_[static_cast<size_t>(row)];
      softmax.add_scores(x, n);
      round_p(round_, x, ratio, n, rounded);
      weighted_sum(rounded, tile_.v.data() + begin * p_.dim, p_.dim, n, p_.dim, values_.data());
      softmax.add_values(values_.data(), 0, p_.dim,
                         round_ == RoundP::e4m3 ? s / attention_rule::kPScale : s);
    }
  }

  void end_splits(const Task& task) {
    for (int64_t i = 0; i < task.count * p_.group; ++i) rows_[static_cast<size_t>(i)].end_split();
  }

  void store(const Task& task, const ops::SequenceRows& rows) {
    const Heads out_heads(p_.out);
    for (int64_t i = 0; i < task.count * p_.group; ++i) {
      const int64_t token = rows.first_row + task.first + i / p_.group;
      const int64_t head = task.kv_head * p_.group + i % p_.group;
      RowSoftmax& softmax = rows_[static_cast<size_t>(i)];
      store_floats(p_.out.type, softmax.normalized().data(), p_.dim, out_heads.at(token, head));
      if (p_.lse) {
        const float value = softmax.log_sum_exp();
        std::memcpy(Rows(p_.lse)[token] + 4 * head, &value, 4);
      }
    }
  }

  const Problem& p_;
  Segments segments_;
  Tile tile_;
  RoundP round_;
  std::vector<RowSoftmax> rows_;
  std::vector<float> q_, q_scale_, scores_, values_;
};

void exact_attention(const KernelContext& context, const Tensor& q, const ops::GqaCache& cache,
                     const ops::Batch& batch, const ops::AttentionSpec& spec, const Tensor& out,
                     const Tensor& lse) {
  const Problem problem{q,          cache,
                        batch,      spec,
                        out,        lse,
                        q.shape[1], cache.k.shape[2],
                        q.shape[2], q.shape[1] / cache.k.shape[2]};
  std::vector<Task> tasks;
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    for (int64_t head = 0; head < problem.kv_heads; ++head) {
      for (int64_t first = 0; first < batch.sequences[s].rows; first += kRowChunk) {
        tasks.push_back({static_cast<int64_t>(s), head, first,
                         std::min(kRowChunk, batch.sequences[s].rows - first)});
      }
    }
  }
  // Dealt out like cards: later rows of a sequence cost more.
  const int threads =
      static_cast<int>(std::min<size_t>(tasks.size(), static_cast<size_t>(context.threads.size())));
  context.threads.parallel_for(threads, 1, [&](int64_t begin, int64_t end, int) {
    Worker worker(problem);
    for (int64_t deal = begin; deal < end; ++deal) {
      for (size_t i = static_cast<size_t>(deal); i < tasks.size();
           i += static_cast<size_t>(threads)) {
        worker.run(tasks[i]);
      }
    }
  });
}

constexpr AttentionRow kRows[] = {
    {"exact", "attention_rule_lanes16", refuses_nothing, estimate_exact_attention, exact_attention},
};

}  // namespace

std::span<const AttentionRow> exact_attention_rows() {
  return kRows;
}

}  // namespace octet::cpu
