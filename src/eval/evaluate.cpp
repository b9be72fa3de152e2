#include "eval/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "model/binder.h"

namespace octet::eval {
namespace {

using engine::Distribution;
using engine::row_of;

// Keeps one run's residual streams of a step, and measures another's against them.
class LayerErrors {
 public:
  explicit LayerErrors(int64_t layers)
      : kept_(static_cast<size_t>(layers) + 1), sums_(static_cast<size_t>(layers) + 1) {}

  bool wants_more() const { return tokens_ < kLayerTokens; }

  model::LayerObserver keep() {
    return [this](int64_t layer, const Tensor& x, const Tensor&) {
      kept_[static_cast<size_t>(layer)] = to_host(x);
    };
  }
  model::LayerObserver measure() {
    return [this](int64_t layer, const Tensor& x, const Tensor&) {
      add(static_cast<size_t>(layer), to_host(x), static_cast<size_t>(x.cols()));
      if (layer == 0) tokens_ += x.rows();
    };
  }

  std::vector<LayerError> result() const {
    std::vector<LayerError> errors;
    errors.reserve(sums_.size());
    for (size_t i = 0; i < sums_.size(); ++i) {
      errors.push_back({static_cast<int64_t>(i), sums_[i] / static_cast<double>(tokens_)});
    }
    return errors;
  }

 private:
  static std::vector<float> to_host(const Tensor& x) { return model::to_float(x); }

  void add(size_t layer, const std::vector<float>& x, size_t columns) {
    const std::vector<float>& base = kept_[layer];
    invariant(base.size() == x.size(), "both runs have the same rows");
    for (size_t first = 0; first < x.size(); first += columns) {
      double difference = 0, norm = 0;
      for (size_t i = first; i < first + columns; ++i) {
        const double b = base[i], d = x[i] - b;
        difference += d * d;
        norm += b * b;
      }
      sums_[layer] += norm > 0 ? std::sqrt(difference / norm) : 0.0;
    }
  }

