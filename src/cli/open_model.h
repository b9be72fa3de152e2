// The options that say which model runs and how, shared by all verbs, and what opens it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/options.h"
#include "model/model.h"
#include "model/random_weights.h"
#include "ops/backend.h"
#include "text/tokenizer.h"

namespace octet::cli {

struct BackendOptions {
  std::string device = "cpu";  // or "cuda", "cuda:N"
  int threads = 0;
  std::string kernels = "auto";
  std::vector<std::string> pins;  // "op=name"
  // Of a GPU alone: a CPU has no graphs and is deterministic always.
  bool enforce_eager = false, deterministic = false, fast_accumulation = false;

  bool on_cpu() const { return device == "cpu"; }
};

struct ModelOptions {
  std::string path;
  std::string flag_prefix;  // of the names of its flags: "baseline-"
  bool random_weights = false;
  int64_t seed = 0;  // of random weights
  // Nothing is computed: random weights may share their memory, so that any shape fits.
  bool shape_alone = false;
  std::string compute;       // "" = what the checkpoint suggests
  std::string scheme;        // "" = fp8_channel, if it is needed
  std::string quantization;  // the same by vLLM's name
  std::string policy;        // a file
  std::string attention = "auto";
  std::string kv_cache_dtype = "auto";
  std::string kv_scale = "auto";
  std::optional<int64_t> kv_group_tokens;
  int64_t max_model_len = 0;  // 0 = the model's own limit
  // What a run changes in config.json; JSON objects, "" = nothing (model/config_overrides.h).
  std::string hf_overrides, rope_scaling;
  double rope_theta = 0;
};

// The rows of the two structs. `prefix` ("baseline-") is put before each flag's name, for verbs
// that open two models; the caller adds the positional MODEL or its like.
void add_backend_rows(OptionTable& table, BackendOptions& options);
void add_model_rows(OptionTable& table, ModelOptions& options, const std::string& prefix = "");

std::unique_ptr<ops::Backend> open_backend(const BackendOptions& options);

// The row of --gpu-memory-utilization, for verbs that run an engine.
void add_memory_row(OptionTable& table, double* utilization);

// A model in two steps, since how much memory it needs depends on text that its tokenizer cuts.
class OpenModel {
 public:
  // Reads the configuration, maps the checkpoint, reads the tokenizer (if there is one). Throws
  // Error.
  explicit OpenModel(const ModelOptions& options);

  // Binds the weights; positions are prepared for sequences of at most `max_tokens` (0 = the
  // limit). Prints the model's notices to stderr.
  const model::Model& load(ops::Backend& backend, int64_t max_tokens = 0);
  // What was taken for granted where the model's file says nothing: load() prints it, too.
  std::vector<std::string> file_notes() const;
  // Scales of the KV cache in place of those of the checkpoint (model::with_kv_scales), before
  // load().
  void set_kv_scales(std::map<std::string, std::vector<float>> scales, std::string origin);

  const model::ModelConfig& config() const { return config_; }
  const model::WeightSource& source() const { return *source_; }
  const std::shared_ptr<const model::WeightSource>& shared_source() const { return source_; }
  const model::Model& model() const { return *model_; }
  const model::LoadOptions& load_options() const { return load_; }
  model::KvType kv_type() const { return kv_type_; }
  bool unit_kv_scale() const { return options_.kv_scale == "unit"; }
  DType kv_dtype() const;
  std::string kv_name() const;  // with what its scales are by: "i8 per token and head"
  // Its arithmetic: "fp8", "bf16" or "fp32".
  std::string_view attention() const;
  // What it runs as, and who says so: "fp8, KV cache e4m3 (as asked), attention bf16 (recorded in
  // config.json)".
  std::string run_as() const;
  // The longest sequence: --max-model-len, or what the model was made for.
  int64_t max_model_len() const;

  bool has_tokenizer() const { return tokenizer_.has_value(); }
  // Error if the model has none.
  const text::Tokenizer& tokenizer() const;
  // The ids of a text. Error, naming `where`, if the model's embedding does not have one of them.
  // Error, too, where the text is not UTF-8: what the user meant cannot be known.
  std::vector<int32_t> encode(const std::string& text, const std::string& where,
                              const text::EncodeOptions& options = {}) const;
  // The same for a text that leaves room for an output token within max_model_len(); Error for a
  // longer one, which is noticed without tokenizing all of it.
  std::vector<int32_t> encode_prompt(const std::string& text, const std::string& where,
                                     const text::EncodeOptions& options = {}) const;
  // The token that begins a text, whether or not the tokenizer puts one before every text: the
  // configuration's, else the tokenizer's, if either names one. Error if the embedding lacks it.
  std::optional<int32_t> bos() const;
  // Error, naming `where`, if the embedding lacks one of the tokenizer's ids.
  void require_known(std::span<const int32_t> ids, const std::string& where) const;
  // Moves it out, for owners that outlive this.
  std::optional<text::Tokenizer> take_tokenizer() { return std::move(tokenizer_); }

 private:
  ModelOptions options_;  // where they are "auto", what config.json records stands in their place
  model::ModelConfig config_;
  bool attention_asked_, kv_asked_;  // by flags
  std::shared_ptr<const model::WeightSource> source_;
  std::shared_ptr<model::RandomWeights> random_;  // the source, if there is no checkpoint
  model::LoadOptions load_;
  model::KvType kv_type_;
  std::optional<text::Tokenizer> tokenizer_;
  std::unique_ptr<model::Model> model_;
};

}  // namespace octet::cli
