#include "sched/admission.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace octet::sched {
namespace {

void require(bool holds, const char* field, int64_t value, const char* accepted, const char* fix) {
  if (holds) return;
  throw Error({.what = "scheduler configuration out of range",
               .where = field,
               .value = std::to_string(value),
               .accepted = accepted,
               .fix = fix});
}

}  // namespace

void validate(const Config& c) {
  require(c.block_tokens >= 1, "block_tokens", c.block_tokens, "1 or more", "use 16");
  require(c.num_blocks >= 1, "num_blocks", c.num_blocks, "1 or more",
          "give the KV cache more memory");
  require(c.max_num_seqs >= 1, "max_num_seqs", c.max_num_seqs, "1 or more", "use 256");
  // With a token for every running sequence, decoding can never starve an older prompt.
  require(c.max_num_batched_tokens >= c.max_num_seqs, "max_num_batched_tokens",
          c.max_num_batched_tokens, "max_num_seqs or more",
          "raise max_num_batched_tokens, or lower max_num_seqs");
  require(c.max_model_len >= 2, "max_model_len", c.max_model_len,
          "2 or more: one prompt token and one output token", "raise max_model_len");
  require(c.max_chunk >= 0, "max_chunk", c.max_chunk, "0 (the step's budget), or 1 or more",
          "use 0");
  require(c.launch_depth >= 1, "launch_depth", c.launch_depth, "1 or more", "use 1");
  require(c.max_scored_tokens >= 1, "max_scored_tokens", c.max_scored_tokens, "1 or more",
          "use 128");
  require(c.max_wait_steps >= 1, "max_wait_steps", c.max_wait_steps, "1 or more", "use 1000");
  require(c.max_prefill_steps >= 1, "max_prefill_steps", c.max_prefill_steps, "1 or more", "use 8");
}

// What is left for the output, in tokens:
//
//   0              prompt                          max_model_len
//   |--------------|-------------------------------|
//   | prompt       | output                        |
//   |---------------------------------------|
//   0                                        pool_tokens, plus one: the last token sampled
//                                            is never computed, so it needs no place in the pool
Admission admit(const Config& config, const Request& request) {
  using Reason = Admission::Reason;
  Admission out;
  out.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  out.max_tokens = request.max_tokens.value_or(0);
  out.max_model_len = config.max_model_len;
  out.pool_tokens = config.pool_tokens();
  out.min_tokens = request.min_tokens;
  const auto refuse = [&](Reason reason) {
    out.reason = reason;
    return out;
  };

  const int64_t left_in_model = out.max_model_len - out.prompt_tokens;
  const int64_t left_in_pool = out.pool_tokens - out.prompt_tokens + 1;
  if (out.prompt_tokens == 0) return refuse(Reason::empty_prompt);
  if (request.max_tokens && *request.max_tokens < 1) return refuse(Reason::bad_max_tokens);
  if (left_in_model < 1) return refuse(Reason::prompt_too_long);
  if (request.max_tokens && *request.max_tokens > left_in_model) {
    return refuse(Reason::exceeds_model_len);
  }
  if (left_in_pool < request.max_tokens.value_or(1)) return refuse(Reason::exceeds_pool);
  if (!request.max_tokens) out.max_tokens = std::min(left_in_model, left_in_pool);
  if (request.min_tokens < 0 || request.min_tokens > out.max_tokens) {
    return refuse(Reason::bad_max_tokens);
  }
  return out;
}

std::string Admission::message() const {
  switch (reason) {
    case Reason::ok:
      return "";
    case Reason::empty_prompt:
      return "The prompt has no tokens; at least 1 is needed.";
    case Reason::bad_max_tokens:
      return fmt::format(
          "max_tokens must be at least 1, and min_tokens from 0 to that; max_tokens is {}, "
          "min_tokens is {}.",
          max_tokens, min_tokens);
    case Reason::prompt_too_long:
      return fmt::format(
          "The prompt has {} tokens; the maximum context length is {} tokens, of which at least 1 "
          "is for the output.",
          prompt_tokens, max_model_len);
    case Reason::exceeds_model_len:
      return fmt::format(
          "The prompt has {} tokens and max_tokens is {}, {} together; the maximum context length "
          "is {} tokens.",
          prompt_tokens, max_tokens, prompt_tokens + max_tokens, max_model_len);
    case Reason::exceeds_pool:
      return fmt::format(
          "The prompt has {} tokens and max_tokens is {}; the KV cache of this server holds {} "
          "tokens, so the request can never run.",
          prompt_tokens, max_tokens == 0 ? std::string("unset") : std::to_string(max_tokens),
          pool_tokens);
  }
  throw Fault("unknown admission reason");
}

const char* to_string(Admission::Reason reason) {
  switch (reason) {
    case Admission::Reason::ok:
      return "ok";
    case Admission::Reason::empty_prompt:
      return "empty_prompt";
    case Admission::Reason::bad_max_tokens:
      return "bad_max_tokens";
    case Admission::Reason::prompt_too_long:
      return "prompt_too_long";
    case Admission::Reason::exceeds_model_len:
      return "exceeds_model_len";
    case Admission::Reason::exceeds_pool:
      return "exceeds_pool";
  }
  throw Fault("unknown admission reason");
}

const char* to_string(Policy policy) {
  switch (policy) {
    case Policy::fcfs:
      return "fcfs";
    case Policy::priority:
      return "priority";
    case Policy::prefill_first:
      return "prefill-first";
  }
  throw Fault("unknown policy");
}

Policy parse_policy(std::string_view text) {
  for (Policy policy : {Policy::fcfs, Policy::priority, Policy::prefill_first}) {
    if (text == to_string(policy)) return policy;
  }
  throw Error({.what = "unknown scheduling policy",
               .where = "--schedule-policy",
               .value = std::string(text),
               .accepted = "fcfs, priority, prefill-first"});
}

const char* to_string(Finish finish) {
  switch (finish) {
    case Finish::stop:
      return "stop";
    case Finish::length:
      return "length";
    case Finish::cancelled:
      return "cancelled";
    case Finish::timeout:
      return "timeout";
    case Finish::error:
      return "error";
  }
  throw Fault("unknown finish reason");
}

}  // namespace octet::sched
