// Device memory for what a step needs to know: tokens, positions, block tables.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/backend.h"

namespace octet::engine {

enum class Wanted : uint8_t { nothing, last, all };

// One sequence's part of a step.
struct SequenceTokens {
  std::span<const int32_t> tokens;
  int64_t first_position = 0;
  std::span<const int32_t> blocks;  // of positions [0, first_position + tokens.size()) at least
  Wanted logits = Wanted::last;
  // If present (i32 [1] on the device), replaces tokens[0]: sampled by a step still in flight.
  Tensor device_token;
};

// The most that one step may hold.
struct StepLimits {
  int64_t rows = 0, sequences = 0, blocks_per_sequence = 0, logits_rows = 0;
};

// Owns the memory of one step in flight, reused by the next step that takes its place.
class BatchMemory {
 public:
  BatchMemory(ops::Backend& backend, const StepLimits& limits);

  // Lays the parts out one after another and copies ids to the device. Valid until the next build.
  // Fault if the parts exceed the limits.
  const ops::Batch& build(ops::Backend& backend, std::span<const SequenceTokens> parts);

 private:
  Tensor upload(ops::Backend& backend, std::vector<int32_t>& host, const Tensor& device,
                Shape shape);

  StepLimits limits_;
  Buffer buffer_;
  Tensor tokens_, positions_, block_table_, logits_rows_;
  std::vector<int32_t> host_tokens_, host_positions_, host_table_, host_logits_rows_;
  ops::Batch batch_;
};

}  // namespace octet::engine
