// Caches, batches and block tables for the attention cases, filled by the test itself: positions
// lie in scattered blocks, and every byte that no position owns is NaN.
#pragma once

#include <functional>
#include <numeric>
#include <string>

#include "conformance/oracle.h"
#include "conformance/rig.h"

namespace octet::conformance {

struct Span {
  int64_t first_position, rows;
};

// The sequences of a case and where their blocks lie. Blocks of different sequences interleave.
struct Pages {
  int64_t block_tokens = 16, blocks = 0, max_blocks = 0, rows = 0;
  std::vector<ops::SequenceRows> sequences;
  std::vector<int32_t> table;  // [sequences, max_blocks], -1 = none
  int64_t slot_of(size_t sequence, int64_t position) const {
    const int64_t entry = static_cast<int64_t>(sequence) * max_blocks + position / block_tokens;
    return table[static_cast<size_t>(entry)] * block_tokens + position % block_tokens;
  }
};

inline Pages make_pages(const std::vector<Span>& spans, int64_t block_tokens) {
  Pages pages;
  pages.block_tokens = block_tokens;
  int64_t used = 0;
  for (const Span& span : spans) {
    pages.sequences.push_back({pages.rows, span.rows, span.first_position});
    pages.rows += span.rows;
    const int64_t count = (span.first_position + span.rows + block_tokens - 1) / block_tokens;
    pages.max_blocks = std::max(pages.max_blocks, count + 1);
    used += count;
  }
  pages.table.assign(spans.size() * static_cast<size_t>(pages.max_blocks), -1);
  pages.blocks = used + 3;
  // A walk through all blocks in an order that jumps about.
  int64_t stride = 7;
  while (std::gcd(stride, pages.blocks) != 1) ++stride;
  int64_t next = 2 % pages.blocks;
  for (int64_t entry = 0; entry < pages.max_blocks; ++entry) {
    for (size_t s = 0; s < spans.size(); ++s) {
      const int64_t context = spans[s].first_position + spans[s].rows;
      if (entry * block_tokens >= context) continue;
      pages.table[s * static_cast<size_t>(pages.max_blocks) + static_cast<size_t>(entry)] =
          static_cast<int32_t>(next);
      next = (next + stride) % pages.blocks;
    }
  }
  return pages;
}

// The batch as the ops see it; `tokens` and `logits_rows` are not used by them.
inline ops::Batch make_batch(Rig& rig, const Pages& pages) {
  ops::Batch batch;
  batch.sequences = pages.sequences;
  batch.rows = pages.rows;
  std::vector<int32_t> positions, spans, row_sequence;
  for (const ops::SequenceRows& s : pages.sequences) {
    const auto index = static_cast<int32_t>(spans.size() / 3);
    for (const int64_t value : {s.first_row, s.rows, s.first_position}) {
      spans.push_back(static_cast<int32_t>(value));
    }
    for (int64_t i = 0; i < s.rows; ++i) {
      positions.push_back(static_cast<int32_t>(s.first_position + i));
      row_sequence.push_back(index);
    }
    batch.max_context = std::max(batch.max_context, s.context());
  }
  batch.positions = rig.put({pages.rows}, positions);
  batch.row_sequence = rig.put({pages.rows}, row_sequence);
  batch.spans = rig.put({static_cast<int64_t>(pages.sequences.size()), 3}, spans);
  batch.block_table =
      rig.put({static_cast<int64_t>(pages.sequences.size()), pages.max_blocks}, pages.table);
  return batch;
}

// A plane of the cache under construction: bytes, all NaN where nothing is written.
struct Plane {
  DType type;
  int64_t width;  // elements of a slot
  std::vector<uint8_t> bytes;

  Plane(DType t, int64_t slots, int64_t w)
      : type(t), width(w), bytes(static_cast<size_t>(slots * w) * size_of(t), 0xFF) {}

  // Writes values / scale into a slot, from element `first`; returns what they then stand for.
  Doubles store(int64_t slot, int64_t first, const Floats& values, float scale);
  // One element becomes NaN.
  void set_nan(int64_t slot, int64_t element);
};

// What is wrong with a result, of which the rows (token, head) with nan(row) should be NaN in every
// output and the others as they were before, to the bit. "" if nothing is.
std::string broken_rows_differ(const Floats& out, const Floats& lse, const Floats& out_before,
                               const Floats& lse_before, const std::function<bool(size_t)>& nan);

// A float [slots, width] plane of scales, NaN where nothing is written.
inline Floats unused_scales(int64_t count) {
  return Floats(static_cast<size_t>(count), std::numeric_limits<float>::quiet_NaN());
}

// The budget of one output element of attention.
//   scores   FP32 errors of a score are relative errors of p, and of the sum of p
//   P        rounded to `p_rounding` (relative, half a step); E4M3 has subnormals below 2^-6 / 256
// Errors of P are independent, uniform in +-half a step, so they add up as a standard deviation:
// six of them are given.
struct AttentionBudget {
  double score_magnitude;  // the largest sum |q k|, scaled
  int64_t k;               // elements of a score
  double p_rounding = 0.0;
  DType out;

  Budget of(const oracle::RowResult& row, size_t d, int64_t n) const {
    const double score = budgets::reordered_sum(k, score_magnitude).abs +
                         16.0 * budgets::kF32Rounding * (1.0 + score_magnitude);
    Budget budget = budgets::reordered_sum(n, row.magnitude[d]);
    budget.abs += 2.0 * score * row.magnitude[d] + 16.0 * budgets::kF32Rounding * row.magnitude[d];
    budget.abs += 6.0 / std::sqrt(3.0) * p_rounding * row.spread[d];
    if (p_rounding == budgets::kE4m3Rounding) {
      budget.abs += 6.0 / std::sqrt(3.0) * 0x1p-18 * row.floor[d];
    }
    return with_output(budget, out);
  }
};

}  // namespace octet::conformance
