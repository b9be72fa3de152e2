// Whether a request can ever be served, decided before it is queued.
#pragma once

#include <cstdint>
#include <string>

#include "sched/config.h"
#include "sched/sequence.h"

namespace octet::sched {

// The verdict with the numbers behind it. All lengths in tokens.
struct Admission {
  enum class Reason : uint8_t {
    ok,
    empty_prompt,       // nothing to compute
    bad_max_tokens,     // max_tokens < 1, or min_tokens outside [0, max_tokens]
    prompt_too_long,    // the prompt leaves no room for an output token within max_model_len
    exceeds_model_len,  // prompt + the max_tokens asked for > max_model_len
    exceeds_pool,       // would not fit into the KV pool even alone
  };
  Reason reason = Reason::ok;
  int64_t prompt_tokens = 0;
  int64_t max_tokens = 0;  // resolved when ok; as asked for when refused (0 = unset)
  int64_t max_model_len = 0;
  int64_t pool_tokens = 0;
  int64_t min_tokens = 0;

  bool ok() const { return reason == Reason::ok; }
  // One sentence with the real limit, for the caller of the API. Empty when ok.
  std::string message() const;
  bool operator==(const Admission&) const = default;
};
const char* to_string(Admission::Reason reason);

// Pure. An unset max_tokens resolves to what is left of max_model_len and of the pool; a set one is
// never changed, only accepted or refused.
Admission admit(const Config& config, const Request& request);

}  // namespace octet::sched
