// From a row of logits to a token: masks, edits and filters in vLLM's order, then the largest
// probability divided by an exponential random number, which samples from the distribution.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "backends/cpu/kernels/exact_loops.h"
#include "backends/cpu/kernels/exact_ops.h"
#include "backends/cpu/kernels/load.h"
#include "base/philox.h"
#include "numerics/exact_math.h"

namespace octet::cpu {
namespace {

constexpr float kGreedy = 1e-5f;  // temperatures below this one
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

OCTET_EXACT_CLONES void exp_below(const float* x, float most, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = exact::exp(x[i] == most ? 0.0f : x[i] - most);
}

// exp of (x - most) / divisor; the largest gives exactly 1, also where it is infinite.
OCTET_EXACT_CLONES void exp_below(const float* x, float most, float divisor, int64_t n,
                                  float* out) {
  if (divisor == 1.0f) return exp_below(x, most, n, out);  // the same bits without a division
  for (int64_t i = 0; i < n; ++i) {
    out[i] = exact::exp(x[i] == most ? 0.0f : (x[i] - most) / divisor);
  }
}

// The largest of them, NaN if one is NaN. By the bits, whose order as integers is that of the
// values once those of negative ones are turned: integer maxima vectorize.
OCTET_EXACT_CLONES float largest(const float* x, int64_t n) {
  int32_t most = std::numeric_limits<int32_t>::min(), broken = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<int32_t>(x[i]);
    const int32_t key = bits ^ ((bits >> 31) & 0x7FFFFFFF);
    most = key > most ? key : most;
    broken |= (bits & 0x7FFFFFFF) > 0x7F800000 ? 1 : 0;
  }
  return broken ? kNan : std::bit_cast<float>(most ^ ((most >> 31) & 0x7FFFFFFF));
}

// In float64: lane = id mod 16, each in ascending order, then a fixed tree.
OCTET_EXACT_CLONES double sum(const float* x, int64_t n) {
  constexpr int64_t lanes = 16;
  double lane[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int64_t l = 0; l < lanes; ++l) lane[l] += double{x[i + l]};
  }
  for (int64_t l = 0; i + l < n; ++l) lane[l] += double{x[i + l]};
  for (int64_t width = lanes / 2; width > 0; width /= 2) {
    for (int64_t l = 0; l < width; ++l) lane[l] += lane[l + width];
  }
  return lane[0];
}

OCTET_EXACT_CLONES int32_t count_at_least(const float* x, int64_t n, float least) {
  int32_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += x[i] >= least ? 1 : 0;
  return count;
}

// Exponential random numbers of ids [0, n): Philox blocks of four, so n is rounded up.
OCTET_EXACT_CLONES void exponentials(uint64_t seed, uint64_t position, int64_t n, float* out) {
  for (int64_t block = 0; block * 4 < n; ++block) {
    const Philox4 bits = philox(seed, position, static_cast<uint64_t>(block));
    for (size_t i = 0; i < 4; ++i) {
      out[block * 4 + static_cast<int64_t>(i)] = exponential_from(bits[i]);
    }
  }
}

// The larger of two candidates, ties to the lower id.
struct Best {
  float value = -kInf;
  int32_t id = -1;
  void offer(float v, int32_t i) {
    if (id < 0 || v > value) *this = {v, i};
  }
};

// What is masked and edited in one row; either may be empty.
struct RowEdits {
  const int32_t* mask = nullptr;
  std::span<const ops::LogitEdit> edits;
  bool none() const { return !mask && edits.empty(); }
};

float edited(float x, const ops::LogitEdit& edit) {
  if (edit.bias == -kInf) return -kInf;  // whatever the logit is
  x += edit.bias;
  x = x > 0.0f ? x / edit.repetition : x * edit.repetition;
  return x - edit.subtract;
}

// One row of logits.
class Row {
 public:
  Row(const float* logits, int64_t vocab) : Row(std::vector<float>(logits, logits + vocab)) {}
  explicit Row(std::vector<float> logits) : logits_(std::move(logits)) {
    most_ = largest(logits_.data(), static_cast<int64_t>(logits_.size()));
    if (most_ != most_) most_ = -kInf;
  }

  // A row of -Inf only has no token, and one with a NaN has none that means anything: its place
  // among the others is not known, whether or not it would have been the best.
  bool empty() const { return most_ == -kInf; }

  // 0 for the largest logit, also where it is infinite.
  float below_max(size_t i) const { return logits_[i] == most_ ? 0.0f : logits_[i] - most_; }

  // log of the sum of exp(logit - max).
  float log_sum() const {
    std::vector<float> exps(logits_.size());
    const auto n = static_cast<int64_t>(exps.size());
    exp_below(logits_.data(), most_, 1.0f, n, exps.data());
    return static_cast<float>(exact::log(sum(exps.data(), n)));
  }

  // The row that a token is chosen from.
  Row with(const RowEdits& changes) const {
    std::vector<float> logits = logits_;
    if (changes.mask) {
      for (size_t t = 0; t < logits.size(); ++t) {
        if (!(static_cast<uint32_t>(changes.mask[t / 32]) >> t % 32 & 1)) logits[t] = -kInf;
      }
    }
    for (const ops::LogitEdit& edit : changes.edits) {
      float& logit = logits[static_cast<size_t>(edit.token)];
      logit = edited(logit, edit);
    }
    return Row(std::move(logits));
  }

