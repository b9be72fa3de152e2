// From a row of logits to a token, as exact_sample.cpp: a cluster of blocks for each row, which
// holds the row in shared memory and looks at it several times.
//
//   row       |  block 0  |  block 1  |  ...  |  block 7  |      a slice of the vocabulary each
//   1 max     the largest logit, ties to the lowest id: the greedy token
//   2 sum     of exp(logit - max), and how many logits are as large
//   3 top     the best, one by one, if they are wanted
//   . edit    (only where the row has edits or a mask) in shared memory, and the largest anew
//   4 filter  (only if not greedy) the k-th largest logit, probabilities in place of the logits,
//   the
//             threshold of top_p
//   5 draw    the largest of probability / exponential random number
//
// Thresholds are found bit by bit from the top: sums below a candidate are compared with a limit.
// Sums are of integers (probabilities times 2^44), so their order has no influence: the same row
// gives the same token, however it is cut.
#include <cooperative_groups.h>

#include "backends/cuda/kernels/device_math.cuh"
#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/kernels/ops.h"
#include "base/philox.h"

namespace octet::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr float kGreedy = 1e-5f;           // temperatures below this one
constexpr float kOne = 17592186044416.0f;  // 2^44; 2^18 of them fit into 64 bits
constexpr int64_t kMostVocab = int64_t{1} << 18;
constexpr int64_t kOneBlock = 4096;  // a vocabulary up to this size is read by one block

struct SampleOut {
  int32_t* tokens;
  float* logprobs;
  int32_t* ranks;
  Matrix<int32_t> top_tokens;
  Matrix<float> top_logprobs;
  int top;  // columns of top_*
};

// What is edited and masked, of all rows.
struct Edits {
  const ops::LogitEdit* edits;
  int count;
  Matrix<const int32_t> masks;
  const int32_t* mask_rows;  // null: no row has one
};

// Floats as unsigned numbers in the same order; 0 and -0 are equal. No float gives 0.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered(uint32_t x) {
  return __uint_as_float(x & 0x80000000u ? x & 0x7FFFFFFFu : ~x);
}
// A candidate: the larger value is better, of equals the lower id. 0 is none.
__device__ __forceinline__ uint64_t candidate(float value, int id) {
  return uint64_t{ordered(value)} << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(id));
}
__device__ __forceinline__ int id_of(uint64_t candidate) {
  return static_cast<int>(0xFFFFFFFFu - static_cast<uint32_t>(candidate));
}
__device__ __forceinline__ float value_of(uint64_t candidate) {
  return from_ordered(static_cast<uint32_t>(candidate >> 32));
}

__device__ __forceinline__ uint64_t fixed_point(float probability) {
  return __float2ull_rn(probability * kOne);
}

struct Add {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};
struct Larger {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};

// What the blocks of a row tell each other: a value of each warp, in two sets that take turns, so
// that a set is written again only after a barrier that follows its last reading.
template <int Blocks>
struct Exchange {
  static constexpr int values = 3;
  uint64_t slots[2][values][Blocks * kWarps];
};

// A row, cut into a slice for each block of a cluster. All threads of all blocks call every
// function, and get the same answers.
template <int Blocks>
class Row {
 public:
  __device__ Row(float* slice, Exchange<Blocks>& exchange, int rank, int begin, int count)
      : slice_(slice), exchange_(exchange), rank_(rank), begin_(begin), count_(count) {}

  __device__ int count() const { return count_; }
  __device__ int id(int i) const { return begin_ + i; }
  __device__ float& at(int i) const { return slice_[i]; }

