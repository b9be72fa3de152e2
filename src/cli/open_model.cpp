#include "cli/open_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "backends/cpu/cpu_backend.h"
#include "base/log.h"
#include "cli/cuda_device.h"
#include "engine/capacity.h"
#include "model/config_overrides.h"
#include "model/gguf/checkpoint.h"
#include "model/kv_scales.h"
#include "numerics/scheme.h"
#include "text/utf8.h"

namespace octet::cli {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> scheme_names() {
  std::vector<std::string> names{"none"};
  for (const Scheme& scheme : schemes()) names.emplace_back(scheme.name);
  return names;
}

std::vector<std::string> quantization_names() {
  std::vector<std::string> names = scheme_names();
  names.insert(names.begin() + 1, "fp8");
  return names;
}

// "--baseline-attention": errors name a flag as it was given.
std::string flag_of(const ModelOptions& options, std::string_view name) {
  return fmt::format("--{}{}", options.flag_prefix, name);
}

// --quantization is another name for --scheme.
ModelOptions with_one_scheme(ModelOptions options) {
  if (options.quantization.empty()) return options;
  const std::string named = options.quantization == "fp8" ? "fp8_channel" : options.quantization;
  if (!options.scheme.empty() && options.scheme != named) {
    throw Error({.what = "--scheme and --quantization ask for different formats",
                 .where = flag_of(options, "quantization"),
                 .value = fmt::format("{} with {} {}", options.quantization,
                                      flag_of(options, "scheme"), options.scheme),
                 .fix = "leave one of the two out"});
  }
  options.scheme = named;
  return options;
}

// The configuration. Random weights for FP8 arithmetic are made in FP8, not made and then
// quantized.
model::ModelConfig config_of(const ModelOptions& options) {
  model::ModelConfig config = model::read_config(
      options.path,
      model::merge_overrides(options.hf_overrides, options.rope_scaling, options.rope_theta));
  const bool asked = !options.scheme.empty() && options.scheme != "none";
  const bool fp8 = options.compute == "fp8" || (options.compute.empty() && asked);
  if (!options.random_weights || !fp8 || options.scheme == "none" || config.quant) return config;
  const std::string_view scheme = asked ? std::string_view(options.scheme) : "fp8_channel";
  return model::with_scheme(std::move(config), scheme_named(scheme).format);
}

// What --compute means where it is absent: the arithmetic that the weights were made for.
model::Compute compute_of(const ModelOptions& options, const model::ModelConfig& config) {
  if (!options.compute.empty()) return model::parse_compute(options.compute);
  const bool asked = !options.scheme.empty() && options.scheme != "none";
  return config.quant || asked ? model::Compute::fp8 : model::Compute::bf16;
}

// What config.json records stands for what no flag asks, under the arithmetic for which it was
// recorded. A flag that does not go with what is recorded of the other wins over it.
ModelOptions with_recorded(ModelOptions options, const model::ModelConfig& config) {
  const model::RecordedArithmetic& recorded = config.recorded;
  if (compute_of(options, config) != model::Compute::fp8) return options;
  const bool fp8_attention_asked = options.attention == "fp8";
  if (options.attention == "auto" && recorded.attention == "bf16") options.attention = "bf16";
  if (options.kv_cache_dtype == "auto" && !recorded.kv_cache_dtype.empty() &&
      (!fp8_attention_asked || model::is_fp8(model::parse_kv_type(recorded.kv_cache_dtype)))) {
    options.kv_cache_dtype = recorded.kv_cache_dtype;
  }
  return options;
}

bool has_fp8_cache(const ModelOptions& options, model::Compute compute) {
  const model::KvType type = model::parse_kv_type(options.kv_cache_dtype);
  if (type != model::KvType::automatic) return model::is_fp8(type);
  return compute == model::Compute::fp8 && options.attention != "bf16";
}

// A flag that would change nothing asks for what cannot be, and is no wish to be passed over.
void refuse_idle_flags(const ModelOptions& options, const model::ModelConfig& config,
                       model::Compute compute) {
  const bool fp8_cache = has_fp8_cache(options, compute);
  const std::string run =
      fmt::format("{} {} and {} {}", flag_of(options, "compute"), name_of(compute),
                  flag_of(options, "kv-cache-dtype"), options.kv_cache_dtype);
  if (options.kv_scale == "unit" &&
      (!fp8_cache || !std::holds_alternative<model::Mla>(config.attention))) {
    throw Error({.what = "there is no FP8 latent to leave unscaled",
                 .where = flag_of(options, "kv-scale"),
                 .value = fmt::format("unit with {}, {}", run, config.architecture),
                 .accepted = "a model with MLA and an FP8 KV cache",
                 .fix = "leave --kv-scale out, or pass --kv-cache-dtype fp8"});
  }
  if (options.kv_group_tokens &&
      (!fp8_cache || std::holds_alternative<model::Mla>(config.attention) ||
       model::has_token_heads(model::parse_kv_type(options.kv_cache_dtype)))) {
    throw Error(
        {.what = "there is no FP8 cache of K and V whose tokens could share a scale",
         .where = flag_of(options, "kv-group-tokens"),
         .value = fmt::format("{} with {}, {}", *options.kv_group_tokens, run, config.architecture),
         .accepted = "a model whose cache holds K and V in FP8",
         .fix = "leave the flag out, or pass --kv-cache-dtype fp8"});
  }
  if (!options.scheme.empty() && options.scheme != "none" && compute != model::Compute::fp8) {
    throw Error({.what = "--scheme quantizes for FP8 arithmetic, and another is asked for",
                 .where = flag_of(options, "scheme"),
                 .value = fmt::format("{} with {} {}", options.scheme, flag_of(options, "compute"),
                                      name_of(compute)),
                 .accepted = "--compute fp8, or none",
                 .fix = "leave one of the two out"});
  }
  if (options.attention != "fp8" || (compute == model::Compute::fp8 && fp8_cache)) return;
  throw Error({.what = "FP8 attention needs FP8 arithmetic and an FP8 KV cache",
               .where = flag_of(options, "attention"),
               .value = "fp8 with " + run,
               .accepted = "--compute fp8 and --kv-cache-dtype auto, fp8, fp8_e4m3, fp8_e5m2 or "
                           "fp8_per_token_head",
               .fix = "leave --attention out, or change the other two"});
}

model::LoadOptions load_options_of(const ModelOptions& options, const model::ModelConfig& config) {
  model::LoadOptions load;
  load.compute = compute_of(options, config);
  if (config.quant && !options.scheme.empty() && !options.random_weights) {
    throw Error({.what = "this checkpoint is FP8 already and brings its own formats",
                 .where = flag_of(options, "scheme"),
                 .value = options.scheme,
                 .fix = "leave --scheme out, or name the 16-bit checkpoint"});
  }
  if (options.scheme != "none") {
    load.online = scheme_named(options.scheme.empty() ? "fp8_channel" : options.scheme).format;
  }
  if (!options.policy.empty()) load.policy = read_policy_file(options.policy);
  load.fp8_attention = options.attention != "bf16" && has_fp8_cache(options, load.compute);
  load.kv_group_tokens = options.kv_group_tokens.value_or(load.kv_group_tokens);
  refuse_idle_flags(options, config, load.compute);
  return load;
}

void require_utf8(std::string_view text, const std::string& where) {
  if (text::is_valid_utf8(text)) return;
  size_t at = 0;
  for (text::Utf8Step step{}; at < text.size(); at += step.bytes) {
    step = text::utf8_step(text.substr(at));
    if (step.kind != text::Utf8Step::valid) break;
  }
  throw Error({.what = "a text is not valid UTF-8",
               .where = fmt::format("{}, byte {}", where, at),
               .value = fmt::format("0x{:02X}", static_cast<uint8_t>(text[at])),
               .accepted = "UTF-8",
               .fix = "convert it, as with `iconv -t UTF-8`"});
}

// Weights of any kind: Checkpoint says what is wrong with those that it cannot read.
bool holds_weights(const fs::path& directory) {
  constexpr std::string_view known[] = {".safetensors", ".bin", ".pt", ".pth", ".gguf"};
  return std::any_of(fs::directory_iterator(directory), fs::directory_iterator(),
                     [&](const fs::directory_entry& entry) {
                       return std::ranges::find(known, entry.path().extension()) != std::end(known);
                     }) ||
         fs::exists(directory / "model.safetensors.index.json");
}

std::shared_ptr<const model::WeightSource> open_checkpoint(const ModelOptions& options) {
  if (model::is_gguf(options.path)) return model::open_weights(options.path);
  if (!fs::is_directory(options.path)) {
    throw Error({.what = "a model is a directory with its weights, or a GGUF file",
                 .where = "MODEL",
                 .value = options.path,
                 .fix = "name one of the two, or pass --random-weights to run the shape alone"});
  }
  if (!holds_weights(options.path)) {
    throw Error({.what = "the model has a configuration and no weights",
                 .where = options.path,
                 .value = "no weight files",
                 .accepted = "model.safetensors, or model.safetensors.index.json and what it names",
                 .fix = "pass --random-weights to run the shape alone, or download the weights"});
  }
  return model::open_weights(options.path);
}

// None where the model has none.
std::optional<text::Tokenizer> open_tokenizer(const std::string& path) {
  if (model::is_gguf(path)) {
    const auto files = model::gguf_tokenizer(path);
    if (!files.contains("tokenizer.json")) return std::nullopt;
    return text::Tokenizer::from_json(files.at("tokenizer.json"), files.at("tokenizer_config.json"),
                                      path);
  }
  if (!fs::is_regular_file(fs::path(path) / "tokenizer.json")) return std::nullopt;
  return text::Tokenizer::load(path);
}

std::shared_ptr<model::RandomWeights> make_random(const ModelOptions& options,
                                                  const model::ModelConfig& config) {
  if (!options.random_weights) return nullptr;
  return std::make_shared<model::RandomWeights>(
      config, model::RandomOptions{.seed = static_cast<uint64_t>(options.seed),
                                   .shared = options.shape_alone});
}

}  // namespace

