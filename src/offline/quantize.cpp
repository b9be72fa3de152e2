#include "offline/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>

#include "base/atomic_write.h"
#include "base/error.h"
#include "base/json.h"
#include "model/binder.h"
#include "model/finite_weights.h"
#include "model/quant_schema.h"
#include "numerics/e8m0.h"
#include "offline/checkpoint_folder.h"
#include "offline/error_feedback.h"
#include "offline/scale_search.h"
#include "offline/scan.h"
#include "ops/null_backend.h"

namespace octet::offline {
namespace {

constexpr const char* kMend =
    "mend the checkpoint (`octet inspect SRC --scan` lists all such tensors), or pass "
    "--allow-nonfinite: what stays in high precision is copied as it is; of what is quantized NaN "
    "stays NaN, and an infinity becomes the largest value of its scale";

// What becomes of the model's linears.
struct Plan {
  std::map<std::string, Shape, std::less<>> quantized;  // by module name
  std::vector<std::string> kept;                        // linears that stay as they are
  LinearFormat format;                                  // of all quantized ones
  bool has_input = false;                               // format.input is decided
  std::set<std::string, std::less<>> weight_only;       // quantized, and their inputs are not
  std::vector<std::string> recorded;  // of these, those of which the loader must be told
  std::vector<std::string> notices;
};

void refuse_source(const model::ModelConfig& config, const QuantizeOptions& options) {
  if (config.quant) {
    throw Error({.what = "the checkpoint is quantized already",
                 .where = options.source,
                 .value = "config.json has a quantization_config",
                 .accepted = "a checkpoint in BF16, FP16 or FP32"});
  }
}

void refuse_calibrated(const QuantizeOptions& options) {
  if (!options.scheme.input || options.scheme.when != InputScale::calibrated) return;
  if (options.calibration) return;
  throw Error({.what = "the scales of inputs must be measured on data",
               .where = "--scheme",
               .value = to_string(options.scheme),
               .accepted = "a calibration with --calibration-file, or a scheme whose inputs are "
                           "quantized dynamically, or not at all",
               .fix = "run `octet calibrate`, or choose fp8_channel or fp8_block"});
}

// A checkpoint says one format for all its FP8 linears. Some may lack the input's: that none
// multiplies kv_b_proj's weight is the loader's rule, and of others it is told by config.json's
// octet.weight_only.
void add_format(Plan& plan, const ops::Linear& linear, const LinearFormat& format) {
  LinearFormat& common = plan.format;
  const bool weight_only = !format.input;
  const bool first = !common.weight;
  if (first) common.weight = format.weight;
  if (!weight_only && !plan.has_input) {
    common.input = format.input;
    common.when = format.when;
    plan.has_input = true;
  }
  const bool fits = weight_only ? common.weight == format.weight : common == format;
  if (fits) return;
  throw Error({.what = "a checkpoint can say one FP8 format, and the policy asks for two",
               .where = fmt::format("--policy, module '{}'", linear.name),
               .value = to_string(format),
               .accepted = fmt::format("{}, or 16-bit", to_string(common))});
}

// Asks the family for its linears and the policy for each of them.
Plan make_plan(const model::ModelConfig& config,
               const std::shared_ptr<const model::WeightSource>& source,
               const QuantizeOptions& options) {
  // A backend that computes nothing binds and checks every tensor, and copies none.
  ops::NullBackend nowhere;
  model::LoadOptions unquantized{
      .compute = model::Compute::bf16, .max_positions = 1, .read_weights = false};
  const auto model = model::load_model(config, source, nowhere, unquantized);
  model::LoadOptions wanted{.compute = model::Compute::fp8, .online = options.scheme};
  wanted.policy = options.policy;
  const Policy policy = model::effective_policy(config, wanted);

  Plan plan;
  plan.notices = model->notices();
  for (const model::LinearUse& use : model->linears()) {
    const ops::Linear& linear = *use.linear;
    const LinearFormat& format = resolve(policy, linear.role, linear.name).format;
    if (!format.weight) {
      if (linear.role != Role::lm_head || !config.tied_embeddings) {
        plan.kept.push_back(linear.name);
      }
      continue;
    }
    add_format(plan, linear, format);
    plan.quantized.emplace(linear.name, Shape{linear.out, linear.in});
    if (format.input) continue;
    plan.weight_only.insert(linear.name);
    if (linear.role != Role::attn_latent) plan.recorded.push_back(linear.name);
  }
  if (!plan.has_input) plan.recorded.clear();  // the format says it of all of them
  if (plan.quantized.empty()) {
    throw Error({.what = "the policy leaves nothing to quantize",
                 .where = "--policy",
                 .accepted = "a policy under which one linear or more becomes FP8"});
  }
  return plan;
}

// Weight matrices that the model does not use (multi-token prediction): they are copied, and a
// reader must be told that they are not FP8.
std::vector<std::string> unused_modules(const model::WeightSource& source, const Plan& plan) {
  constexpr std::string_view suffix = ".weight";
  const std::set<std::string, std::less<>> kept(plan.kept.begin(), plan.kept.end());
  std::vector<std::string> modules;
  for (const std::string& name : source.names()) {
    if (!name.ends_with(suffix) || source.find(name, {})->shape.rank != 2) continue;
    const std::string module = name.substr(0, name.size() - suffix.size());
    if (module == "model.embed_tokens" || plan.quantized.contains(module) ||
        kept.contains(module)) {
      continue;
    }
    modules.push_back(module);
  }
  return modules;
}

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

double sqnr_db(const Tensor& stored, const QuantFormat& format,
               const model::QuantizedWeight& weight) {
  const std::vector<float> values = model::to_float(stored);
  std::vector<float> back(values.size());
  dequantize(weight.codes, stored.rows(), stored.cols(), format, weight.scales, back);
  double signal = 0, noise = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) continue;
    const double x = values[i], error = back[i] - x;
    signal += x * x;
    noise += error * error;
  }
  return 10.0 * std::log10(signal / noise);
}