  // Combines N values of every thread of the row by op, which must not care for the order.
  template <int N, typename Op>
  __device__ void combine(uint64_t (&x)[N], Op op) {
    static_assert(N <= Exchange<Blocks>::values);
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    auto& slots = exchange_.slots[turn_];
    turn_ ^= 1;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      x[n] = in_warp(x[n], op);
      // Lane b tells block b.
      if (lane < Blocks) {
        uint64_t* const slot = &slots[n][rank_ * kWarps + warp];
        if constexpr (Blocks > 1) {
          *cg::this_cluster().map_shared_rank(slot, lane) = x[n];
        } else {
          *slot = x[n];
        }
      }
    }
    barrier();
#pragma unroll
    for (int n = 0; n < N; ++n) {
      uint64_t all = 0;  // neutral for both operations
      for (int i = lane; i < Blocks * kWarps; i += kWarp) all = op(all, slots[n][i]);
      x[n] = in_warp(all, op);
    }
  }

  __device__ static void barrier() {
    if constexpr (Blocks > 1) {
      cg::this_cluster().sync();
    } else {
      __syncthreads();
    }
  }

  struct Threshold {
    uint32_t key;    // the largest for which below <= limit
    uint64_t below;  // sum of the weights of keys below it
  };
  // key_of(i) and weight_of(i) are those of element i of the slice; keys have at most `bits` bits,
  // an even number. Two bits a pass: three candidates are tried at once.
  template <typename KeyOf, typename WeightOf>
  __device__ Threshold threshold(int bits, uint64_t limit, KeyOf key_of, WeightOf weight_of) {
    Threshold found{0, 0};
    for (int shift = bits - 2; shift >= 0; shift -= 2) {
      uint64_t below[3] = {0, 0, 0};
      for (int i = static_cast<int>(threadIdx.x); i < count_; i += kThreads) {
        const uint32_t key = key_of(i);
        const uint64_t weight = weight_of(i);
#pragma unroll
        for (uint32_t n = 0; n < 3; ++n) {
          if (key < found.key + ((n + 1) << shift)) below[n] += weight;
        }
      }
      combine(below, Add{});
      const uint32_t prefix = found.key;
#pragma unroll
      for (uint32_t n = 0; n < 3; ++n) {
        if (below[n] <= limit) found = {prefix + ((n + 1) << shift), below[n]};
      }
    }
    return found;
  }

 private:
  template <typename Op>
  __device__ static uint64_t in_warp(uint64_t x, Op op) {
#pragma unroll
    for (int apart = kWarp / 2; apart > 0; apart /= 2) {
      x = op(x, __shfl_xor_sync(~0u, x, apart));
    }
    return x;
  }

  float* slice_;
  Exchange<Blocks>& exchange_;
  int rank_, begin_, count_;
  int turn_ = 0;
};

// exp of (x - most) / divisor; the largest gives exactly 1, also where it is infinite.
__device__ __forceinline__ float exp_below(float x, float most, float divisor) {
  return x == most ? 1.0f : expf((x - most) / divisor);
}

__device__ __forceinline__ float edited(float x, const ops::LogitEdit& edit) {
  if (edit.bias == -INFINITY) return -INFINITY;  // whatever the logit is
  x += edit.bias;
  x = x > 0.0f ? x / edit.repetition : x * edit.repetition;
  return x - edit.subtract;
}

