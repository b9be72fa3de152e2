#include "eval/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "engine/capacity.h"
#include "model/binder.h"
#include "numerics/half.h"
#include "numerics/quantize.h"

namespace octet::eval {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

// "model.layers.3.mlp.experts.*.up_proj" of expert 7's.
std::string for_all_experts(std::string name) {
  constexpr std::string_view word = ".experts.";
  const size_t at = name.find(word);
  if (at == name.npos) return name;
  const size_t first = at + word.size(), end = name.find('.', first);
  return name.replace(first, end - first, "*");
}

// "model.layers.3" and "mlp.up_proj" of a module's name.
std::pair<std::string, std::string> split_layer(const std::string& name, int64_t layer) {
  const std::string number = fmt::format(".{}.", layer);
  const size_t at = name.find(number);
  if (at == name.npos) return {"", name};
  return {name.substr(0, at + number.size() - 1), name.substr(at + number.size())};
}

int64_t scale_bytes(const QuantFormat& format, int64_t rows, int64_t cols) {
  if (format.scale == ScaleType::unit) return 0;
  return scale_shape(format.grid, rows, cols).count() *
         (format.scale == ScaleType::e8m0 ? int64_t{1} : int64_t{4});
}

int64_t low_bytes(const ops::Linear& linear, const LowPrecision& low) {
  const int64_t values = linear.out * linear.in;
  if (!low.linear.weight) return linear.plain.bytes();
  return values + scale_bytes(*low.linear.weight, linear.out, linear.in);
}

class Parts {
 public:
  Parts(const model::Model& model, PartBy by, const LowPrecision& low)
      : model_(model), by_(by), low_(low) {}

  std::vector<Part> collect(bool high_roles) {
    for (const model::LinearUse& use : model_.linears()) {
      if (is_quantizable(use.linear->role)) add(Part::Kind::linear, use);
    }
    if (low_.cache != model::KvType::automatic) add_caches();
    if (high_roles) add_high_roles();
    return std::move(parts_);
  }

 private:
  void add(Part::Kind kind, const model::LinearUse& use) {
    const std::string pattern = pattern_of(use, by_);
    auto found = std::ranges::find_if(
        parts_, [&](const Part& part) { return part.kind == kind && part.pattern == pattern; });
    if (found == parts_.end()) {
      const std::string name = kind == Part::Kind::router ? pattern + " (router)" : pattern;
      parts_.push_back({.kind = kind, .name = name, .pattern = pattern});
      found = std::prev(parts_.end());
    }
    ++found->linears;
    found->bytes += use.linear->plain.bytes();
    found->bytes_low += low_bytes(*use.linear, low_);
  }

  void add_caches() {
    const model::ModelConfig& config = model_.config();
    const auto layer_bytes = [&](model::KvType type) {
      return engine::kv_layout_of(model_, type, 16).bytes_per_token() / config.layers;
    };
    const int64_t high = layer_bytes(model::KvType::automatic), low = layer_bytes(low_.cache);
    const auto part = [&](std::string name, int64_t layer, int64_t count) {
      parts_.push_back({.kind = Part::Kind::cache,
                        .name = std::move(name),
                        .layer = layer,
                        .bytes = high * count,
                        .bytes_low = low * count});
    };
    if (by_ == PartBy::role) return part("KV cache", -1, config.layers);
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      part(fmt::format("model.layers.{} KV cache", layer), layer, 1);
    }
  }

  void add_high_roles() {
    for (const model::LinearUse& use : model_.linears()) {
      const ops::Linear& linear = *use.linear;
      if (linear.role == Role::router) add(Part::Kind::router, use);
      if (linear.role != Role::lm_head) continue;
      for (const Part::Kind kind : {Part::Kind::embedding, Part::Kind::lm_head}) {
        parts_.push_back({.kind = kind,
                          .name = kind == Part::Kind::lm_head ? "lm_head" : "model.embed_tokens",
                          .linears = 1,
                          .bytes = linear.plain.bytes(),
                          .bytes_low = low_bytes(linear, low_)});
      }
    }
  }

  const model::Model& model_;
  PartBy by_;
  const LowPrecision& low_;
  std::vector<Part> parts_;
};

// Tensors that take the place of a checkpoint's, and names that stand for others.
class ReplacedSource final : public model::WeightSource {
 public:
  explicit ReplacedSource(std::shared_ptr<const model::WeightSource> source)
      : source_(std::move(source)) {}

  // `name` has the rounded values of the checkpoint's `from`.
  void round(const std::string& name, const std::string& from, const QuantFormat& format) {
    const Tensor* found = source_->find(from, {});
    invariant(found, "an embedding that was bound is there");
    const Tensor stored = source_->read(from, *found);
    const model::QuantizedWeight weight = model::quantize_weight(stored, format);
    std::vector<float> values(static_cast<size_t>(stored.count()));
    dequantize(weight.codes, stored.rows(), stored.cols(), format, weight.scales, values);
    std::vector<bf16>& rounded = values_[name];
    for (const float value : values) rounded.push_back(to_bf16(value));
    tensors_[name] = Tensor(rounded.data(), DType::bf16, stored.shape);
    source_->release(from);
  }
  // `name` is another name of the checkpoint's `from`.
  void alias(const std::string& name, const std::string& from) { aliases_[name] = from; }

