// The limits that the scheduler works under. Plain numbers; the engine fills them from its options.
#pragma once

#include <cstdint>
#include <string_view>

namespace octet::sched {

// Who comes first. Under each of them a request that has been admitted ends at last.
enum class Policy : uint8_t {
  fcfs,           // in order of arrival
  priority,       // the lowest Request::priority, then in order of arrival; a request that comes
                  // before one that runs takes its place
  prefill_first,  // in order of arrival, prompts before decodes: long inputs get their first token
                  // sooner, and outputs pause for them
};

const char* to_string(Policy policy);        // "prefill-first"
Policy parse_policy(std::string_view text);  // throws Error

struct Config {
  int32_t block_tokens = 16;              // tokens in one KV block
  int32_t num_blocks = 0;                 // blocks in the pool, ids 0 .. num_blocks-1
  int32_t max_num_seqs = 256;             // sequences that may hold blocks at once
  int32_t max_num_batched_tokens = 2048;  // tokens computed in one step, all slices together
  int32_t max_model_len = 0;              // prompt + output tokens of one sequence
  int32_t max_chunk = 0;                  // cap on the tokens of one slice; 0 = the step's budget
  int32_t launch_depth = 1;               // steps that may be planned and not yet applied
  bool enable_prefix_caching = true;
  Policy policy = Policy::fcfs;
  int32_t max_scored_tokens = 128;  // prompt tokens scored in one step, all slices together
  int32_t max_wait_steps = 1000;    // priority: a request that is older, in steps, comes before all
                                    // that are younger, whatever their priority
  int32_t max_prefill_steps = 8;    // prefill_first: steps in a row in which prompts may take all

  // Tokens that fit into the pool.
  int64_t pool_tokens() const { return int64_t{num_blocks} * block_tokens; }
};

// Throws octet::Error naming the field, its value, what is accepted and the fix.
void validate(const Config& config);

}  // namespace octet::sched
