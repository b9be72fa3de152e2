#include "engine/microscope.h"

#include <algorithm>
#include <cmath>

#include "model/binder.h"

namespace octet::engine {
namespace {

// Logits of a chunk stay within some MB, and no chunk takes long: between two of them a request
// that nobody waits for ends.
int64_t chunk_of(const model::Model& model) {
  constexpr int64_t kLogitsBytes = 16 << 20, kMost = 64;
  return std::clamp<int64_t>(kLogitsBytes / (model.config().vocab * 4), 1, kMost);
}

SessionOptions session_options(const MicroscopeOptions& options, int64_t chunk, bool baseline) {
  return {.max_tokens = options.max_tokens,
          .chunk = chunk,
          .kv_type = baseline ? options.baseline_kv_type : options.kv_type,
          .unit_kv_scale = baseline ? options.baseline_unit_kv_scale : options.unit_kv_scale};
}

// The best tokens of both, each once.
std::vector<Alternative> alternatives(const Distribution& served, const Distribution& baseline,
                                      size_t top) {
  std::vector<int32_t> ids = baseline.best(top);
  const std::vector<int32_t> others = served.best(top);
  ids.insert(ids.end(), others.begin(), others.end());
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  std::vector<Alternative> all;
  for (const int32_t id : ids) {
    const auto token = static_cast<size_t>(id);
    all.push_back({id, served.log_probability(token), baseline.log_probability(token)});
  }
  std::ranges::stable_sort(all, std::ranges::greater(), &Alternative::baseline);
  return all;
}

// a - b.
std::vector<double> minus(std::span<const float> a, std::span<const float> b) {
  std::vector<double> out(a.size());
  for (size_t i = 0; i < a.size(); ++i) out[i] = static_cast<double>(a[i]) - b[i];
  return out;
}

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double ratio(double value, double to) {
  return to > 0 ? value / to : 0.0;
}

}  // namespace

std::string_view name_of(StreamPart part) {
  switch (part) {
    case StreamPart::embedding:
      return "embedding";
    case StreamPart::attention:
      return "attention";
    case StreamPart::mlp:
      return "mlp";
  }
  return "?";
}

Microscope::Microscope(const model::Model& served, const model::Model& baseline,
                       ops::Backend& backend, const MicroscopeOptions& options)
    : served_model_(served),
      baseline_model_(baseline),
      backend_(backend),
      options_(options),
      chunk_(chunk_of(served)),
      served_(served, backend, session_options(options, chunk_, false)),
      baseline_(baseline, backend, session_options(options, chunk_, true)) {
  require_same_vocabulary(served.config(), baseline.config());
}

bool Microscope::has_parts() const {
  return served_model_.config().layers == baseline_model_.config().layers &&
         served_model_.config().hidden == baseline_model_.config().hidden;
}

Ledger Microscope::ledger() const {
  const ops::BackendInfo& info = backend_.info();
  const auto arenas = static_cast<int64_t>(served_.arena_bytes() + baseline_.arena_bytes());
  return {.mapped_weights =
              info.device.kind == DeviceKind::cpu ? mapped_weight_bytes(baseline_model_) : 0,
          .owned_weights = baseline_model_.owned_bytes(),
          .arena = arenas,
          .kv = served_.kv().bytes() + baseline_.kv().bytes(),
          .kv_tokens = 2 * options_.max_tokens,
          .workspace = info.workspace_bytes};
}

std::optional<std::vector<TokenView>> Microscope::compare(std::span<const int32_t> tokens,
                                                          size_t top, const std::stop_token& stop) {
  invariant(!tokens.empty(), "there are tokens to look at");
  served_.reset();
  baseline_.reset();
  std::vector<TokenView> views;
  Distribution p, q;  // of the baseline and the served model
  // What follows the last token is not asked for.
  const std::span<const int32_t> inputs = tokens.first(tokens.size() - 1);
  for (size_t at = 0; at < inputs.size(); at += static_cast<size_t>(chunk_)) {
    if (stop.stop_requested()) return std::nullopt;
    const auto chunk =
        inputs.subspan(at, std::min(static_cast<size_t>(chunk_), inputs.size() - at));
    baseline_.extend(0, chunk, Wanted::all, [&](int64_t, const Tensor& logits) {
      kept_.assign(logits.as<float>(), logits.as<float>() + logits.count());
    });
    served_.extend(0, chunk, Wanted::all, [&](int64_t first, const Tensor& logits) {
      const Tensor base(kept_.data(), DType::f32, logits.shape);
      for (int64_t i = 0; i < logits.rows(); ++i) {
        require_finite(row_of(base, i), "baseline", "the tokens", first + i);
        require_finite(row_of(logits, i), "model", "the tokens", first + i);
        const int32_t expected = p.read(row_of(base, i)).best;
        const int32_t found = q.read(row_of(logits, i)).best;
        const int32_t token = tokens[static_cast<size_t>(first + i) + 1];
        views.push_back({.token = token,
                         .kl = p.divergence(q),
                         .same_top1 = expected == found,
                         .served = q.log_probability(static_cast<size_t>(token)),
                         .baseline = p.log_probability(static_cast<size_t>(token)),
                         .alternatives = alternatives(q, p, top)});
      }
    });
  }
  return views;
}

bool Microscope::feed(Session& session, std::span<const int32_t> tokens,
                      const std::stop_token& stop) const {
  for (size_t at = 0; at < tokens.size(); at += static_cast<size_t>(chunk_)) {
    if (stop.stop_requested()) return false;
    session.extend(0,
                   tokens.subspan(at, std::min(static_cast<size_t>(chunk_), tokens.size() - at)));
  }
  return !stop.stop_requested();
}

bool Microscope::record(Session& session, std::span<const int32_t> tokens,
                        const std::stop_token& stop, Streams& streams) const {
  session.reset();
  if (!feed(session, tokens.first(tokens.size() - 1), stop)) return false;
  // However this ends, nobody writes into `streams` afterwards.
  struct Observed {
    Session& session;
    ~Observed() { session.observe({}); }
  } const observed{session};
  // A row's bits do not depend on its batch, so the last token may go alone.
  session.observe([&](int64_t, const Tensor& residual, const Tensor& attention) {
    streams.entering.push_back(model::to_float(residual));
    if (attention) streams.attention.push_back(model::to_float(attention));
  });
  session.extend(0, tokens.last(1), Wanted::last, [](int64_t, const Tensor&) {});
  return true;
}

std::optional<std::vector<PartView>> Microscope::parts(std::span<const int32_t> tokens,
                                                       int64_t position,
                                                       const std::stop_token& stop) {
  invariant(has_parts(), "layers are compared with those of the same model");
  const auto before = tokens.first(static_cast<size_t>(position));
  Streams served, baseline;
  if (!record(served_, before, stop, served) || !record(baseline_, before, stop, baseline)) {
    return std::nullopt;
  }
  const std::vector<double> last = minus(served.entering.back(), baseline.entering.back());
  const double length = dot(last, last);
  std::vector<PartView> parts;
  // `added`: the difference of what the part adds; x and y: the streams after it.
  const auto add = [&](int64_t layer, StreamPart part, std::span<const double> added,
                       std::span<const double> difference, double stream) {
    parts.push_back({.layer = layer,
                     .part = part,
                     .difference = ratio(std::sqrt(dot(difference, difference)), stream),
                     .added = ratio(std::sqrt(dot(added, added)), stream),
                     .share = ratio(dot(added, last), length)});
  };
  const auto norm = [](std::span<const float> x) {
    double sum = 0;
    for (const float value : x) sum += static_cast<double>(value) * value;
    return std::sqrt(sum);
  };
  std::vector<double> difference = minus(served.entering[0], baseline.entering[0]);
  add(-1, StreamPart::embedding, difference, difference, norm(baseline.entering[0]));
  for (size_t i = 0; i < served.attention.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    std::vector<double> added = minus(served.attention[i], baseline.attention[i]);
    std::vector<float> stream = baseline.entering[i];
    for (size_t k = 0; k < added.size(); ++k) {
      difference[k] += added[k];
      stream[k] += baseline.attention[i][k];
    }
    add(layer, StreamPart::attention, added, difference, norm(stream));
    // What the MLP adds is what the next layer gets less what was there, the stream's rounding
    // included.
    std::vector<double> after = minus(served.entering[i + 1], baseline.entering[i + 1]);
    for (size_t k = 0; k < added.size(); ++k) added[k] = after[k] - difference[k];
    difference = std::move(after);
    add(layer, StreamPart::mlp, added, difference, norm(baseline.entering[i + 1]));
  }
  return parts;
}

bool Microscope::continue_baseline(std::span<const int32_t> prompt, const std::stop_token& stop,
                                   FunctionRef<bool(int32_t)> next) {
  baseline_.reset();
  if (!feed(baseline_, prompt.first(prompt.size() - 1), stop)) return false;
  Distribution row;
  for (int32_t token = prompt.back(); baseline_.length(0) < options_.max_tokens;) {
    if (stop.stop_requested()) return false;
    const int64_t position = baseline_.length(0);
    const Tensor logits = baseline_.decode({&token, 1});
    require_finite(row_of(logits, 0), "baseline", "the tokens", position);
    token = row.read(row_of(logits, 0)).best;
    if (!next(token)) break;
  }
  return true;
}

}  // namespace octet::engine
