#include "offline/mixed_checkpoint.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "model/quant_schema.h"
#include "offline/checkpoint_folder.h"

namespace octet::offline {
namespace {

constexpr std::string_view kWeight = ".weight";

std::string_view module_of(std::string_view name, std::string_view suffix) {
  return name.ends_with(suffix) ? name.substr(0, name.size() - suffix.size()) : std::string_view();
}

// Names are the quantized checkpoint's, without the scales of what is kept and of inputs that are.
class MixedSource final : public model::WeightSource {
 public:
  MixedSource(std::shared_ptr<const model::WeightSource> high,
              std::shared_ptr<const model::WeightSource> low, Modules kept, Modules weight_only,
              std::string scale_suffix)
      : high_(std::move(high)),
        low_(std::move(low)),
        kept_(std::move(kept)),
        weight_only_(std::move(weight_only)),
        scale_suffix_(std::move(scale_suffix)) {}

  const Tensor* find(std::string_view name, const Shape& expected) const override {
    return is_gone(name) ? nullptr : source_of(name).find(name, expected);
  }
  Tensor read(std::string_view name, const Tensor& found) const override {
    return source_of(name).read(name, found);
  }
  void release(std::string_view name) const override { source_of(name).release(name); }
  std::vector<std::string> names() const override {
    std::vector<std::string> names = low_->names();
    std::erase_if(names, [&](const std::string& name) { return is_gone(name); });
    return names;
  }
  std::string locate(std::string_view name) const override { return source_of(name).locate(name); }

 private:
  const model::WeightSource& source_of(std::string_view name) const {
    return kept_.contains(module_of(name, kWeight)) ? *high_ : *low_;
  }
  bool is_gone(std::string_view name) const {
    const std::string_view input = module_of(name, ".input_scale");
    return kept_.contains(module_of(name, scale_suffix_)) || kept_.contains(input) ||
           weight_only_.contains(input);
  }

  std::shared_ptr<const model::WeightSource> high_, low_;
  Modules kept_, weight_only_;
  std::string scale_suffix_;
};

}  // namespace

MixedCheckpoint::MixedCheckpoint(const std::string& source, std::string quantized)
    : quantized_(std::move(quantized)),
      high_(model::open_weights(source)),
      low_(model::open_weights(quantized_)) {
  const std::optional<model::QuantConfig> quant = model::read_config(quantized_).quant;
  invariant(quant.has_value(), "the quantized checkpoint says how it is quantized");
  scale_suffix_ = model::scale_suffix(*quant);
  for (const std::string& name : low_->names()) {
    const std::string module(module_of(name, scale_suffix_));
    if (module.empty()) continue;
    const std::string weight = module + std::string(kWeight);
    const Tensor *high = high_->find(weight, {}), *low = low_->find(weight, {}),
                 *scale = low_->find(name, {});
    invariant(high && low && scale, "each scale is of a weight that both have");
    modules_[module] = {high->bytes(), low->bytes() + scale->bytes()};
  }
}

OrderedJson MixedCheckpoint::config_json(const Modules& kept) const {
  OrderedJson config = read_config_json(quantized_);
  OrderedJson& quant = config["quantization_config"];
  // DeepSeek's dialect has the one name, compressed-tensors the other; an empty list may be absent.
  OrderedJson& ignored = quant["quant_method"] == "compressed-tensors"
                             ? quant["ignore"]
                             : quant["modules_to_not_convert"];
  if (ignored.is_null()) ignored = OrderedJson::array();
  for (const std::string& module : kept) ignored.push_back(module);
  if (ignored.empty()) quant.erase("modules_to_not_convert");
  for (const std::string& module : weight_only_) {
    if (!kept.contains(module)) config["octet"]["weight_only"].push_back(module);
  }
  return config;
}

model::ModelConfig MixedCheckpoint::config(const Modules& kept) const {
  return model::parse_config(config_json(kept).dump(), "the new config.json");
}

std::shared_ptr<const model::WeightSource> MixedCheckpoint::weights(const Modules& kept) const {
  for (const std::string& module : kept) {
    invariant(modules_.contains(module), "what is kept was quantized");
  }
  return std::make_shared<MixedSource>(high_, low_, kept, weight_only_, scale_suffix_);
}

int64_t MixedCheckpoint::bytes(const Modules& kept) const {
  return total_bytes(*weights(kept));
}

void MixedCheckpoint::write(const Modules& kept, const std::filesystem::path& directory,
                            int64_t shard_bytes,
                            const std::function<void(int64_t, int64_t)>& progress) const {
  const auto source = weights(kept);
  std::vector<model::PendingTensor> tensors;
  for (const std::string& name : source->names()) {
    const Tensor stored = *source->find(name, {});
    tensors.push_back({name, stored.type, stored.shape, [source, name] {
                         const Reading reading(*source, name);
                         const auto* data = reading.tensor().as<const std::byte>();
                         return std::vector<std::byte>(data, data + reading.tensor().bytes());
                       }});
  }
  model::write_checkpoint(directory.string(), tensors, shard_bytes, progress);
  write_companions(quantized_, config_json(kept), directory);
}

}  // namespace octet::offline
