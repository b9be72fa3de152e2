// Which linears stay in 16 bits, by evidence: those first whose FP8 costs most for each byte that
// it saves, and as many of them as a budget asks for or allows.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"

namespace octet::offline {

// Linears that engines run as one, and that so have one precision.
struct Candidate {
  std::string name;
  std::vector<std::string> modules;
  int64_t bytes = 0, bytes_low = 0;  // in 16 bits and in FP8
  double cost = 0;                   // KL of having it in FP8, measured alone
};

// The name of the candidate that a linear belongs to: "model.layers.3.self_attn.qkv" of q_proj,
// k_proj and v_proj, which vLLM loads as one, as it does gate and up, and all experts of a layer.
std::string fused_name(std::string_view module);

struct KeepBudget {
  std::optional<double> kl;      // at most, as measured: as few as possible are kept
  std::optional<int64_t> extra;  // bytes that may be added by what is kept: as many as fit
  // Of the linears' bytes, as they are in 16 bits: the share that may stay so. With `kl` alone.
  double most_kept = 0.2;
};

struct Choice {
  std::vector<size_t> kept;  // places of candidates, what is worth most first
  double kl = 0;             // measured
  double estimated = 0;      // what adding up costs had said
  struct Trial {
    size_t kept = 0;
    double kl = 0;
  };
  std::vector<Trial> trials;  // what was measured, in that order
};

// The candidates that may be kept, what costs most for each byte first; those that do not fit into
// the budget are left out, as are those whose FP8 costs nothing.
std::vector<size_t> keeping_order(std::span<const Candidate> candidates, const KeepBudget& budget);

// Keeps the first of keeping_order(). `measure(kept)` gives the KL of the model with these in 16
// bits. Costs add up only roughly, so where their sum puts the border of a KL budget it is looked
// for by measuring. Throws Error if all that may be kept does not meet a budget of KL.
Choice choose_kept(std::span<const Candidate> candidates, const KeepBudget& budget,
                   FunctionRef<double(std::span<const size_t> kept)> measure);

}  // namespace octet::offline
