// What crosses between the scheduler and the runner: the plan of a step, its result, and what a
// result means to the outside. All are values; nothing points into the scheduler.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sched/sequence.h"

namespace octet::sched {

// Names a token that is not on the host yet: the one sampled by slice `slice` of step `step`.
struct DeviceToken {
  StepId step = 0;
  int32_t slice = 0;
  bool operator==(const DeviceToken&) const = default;
};

// The tokens [first, first + count) of one sequence, computed in one step.
struct Slice {
  SeqId seq = 0;
  int32_t first = 0;       // position of tokens[0]
  int32_t count = 0;       // >= 1
  int32_t known = 0;       // tokens of the sequence known on the host when planned
  int32_t prompt_len = 0;  // so first + count - prompt_len is the index of the sampled output token
  bool sample = false;     // logits of the last position are wanted and one token is sampled
  // Set: count == 1, tokens[0] == kNoToken, and the id is that step's sample, still on the device.
  // The step is always in flight, and always the newest one that computes this sequence.
  std::optional<DeviceToken> from;
  std::vector<TokenId> tokens;  // count ids
  // The prompt tokens at positions [score_first + 1, ...) whose log-probabilities are wanted: by
  // the logits of the positions from score_first on, all of this slice.
  int32_t score_first = 0;
  std::vector<TokenId> scored;
  std::vector<BlockId> blocks;  // at least the blocks of positions [0, first + count)
  bool operator==(const Slice&) const = default;
};

// One step. Sampling one-token slices come first, then the chunks, each in the order of the policy.
struct StepPlan {
  StepId step = 0;  // 1, 2, ...; steps must be applied in this order
  std::vector<Slice> slices;

  // Nothing to launch: either no work, or all of it waits for steps in flight. No step is used up;
  // an empty plan need not be applied.
  bool empty() const { return slices.empty(); }
  // Tokens computed by the step.
  int32_t num_tokens() const;
  bool operator==(const StepPlan&) const = default;
};

// tokens[i] are the tokens sampled by slice i: none where slice.sample is false; else normally one.
// With no successor in flight (launch depth 1, or lockstep) it may be several (all become known;
// those beyond the first are still to be computed) or none (the last token is computed again).
struct StepResult {
  StepId step = 0;
  std::vector<std::vector<TokenId>> tokens;
};

// What a step, a cancel or a stop string means to the owner of the request.
struct Emission {
  SeqId seq = 0;
  int32_t slice = -1;                 // slice of the applied plan; -1 = not from a step
  std::vector<TokenId> tokens;        // new output tokens, a stop token included
  int32_t scored = 0;                 // prompt tokens whose log-probabilities came: the slice's
  std::optional<Finish> finish;       // set exactly once in the life of a request
  std::optional<TokenId> stop_token;  // the token that stopped it; its text is not for showing
  int32_t prompt_tokens = 0;          // usage so far, in tokens
  int32_t output_tokens = 0;          // includes a stop token, excludes what was truncated
  int32_t cached_tokens = 0;          // prompt tokens that came from the prefix tree
  bool operator==(const Emission&) const = default;
};

}  // namespace octet::sched
