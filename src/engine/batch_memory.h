// What a step needs to know, on the device: tokens, positions, block tables, how to sample.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/backend.h"

namespace octet::engine {

enum class Wanted : uint8_t { nothing, last, all };

// One sequence's part of a step.
struct SequenceTokens {
  std::span<const int32_t> tokens;
  int64_t first_position = 0;
  std::span<const int32_t> blocks;  // of positions [0, first_position + tokens.size()) at least
  Wanted logits = Wanted::last;
  // Of these tokens, too: scored_rows of them from number scored_first on.
  int64_t scored_first = 0, scored_rows = 0;
  // Not -1: the row of the step before whose sample replaces tokens[0]. It may be in flight still.
  int32_t token_row = -1;
};

// The most that one step may hold.
struct StepLimits {
  int64_t rows = 0, sequences = 0, blocks_per_sequence = 0, logits_rows = 0;
  int64_t block_tokens = 16;
};

// Makes a step of one-token parts as large as its bucket (step_bucket.h): padding rows are token 0
// at position 0 of no sequence, and nobody reads what comes of them. 0 = as large as the parts.
struct StepPadding {
  int64_t rows = 0, max_context = 0;
};

// What a step reads.
struct StepInputs {
  ops::Batch batch;
  Tensor token_rows;   // i32 [rows], for take_tokens; absent if all tokens are known
  Tensor sample_rows;  // u8 [logits rows, sizeof(SampleRow)], for sample; absent if none are given
};

// The memory of these, packed one behind the other, so that one copy brings a step to the device:
//
//   host, one for each step in flight             device, one: its address is the same in all steps
//   | tokens | positions | ... | table |   ─▶     | tokens | positions | ... | table |
//
// Steps run in stream order, so the copy for step n + 1 waits behind step n, which may still read.
// Where a tensor lies depends only on how many rows, sequences, logits and blocks a step has: steps
// of one bucket have theirs at one address.
class BatchMemory {
 public:
  // `depth` steps may be in flight.
  BatchMemory(ops::Backend& backend, const StepLimits& limits, int depth = 1);

  // Lays the parts out one after another and enqueues their copy. `samples` has a row for each row
  // of logits, or none. Valid until the next build; the device has it until the step of the next
  // build. The step of `depth` builds ago must be done. Fault if the parts exceed the limits.
  const StepInputs& build(std::span<const SequenceTokens> parts,
                          std::span<const ops::SampleRow> samples = {},
                          const StepPadding& padding = {});

  static size_t device_bytes(const StepLimits& limits);

 private:
  ops::Backend& backend_;
  StepLimits limits_;
  Buffer device_;
  std::vector<Buffer> staging_;
  size_t next_ = 0;  // staging buffer
  StepInputs inputs_;
};

}  // namespace octet::engine
