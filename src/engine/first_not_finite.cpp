#include "engine/first_not_finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/session.h"
#include "model/binder.h"

namespace octet::engine {
namespace {

// The first row of [rows, width] that is not finite.
std::optional<int64_t> broken_row(const Tensor& x) {
  if (!x) return std::nullopt;
  const std::vector<float> values = model::to_float(x);
  const auto bad = std::ranges::find_if(values, [](float v) { return !std::isfinite(v); });
  if (bad == values.end()) return std::nullopt;
  return (bad - values.begin()) / x.cols();
}

}  // namespace

std::string first_not_finite(const model::Model& model, ops::Backend& backend,
                             std::span<const int32_t> tokens, model::KvType kv) {
  tokens = tokens.first(std::min(tokens.size(), kSearchedTokens));
  Session session(
      model, backend,
      {.max_tokens = static_cast<int64_t>(tokens.size()), .logits_rows = 1, .kv_type = kv});
  // In the order of computing: of the chunks of a prompt, and of the layers in a chunk.
  std::string found;
  int64_t first = 0;  // position of the chunk
  session.observe([&](int64_t layer, const Tensor& residual, const Tensor& attention) {
    const auto note = [&](const Tensor& x, const std::string& part) {
      if (!found.empty()) return;
      if (const auto row = broken_row(x)) {
        found = fmt::format("the first in what {}, at token {}", part, first + *row);
      }
    };
    note(residual, layer == 0 ? std::string("model.embed_tokens gives")
                              : fmt::format("model.layers.{}.mlp adds", layer - 1));
    note(attention, fmt::format("model.layers.{}.self_attn adds", layer));
  });
  constexpr size_t chunk = 128;
  for (size_t at = 0; at < tokens.size() && found.empty(); at += chunk) {
    const auto part = tokens.subspan(at, std::min(chunk, tokens.size() - at));
    first = static_cast<int64_t>(at);
    // With logits, since only such steps go through what follows the last attention.
    session.extend(0, part, Wanted::last, [&](int64_t, const Tensor& logits) {
      if (!found.empty() || !broken_row(logits)) return;
      found = fmt::format(
          "the first in the logits of token {}: the layers' output is finite, the "
          "final norm or the head is not",
          first + static_cast<int64_t>(part.size()) - 1);
    });
  }
  if (!found.empty()) return found;
  return fmt::format("the first {} tokens by themselves give finite numbers", tokens.size());
}

}  // namespace octet::engine
