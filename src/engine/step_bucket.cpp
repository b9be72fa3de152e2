#include "engine/step_bucket.h"

#include <algorithm>
#include <bit>

namespace octet::engine {
namespace {

// Powers of two and, from 8 on, their middles: at most a third of the rows is padding.
int64_t rows_bucket(int64_t rows) {
  const auto power = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));
  const int64_t middle = power / 4 * 3;
  return power > 8 && rows <= middle ? middle : power;
}

}  // namespace

uint64_t StepBucket::key() const {
  invariant(rows < (1 << 20) && top < (1 << 12) && max_context <= INT32_MAX,
            "the fields of a key do not overlap");
  return uint64_t{1} << 63 | static_cast<uint64_t>(rows) << 43 | static_cast<uint64_t>(top) << 31 |
         static_cast<uint64_t>(max_context);
}

StepBucket bucket_of(int64_t rows, int64_t context, int32_t top, const StepLimits& limits,
                     int32_t most_top) {
  const int64_t most_rows = std::min({limits.rows, limits.sequences, limits.logits_rows});
  const int64_t most_context = limits.blocks_per_sequence * limits.block_tokens;
  const auto next_power = [](int64_t value) {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(value)));
  };
  return {.rows = std::min(rows_bucket(rows), most_rows),
          .max_context = std::min(next_power(std::max<int64_t>(context, 1024)), most_context),
          .top = top == 0 ? 0 : most_top};
}

std::vector<StepBucket> usual_buckets(const StepLimits& limits, int32_t most_top) {
  const int64_t most_context = limits.blocks_per_sequence * limits.block_tokens;
  const int64_t most_rows = std::min({limits.rows, limits.sequences, limits.logits_rows});
  std::vector<StepBucket> buckets;
  for (int64_t context = 1; context <= most_context; context = buckets.back().max_context + 1) {
    for (int32_t top = 0; top <= most_top; top += std::max(most_top, 1)) {
      for (int64_t rows = 1; rows <= most_rows; rows = buckets.back().rows + 1) {
        if (buckets.size() == kMostUsualBuckets) return buckets;
        buckets.push_back(bucket_of(rows, context, top, limits, most_top));
      }
    }
  }
  return buckets;
}

}  // namespace octet::engine