void add_backend_rows(OptionTable& table, BackendOptions& options) {
  table.group("Device");
  table.add("--device", &options.device, "where to compute: cpu, cuda, or cuda:N for GPU N",
            {.metavar = "DEVICE"});
  table.add("--threads", &options.threads, "CPU threads; 0 is one a physical core",
            {.least = 0, .most = 4096});
  table.add("--kernels", &options.kernels,
            "the set of CPU kernels; exact is the bit-stable reference",
            {.choices = {"auto", "exact", "portable", "avx2", "avx512", "amx"}});
  table.add("--kernel", &options.pins,
            "run an operation by this kernel wherever it can: linear=NAME (repeatable)",
            {.metavar = "OP=NAME"});
  table.add("--enforce-eager", &options.enforce_eager,
            "on a GPU: launch every kernel instead of replaying CUDA graphs");
  table.add("--deterministic", &options.deterministic,
            "on a GPU: a sequence's bits do not depend on its batch; a CPU is always so");
  table.add("--fast-accumulation", &options.fast_accumulation,
            "on a GPU: prefill's FP8 sums keep 14 bits, but for down projections; faster, coarser");
}

void add_memory_row(OptionTable& table, double* utilization) {
  table.add("--gpu-memory-utilization", utilization,
            "share of a GPU's memory for weights, activations and the KV cache together",
            {.least = 0.01, .most = 1.0});
}

