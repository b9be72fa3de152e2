// Whether a device computes what the reference does: a small model of made-up weights, in the
// formats of the one that is to be served, runs on both. For the start of `serve`, and `doctor`.
#pragma once

#include "model/model.h"
#include "ops/backend.h"

namespace octet::engine {

// The model that stands for `config`: two layers or as few as hold one of each kind, few heads,
// experts and tokens; with its family, its kinds of attention and FFN, head sizes, RoPE and linear
// format. Weights of fewer than 8 bits become 16-bit ones, as no random ones are made.
model::ModelConfig small_version(const model::ModelConfig& config);

struct SelfTest {
  // Of the logits, relative to the reference's: root of mean squares, of the prompt's rows or of
  // the decoded ones, whichever is larger. NaN where they are not finite.
  double error = 0;
  // FP8 amplifies: where a sum in another order rounds to the next code, what follows moves by 6 %.
  // A kernel that leaves out a scale, a row or a mask is wrong by more than half.
  static constexpr double kMost = 0.1;
  bool ok() const { return error <= kMost; }
};

// A prompt of two and a half blocks, then single tokens: prefill and decode. `options` are those of
// the model that is to be served; its policy's rows by name match nothing here.
SelfTest self_test(const model::ModelConfig& small, model::LoadOptions options, model::KvType kv,
                   ops::Backend& device, ops::Backend& reference);

// Error unless ok(), naming the device.
void require_passed(const SelfTest& test, const ops::BackendInfo& device);

}  // namespace octet::engine
