// MLA attention in absorbed form over the paged cache of latents: the reference of
// attention_rule.h.
//
// Why the scale of a token and group goes into P, and not the latent to BF16: an FP8 tensor core
// multiplies P (E4M3) by the codes as they lie in the cache, with no conversion, which is what
// makes FP8 decoding compute-bound instead of conversion-bound. A scale that changes with the token
// cannot leave the sum over tokens, so it must enter P, once for every group of 128 outputs: P
// stays one operand a group, and the products and their number do not change. Divided by S, the
// largest scale that the row sees in the tile as a power of two, the ratio is at most 1 and P keeps
// the range of plain attention; latents are normed, so scales of a tile differ by a factor of two
// or so, and less than one bit of E4M3's 17 binades is lost. S may not come from positions that the
// row does not see: it would then depend on how the sequence was cut into chunks.
#include <algorithm>
#include <vector>

#include "backends/cpu/kernels/exact_softmax.h"
#include "backends/cpu/kernels/kernel.h"
#include "backends/cpu/kernels/paged.h"

namespace octet::cpu {
namespace {

using attention_rule::kSplitTokens;
using attention_rule::kTileTokens;

constexpr int64_t kTaskRows = 32;  // (token, head) rows that share the decoding of a tile

// Tokens [first, first + count) of one sequence, heads [head, head + heads).
struct Task {
  int64_t sequence, first, count, head, heads;
};

struct Problem {
  const Tensor& q_latent;
  const Tensor& q_pe;
  const ops::MlaCache& cache;
  const ops::Batch& batch;
  const ops::AttentionSpec& spec;
  const Tensor& out;
  const Tensor& lse;
  int64_t heads, lora, rope, groups;
  bool scaled;
};

class Worker {
 public:
  Worker(const Problem& problem, int64_t rows)
      : p_(problem),
        latent_segments_(segments_of(problem.lora)),
        rope_segments_(segments_of(problem.rope)),
        round_(round_of(problem.spec, problem.q_latent.type, problem.cache.latent.type)),
        rows_(static_cast<size_t>(rows), RowSoftmax(problem.lora)),
        q_(size(rows * latent_segments_.stride())),
        q_pe_(size(rows * rope_segments_.stride())),
        q_scale_(size(rows), 1.0f),
        latent_(size(kTileTokens * latent_segments_.stride())),
        rope_(size(kTileTokens * rope_segments_.stride())),
        scale_(size(kTileTokens * problem.groups), 1.0f),
        scores_(size(rows * kTileTokens)),
        pe_scores_(size(rows * kTileTokens)),
        ratio_(size(kTileTokens * problem.groups), 1.0f),
        value_scale_(size(problem.groups), 1.0f),
        values_(size(problem.lora)) {}

  void run(const Task& task) {
    const ops::SequenceRows& rows = p_.batch.sequences[static_cast<size_t>(task.sequence)];
    const Tensor& cache = p_.cache.latent;
    const BlockTable table(p_.batch, task.sequence, cache.shape[1], cache.shape[0]);
    const int64_t first = rows.first_position + task.first, end = first + task.count;
    const int64_t begin = attention_rule::visible(first, p_.spec.window).begin;
    load_queries(task, rows);
    const int64_t count = task.count * task.heads;
    for (int64_t start = begin / kTileTokens * kTileTokens; start < end; start += kTileTokens) {
      if (start % kSplitTokens == 0) end_splits(count);
      load_tile(table, std::max(start, begin), std::min(start + kTileTokens, end));
      dot_rows(latent_segments_, {q_.data(), nullptr, count},
               {latent_.data(), p_.scaled ? scale_.data() : nullptr, tokens_}, scores_.data(),
               kTileTokens);
      dot_rows(rope_segments_, {q_pe_.data(), nullptr, count}, {rope_.data(), nullptr, tokens_},
               pe_scores_.data(), kTileTokens);
      for (int64_t i = 0; i < task.count; ++i) add_tile(task, first + i, i);
    }
    end_splits(count);
    store(task, rows);
  }