void add_model_rows(OptionTable& table, ModelOptions& options, const std::string& prefix) {
  options.flag_prefix = prefix;
  const auto flag = [&](std::string_view name) { return flag_of(options, name); };
  table.group(prefix.empty() ? "Model" : "Model of the baseline");
  table.add(flag("random-weights"), &options.random_weights,
            "make weights up: MODEL may then be a config.json alone");
  table.add(flag("weights-seed"), &options.seed, "of random weights", {.least = 0});
  table.add(flag("compute"), &options.compute,
            "the arithmetic; by default fp8 for an FP8 checkpoint and bf16 for another",
            {.choices = {"fp32", "bf16", "fp8"}});
  table.add(flag("scheme"), &options.scheme,
            "how --compute fp8 quantizes a 16-bit checkpoint at load; naming one implies fp8",
            {.choices = scheme_names()});
  table.add(flag("quantization"), &options.quantization,
            "the same by vLLM's name; fp8 is fp8_channel", {.choices = quantization_names()});
  table.add(flag("policy"), &options.policy, "precisions of single roles or modules (JSON)",
            {.metavar = "FILE"});
  table.add(flag("attention"), &options.attention,
            "arithmetic of attention; auto is what the checkpoint records, or else fp8 where the "
            "arithmetic and the KV cache are",
            {.choices = {"auto", "fp8", "bf16"}});
  table.add(flag("kv-cache-dtype"), &options.kv_cache_dtype,
            "type of the KV cache; auto is what the checkpoint records, or else follows the "
            "arithmetic; per_token_head gives each token and KV head a scale of its own, "
            "per_token_group each token and 128 values of a latent",
            {.choices = {"auto", "fp32", "bf16", "fp8", "fp8_e4m3", "fp8_e5m2",
                         "fp8_per_token_head", "int8_per_token_head", "int8_per_token_group"}});
  table.add(flag("kv-scale"), &options.kv_scale,
            "unit leaves an FP8 latent unscaled, to measure what scales are worth",
            {.choices = {"auto", "unit"}});
  table.add(flag("kv-group-tokens"), &options.kv_group_tokens,
            "tokens of an FP8 cache of K and V that share a scale, where neither the checkpoint "
            "nor a warm-up fixes one (1024): fewer follow the values more closely",
            {.least = 256, .most = 4096});
  table.add(flag("max-model-len"), &options.max_model_len,
            "longest sequence; 0 is what the model was made for", {.least = 0});
  table.add(flag("hf-overrides"), &options.hf_overrides,
            "members that replace those of config.json, for this run", {.metavar = "JSON"});
  table.add(flag("rope-scaling"), &options.rope_scaling,
            "the RoPE scaling instead of config.json's: {\"rope_type\": \"yarn\", ...}",
            {.metavar = "JSON"});
  table.add(flag("rope-theta"), &options.rope_theta,
            "the RoPE base instead of config.json's; 0 keeps it", {.least = 0});
}

