// How often each expert of a mixture is chosen over a text, and which to keep in 16 bits for it:
// an error in the weights of an expert costs as often as the expert is used.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "numerics/policy.h"
#include "ops/op_types.h"

namespace octet::offline {

class ExpertUse {
 public:
  // Told of every input of linears (probe::ObservingBackend); counts the rows x [rows, in] that are
  // routed to an expert, and passes over all else.
  void add(std::span<const ops::Linear* const> ws, const Tensor& x);

  // Tokens by expert, of each mixture, "model.layers.3.mlp.experts"; experts beyond the last that
  // was chosen have no entry.
  using Counts = std::map<std::string, std::vector<int64_t>, std::less<>>;
  const Counts& counts() const { return counts_; }

 private:
  Counts counts_;
};

// The experts of one mixture that are used most, most used first, ties to the lowest number: a
// `share` (0 to 1) of its `experts`, rounded up, but none that was never chosen.
std::vector<int64_t> hot_experts(std::span<const int64_t> counts, int64_t experts, double share);

// Rows that keep these experts of every mixture in 16 bits, for a policy.
std::vector<PolicyRow> keep_hot_experts(const ExpertUse::Counts& counts, int64_t experts,
                                        double share);

// The share of all routed tokens that hot_experts() of every mixture take together.
double hot_share_of_tokens(const ExpertUse::Counts& counts, int64_t experts, double share);

}  // namespace octet::offline