  const Tensor* find(std::string_view name, const Shape& expected) const override {
    const auto found = tensors_.find(name);
    return found != tensors_.end() ? &found->second : source_->find(source_name(name), expected);
  }
  Tensor read(std::string_view name, const Tensor& found) const override {
    return tensors_.contains(name) ? found : source_->read(source_name(name), found);
  }
  void release(std::string_view name) const override {
    if (!tensors_.contains(name)) source_->release(source_name(name));
  }
  std::vector<std::string> names() const override { return source_->names(); }
  std::string locate(std::string_view name) const override {
    return source_->locate(source_name(name));
  }

 private:
  std::string_view source_name(std::string_view name) const {
    const auto found = aliases_.find(name);
    return found != aliases_.end() ? std::string_view(found->second) : name;
  }

  std::shared_ptr<const model::WeightSource> source_;
  std::map<std::string, std::vector<bf16>, std::less<>> values_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  std::map<std::string, std::string, std::less<>> aliases_;
};

}  // namespace

PartBy parse_part_by(std::string_view text) {
  if (text == "linear") return PartBy::linear;
  if (text == "layer") return PartBy::layer;
  if (text == "role") return PartBy::role;
  throw Error({.what = "unknown parts of a model",
               .where = "--by",
               .value = std::string(text),
               .accepted = "linear, layer, role"});
}

ModulePlace place_of(std::string_view module) {
  const std::string name = for_all_experts(std::string(module));
  constexpr std::string_view word = "layers.";
  const size_t at = name.find(word);
  if (at == name.npos) return {-1, name};
  const size_t first = at + word.size();
  size_t end = first;
  while (end < name.size() && name[end] >= '0' && name[end] <= '9') ++end;
  if (end == first || end - first > 9 || end == name.size()) return {-1, name};
  return {std::stoll(name.substr(first, end - first)), name.substr(end + 1)};
}

std::string pattern_of(const model::LinearUse& use, PartBy by) {
  const std::string name = for_all_experts(use.linear->name);
  const auto [prefix, leaf] = split_layer(name, use.layer);
  switch (by) {
    case PartBy::linear:
      return name;
    case PartBy::layer:
      return prefix + ".*";
    case PartBy::role:
      return "*." + leaf;
  }
  throw Fault("not a PartBy");
}

std::vector<Part> parts_of(const model::Model& model, PartBy by, const LowPrecision& low,
                           bool high_roles) {
  return Parts(model, by, low).collect(high_roles);
}

Trial trial_of(std::span<const Part* const> low, const LowPrecision& formats, int64_t layers) {
  Trial trial;
  // As the default policy: the latent that kv_b multiplies is no input of its own.
  const LinearFormat weight_only{formats.linear.weight, std::nullopt, InputScale::dynamic};
  const auto row = [&](std::optional<Role> role, const Part& part, const LinearFormat& format) {
    trial.policy.push_back({role, part.pattern, format, "in low precision on trial", "trial"});
  };
  trial.kv_by_layer.assign(static_cast<size_t>(layers), model::KvType::automatic);
  for (const Part* part : low) {
    switch (part->kind) {
      case Part::Kind::linear:
        row(Role::attn_latent, *part, weight_only);
        row(std::nullopt, *part, formats.linear);
        break;
      case Part::Kind::router:
        row(Role::router, *part, formats.linear);
        break;
      case Part::Kind::cache:
        for (int64_t layer = 0; layer < layers; ++layer) {
          if (part->layer != -1 && part->layer != layer) continue;
          trial.kv_by_layer[static_cast<size_t>(layer)] = formats.cache;
        }
        break;
      case Part::Kind::embedding:
        trial.embedding = true;
        break;
      case Part::Kind::lm_head:
        trial.head = true;
        break;
    }
  }
  return trial;
}

std::shared_ptr<const model::WeightSource> rounded_ends(
    std::shared_ptr<const model::WeightSource> source, const model::ModelConfig& config,
    const QuantFormat& format, const Trial& trial) {
  if (!trial.embedding && !trial.head) return source;
  // A tied model without a head of its own: the two are told apart by giving it one.
  const bool tied = config.tied_embeddings && !source->find(kHead, {config.vocab, config.hidden});
  auto replaced = std::make_shared<ReplacedSource>(std::move(source));
  if (trial.embedding) {
    replaced->round(kEmbedding, kEmbedding, format);
    if (tied && !trial.head) replaced->alias(kHead, kEmbedding);
  }
  if (trial.head) replaced->round(kHead, tied ? kEmbedding : kHead, format);
  return replaced;
}

}  // namespace octet::eval