std::unique_ptr<ops::Backend> open_backend(const BackendOptions& options) {
  std::map<std::string, std::string> pins;
  for (const std::string& pin : options.pins) {
    const size_t equals = pin.find('=');
    if (equals == pin.npos || equals == 0 || equals + 1 == pin.size()) {
      throw Error({.what = "a kernel is pinned to an operation",
                   .where = "--kernel",
                   .value = pin,
                   .accepted = "OP=NAME; `octet kernels MODEL` lists both"});
    }
    pins[pin.substr(0, equals)] = pin.substr(equals + 1);
  }
  if (options.device == "cuda" || options.device.starts_with("cuda:")) {
    return open_cuda({.device = options.device,
                      .deterministic = options.deterministic,
                      .fast_accumulation = options.fast_accumulation,
                      .graphs = !options.enforce_eager,
                      .pins = std::move(pins)});
  }
  if (!options.on_cpu()) {
    throw Error({.what = "unknown device",
                 .where = "--device",
                 .value = options.device,
                 .accepted = "cpu, cuda, cuda:N"});
  }
  return std::make_unique<cpu::CpuBackend>(cpu::CpuOptions{
      .threads = options.threads, .kernels = options.kernels, .pins = std::move(pins)});
}

OpenModel::OpenModel(const ModelOptions& options)
    : options_(with_one_scheme(options)),
      config_(config_of(options_)),
      attention_asked_(options.attention != "auto"),
      kv_asked_(options.kv_cache_dtype != "auto"),
      random_(make_random(options_, config_)) {
  options_ = with_recorded(std::move(options_), config_);
  load_ = load_options_of(options_, config_);
  kv_type_ = model::parse_kv_type(options_.kv_cache_dtype);
  source_ = random_ ? random_ : open_checkpoint(options);
  if (options.max_model_len > config_.max_positions) {
    throw Error({.what = "the model was not made for such long sequences",
                 .where = flag_of(options, "max-model-len"),
                 .value = fmt::format("{}", options.max_model_len),
                 .accepted = fmt::format("at most {}", config_.max_positions)});
  }
  config_.rope.length = max_model_len();
  tokenizer_ = open_tokenizer(options.path);
}

DType OpenModel::kv_dtype() const {
  const bool fp8 = load_.compute == model::Compute::fp8 && load_.fp8_attention;
  const DType activation = load_.compute == model::Compute::fp32 ? DType::f32 : DType::bf16;
  return engine::kv_dtype(kv_type_, fp8, activation);
}

std::string OpenModel::kv_name() const {
  return fmt::format("{}{}", name_of(kv_dtype()),
                     model::has_token_heads(kv_type_)               ? " per token and head"
                     : kv_type_ == model::KvType::int8_token_groups ? " per token and group"
                                                                    : "");
}

