// How good a model is, and how far one run of it is from another: perplexity and KL divergence.
// Logits come from the engine's own operations; what is computed from them is float64.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/distribution.h"
#include "engine/session.h"
#include "eval/text_windows.h"

namespace octet::eval {

// A loaded model and how its cache is to be kept.
struct Subject {
  const model::Model& model;
  ops::Backend& backend;
  model::KvType kv_type = model::KvType::automatic;
  bool unit_kv_scale = false;
  std::vector<model::KvType> kv_by_layer = {};  // engine::SessionOptions
};

// Called after each part of the work with the tokens that it computed.
using Advance = std::function<void(int64_t tokens)>;

// A session for pieces of at most `max_tokens`, with chunks whose logits fit into a few dozen MB.
engine::SessionOptions session_options(const Subject& subject, int64_t max_tokens);

using engine::require_finite;
using engine::RowSummary;
RowSummary summarize(std::span<const float> logits);

struct Perplexity {
  double nll = 0;  // natural logarithm, summed
  int64_t tokens = 0;
  double value() const;  // exp(nll / tokens)
};
// Throws Fault where the model gives logits that are not finite, as does compare().
Perplexity perplexity(const Subject& subject, std::span<const Piece> pieces,
                      const Advance& advance = {});

// How far the residual stream of a run is from the baseline's: the mean over tokens of
// |difference| / |baseline's|, of what enters a layer; the last entry enters the final norm.
struct LayerError {
  int64_t layer = 0;
  double relative = 0;
};

// One scored token, in the order of the text.
struct ScoredToken {
  int32_t token = 0;
  int32_t best = 0, baseline_best = 0;  // the most likely tokens at its place
  double logprob = 0, baseline_logprob = 0;
  double kl = 0;  // KL(baseline || candidate) at its place
};

struct Comparison {
  Perplexity baseline, candidate;
  std::vector<ScoredToken> scored;
  // KL(baseline || candidate) of every scored position, ascending.
  std::vector<double> kl;
  double kl_mean = 0;
  int64_t same_top1 = 0;           // positions with the same most likely token
  std::vector<LayerError> layers;  // by layer, over the first kLayerTokens tokens

  double kl_quantile(double q) const;  // nearest rank
  double top1_agreement() const;
};
inline constexpr int64_t kLayerTokens = 1024;

// Runs both over the same pieces. Throws Error unless they share their vocabulary.
Comparison compare(const Subject& candidate, const Subject& baseline, std::span<const Piece> pieces,
                   const Advance& advance = {});

}  // namespace octet::eval
