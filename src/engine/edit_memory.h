// The memory of what is edited and masked in a step's logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/batch_memory.h"
#include "engine/token_rules.h"

namespace octet::engine {

// The rules of one row of logits, and the number of the output token that is drawn from it.
struct RowRules {
  TokenRules* rules = nullptr;  // none: the row is as it is
  int32_t index = 0;
};

// Its size is fixed, and holds all that one row can ask for. A step whose rows ask for more is
// sampled in parts.
class EditMemory {
 public:
  // `depth` steps may be in flight.
  EditMemory(ops::Backend& backend, const StepLimits& limits, int64_t vocab, int depth);

  struct Part {
    int64_t rows = 0;  // the first so many, at least one
    ops::LogitEdits edits;
  };
  // Enqueues the copy of the edits and masks of as many of the first of these rows as fit. Rows are
  // counted from the first of them. Valid until the next call, which overwrites the host's copy of
  // `depth` calls ago: its step, or part, must be done.
  Part build(std::span<const RowRules> rows);

  static size_t device_bytes(const StepLimits& limits, int64_t vocab);

 private:
  ops::Backend& backend_;
  int64_t vocab_;
  int64_t most_edits_, most_masks_, most_rows_;
  Buffer device_;
  std::vector<Buffer> staging_;
  size_t next_ = 0;  // staging buffer
  std::vector<ops::LogitEdit> edits_;
};

}  // namespace octet::engine