// The first edit of a row that is not before row n.
__device__ __forceinline__ int first_edit(const Edits& edits, int64_t n) {
  int low = 0, high = edits.count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (edits.edits[middle].row < n) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Masks and edits row n in place, and looks for the best candidate again: 0 if no token is left, or
// if an edit made a NaN. False, and nothing is done, where the row has neither.
template <int Blocks>
__device__ bool edit(Row<Blocks>& row, const Edits& edits, int64_t n, uint64_t& best) {
  const int thread = static_cast<int>(threadIdx.x);
  const int mask = edits.mask_rows ? edits.mask_rows[n] : -1;
  const int begin = first_edit(edits, n), end = first_edit(edits, n + 1);
  if (mask < 0 && begin == end) return false;
  if (mask >= 0) {
    const int32_t* const words = edits.masks.row(mask);
    for (int i = thread; i < row.count(); i += kThreads) {
      const int id = row.id(i);
      if (!(static_cast<uint32_t>(words[id / 32]) >> id % 32 & 1)) row.at(i) = -INFINITY;
    }
  }
  __syncthreads();  // an edit is another thread's element
  for (int e = begin + thread; e < end; e += kThreads) {
    const int i = edits.edits[e].token - row.id(0);
    if (i >= 0 && i < row.count()) row.at(i) = edited(row.at(i), edits.edits[e]);
  }
  __syncthreads();
  constexpr uint64_t nan = ~uint64_t{0};  // larger than all candidates
  uint64_t found[1] = {0};
  for (int i = thread; i < row.count(); i += kThreads) {
    const float x = row.at(i);
    if (x == -INFINITY) continue;
    found[0] = Larger{}(found[0], x != x ? nan : candidate(x, row.id(i)));
  }
  row.combine(found, Larger{});
  best = found[0] == nan ? 0 : found[0];
  return true;
}

// Puts the probabilities, relative to the largest, in place of the logits: 0 for what the filters
// drop.
template <int Blocks>
__device__ void filter(Row<Blocks>& row, const ops::SampleRow& how, float most, int vocab) {
  const int thread = static_cast<int>(threadIdx.x);
  float least = -INFINITY;
  if (how.top_k > 0 && how.top_k < vocab) {
    // The k-th largest logit: the largest one with at most vocab - k below it. What the other
    // filters drop before lies at the bottom, and does not change it.
    const auto kth = row.threshold(
        32, static_cast<uint64_t>(vocab - how.top_k), [&](int i) { return ordered(row.at(i)); },
        [](int) { return uint64_t{1}; });
    least = from_ordered(kth.key);
  }
  uint64_t total[1] = {0};
  for (int i = thread; i < row.count(); i += kThreads) {
    const float logit = row.at(i), p = exp_below(logit, most, how.temperature);
    const bool kept = p > 0.0f && p >= how.min_p && logit >= least;
    row.at(i) = kept ? p : 0.0f;
    if (kept) total[0] += fixed_point(p);
  }
  if (!(how.top_p < 1.0f)) return;

  // From the smallest up, drop while the sum, this one included, is at most 1 - p of the total.
  // Every thread sees only its own elements until here, and so needs no barrier.
  row.combine(total, Add{});
  const auto limit =
      static_cast<uint64_t>(static_cast<double>(1.0f - how.top_p) * static_cast<double>(total[0]));
  const auto key_of = [&](int i) { return __float_as_uint(row.at(i)); };
  auto cut = row.threshold(32, limit, key_of, [&](int i) { return fixed_point(row.at(i)); });
  // The largest stays, whatever the limit.
  constexpr uint32_t one = 0x3F800000u;
  if (cut.key >= one) {
    uint64_t below[1] = {0};
    for (int i = thread; i < row.count(); i += kThreads) {
      if (key_of(i) < one) below[0] += fixed_point(row.at(i));
    }
    row.combine(below, Add{});
    cut = {one, below[0]};
  }
  uint64_t ties[1] = {0};
  for (int i = thread; i < row.count(); i += kThreads) ties[0] += key_of(i) == cut.key;
  row.combine(ties, Add{});
  // Of those at the threshold some go, the highest ids first, but not all.
  const uint64_t each = fixed_point(__uint_as_float(cut.key));
  uint64_t dropped = each > 0 ? (limit - min(limit, cut.below)) / each : 0;
  if (ties[0] > 0) dropped = min(dropped, ties[0] - 1);
  uint32_t end = 0xFFFFFFFFu;  // ties from this id on go
  if (dropped > 0) {
    end = row.threshold(
                 20, ties[0] - dropped, [&](int i) { return static_cast<uint32_t>(row.id(i)); },
                 [&](int i) { return uint64_t{key_of(i) == cut.key}; })
              .key;
  }
  for (int i = thread; i < row.count(); i += kThreads) {
    const uint32_t key = key_of(i);
    const bool tie_goes = key == cut.key && static_cast<uint32_t>(row.id(i)) >= end;
    if (key < cut.key || tie_goes) row.at(i) = 0.0f;
  }
}

// The token with the largest probability / exponential random number: a sample of the distribution.
template <int Blocks>
__device__ int draw(Row<Blocks>& row, const ops::SampleRow& how) {
  __syncthreads();  // four elements of other threads are read
  uint64_t best[1] = {0};
  const auto position = static_cast<uint64_t>(how.position);
  for (int i = 4 * static_cast<int>(threadIdx.x); i < row.count(); i += 4 * kThreads) {
    float p[4];
    bool any = false;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      p[j] = i + j < row.count() ? row.at(i + j) : 0.0f;
      any = any || p[j] > 0.0f;
    }
    if (!any) continue;
    const Philox4 bits = philox(how.seed, position, static_cast<uint64_t>(row.id(i) / 4));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (p[j] > 0.0f) {
        best[0] = Larger{}(best[0], candidate(p[j] / exponential_from(bits[j]), row.id(i + j)));
      }
    }
  }
  row.combine(best, Larger{});
  return best[0] == 0 ? -1 : id_of(best[0]);
}