// Makes the tensors of the new checkpoint, each when its turn comes, and reports on them.
class Quantizer {
 public:
  Quantizer(const model::WeightSource& source, const QuantFormat& format,
            const QuantizeOptions& options, QuantizeReport& report)
      : source_(source), format_(format), options_(options), report_(report) {}

  std::vector<std::byte> copy(const std::string& name) {
    const Reading reading(source_, name);
    const Tensor& stored = reading.tensor();
    const TensorScan found = scan(stored);
    if (!options_.allow_nonfinite) model::require_finite(found, name, source_, kMend);
    note_broken({.name = name, .nan = found.nan, .inf = found.inf});
    const auto* data = stored.as<const std::byte>();
    return {data, data + stored.bytes()};
  }

  std::vector<std::byte> codes(const std::string& module) {
    const std::string name = module + ".weight";
    const Reading reading(source_, name);
    const Tensor& stored = reading.tensor();
    QuantizedTensor told{.module = module, .format = format_};
    model::QuantizedWeight weight = round(stored, told);
    const QuantStats& stats = weight.stats;
    if (!options_.allow_nonfinite) model::require_finite(stats, name, source_, kMend);
    note_broken({.name = name, .nan = stats.nan, .inf = stats.inf, .quantized = true});
    report_.stats += stats;
    told.stats = stats;
    told.sqnr_db = sqnr_db(stored, format_, weight);
    report_.quantized.push_back(std::move(told));
    scaled_ = module;
    scales_ = std::move(weight.scales);
    return bytes_of(weight.codes);
  }

  // Of the module whose codes were made last: so each weight is quantized once.
  std::vector<std::byte> scales(const std::string& module) const {
    invariant(module == scaled_, "a weight's scales are written right after its codes");
    if (format_.scale != ScaleType::e8m0) return bytes_of(scales_);
    std::vector<uint8_t> exponents(scales_.size());
    std::ranges::transform(scales_, exponents.begin(), e8m0_encode);  // exact
    return bytes_of(exponents);
  }

  // Modules whose inputs were seen too little to compensate anything.
  const std::vector<std::string>& unseen() const { return unseen_; }