  std::vector<std::vector<float>> kept_;
  std::vector<double> sums_;
  int64_t tokens_ = 0;
};

// The next token at each row of a chunk, or nothing where it is not scored or there is none.
struct Targets {
  const Piece& piece;
  bool has(int64_t position) const {
    return position + 1 >= piece.context &&
           position + 1 < static_cast<int64_t>(piece.tokens.size());
  }
  int32_t at(int64_t position) const { return piece.tokens[static_cast<size_t>(position) + 1]; }
};

// "piece 3 of the text", counted from 0 like its tokens.
std::string name_of(const Piece& piece, std::span<const Piece> pieces) {
  return fmt::format("piece {} of the text", &piece - pieces.data());
}

}  // namespace

engine::SessionOptions session_options(const Subject& subject, int64_t max_tokens) {
  constexpr int64_t kLogitsBytes = 32 << 20;
  const int64_t affordable = kLogitsBytes / (subject.model.config().vocab * 4);
  return {.max_tokens = max_tokens,
          .chunk = std::clamp<int64_t>(affordable, 16, 512),
          .kv_type = subject.kv_type,
          .unit_kv_scale = subject.unit_kv_scale,
          .kv_by_layer = subject.kv_by_layer};
}

RowSummary summarize(std::span<const float> logits) {
  Distribution row;
  return row.read(logits);
}

double Perplexity::value() const {
  return std::exp(nll / static_cast<double>(tokens));
}

Perplexity perplexity(const Subject& subject, std::span<const Piece> pieces,
                      const Advance& advance) {
  engine::Session session(subject.model, subject.backend,
                          session_options(subject, longest(pieces)));
  Perplexity result;
  Distribution row;
  for (const Piece& piece : pieces) {
    const std::string name = name_of(piece, pieces);
    session.reset();
    const Targets targets{piece};
    session.extend(0, piece.tokens, engine::Wanted::all, [&](int64_t first, const Tensor& logits) {
      for (int64_t i = 0; i < logits.rows(); ++i) {
        if (!targets.has(first + i)) continue;
        require_finite(row_of(logits, i), "model", name, first + i);
        row.read(row_of(logits, i));
        result.nll -= row.log_probability(static_cast<size_t>(targets.at(first + i)));
        ++result.tokens;
      }
      if (advance) advance(logits.rows());
    });
  }
  return result;
}

double Comparison::kl_quantile(double q) const {
  invariant(!kl.empty() && std::ranges::is_sorted(kl), "quantiles are of sorted values");
  const double rank = std::ceil(q * static_cast<double>(kl.size()));
  return kl[static_cast<size_t>(std::clamp(rank, 1.0, static_cast<double>(kl.size()))) - 1];
}

double Comparison::top1_agreement() const {
  return static_cast<double>(same_top1) / static_cast<double>(kl.size());
}

Comparison compare(const Subject& candidate, const Subject& baseline, std::span<const Piece> pieces,
                   const Advance& advance) {
  engine::require_same_vocabulary(candidate.model.config(), baseline.model.config());
  const engine::SessionOptions options = session_options(candidate, longest(pieces));
  engine::Session runs(candidate.model, candidate.backend, options);
  engine::SessionOptions base_options = session_options(baseline, longest(pieces));
  base_options.chunk = options.chunk;
  engine::Session base_runs(baseline.model, baseline.backend, base_options);

  const bool same_depth = candidate.model.config().layers == baseline.model.config().layers &&
                          candidate.model.config().hidden == baseline.model.config().hidden;
  LayerErrors errors(baseline.model.config().layers);
  Comparison result;
  Distribution p, q;
  std::vector<float> kept;
  for (const Piece& piece : pieces) {
    const std::string name = name_of(piece, pieces);
    runs.reset();
    base_runs.reset();
    const Targets targets{piece};
    const std::span<const int32_t> tokens(piece.tokens);
    for (size_t at = 0; at < tokens.size(); at += static_cast<size_t>(options.chunk)) {
      const auto chunk =
          tokens.subspan(at, std::min(static_cast<size_t>(options.chunk), tokens.size() - at));
      const bool watch = same_depth && errors.wants_more();
      base_runs.observe(watch ? errors.keep() : model::LayerObserver());
      runs.observe(watch ? errors.measure() : model::LayerObserver());
      base_runs.extend(0, chunk, engine::Wanted::all, [&](int64_t, const Tensor& logits) {
        kept.assign(logits.as<float>(), logits.as<float>() + logits.count());
      });
      runs.extend(0, chunk, engine::Wanted::all, [&](int64_t first, const Tensor& logits) {
        const Tensor base(kept.data(), DType::f32, logits.shape);
        for (int64_t i = 0; i < logits.rows(); ++i) {
          if (!targets.has(first + i)) continue;
          const auto next = static_cast<size_t>(targets.at(first + i));
          require_finite(row_of(base, i), "baseline", name, first + i);
          require_finite(row_of(logits, i), "model", name, first + i);
          const RowSummary expected = p.read(row_of(base, i)), found = q.read(row_of(logits, i));
          const ScoredToken one{targets.at(first + i),   found.best,
                                expected.best,           q.log_probability(next),
                                p.log_probability(next), p.divergence(q)};
          result.baseline.nll -= one.baseline_logprob;
          result.candidate.nll -= one.logprob;
          result.kl.push_back(one.kl);
          result.same_top1 += expected.best == found.best ? 1 : 0;
          result.scored.push_back(one);
        }
        if (advance) advance(logits.rows());
      });
    }
  }
  result.baseline.tokens = result.candidate.tokens = static_cast<int64_t>(result.kl.size());
  result.kl_mean = std::accumulate(result.kl.begin(), result.kl.end(), 0.0) /
                   static_cast<double>(result.kl.size());
  std::ranges::sort(result.kl);
  if (same_depth) result.layers = errors.result();
  return result;
}

}  // namespace octet::eval
