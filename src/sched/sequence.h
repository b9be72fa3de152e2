// A request as the scheduler sees it, and the sequence that it becomes: ids and integers only.
// How a token is sampled is opaque here; the engine keeps that by sequence id.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace octet::sched {

using SeqId = uint64_t;
using TokenId = int32_t;
using BlockId = int32_t;
using StepId = uint64_t;

inline constexpr TokenId kNoToken = -1;  // a token id that is still on the device
inline constexpr BlockId kNoBlock = -1;

// How a request ended. Every admitted request ends in exactly one of these.
enum class Finish : uint8_t {
  stop,       // a stop token was sampled, or the caller reported a stop string
  length,     // max_tokens or max_model_len was reached
  cancelled,  // the caller went away
  timeout,    // its time was up
  error,      // the caller reported that the sequence cannot go on
};
const char* to_string(Finish finish);

// What the caller asks for.
struct Request {
  SeqId id = 0;  // chosen by the caller, unique among the unfinished ones
  std::vector<TokenId> prompt;
  std::optional<int32_t> max_tokens;  // output tokens; unset = as many as still fit
  int32_t min_tokens = 0;             // below this many output tokens, stop tokens do not stop
  std::vector<TokenId> eos_ids;       // the model's end tokens; skipped under ignore_eos
  std::vector<TokenId> stop_ids;      // the caller's stop tokens; always honoured
  bool ignore_eos = false;
  bool lockstep = false;  // never plan a token before the one ahead of it is applied
                          // (grammar constraints); others in the batch are unaffected
  std::string salt;       // prefixes are shared only between equal salts
  int32_t priority = 0;   // lower = earlier, under Policy::priority
  bool score = false;     // the log-probabilities of its prompt tokens are wanted
};

enum class Phase : uint8_t {
  waiting,   // holds no blocks; or was preempted and holds them until in_flight == 0
  running,   // holds blocks for all its known tokens
  retiring,  // finished; holds its blocks until in_flight == 0, later results are dropped
};

// The token positions of one sequence (tokens.size() is "known"):
//
//   0         cached      computed     scheduled        known        known+pending
//   |---------|-----------|------------|----------------|------------|
//   | from    | results   | in flight: | known, not yet | sampled by | free
//   | the     | applied   | launched,  | launched       | steps in   |
//   | tree    |           | no result  |                | flight     |
//
//   scheduled = computed + in_flight.   gap = known + pending - scheduled.
//
// There is no prefill and no decode: plan() closes the gap, and a slice that closes all of it
// samples. pending > 0 only when scheduled >= known (a token is sampled only from the last one).
struct Sequence {
  SeqId id = 0;
  uint64_t arrival = 0;         // order of submission; first come, first served
  std::vector<TokenId> tokens;  // known tokens: prompt, then output
  int32_t prompt_len = 0;
  int32_t cached = 0;      // prompt tokens taken from the prefix tree at the first start
  int32_t computed = 0;    // tokens whose results are applied; may roll back
  int32_t in_flight = 0;   // tokens launched after those
  int32_t pending = 0;     // samples launched and not yet applied
  StepId sample_step = 0;  // where the newest pending sample comes from
  int32_t sample_slice = 0;

  std::vector<BlockId> blocks;   // block i holds positions [i*block_tokens, (i+1)*block_tokens)
  int32_t tree_blocks = 0;       // blocks[0 .. tree_blocks) are a path of the prefix tree
  std::vector<BlockId> surplus;  // own copies replaced by the tree's; released at in_flight == 0

  int32_t max_tokens = 0;  // resolved: never runs past max_model_len or the pool
  int32_t min_tokens = 0;
  std::vector<TokenId> stop_ids;  // eos included unless ignored
  bool lockstep = false;
  std::string salt;
  bool score = false;
  int32_t scored = 0;    // score: of positions below this the logits are not wanted (any more)
  int32_t priority = 0;  // 0 unless the policy heeds it
  StepId submitted = 0;  // the step that was next to plan
  StepId drafted = 0;    // the newest step that was planned to compute it
  bool aged = false;     // has waited so long that its priority does not count
  Phase phase = Phase::waiting;
  bool started = false;  // has been running at least once

  int32_t known() const { return static_cast<int32_t>(tokens.size()); }
  int32_t output_len() const { return known() - prompt_len; }
  int32_t scheduled() const { return computed + in_flight; }
};

// The one order of all policies: a comes before b. Who comes last is preempted first.
bool before(const Sequence& a, const Sequence& b);

}  // namespace octet::sched