// Grid: Blocks * rows, in clusters of Blocks. Shared memory: a slice, f32 [slice].
template <int Blocks>
__global__ void __cluster_dims__(Blocks, 1, 1) __launch_bounds__(kThreads)
    sample_kernel(Matrix<const float> logits, int vocab, int slice, bool vectors,
                  const ops::SampleRow* rows, Edits edits, SampleOut out) {
  extern __shared__ float4 memory[];
  __shared__ Exchange<Blocks> exchange;
  const int thread = static_cast<int>(threadIdx.x);
  const int rank = static_cast<int>(blockIdx.x) % Blocks;
  const int64_t n = blockIdx.x / Blocks;
  const int begin = min(rank * slice, vocab), count = min(slice, vocab - begin);
  Row<Blocks> row(reinterpret_cast<float*>(memory), exchange, rank, begin, count);
  // All blocks run before one writes into another's shared memory.
  if constexpr (Blocks > 1) row.barrier();
  wait_for_previous();
  allow_next();

  const float* const x = logits.row(n) + begin;
  float largest = -INFINITY;
  int largest_id = -1;
  bool any_nan = false;
  const auto take = [&](int i, float logit) {
    row.at(i) = logit;
    if (!(logit <= largest)) {  // larger, of equals the first, as i only grows; or a NaN
      any_nan = any_nan || logit != logit;
      largest = logit;
      largest_id = row.id(i);
    }
  };
  const int fours = vectors ? count / 4 : 0;
#pragma unroll 4
  for (int i = thread; i < fours; i += kThreads) {
    const float4 four = __ldcs(reinterpret_cast<const float4*>(x) + i);
    take(4 * i, four.x);
    take(4 * i + 1, four.y);
    take(4 * i + 2, four.z);
    take(4 * i + 3, four.w);
  }
  for (int i = 4 * fours + thread; i < count; i += kThreads) take(i, x[i]);
  constexpr uint64_t nan = ~uint64_t{0};  // larger than all candidates
  uint64_t best[1] = {any_nan ? nan : largest_id < 0 ? 0 : candidate(largest, largest_id)};
  row.combine(best, Larger{});  // its barrier also ends the filling of the slice
  const float most = value_of(best[0]);
  const bool writer = rank == 0 && thread == 0;
  if (best[0] == 0 || best[0] == nan) {  // a row with a NaN, or of -Inf only, has no token
    if (rank != 0) return;
    if (thread == 0) {
      out.tokens[n] = -1;
      if (out.logprobs) out.logprobs[n] = NAN;
      if (out.ranks) out.ranks[n] = 0;
    }
    for (int i = thread; i < out.top; i += kThreads) {
      if (out.top_tokens.data) out.top_tokens.row(n)[i] = -1;
      if (out.top_logprobs.data) out.top_logprobs.row(n)[i] = -INFINITY;
    }
    return;
  }

  uint64_t sums[2] = {0, 0};  // of exp(logit - max), and of logits that equal it
  float exps = 0.0f;          // of this thread: few enough for FP32
  for (int i = thread; i < count; i += kThreads) {
    const float logit = row.at(i);
    exps += exp_below(logit, most, 1.0f);
    sums[1] += logit == most;
  }
  sums[0] = fixed_point(exps);
  row.combine(sums, Add{});
  // Only the writer needs it, and a logarithm in double takes long if all threads want one.
  const float log_sum =
      writer ? static_cast<float>(log(static_cast<double>(sums[0]) / double{kOne})) : 0.0f;
  const auto logprob_of = [&](float logit) {
    return (logit == most ? 0.0f : logit - most) - log_sum;
  };

  // The best is known; each next one is the best of those behind the last.
  uint64_t last = best[0];
  for (int k = 0; k < out.top; ++k) {
    if (k > 0) {
      uint64_t next[1] = {0};
      for (int i = thread; i < count; i += kThreads) {
        const uint64_t own = candidate(row.at(i), row.id(i));
        if (own < last) next[0] = Larger{}(next[0], own);
      }
      row.combine(next, Larger{});
      last = next[0];
    }
    if (writer) {
      out.top_tokens.row(n)[k] = last == 0 ? -1 : id_of(last);
      if (out.top_logprobs.data) {
        out.top_logprobs.row(n)[k] = last == 0 ? -INFINITY : logprob_of(value_of(last));
      }
    }
    if (last == 0) last = 1;  // nothing is below: the rest is empty, too
  }

  const ops::SampleRow how = rows[n];
  // How many logits are at least as large, of the row as it came: it is read once more, mostly from
  // L2, where the slice holds something else by now.
  const auto rank_of = [&](float logit) {
    uint64_t larger[1] = {0};
    for (int i = thread; i < count; i += kThreads) larger[0] += x[i] >= logit;
    row.combine(larger, Add{});
    return larger[0];
  };
  int token = id_of(best[0]);
  uint64_t rank_of_token = sums[1];
  float logit = most;
  if (how.forced >= 0) {
    token = how.forced;
    logit = logits.row(n)[token];
    if (out.ranks) rank_of_token = rank_of(logit);
  } else {
    const bool changed = edit(row, edits, n, best[0]);
    const bool greedy = how.temperature < kGreedy;
    if (best[0] == 0) {
      token = -1;
    } else if (greedy) {
      token = id_of(best[0]);
    } else {
      filter(row, how, value_of(best[0]), vocab);
      token = draw(row, how);
    }
    if (changed || !greedy) {
      logit = token < 0 ? -INFINITY : logits.row(n)[token];
      if (token < 0) {
        rank_of_token = 0;
      } else if (out.ranks) {
        rank_of_token = rank_of(logit);
      }
    }
  }
  if (!writer) return;
  out.tokens[n] = token;
  if (out.logprobs) out.logprobs[n] = token < 0 ? -INFINITY : logprob_of(logit);
  if (out.ranks) out.ranks[n] = static_cast<int32_t>(rank_of_token);
}

