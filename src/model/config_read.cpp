#include "model/config_read.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/config_rope.h"
#include "model/rope.h"

namespace octet::model {
namespace {

constexpr const char* kFull = "full_attention";
constexpr const char* kSliding = "sliding_attention";

// Which layers slide, by `layer_types`; nothing if the config has none.
std::vector<bool> read_layer_types(const JsonView& config, int64_t layers) {
  constexpr const char* key = "layer_types";
  std::vector<bool> sliding;
  if (!config.has(key)) return sliding;
  for (const std::string& type : config.get<std::vector<std::string>>(key)) {
    if (type != kFull && type != kSliding) {
      config.refuse(key, fmt::format("layers of type '{}' are not supported", type),
                    fmt::format("{}, {}", kFull, kSliding));
    }
    sliding.push_back(type == kSliding);
  }
  if (static_cast<int64_t>(sliding.size()) != layers) {
    config.refuse(key, fmt::format("{} types for {} layers", sliding.size(), layers),
                  "one for each layer");
  }
  return sliding;
}

// 0 = none. A window that no position leaves is none either.
int64_t read_window_size(const JsonView& config, const ModelConfig& model) {
  constexpr const char* key = "sliding_window";
  if (!config.has(key)) return 0;
  const int64_t window = config.integer(key, 1, int64_t{1} << 40);
  return window < model.max_positions ? window : 0;
}

void require_all(const JsonView& config, const std::vector<bool>& sliding, bool wanted) {
  if (std::ranges::all_of(sliding, [&](bool one) { return one == wanted; })) return;
  config.refuse("layer_types", "layer_types and sliding_window say different things",
                fmt::format("{} for every layer", wanted ? kSliding : kFull));
}

// Qwen's switch. HF gives an absent window the size 4096, which is a guess.
bool uses_window(const JsonView& config, const ModelConfig& model) {
  if (!config.get<bool>("use_sliding_window", false)) {
    require_all(config, read_layer_types(config, model.layers), false);
    return false;
  }
  if (config.json().contains("sliding_window")) return true;
  config.refuse("sliding_window", "use_sliding_window is set, and no window is given",
                "a number of tokens, or null for none");
}

}  // namespace

void require_known(const JsonView& object, std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : object.json().items()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    object.refuse(key, "this version does not know what is recorded here",
                  fmt::format("{}", fmt::join(known, ", ")));
  }
}

int64_t read_width(const JsonView& config, std::string_view key) {
  return config.integer(key, 1, kWidest);
}

void require_even(const JsonView& config, std::string_view key, int64_t value) {
  if (value % 2 == 0) return;
  config.refuse(key, fmt::format("rotary positions need an even head size, not {}", value),
                "an even number");
}

void read_positions(const JsonView& config, int64_t dim, ModelConfig& model) {
  model.rope = read_rope(config, dim, model.max_positions);
  model.max_positions = rope_reach(model.rope, model.max_positions);
  model.rope.length = model.max_positions;
}

Gqa& read_gqa(const JsonView& config, ModelConfig& model) {
  Gqa attention;
  attention.heads = config.integer("num_attention_heads", 1, kMostHeads);
  attention.kv_heads = config.integer("num_key_value_heads", 1, kMostHeads, attention.heads);
  if (attention.heads % attention.kv_heads != 0) {
    config.refuse("num_key_value_heads", "the KV heads do not divide the heads",
                  fmt::format("a divisor of num_attention_heads, {}", attention.heads));
  }
  if (config.has("head_dim")) {
    attention.head_dim = config.integer("head_dim", 2, kWidestHead);
  } else if (model.hidden % attention.heads == 0) {
    attention.head_dim = model.hidden / attention.heads;
  } else {
    config.refuse("head_dim", "head_dim is absent and the heads do not divide hidden_size",
                  fmt::format("head_dim, or a divisor of {} as num_attention_heads", model.hidden));
  }
  require_even(config, "head_dim", attention.head_dim);
  read_positions(config, attention.head_dim, model);
  return model.attention.emplace<Gqa>(attention);
}

void refuse_window(const JsonView& config, const ModelConfig& model) {
  // Qwen's switch, in configs that were made by hand from one of Qwen's.
  if (config.get<bool>("use_sliding_window", true) && read_window_size(config, model) > 0) {
    config.refuse("sliding_window",
                  fmt::format("{} has no sliding-window attention", model.architecture),
                  fmt::format("null, or at least {} positions", model.max_positions));
  }
  require_all(config, read_layer_types(config, model.layers), false);
}

void read_window(const JsonView& config, ModelConfig& model) {
  const int64_t window = read_window_size(config, model);
  require_all(config, read_layer_types(config, model.layers), config.has("sliding_window"));
  if (window > 0) model.windows.assign(static_cast<size_t>(model.layers), window);
}

void read_window_if_used(const JsonView& config, ModelConfig& model) {
  if (uses_window(config, model)) read_window(config, model);
}

void read_window_by_layer(const JsonView& config, ModelConfig& model) {
  if (!uses_window(config, model)) return;
  std::vector<bool> sliding = read_layer_types(config, model.layers);
  if (!config.has("sliding_window")) require_all(config, sliding, false);
  const int64_t window = read_window_size(config, model);
  if (window == 0) return;
  if (sliding.empty()) {
    const int64_t full = config.integer("max_window_layers", 0, kMostLayers);
    for (int64_t i = 0; i < model.layers; ++i) sliding.push_back(i >= full);
  }
  for (const bool slides : sliding) model.windows.push_back(slides ? window : 0);
}

ops::RouterSpec read_softmax_router(const JsonView& config, std::string_view experts_key) {
  ops::RouterSpec router;
  router.scoring = ops::RouterSpec::Scoring::softmax;
  router.method = ops::RouterSpec::Method::greedy;
  router.experts = static_cast<int>(config.integer(experts_key, 1, kMostExperts));
  router.top_k = static_cast<int>(config.integer("num_experts_per_tok", 1, router.experts));
  return router;
}

}  // namespace octet::model