  // -1 if there is none.
  int32_t choose(const ops::SampleRow& how) const {
    if (empty()) return -1;
    return how.temperature < kGreedy ? greedy() : sampled(how);
  }

  int32_t greedy() const {
    return static_cast<int32_t>(std::find(logits_.begin(), logits_.end(), most_) - logits_.begin());
  }

  int32_t sampled(const ops::SampleRow& how) const {
    std::vector<int32_t> ids;                          // what survives so far, ascending
    std::vector<float> probabilities(logits_.size());  // relative to the largest, which has 1
    ids.reserve(logits_.size());
    exp_below(logits_.data(), most_, how.temperature, static_cast<int64_t>(logits_.size()),
              probabilities.data());
    for (size_t i = 0; i < logits_.size(); ++i) {
      // min_p compares with min_p times the largest probability, which is 1 here.
      if (probabilities[i] > 0.0f && probabilities[i] >= how.min_p) {
        ids.push_back(static_cast<int32_t>(i));
      }
    }
    if (how.top_k > 0) keep_top_k(how.top_k, ids);
    if (how.top_p < 1.0f) keep_top_p(how.top_p, probabilities, ids);
    // Number id of the stream, wherever it is drawn: all at once, or one by one if few are left.
    const auto position = static_cast<uint64_t>(how.position);
    std::vector<float> e;
    if (ids.size() > logits_.size() / 8) {
      e.resize((logits_.size() + 3) / 4 * 4);
      exponentials(how.seed, position, static_cast<int64_t>(logits_.size()), e.data());
    }
    Best best;
    for (const int32_t id : ids) {
      const auto i = static_cast<size_t>(id);
      const float drawn =
          e.empty() ? exponential_from(philox(how.seed, position, i / 4)[i % 4]) : e[i];
      best.offer(probabilities[i] / drawn, id);
    }
    return best.id;
  }

  int32_t rank(float logit) const {
    return count_at_least(logits_.data(), static_cast<int64_t>(logits_.size()), logit);
  }

  // Ids in descending order of their logit, ties to the lower id.
  std::vector<int32_t> top(int64_t count) const {
    std::vector<int32_t> ids(logits_.size());
    std::iota(ids.begin(), ids.end(), 0);
    const auto end = ids.begin() + std::min<int64_t>(count, static_cast<int64_t>(ids.size()));
    std::partial_sort(ids.begin(), end, ids.end(), [&](int32_t a, int32_t b) {
      const float x = at(a), y = at(b);
      return x != y ? x > y : a < b;
    });
    ids.erase(end, ids.end());
    return ids;
  }

  float at(int32_t id) const { return logits_[static_cast<size_t>(id)]; }

 private:
  // Keeps logits not below the k-th largest: ties with it stay.
  void keep_top_k(int32_t k, std::vector<int32_t>& ids) const {
    if (static_cast<size_t>(k) >= ids.size()) return;
    std::vector<float> values;
    values.reserve(ids.size());
    for (const int32_t id : ids) values.push_back(at(id));
    std::nth_element(values.begin(), values.begin() + (k - 1), values.end(), std::greater<>());
    const float least = values[static_cast<size_t>(k - 1)];
    std::erase_if(ids, [&](int32_t id) { return at(id) < least; });
  }

  // From the smallest probability up, drops while the cumulative sum, this one included, is at most
  // 1 - p of the total; the largest always stays. Of equals the higher id is dropped first.
  void keep_top_p(float p, const std::vector<float>& probabilities,
                  std::vector<int32_t>& ids) const {
    if (ids.size() <= 1) return;
    const auto value = [&](int32_t id) { return probabilities[static_cast<size_t>(id)]; };
    double total = 0.0;
    for (const int32_t id : ids) total += double{value(id)};
    const double limit = double{1.0f - p} * total;
    // What is below this threshold is dropped for sure, all of it together being at most half of
    // the limit; only the rest, usually little, has to be sorted.
    const auto small = static_cast<float>(0.5 * limit / static_cast<double>(ids.size()));
    double cumulative = 0.0;
    std::vector<int32_t> rest;
    for (const int32_t id : ids) {
      if (value(id) <= small) {
        cumulative += double{value(id)};
      } else {
        rest.push_back(id);
      }
    }
    std::sort(rest.begin(), rest.end(), [&](int32_t a, int32_t b) {
      return value(a) != value(b) ? value(a) < value(b) : a > b;
    });
    size_t dropped = 0;
    while (dropped + 1 < rest.size()) {
      cumulative += double{value(rest[dropped])};
      if (cumulative > limit) break;
      ++dropped;
    }
    rest.erase(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(dropped));
    std::sort(rest.begin(), rest.end());
    ids = std::move(rest);
  }

  std::vector<float> logits_;
  float most_;
};

float* f32_row(const Tensor& tensor, int64_t row) {
  return reinterpret_cast<float*>(Rows(tensor)[row]);
}