 private:
  static size_t size(int64_t n) { return static_cast<size_t>(n); }

  void load_queries(const Task& task, const ops::SequenceRows& rows) {
    const Heads latents(p_.q_latent), pes(p_.q_pe);
    std::fill(q_.begin(), q_.end(), 0.0f);
    std::fill(q_pe_.begin(), q_pe_.end(), 0.0f);
    for (int64_t i = 0; i < task.count * task.heads; ++i) {
      const int64_t token = rows.first_row + task.first + i / task.heads;
      const int64_t head = task.head + i % task.heads;
      float* const q = q_.data() + i * latent_segments_.stride();
      load_floats(p_.q_latent.type, latents.at(token, head), p_.lora, q);
      load_floats(p_.q_pe.type, pes.at(token, head), p_.rope,
                  q_pe_.data() + i * rope_segments_.stride());
      if (p_.spec.fp8) q_scale_[size(i)] = quantize_query(q, p_.lora);
      rows_[size(i)].reset();
    }
  }

  void load_tile(const BlockTable& table, int64_t from, int64_t to) {
    begin_ = from;
    tokens_ = to - from;
    const Rows latents(p_.cache.latent), ropes(p_.cache.rope);
    for (int64_t t = 0; t < tokens_; ++t) {
      const int64_t slot = table.slot_of(from + t);
      float* const latent = latent_.data() + t * latent_segments_.stride();
      load_floats(p_.cache.latent.type, latents[slot], p_.lora, latent);
      std::fill(latent + p_.lora, latent + latent_segments_.stride(), 0.0f);
      float* const rope = rope_.data() + t * rope_segments_.stride();
      load_floats(p_.cache.rope.type, ropes[slot], p_.rope, rope);
      std::fill(rope + p_.rope, rope + rope_segments_.stride(), 0.0f);
      if (p_.scaled) {
        std::memcpy(scale_.data() + t * p_.groups,
                    p_.cache.latent_scale.as<const float>() + slot * p_.groups,
                    size(p_.groups) * sizeof(float));
      }
    }
  }

  // S of each group over the n positions from `begin`, and v_scale / S of each position.
  void weigh(int64_t begin, int64_t n) {
    for (int64_t g = 0; g < p_.groups; ++g) {
      float most = 0.0f;
      for (int64_t t = 0; t < n; ++t)
        most = std::max(most, scale_[size((begin + t) * p_.groups + g)]);
      const float s = attention_rule::value_scale(most, true);
      value_scale_[size(g)] = s;
      for (int64_t t = 0; t < n; ++t) {
        ratio_[size(g * kTileTokens + t)] = scale_[size((begin + t) * p_.groups + g)] / s;
      }
    }
  }

  // The heads of one token against the tile.
  void add_tile(const Task& task, int64_t position, int64_t i) {
    const attention_rule::Visible seen = attention_rule::visible(position, p_.spec.window);
    const int64_t begin = std::max(seen.begin - begin_, int64_t{0});
    const int64_t n = std::min(seen.end - begin_, tokens_) - begin;
    if (n <= 0) return;
    if (p_.scaled) weigh(begin, n);
    const float c = p_.spec.scale * attention_rule::kLog2e;
    const float p_factor = round_ == RoundP::e4m3 ? 1.0f / attention_rule::kPScale : 1.0f;
    float rounded[kTileTokens];
    for (int64_t row = i * task.heads; row < (i + 1) * task.heads; ++row) {
      float* const x = scores_.data() + row * kTileTokens + begin;
      const float* const pe = pe_scores_.data() + row * kTileTokens + begin;
      for (int64_t t = 0; t < n; ++t) x[t] = (x[t] * q_scale_[size(row)] + pe[t]) * c;
      RowSoftmax& softmax = rows_[size(row)];
      softmax.add_scores(x, n);
      // Without scales, all latents are one group.
      const int64_t width = p_.scaled ? kLatentGroup : p_.lora;
      for (int64_t first = 0, g = 0; first < p_.lora; first += width, ++g) {
        const int64_t dims = std::min(width, p_.lora - first);
        round_p(round_, x, p_.scaled ? ratio_.data() + g * kTileTokens : nullptr, n, rounded);
        weighted_sum(rounded, latent_.data() + begin * latent_segments_.stride() + first,
                     latent_segments_.stride(), n, dims, values_.data());
        softmax.add_values(values_.data(), first, dims, value_scale_[size(g)] * p_factor);
      }
    }
  }

