// Steps of a few shapes only. A captured graph serves every step of its shape, so pure decode steps
// are padded to one of these; a model then needs some tens of graphs.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/batch_memory.h"

namespace octet::engine {

struct StepBucket {
  int64_t rows = 0;         // 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, ...
  int64_t max_context = 0;  // 1024, 2048, 4096, ...
  int32_t top = 0;          // log-probabilities a row: none, or as many as there may be

  // Unlike every other bucket's, and never 0.
  uint64_t key() const;
  bool operator==(const StepBucket&) const = default;
};

// The least bucket that holds a step of `rows` one-token slices, the longest with `context` tokens
// in the cache. It stays within `limits` and `most_top`, as the step does.
StepBucket bucket_of(int64_t rows, int64_t context, int32_t top, const StepLimits& limits,
                     int32_t most_top);

// The buckets of all steps, the shortest contexts first; no more than kMostUsualBuckets, since each
// takes a GPU some 50 ms and 2 MiB.
inline constexpr size_t kMostUsualBuckets = 64;
std::vector<StepBucket> usual_buckets(const StepLimits& limits, int32_t most_top);

}  // namespace octet::engine
