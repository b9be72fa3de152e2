// The limits that the scheduler works under. Plain numbers; the engine fills them from its options.
#pragma once

#include <cstdint>

namespace octet::sched {

struct Config {
  int32_t block_tokens = 16;              // tokens in one KV block
  int32_t num_blocks = 0;                 // blocks in the pool, ids 0 .. num_blocks-1
  int32_t max_num_seqs = 256;             // sequences that may hold blocks at once
  int32_t max_num_batched_tokens = 2048;  // tokens computed in one step, all slices together
  int32_t max_model_len = 0;              // prompt + output tokens of one sequence
  int32_t max_chunk = 0;                  // cap on the tokens of one slice; 0 = the step's budget
  int32_t launch_depth = 1;               // steps that may be planned and not yet applied
  bool enable_prefix_caching = true;

  // Tokens that fit into the pool.
  int64_t pool_tokens() const { return int64_t{num_blocks} * block_tokens; }
};

// Throws octet::Error naming the field, its value, what is accepted and the fix.
void validate(const Config& config);

}  // namespace octet::sched
