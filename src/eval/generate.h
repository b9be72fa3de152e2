// Answers of a model to many prompts, through the engine: continuous batching, shared prefixes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "eval/evaluate.h"
#include "text/tokenizer.h"

namespace octet::eval {

// One prompt and how it is answered.
struct Job {
  std::vector<int32_t> prompt;
  int32_t max_tokens = 256;
  std::vector<std::string> stop;  // the answer ends before the first of these
  engine::Sampling sampling;      // greedy by default
};

struct Answer {
  std::string text;
  std::vector<int32_t> tokens;  // those of the text; the end token is none of them
  bool complete = false;        // it ended by itself, not at max_tokens
};

// Called with the job's place when its answer is complete, in the order of completion.
using TakeAnswer = std::function<void(size_t job, Answer answer)>;

struct GenerateLimits {
  int32_t sequences = 16;     // at a time
  int64_t max_model_len = 0;  // of prompt and answer together
  double memory_utilization = engine::EngineOptions().memory_utilization;
};

// Throws Error if a job does not fit into limits.max_model_len, or the model's logits are not
// finite.
void generate(const Subject& subject, const text::Tokenizer& tokenizer, std::span<const Job> jobs,
              const GenerateLimits& limits, const TakeAnswer& take);

// Prompt and most answer tokens of the longest job.
int64_t longest(std::span<const Job> jobs);

}  // namespace octet::eval