 private:
  model::QuantizedWeight round(const Tensor& stored, QuantizedTensor& told) {
    if (!options_.inputs) return nearest(stored);
    const std::shared_ptr<const Moments> moments = options_.inputs->find(told.module);
    if (!moments || moments->rows < moments->width / 4) {
      unseen_.push_back(told.module);
      return nearest(stored);
    }
    const std::vector<float> values = model::to_float(stored);
    CompensatedWeight weight =
        quantize_compensated(values, stored.rows(), stored.cols(), format_,
                             scales_of(values, stored), factor_of(moments), *options_.threads);
    told.output_error = weight.error;
    told.output_error_nearest = weight.error_nearest;
    return {std::move(weight.codes), std::move(weight.scales), weight.stats};
  }

  std::vector<float> scales_of(std::span<const float> values, const Tensor& stored) const {
    const auto choose = options_.search_scales ? search_scales : plain_scales;
    return choose(values, stored.rows(), stored.cols(), format_);
  }

  model::QuantizedWeight nearest(const Tensor& stored) const {
    if (!options_.search_scales) return model::quantize_weight(stored, format_);
    const std::vector<float> values = model::to_float(stored);
    model::QuantizedWeight weight{.codes = std::vector<uint8_t>(values.size()),
                                  .scales = scales_of(values, stored)};
    weight.stats = quantize_with_scales(values, stored.rows(), stored.cols(), format_,
                                        weight.scales, weight.codes);
    return weight;
  }

  // Linears of one input lie close to one another in a checkpoint: the last two factors are kept.
  const FeedbackFactor& factor_of(const std::shared_ptr<const Moments>& moments) {
    const auto found = std::ranges::find(factors_, moments, &KeptFactor::first);
    if (found != factors_.end()) return found->second;
    if (factors_.size() == 2) factors_.erase(factors_.begin());
    factors_.emplace_back(moments, factor(*moments, options_.damping, *options_.threads));
    return factors_.back().second;
  }

  void note_broken(const BrokenTensor& tensor) {
    if (tensor.nan + tensor.inf > 0) report_.broken.push_back(tensor);
  }

  const model::WeightSource& source_;
  QuantFormat format_;
  const QuantizeOptions& options_;
  QuantizeReport& report_;
  std::string scaled_;
  std::vector<float> scales_;
  using KeptFactor = std::pair<std::shared_ptr<const Moments>, FeedbackFactor>;
  std::vector<KeptFactor> factors_;
  std::vector<std::string> unseen_;
};

// A small tensor that is known already.
model::PendingTensor value_tensor(const std::string& name, const std::vector<float>& values) {
  const auto count = static_cast<int64_t>(values.size());
  return {name, DType::f32, count == 1 ? Shape{1} : Shape{count, 1, 1},
          [values] { return bytes_of(values); }};
}

// Those that a calibration adds.
std::vector<model::PendingTensor> calibrated_tensors(const model::ModelConfig& config,
                                                     const Plan& plan,
                                                     const QuantizeOptions& options) {
  std::vector<model::PendingTensor> tensors;
  for (const auto& [name, values] : kv_scales(*options.calibration, config, options.scales)) {
    tensors.push_back(value_tensor(name, values));
  }
  if (!plan.has_input || plan.format.when != InputScale::calibrated) return tensors;
  for (const auto& [module, shape] : plan.quantized) {
    if (plan.weight_only.contains(module)) continue;
    tensors.push_back(value_tensor(
        module + ".input_scale",
        {input_scale(*options.calibration, module, plan.format.input->code, options.scales)}));
  }
  return tensors;
}

