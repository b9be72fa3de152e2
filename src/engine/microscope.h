// Where a served model leaves its baseline: token by token, and for one token layer by layer.
//
//   tokens ─▶ served   ─▶ logits ─┐ KL(baseline ‖ served), both log-probabilities, the best tokens
//          └▶ baseline ─▶ logits ─┘
//
// Both run by hand (engine/session.h) on a backend of the microscope's own, so that the serving
// engine shares nothing with it but the weights, which nobody writes, and the processor.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <string_view>
#include <vector>

#include "engine/capacity.h"
#include "engine/distribution.h"
#include "engine/session.h"

namespace octet::engine {

struct MicroscopeOptions {
  int64_t max_tokens = 2048;  // of one sequence, prompt and output together
  model::KvType kv_type = model::KvType::automatic, baseline_kv_type = model::KvType::automatic;
  bool unit_kv_scale = false, baseline_unit_kv_scale = false;
};

// A token that one of the two models would have liked, with what both give it. Natural logarithms.
struct Alternative {
  int32_t token = 0;
  double served = 0, baseline = 0;
};

// How both predicted one token, from all tokens before it.
struct TokenView {
  int32_t token = 0;
  double kl = 0;                    // KL(baseline ‖ served) over the whole vocabulary, in nats
  bool same_top1 = false;           // the same token is the most likely one
  double served = 0, baseline = 0;  // log-probabilities of the token
  // The best tokens of each, together, those that the baseline finds likelier first.
  std::vector<Alternative> alternatives;
};

enum class StreamPart : uint8_t { embedding, attention, mlp };
std::string_view name_of(StreamPart part);

// What one part of the model does to the residual stream at one position. x and y are the streams
// of the served model and the baseline after the part, and d = x - y at the end of the last layer:
//
//   difference  |x - y| / |y|
//   added       |what the part adds to x - what it adds to y| / |y|
//   share       (what it adds to x - what it adds to y) · d / |d|²
//
// Since every stream is the sum of what was added to it, all shares together are 1: they say which
// parts make the difference that the head sees. A negative one works against it. A part whose input
// differs already adds a difference even where its own arithmetic is exact.
struct PartView {
  int64_t layer = -1;  // -1: the embedding
  StreamPart part = StreamPart::embedding;
  double difference = 0, added = 0, share = 0;
};

class Microscope {
 public:
  // Allocates caches for both. `backend` is this object's alone; all three outlive it. Error unless
  // the two share a vocabulary.
  Microscope(const model::Model& served, const model::Model& baseline, ops::Backend& backend,
             const MicroscopeOptions& options);

  int64_t max_tokens() const { return options_.max_tokens; }
  // Whether parts() can compare the two: they have the same layers and the same width.
  bool has_parts() const;
  // What the microscope takes of memory: the baseline's weights, both caches and activations.
  Ledger ledger() const;

  // To call on the thread that calls the rest, if it did not construct this. One thread at a time.
  void enter_thread() { backend_.enter_thread(); }

  // How both predict tokens 1, 2, ... of `tokens` (at most max_tokens(), each of the vocabulary),
  // with the `top` best tokens of each. Nothing once `stop` is requested, which is looked at
  // between chunks. Error where a model computes NaN or infinities.
  std::optional<std::vector<TokenView>> compare(std::span<const int32_t> tokens, size_t top,
                                                const std::stop_token& stop);

  // The parts of the model, in their order, at the position that predicts tokens[position],
  // 1 <= position < tokens.size(). Fault unless has_parts().
  std::optional<std::vector<PartView>> parts(std::span<const int32_t> tokens, int64_t position,
                                             const std::stop_token& stop);

  // The baseline's own most likely continuation of `prompt`, token by token, until `next` returns
  // false or max_tokens() are reached. False once `stop` is requested.
  bool continue_baseline(std::span<const int32_t> prompt, const std::stop_token& stop,
                         FunctionRef<bool(int32_t token)> next);

 private:
  // The streams of one model at one position: what enters each layer, and what enters the final
  // norm; what attention adds in each layer.
  struct Streams {
    std::vector<std::vector<float>> entering, attention;
  };
  bool feed(Session& session, std::span<const int32_t> tokens, const std::stop_token& stop) const;
  bool record(Session& session, std::span<const int32_t> tokens, const std::stop_token& stop,
              Streams& streams) const;

  const model::Model& served_model_;
  const model::Model& baseline_model_;
  ops::Backend& backend_;
  MicroscopeOptions options_;
  int64_t chunk_;
  Session served_, baseline_;
  std::vector<float> kept_;  // logits of the baseline
};

}  // namespace octet::engine
