// octet serve --calculate-kv-scales --warmup FILE: the scales of an FP8 KV cache from a text that
// the model computes before it serves, for a checkpoint that brings none.
#pragma once

#include <string>

#include "cli/open_model.h"

namespace octet::cli {

struct WarmUpOptions {
  bool calculate = false;
  std::string text;  // as `octet calibrate --text` takes it
};

void add_warm_up_rows(OptionTable& table, WarmUpOptions& options);

// Runs the text through the model in BF16 on the CPU, as `octet calibrate` does, and gives `open`,
// which is not loaded yet, the scales that it asks for: one for K and V of each layer and KV head,
// the largest magnitude / 448, in place of what the checkpoint has. They stay until the process
// ends, and no page of its cache is older than they. Returns whether it did: not unless asked.
// Error where no scale can be fixed: the cache is not E4M3, or a latent is scaled token by token.
// To be called while there are no threads.
bool warm_up(const WarmUpOptions& options, const ModelOptions& model, const BackendOptions& backend,
             OpenModel& open);

// Where the scales of a loaded model's cache come from: "warm-up", "checkpoint", "block groups of
// 1024" tokens, "tokens" (of a latent) or "none" (the cache is not FP8).
std::string kv_scales_from(const OpenModel& open, bool warmed_up);

}  // namespace octet::cli