  void end_splits(int64_t count) {
    for (int64_t i = 0; i < count; ++i) rows_[size(i)].end_split();
  }

  void store(const Task& task, const ops::SequenceRows& rows) {
    const Heads out(p_.out);
    for (int64_t i = 0; i < task.count * task.heads; ++i) {
      const int64_t token = rows.first_row + task.first + i / task.heads;
      const int64_t head = task.head + i % task.heads;
      RowSoftmax& softmax = rows_[size(i)];
      store_floats(p_.out.type, softmax.normalized().data(), p_.lora, out.at(token, head));
      if (p_.lse) {
        const float value = softmax.log_sum_exp();
        std::memcpy(Rows(p_.lse)[token] + 4 * head, &value, 4);
      }
    }
  }

  const Problem& p_;
  Segments latent_segments_, rope_segments_;
  RoundP round_;
  std::vector<RowSoftmax> rows_;
  std::vector<float> q_, q_pe_, q_scale_;
  std::vector<float> latent_, rope_, scale_;  // of the tile
  std::vector<float> scores_, pe_scores_, ratio_, value_scale_, values_;
  int64_t begin_ = 0, tokens_ = 0;  // positions of the tile
};

void exact_mla_attention(const KernelContext& context, const Tensor& q_latent, const Tensor& q_pe,
                         const ops::MlaCache& cache, const ops::Batch& batch,
                         const ops::AttentionSpec& spec, const Tensor& out, const Tensor& lse) {
  const int64_t lora = cache.latent.shape[2];
  const int64_t groups = (lora + kLatentGroup - 1) / kLatentGroup;
  const bool scaled = is_code(cache.latent.type) && cache.format.scale != ScaleType::unit;
  const Problem problem{q_latent,          q_pe, cache,         batch,  spec,  out, lse,
                        q_latent.shape[1], lora, q_pe.shape[2], groups, scaled};
  // With few tokens, heads are spread over the threads; each then decodes the latents again.
  const int64_t heads = problem.heads;
  const int64_t spread = batch.rows < context.threads.size()
                             ? (heads + context.threads.size() - 1) / context.threads.size()
                             : heads;
  const int64_t task_heads = std::min({heads, spread, kTaskRows});
  const int64_t task_tokens = std::max<int64_t>(1, kTaskRows / task_heads);
  std::vector<Task> tasks;
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    for (int64_t first = 0; first < batch.sequences[s].rows; first += task_tokens) {
      for (int64_t head = 0; head < heads; head += task_heads) {
        tasks.push_back({static_cast<int64_t>(s), first,
                         std::min(task_tokens, batch.sequences[s].rows - first), head,
                         std::min(task_heads, heads - head)});
      }
    }
  }
  const int threads =
      static_cast<int>(std::min<size_t>(tasks.size(), static_cast<size_t>(context.threads.size())));
  context.threads.parallel_for(threads, 1, [&](int64_t begin, int64_t end, int) {
    Worker worker(problem, task_heads * task_tokens);
    for (int64_t deal = begin; deal < end; ++deal) {
      for (size_t i = size_t(deal); i < tasks.size(); i += size_t(threads)) worker.run(tasks[i]);
    }
  });
}

constexpr MlaAttentionRow kRows[] = {
    {"exact", "attention_rule_lanes16", refuses_nothing, estimate_exact_attention,
     exact_mla_attention},
};

}  // namespace

std::span<const MlaAttentionRow> exact_mla_attention_rows() {
  return kRows;
}

}  // namespace octet::cpu