void sample_row(const float* logits, int64_t vocab, const ops::SampleRow& how,
                const RowEdits& changes, int64_t i, const ops::SampleResult& out) {
  const Row row(logits, vocab);
  const bool empty = row.empty();
  const float log_sum = empty ? kNan : row.log_sum();
  const int32_t token = empty             ? -1
                        : how.forced >= 0 ? how.forced
                        : changes.none()  ? row.choose(how)
                                          : row.with(changes).choose(how);
  out.tokens.as<int32_t>()[i] = token;
  if (out.logprobs) {
    out.logprobs.as<float>()[i] = empty       ? kNan
                                  : token < 0 ? -kInf
                                              : row.below_max(static_cast<size_t>(token)) - log_sum;
  }
  if (out.ranks) out.ranks.as<int32_t>()[i] = token < 0 ? 0 : row.rank(row.at(token));
  if (!out.top_tokens) return;
  const int64_t k = out.top_tokens.cols();
  const std::vector<int32_t> top = empty ? std::vector<int32_t>{} : row.top(k);
  auto* const ids = reinterpret_cast<int32_t*>(Rows(out.top_tokens)[i]);
  for (int64_t j = 0; j < k; ++j) {
    const bool there = j < static_cast<int64_t>(top.size());
    ids[j] = there ? top[static_cast<size_t>(j)] : -1;
    if (!out.top_logprobs) continue;
    f32_row(out.top_logprobs, i)[j] =
        there ? row.below_max(static_cast<size_t>(ids[j])) - log_sum : -kInf;
  }
}

// The changes of row i. The edits are in ascending order of their rows.
RowEdits edits_of(const ops::LogitEdits& all, int64_t i) {
  RowEdits out;
  if (all.mask_rows) {
    const int32_t mask = all.mask_rows.as<const int32_t>()[i];
    if (mask >= 0) out.mask = reinterpret_cast<const int32_t*>(Rows(all.masks)[mask]);
  }
  if (all.edits) {
    const std::span edits(all.edits.as<const ops::LogitEdit>(),
                          static_cast<size_t>(all.edits.rows()));
    const auto found =
        std::ranges::equal_range(edits, static_cast<int32_t>(i), {}, &ops::LogitEdit::row);
    out.edits = {found.begin(), found.end()};
  }
  return out;
}

// Ids and rows are the caller's; a wrong one is a broken invariant, and would write elsewhere.
bool valid(const ops::LogitEdits& all, int64_t n, int64_t vocab) {
  if (all.edits) {
    if (all.edits.cols() != sizeof(ops::LogitEdit) || !all.edits.contiguous()) return false;
    const std::span edits(all.edits.as<const ops::LogitEdit>(),
                          static_cast<size_t>(all.edits.rows()));
    if (!std::ranges::is_sorted(edits, {}, &ops::LogitEdit::row)) return false;
    for (const ops::LogitEdit& edit : edits) {
      if (edit.row < 0 || edit.row >= n || edit.token < 0 || edit.token >= vocab) return false;
    }
  }
  if (!all.mask_rows) return !all.masks;
  if (all.mask_rows.type != DType::i32 || all.mask_rows.count() != n) return false;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t mask = all.mask_rows.as<const int32_t>()[i];
    if (mask >= 0 && (!all.masks || mask >= all.masks.rows())) return false;
  }
  return !all.masks || (all.masks.type == DType::i32 && all.masks.cols() == (vocab + 31) / 32);
}

}  // namespace

void sample(const KernelContext& context, const Tensor& logits, const Tensor& rows,
            const ops::LogitEdits& edits, const ops::SampleResult& out) {
  const int64_t n = rows.rows();
  if (n == 0) return;
  if (rows.cols() != sizeof(ops::SampleRow) || logits.type != DType::f32 || logits.rows() != n ||
      out.tokens.type != DType::i32 || out.tokens.count() != n ||
      (out.logprobs && out.logprobs.count() != n) || (out.ranks && out.ranks.count() != n) ||
      (out.top_tokens && out.top_tokens.rows() != n) ||
      (out.top_logprobs && out.top_logprobs.shape != out.top_tokens.shape)) {
    unsupported("sample", "shapes or types do not fit",
                {{"logits", logits}, {"tokens", out.tokens}, {"top_tokens", out.top_tokens}});
  }
  const std::span hows(rows.as<const ops::SampleRow>(), static_cast<size_t>(n));
  const bool forced_exist =
      std::ranges::all_of(hows, [&](const auto& how) { return how.forced < logits.cols(); });
  if (!forced_exist || !valid(edits, n, logits.cols())) {
    unsupported("sample", "edits, masks or forced tokens do not fit the logits",
                {{"logits", logits}, {"edits", edits.edits}, {"masks", edits.masks}});
  }
  const Rows logit_rows(logits);
  context.threads.parallel_for(n, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      sample_row(reinterpret_cast<const float*>(logit_rows[i]), logits.cols(),
                 hows[static_cast<size_t>(i)], edits_of(edits, i), i, out);
    }
  });
}

}  // namespace octet::cpu