std::string_view OpenModel::attention() const {
  if (load_.compute == model::Compute::fp8) return load_.fp8_attention ? "fp8" : "bf16";
  return name_of(load_.compute);
}

std::string OpenModel::run_as() const {
  const bool fp8 = load_.compute == model::Compute::fp8;
  const auto origin = [&](bool asked, const std::string& recorded, const std::string& in_force) {
    if (asked) return "as asked";
    return fp8 && !recorded.empty() && recorded == in_force ? "recorded in config.json" : "default";
  };
  return fmt::format(
      "{}, KV cache {} ({}), attention {} ({})", name_of(load_.compute), kv_name(),
      origin(kv_asked_, config_.recorded.kv_cache_dtype, options_.kv_cache_dtype), attention(),
      origin(attention_asked_, config_.recorded.attention, std::string(attention())));
}

int64_t OpenModel::max_model_len() const {
  return options_.max_model_len > 0 ? options_.max_model_len : config_.max_positions;
}

const text::Tokenizer& OpenModel::tokenizer() const {
  if (!tokenizer_) {
    throw Error(
        {.what = "the model has no tokenizer, so it cannot read text",
         .where = options_.path,
         .value = "no tokenizer.json",
         .fix =
             "put the model's tokenizer.json there, or give prompts as token ids (--prompt-file)"});
  }
  return *tokenizer_;
}

std::vector<int32_t> OpenModel::encode(const std::string& text, const std::string& where,
                                       const text::EncodeOptions& options) const {
  require_utf8(text, where);
  std::vector<int32_t> ids = tokenizer().encode(text, options);
  require_known(ids, where);
  return ids;
}

std::vector<int32_t> OpenModel::encode_prompt(const std::string& text, const std::string& where,
                                              const text::EncodeOptions& options) const {
  require_utf8(text, where);
  const int64_t most = max_model_len() - 1;
  std::optional<std::vector<int32_t>> ids =
      tokenizer().encode_at_most(static_cast<size_t>(most), text, options);
  if (!ids) {
    throw Error(
        {.what = "the prompt is longer than the model allows",
         .where = where,
         .value = fmt::format("{} bytes of text, more than {} tokens", text.size(), most),
         .accepted = fmt::format("at most {} tokens, prompt and output together", max_model_len()),
         .fix = "shorten the prompt"});
  }
  require_known(*ids, where);
  return std::move(*ids);
}

std::optional<int32_t> OpenModel::bos() const {
  const std::optional<int32_t> bos = config_.bos ? config_.bos : tokenizer().bos_id();
  if (bos) require_known({&*bos, 1}, "the begin-of-text token");
  return bos;
}

void OpenModel::require_known(std::span<const int32_t> ids, const std::string& where) const {
  for (const int32_t id : ids) {
    if (id < config_.vocab) continue;
    throw Error({.what = "the tokenizer has more tokens than the model's embedding",
                 .where = where,
                 .value = fmt::format("token {}, '{}'", id, tokenizer().token_bytes(id)),
                 .accepted = fmt::format("tokens 0 to {}", config_.vocab - 1),
                 .fix = "check that tokenizer.json belongs to this model"});
  }
}

void OpenModel::set_kv_scales(std::map<std::string, std::vector<float>> scales,
                              std::string origin) {
  source_ = model::with_kv_scales(std::move(source_), std::move(scales), std::move(origin));
}

const model::Model& OpenModel::load(ops::Backend& backend, int64_t max_tokens) {
  if (random_) {
    random_->allocate_shared_by(
        [&](size_t bytes) { return backend.alloc_host(bytes, "random weights"); });
  }
  load_.max_positions = max_tokens > 0 ? max_tokens : max_model_len();
  model_ = model::load_model(config_, source_, backend, load_);
  if (random_) random_->allocate_shared_by(host_buffer);
  for (const std::string& notice : model_->notices()) log::info("{}", notice);
  for (const std::string& note : file_notes()) log::info("{}", note);
  return *model_;
}

std::vector<std::string> OpenModel::file_notes() const {
  if (random_ || !model::is_gguf(options_.path)) return {};
  return model::gguf_notes(options_.path, config_.rope.theta);
}

}  // namespace octet::cli