std::vector<model::PendingTensor> pending_tensors(const model::WeightSource& source,
                                                  const Plan& plan, std::string_view scale_suffix,
                                                  Quantizer& quantizer) {
  constexpr std::string_view suffix = ".weight";
  std::vector<model::PendingTensor> pending;
  for (const std::string& name : source.names()) {
    const Tensor stored = *source.find(name, {});
    const std::string module =
        name.ends_with(suffix) ? name.substr(0, name.size() - suffix.size()) : std::string();
    if (!plan.quantized.contains(module)) {
      pending.push_back(
          {name, stored.type, stored.shape, [&quantizer, name] { return quantizer.copy(name); }});
      continue;
    }
    const QuantFormat& format = *plan.format.weight;
    const ScaleShape cells = scale_shape(format.grid, stored.rows(), stored.cols());
    // One scale a tensor is a vector of one value in both schemas.
    const Shape shape = format.grid == grids::tensor ? Shape{1} : Shape{cells.rows, cells.cols};
    pending.push_back({name, dtype_of(format.code), stored.shape,
                       [&quantizer, module] { return quantizer.codes(module); }});
    // compressed-tensors calls the bytes of powers of two U8.
    const DType scale_type = format.scale == ScaleType::e8m0 ? DType::u8 : DType::f32;
    pending.push_back({module + std::string(scale_suffix), scale_type, shape,
                       [&quantizer, module] { return quantizer.scales(module); }});
  }
  return pending;
}

int64_t stored_bytes(std::span<const model::PendingTensor> tensors) {
  int64_t bytes = 0;
  for (const model::PendingTensor& tensor : tensors) {
    bytes += tensor.shape.count() * static_cast<int64_t>(size_of(tensor.type));
  }
  return bytes;
}

// Over what the source recorded, member by member.
void record(const model::RecordedArithmetic& recorded, OrderedJson& config) {
  if (!recorded.attention.empty()) config["octet"]["attention"] = recorded.attention;
  if (!recorded.kv_cache_dtype.empty()) config["octet"]["kv_cache_dtype"] = recorded.kv_cache_dtype;
}

// What was measured on data, and on which; null where nothing was. What the source says of its own
// is of other scales than these.
OrderedJson calibration_record(const QuantizeOptions& options,
                               const std::vector<model::PendingTensor>& calibrated) {
  const auto any = [&](std::string_view suffix) {
    return std::ranges::any_of(calibrated,
                               [&](const auto& tensor) { return tensor.name.ends_with(suffix); });
  };
  std::vector<std::string> measured;
  if (any(".k_scale") || any(".latent_channel_scale")) measured.emplace_back("kv_cache");
  if (any(".input_scale")) measured.emplace_back("inputs");
  if (measured.empty()) return options.rounded_on;
  return record_of(*options.calibration, measured);
}

// FP8 attention reads an FP8 cache: what a flag says may contradict the other, or the source.
void refuse_contradiction(const model::RecordedArithmetic& asked,
                          const model::RecordedArithmetic& stored) {
  const auto in_force = [](const std::string& flag, const std::string& recorded) {
    return flag.empty() ? recorded : flag;
  };
  const std::string cache = in_force(asked.kv_cache_dtype, stored.kv_cache_dtype);
  if (in_force(asked.attention, stored.attention) != "fp8" || cache.empty() ||
      cache.starts_with("fp8")) {
    return;
  }
  const auto origin = [](const std::string& flag) {
    return flag.empty() ? "recorded in the source's config.json" : "as asked";
  };
  throw Error({.what = "FP8 attention reads an FP8 KV cache",
               .where = asked.kv_cache_dtype.empty() ? "--attention" : "--kv-cache-dtype",
               .value = fmt::format("attention fp8 ({}), KV cache {} ({})", origin(asked.attention),
                                    cache, origin(asked.kv_cache_dtype)),
               .accepted = "--attention bf16, or --kv-cache-dtype fp8, fp8_e4m3, fp8_e5m2 or "
                           "fp8_per_token_head",
               .fix = "change one of the two"});
}

// What is recorded is read back at once, before there is any work.
void check_recorded(const QuantizeOptions& options) {
  refuse_contradiction(options.recorded, model::read_config(options.source).recorded);
  OrderedJson config = read_config_json(options.source);
  record(options.recorded, config);
  model::parse_config(dump_json(config), "the new config.json");
}

}  // namespace