template <int Blocks>
void launch_sample(const KernelContext& context, const Tensor& logits, const Tensor& rows,
                   const Edits& edits, const SampleOut& out) {
  const int vocab = static_cast<int>(logits.cols());
  // A multiple of 4: random numbers come in fours.
  const int slice = ((vocab + Blocks - 1) / Blocks + 3) / 4 * 4;
  launch(context, sample_kernel<Blocks>, dim3(static_cast<unsigned>(rows.rows() * Blocks)),
         dim3(kThreads), static_cast<size_t>(slice) * sizeof(float),
         Matrix<const float>{logits.as<const float>(), logits.row_stride()}, vocab, slice,
         rows_aligned(logits, 16), rows.as<const ops::SampleRow>(), edits, out);
}

}  // namespace

void sample(const KernelContext& context, const Tensor& logits, const Tensor& rows,
            const ops::LogitEdits& edits, const ops::SampleResult& out) {
  const int64_t n = rows.rows();
  if (n == 0) return;
  const auto vector_of = [&](const Tensor& t, DType type) {
    return t.type == type && t.count() == n && t.contiguous();
  };
  const bool fits =
      rows.cols() == sizeof(ops::SampleRow) && rows.contiguous() &&
      reinterpret_cast<uintptr_t>(rows.data) % alignof(ops::SampleRow) == 0 &&
      logits.type == DType::f32 && logits.rows() == n && logits.cols() <= kMostVocab &&
      vector_of(out.tokens, DType::i32) && (!out.logprobs || vector_of(out.logprobs, DType::f32)) &&
      (!out.ranks || vector_of(out.ranks, DType::i32)) &&
      (!out.top_tokens || (out.top_tokens.type == DType::i32 && out.top_tokens.rows() == n)) &&
      (!out.top_logprobs || (out.top_tokens && out.top_logprobs.type == DType::f32 &&
                             out.top_logprobs.shape == out.top_tokens.shape)) &&
      (!edits.edits ||
       (edits.edits.cols() == sizeof(ops::LogitEdit) && edits.edits.contiguous())) &&
      static_cast<bool>(edits.masks) == static_cast<bool>(edits.mask_rows) &&
      (!edits.masks ||
       (edits.masks.type == DType::i32 && edits.masks.cols() == (logits.cols() + 31) / 32 &&
        vector_of(edits.mask_rows, DType::i32)));
  if (!fits) {
    unsupported("sample", "shapes or types do not fit",
                {{"logits", logits},
                 {"rows", rows},
                 {"tokens", out.tokens},
                 {"top_tokens", out.top_tokens},
                 {"top_logprobs", out.top_logprobs},
                 {"edits", edits.edits},
                 {"masks", edits.masks},
                 {"mask_rows", edits.mask_rows}});
  }
  Edits changes{.edits = nullptr, .count = 0, .masks = {nullptr, 0}, .mask_rows = nullptr};
  if (edits.edits) {
    changes.edits = edits.edits.as<const ops::LogitEdit>();
    changes.count = static_cast<int>(edits.edits.rows());
  }
  if (edits.masks) {
    changes.masks = {edits.masks.as<const int32_t>(), edits.masks.row_stride()};
    changes.mask_rows = edits.mask_rows.as<const int32_t>();
  }
  SampleOut to{.tokens = out.tokens.as<int32_t>(),
               .logprobs = out.logprobs.as<float>(),
               .ranks = out.ranks.as<int32_t>(),
               .top_tokens = {nullptr, 0},
               .top_logprobs = {nullptr, 0},
               .top = 0};
  if (out.top_tokens) {
    to.top_tokens = {out.top_tokens.as<int32_t>(), out.top_tokens.row_stride()};
    to.top = static_cast<int>(out.top_tokens.cols());
  }
  if (out.top_logprobs) {
    to.top_logprobs = {out.top_logprobs.as<float>(), out.top_logprobs.row_stride()};
  }
  if (logits.cols() <= kOneBlock) {
    launch_sample<1>(context, logits, rows, changes, to);
  } else {
    launch_sample<8>(context, logits, rows, changes, to);
  }
}

}  // namespace octet::cuda
