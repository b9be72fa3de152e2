// Where a position of a sequence lies in the paged cache.
#pragma once

#include <fmt/format.h>

#include "numerics/attention_rule.h"
#include "ops/op_types.h"

namespace octet::cpu {

using attention_rule::kLatentGroup;

// One sequence's row of the block table. Ids are checked: a wrong one would read another's memory.
class BlockTable {
 public:
  BlockTable(const ops::Batch& batch, int64_t sequence, int64_t block_tokens, int64_t blocks)
      : ids_(batch.block_table.as<const int32_t>() + sequence * batch.block_table.strides[0]),
        count_(batch.block_table.shape[1]),
        block_tokens_(block_tokens),
        blocks_(blocks) {}

  int64_t block_of(int64_t position) const {
    const int64_t entry = position / block_tokens_;
    if (entry >= count_ || ids_[entry] < 0 || ids_[entry] >= blocks_) {
      throw Fault(fmt::format("the block table has no block for position {}: entry {} of {} is {}",
                              position, entry, count_, entry < count_ ? ids_[entry] : -1));
    }
    return ids_[entry];
  }
  // Index of the position's slot in a [blocks, block_tokens, ...] tensor seen as rows of tokens.
  int64_t slot_of(int64_t position) const {
    return block_of(position) * block_tokens_ + position % block_tokens_;
  }

 private:
  const int32_t* ids_;
  int64_t count_, block_tokens_, blocks_;
};

}  // namespace octet::cpu