void check_quantize(const QuantizeOptions& options) {
  refuse_source(model::read_config(options.source), options);
  refuse_calibrated(options);
  check_recorded(options);
  refuse_target(options.source, options.out, options.overwrite);
}

int64_t quantized_bytes(const QuantizeOptions& options) {
  const model::ModelConfig config = model::read_config(options.source);
  const std::shared_ptr<const model::WeightSource> source = model::open_weights(options.source);
  const Plan plan = make_plan(config, source, options);
  QuantizeReport nothing;
  Quantizer quantizer(*source, *plan.format.weight, options, nothing);
  int64_t bytes = stored_bytes(pending_tensors(*source, plan, ".weight_scale", quantizer));
  if (options.calibration) bytes += stored_bytes(calibrated_tensors(config, plan, options));
  return bytes;
}

QuantizeReport quantize_checkpoint(const QuantizeOptions& options,
                                   const std::function<void(int64_t, int64_t)>& progress) {
  check_quantize(options);
  const model::ModelConfig config = model::read_config(options.source);
  const std::shared_ptr<const model::WeightSource> source = model::open_weights(options.source);
  const Plan plan = make_plan(config, source, options);

  std::vector<std::string> ignored = plan.kept;
  const std::vector<std::string> unused = unused_modules(*source, plan);
  ignored.insert(ignored.end(), unused.begin(), unused.end());
  OrderedJson quant = model::write_quant_config(plan.format, ignored);
  std::vector<model::PendingTensor> calibrated;
  if (options.calibration) {
    require_calibration_of(*options.calibration, options.source, options.scales);
    calibrated = calibrated_tensors(config, plan, options);
    const bool cache = std::ranges::any_of(
        calibrated, [](const auto& tensor) { return tensor.name.ends_with(".k_scale"); });
    if (cache && quant.contains("kv_cache_scheme")) {
      quant["kv_cache_scheme"] = {
          {"num_bits", 8},
          {"type", "float"},
          {"strategy",
           options.scales.granularity == KvGranularity::tensor ? "tensor" : "attn_head"},
          {"dynamic", false},
          {"symmetric", true}};
    }
  }
  // Read back at once: what the writer cannot say and the reader cannot take shows here.
  const model::QuantConfig read =
      model::read_quant_config(Json::parse(quant.dump()), "the new quantization_config");

  QuantizeReport report;
  report.notices = plan.notices;
  if (!unused.empty()) {
    report.notices.push_back(fmt::format(
        "{} weights that the model does not use are copied as they are", unused.size()));
  }
  Quantizer quantizer(*source, *plan.format.weight, options, report);
  std::vector<model::PendingTensor> tensors =
      pending_tensors(*source, plan, model::scale_suffix(read), quantizer);
  tensors.insert(tensors.end(), calibrated.begin(), calibrated.end());

  AtomicDirectory directory(options.out,
                            options.overwrite ? Overwrite::replace : Overwrite::refuse);
  model::write_checkpoint(directory.path().string(), tensors, options.shard_bytes, progress);
  OrderedJson new_config = read_config_json(options.source);
  new_config["quantization_config"] = quant;
  record(options.recorded, new_config);
  if (!plan.recorded.empty()) new_config["octet"]["weight_only"] = plan.recorded;
  if (new_config.contains("octet")) new_config["octet"].erase("calibration");
  if (const OrderedJson data = calibration_record(options, calibrated); !data.is_null()) {
    new_config["octet"]["calibration"] = data;
  }
  model::parse_config(dump_json(new_config), "the new config.json");
  write_companions(options.source, new_config, directory.path());
  directory.commit();

  if (!quantizer.unseen().empty()) {
    report.notices.push_back(fmt::format(
        "{} linears saw too few calibration tokens (fewer than a quarter of their width) and are "
        "rounded to the nearest; the first is '{}'",
        quantizer.unseen().size(), quantizer.unseen().front()));
  }
  report.bytes_before = total_bytes(*source);
  report.tensors = static_cast<int64_t>(source->names().size());
  report.bytes_after = stored_bytes(tensors);
  return report;
}

}  // namespace octet::offline
