#include "engine/self_test.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "base/error.h"
#include "engine/session.h"
#include "model/random_weights.h"

namespace octet::engine {
namespace {

constexpr int64_t kHidden = 128, kIntermediate = 192, kVocab = 64;
constexpr int64_t kPrompt = 40, kDecoded = 4;

void shrink(model::Gqa& gqa) {
  const int64_t group = std::min<int64_t>(gqa.heads / gqa.kv_heads, 4);
  gqa.kv_heads = std::min<int64_t>(gqa.kv_heads, 2);
  gqa.heads = group * gqa.kv_heads;
}

void shrink(model::Mla& mla) {
  mla.heads = std::min<int64_t>(mla.heads, 2);
  mla.q_lora = std::min<int64_t>(mla.q_lora, kHidden);
}

void shrink(model::DenseFfn& ffn, model::ModelConfig& small) {
  ffn.intermediate = std::min(ffn.intermediate, kIntermediate);
  small.layers = std::min<int64_t>(small.layers, 2);
}

void shrink(model::MoeFfn& ffn, model::ModelConfig& small) {
  ops::RouterSpec& router = ffn.router;
  // As many groups, each with the experts that its best two need.
  router.experts = std::min(router.experts, 4 * router.groups);
  router.top_k = std::min({router.top_k, 2, router.experts / router.groups * router.top_groups});
  ffn.intermediate = std::min(ffn.intermediate, kIntermediate);
  ffn.dense_intermediate = std::min(ffn.dense_intermediate, kIntermediate);
  const bool mixed = std::ranges::find(ffn.layers, false) != ffn.layers.end();
  ffn.layers = mixed ? std::vector{false, true} : std::vector{true};
  small.layers = static_cast<int64_t>(ffn.layers.size());
}

std::vector<std::vector<float>> logits_of(const model::ModelConfig& config,
                                          const std::shared_ptr<const model::WeightSource>& weights,
                                          const model::LoadOptions& options, model::KvType kv,
                                          ops::Backend& backend) {
  const auto model = model::load_model(config, weights, backend, options);
  Session session(*model, backend, {.max_tokens = kPrompt + kDecoded, .kv_type = kv});
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < kPrompt; ++i) tokens.push_back((i * 29 + 5) % config.vocab);
  std::vector<std::vector<float>> rows;
  const auto keep = [&](const Tensor& logits) {
    for (int64_t row = 0; row < logits.rows(); ++row) {
      const float* first = logits.as<float>() + row * config.vocab;
      rows.emplace_back(first, first + config.vocab);
    }
  };
  session.extend(0, tokens, Wanted::all, [&](int64_t, const Tensor& logits) { keep(logits); });
  for (int32_t i = 0; i < kDecoded; ++i) {
    const int32_t token = (i * 7 + 3) % static_cast<int32_t>(config.vocab);
    keep(session.decode({&token, 1}));
  }
  return rows;
}

}  // namespace

model::ModelConfig small_version(const model::ModelConfig& config) {
  model::ModelConfig small = config;
  small.hidden = std::min(small.hidden, kHidden);
  small.vocab = std::min(small.vocab, kVocab);
  small.max_positions = kPrompt + kDecoded;
  small.mtp_layers = 0;
  std::visit([](auto& attention) { shrink(attention); }, small.attention);
  std::visit([&](auto& ffn) { shrink(ffn, small); }, small.ffn);
  if (!small.windows.empty()) {
    // The last layers are those that slide where only some do. A window that the tokens leave.
    small.windows.erase(small.windows.begin(), small.windows.end() - small.layers);
    for (int64_t& window : small.windows) window = std::min<int64_t>(window, kPrompt / 2);
  }
  small.quant.reset();
  if (!config.quant) return small;
  for (const model::QuantGroup& group : config.quant->groups) {
    if (group.packing || !group.format.weight) continue;
    try {
      return model::with_scheme(small, group.format);
    } catch (const Error&) {
      // A format that is read and that no schema of ours writes: 16-bit weights, as above.
    }
  }
  return small;
}

SelfTest self_test(const model::ModelConfig& small, model::LoadOptions options, model::KvType kv,
                   ops::Backend& device, ops::Backend& reference) {
  options.max_positions = small.max_positions;
  // Made once: to make them takes longer than to compute with them.
  const auto weights = std::make_shared<model::RandomWeights>(small);
  const auto found = logits_of(small, weights, options, kv, device);
  const auto expected = logits_of(small, weights, options, kv, reference);
  const auto error_of = [&](size_t first, size_t end) {
    double difference = 0, energy = 0;
    for (size_t row = first; row < end; ++row) {
      for (size_t i = 0; i < expected[row].size(); ++i) {
        const double y = expected[row][i], x = found[row][i];
        difference += (x - y) * (x - y);
        energy += y * y;
      }
    }
    return std::sqrt(difference / energy);
  };
  // Apart: other kernels compute single rows, and there are few of them.
  const double prompt = error_of(0, kPrompt), decoded = error_of(kPrompt, kPrompt + kDecoded);
  return {.error = std::isnan(prompt) ? prompt : std::max(decoded, prompt)};
}

void require_passed(const SelfTest& test, const ops::BackendInfo& device) {
  if (test.ok()) return;
  throw Error({.what = "the kernels of this device do not compute what the reference does",
               .where = device.name,
               .value = fmt::format("the logits of a small model of this kind are off by {:.3g} % "
                                    "of their size",
                                    100 * test.error),
               .accepted = fmt::format("at most {:g} %", 100 * SelfTest::kMost),
               .fix = "serve with --kernels exact, the reference itself, which is slower; and "
                      "report this with what `octet doctor` prints"});
}

}  // namespace octet::engine
