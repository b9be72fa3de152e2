#include "engine/edit_memory.h"

#include <algorithm>
#include <cstring>

namespace octet::engine {
namespace {

constexpr int64_t kUsualEdits = 1 << 14;  // of a step; 20 bytes each
constexpr int64_t kMostMasks = 256;

int64_t words_of(int64_t vocab) {
  return (vocab + 31) / 32;
}
// One row can edit every token.
int64_t edits_of(int64_t vocab) {
  return std::max(vocab, kUsualEdits);
}
int64_t masks_of(const StepLimits& limits) {
  return std::min(limits.sequences, kMostMasks);
}

}  // namespace

// | mask of each row | masks | edits |: all but the last word-aligned by themselves, and what a
// part has lies in front of what it has not.
size_t EditMemory::device_bytes(const StepLimits& limits, int64_t vocab) {
  return static_cast<size_t>(limits.logits_rows + masks_of(limits) * words_of(vocab)) *
             sizeof(int32_t) +
         static_cast<size_t>(edits_of(vocab)) * sizeof(ops::LogitEdit);
}

EditMemory::EditMemory(ops::Backend& backend, const StepLimits& limits, int64_t vocab, int depth)
    : backend_(backend),
      vocab_(vocab),
      most_edits_(edits_of(vocab)),
      most_masks_(masks_of(limits)),
      most_rows_(limits.logits_rows),
      device_(backend.alloc(device_bytes(limits, vocab), "edits of logits")) {
  for (int i = 0; i < depth; ++i) {
    staging_.push_back(backend.alloc_host(device_.bytes(), "edits of logits"));
  }
}

EditMemory::Part EditMemory::build(std::span<const RowRules> rows) {
  invariant(!rows.empty() && static_cast<int64_t>(rows.size()) <= most_rows_,
            "a step samples from one row at least, and from no more than there are");
  const Buffer& host = staging_[next_];
  next_ = (next_ + 1) % staging_.size();
  const int64_t words = words_of(vocab_);
  auto* const mask_rows = static_cast<int32_t*>(host.data());
  int32_t* const masks = mask_rows + rows.size();

  Part part;
  int64_t mask_count = 0;
  edits_.clear();
  for (const RowRules& row : rows) {
    const size_t before = edits_.size();
    mask_rows[part.rows] = -1;
    if (row.rules) {
      row.rules->edit(static_cast<int32_t>(part.rows), row.index, edits_);
      if (static_cast<int64_t>(edits_.size()) > most_edits_ || mask_count == most_masks_) {
        edits_.resize(before);
        break;
      }
      int32_t* const mask = masks + mask_count * words;
      if (row.rules->mask({mask, static_cast<size_t>(words)})) {
        mask_rows[part.rows] = static_cast<int32_t>(mask_count++);
      }
    }
    ++part.rows;
  }

  size_t offset = 0;
  const auto place = [&](DType type, Shape shape) {
    const Tensor tensor = device_.tensor(type, shape, offset);
    offset += static_cast<size_t>(tensor.bytes());
    return tensor;
  };
  if (mask_count > 0) {
    part.edits.mask_rows = place(DType::i32, {part.rows});
    offset = rows.size() * sizeof(int32_t);  // where the masks were written
    part.edits.masks = place(DType::i32, {mask_count, words});
  }
  if (!edits_.empty()) {
    const auto count = static_cast<int64_t>(edits_.size());
    std::memcpy(static_cast<uint8_t*>(host.data()) + offset, edits_.data(),
                edits_.size() * sizeof(ops::LogitEdit));
    part.edits.edits = place(DType::u8, {count, int64_t{sizeof(ops::LogitEdit)}});
  }
  if (offset > 0) {
    const Shape bytes{static_cast<int64_t>(offset)};
    backend_.copy(host.tensor(DType::u8, bytes), device_.tensor(DType::u8, bytes));
  }
  return part;
}

}  // namespace octet::engine
