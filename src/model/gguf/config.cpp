// config.json from a GGUF file's metadata (models-numerics A.10; llama.cpp's conversion/*.py, whose
// inverse this is).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numbers>

#include "base/error.h"
#include "base/json.h"
#include "model/gguf/hf_files.h"
#include "model/rope.h"

namespace octet::model::gguf {
namespace {

constexpr int64_t kMost = int64_t{1} << 40;  // the reader of config.json has the real bounds

constexpr const char* kRopeBase = "rope.freq_base";
constexpr double kDefaultRopeBase = 10000;  // of llama.cpp, too

struct ArchitectureRow {
  std::string_view gguf, model_type, class_name;
};

constexpr ArchitectureRow kArchitectures[] = {
    {"llama", "llama", "LlamaForCausalLM"},
    {"qwen2", "qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "qwen3", "Qwen3ForCausalLM"},
    {"qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM"},
};

// Reads keys below the architecture's name.
class Reader {
 public:
  explicit Reader(const File& file)
      : file_(file), meta_(file.metadata), arch_(architecture_of(file.metadata)) {}

  OrderedJson config();

 private:
  std::string key(std::string_view name) const { return fmt::format("{}.{}", arch_, name); }
  bool has(std::string_view name) const { return meta_.has(key(name)); }
  int64_t integer(std::string_view name) const { return meta_.integer(key(name), 0, kMost); }
  int64_t integer(std::string_view name, int64_t fallback) const {
    return meta_.integer(key(name), 0, kMost, fallback);
  }
  const TensorInfo* tensor(std::string_view name) const {
    const auto it = std::ranges::find(file_.tensors, name, &TensorInfo::name);
    return it == file_.tensors.end() ? nullptr : &*it;
  }
  int64_t same_in_all_layers(std::string_view name) const;
  void add_attention(OrderedJson& config) const;
  void add_experts(OrderedJson& config) const;
  void add_rope(OrderedJson& config) const;
  OrderedJson llama3_rope(const TensorInfo& factors, double theta) const;
  void add_tokens(OrderedJson& config) const;
  int64_t vocabulary() const;
  int64_t heads(std::string_view name) const;
  int64_t head_dim() const;
  std::string dtype() const;

  const File& file_;
  const Metadata& meta_;
  std::string arch_;
};

// A float32's shortest decimal text, as a double: 1e-05, not 9.999999747378752e-06.
double shortest(double value) {
  return std::strtod(fmt::format("{}", static_cast<float>(value)).c_str(), nullptr);
}

// Some models have a value for each layer; ours are alike.
int64_t Reader::same_in_all_layers(std::string_view name) const {
  const std::vector<int64_t> values = meta_.integers(key(name));
  const bool alike = std::ranges::all_of(values, [&](int64_t v) { return v == values.front(); });
  if (!values.empty() && alike) return values.front();
  meta_.refuse(key(name), "the layers of the model differ", fmt::format("{} values", values.size()),
               "one value for all layers");
}

int64_t Reader::heads(std::string_view name) const {
  const int64_t count = same_in_all_layers(name);
  if (count > 0) return count;
  meta_.refuse(key(name), "attention without heads", fmt::format("{}", count), "at least 1");
}

int64_t Reader::head_dim() const {
  return integer("attention.key_length",
                 integer("embedding_length") / heads("attention.head_count"));
}

void Reader::add_attention(OrderedJson& config) const {
  config["num_attention_heads"] = heads("attention.head_count");
  const bool grouped = has("attention.head_count_kv");
  config["num_key_value_heads"] =
      heads(grouped ? "attention.head_count_kv" : "attention.head_count");
  config["head_dim"] = head_dim();
  if (has("attention.value_length") && integer("attention.value_length") != head_dim()) {
    meta_.refuse(key("attention.value_length"), "keys and values of different lengths",
                 fmt::format("{}", integer("attention.value_length")),
                 fmt::format("{}", head_dim()));
  }
  if (arch_ == "llama") {
    config["attention_bias"] = tensor("blk.0.attn_q.bias") != nullptr;
    config["mlp_bias"] = tensor("blk.0.ffn_gate.bias") != nullptr;
  }
  if (arch_ == "qwen3" || arch_ == "qwen3moe") config["attention_bias"] = false;
  if (has("attention.sliding_window")) {
    config["sliding_window"] = integer("attention.sliding_window");
  }
}

void Reader::add_experts(OrderedJson& config) const {
  const int64_t experts = integer("expert_count", 0);
  if (experts == 0) return;
  config["num_experts_per_tok"] = integer("expert_used_count");
  if (arch_ == "llama") {
    config["num_local_experts"] = experts;
    return;
  }
  config["num_experts"] = experts;
  config["moe_intermediate_size"] = integer("expert_feed_forward_length");
  config["norm_topk_prob"] = true;  // llama.cpp computes no other kind for this architecture
  config["decoder_sparse_step"] = 1;
  config["mlp_only_layers"] = OrderedJson::array();
}

// Llama 3 divides frequencies by what four numbers say (HF modeling_rope_utils.py,
// _compute_llama3_parameters); two of them are the same in all published models.
struct Llama3Rule {
  static constexpr double low = 1, high = 4;
  double theta, dim, factor, original;

  double divisor(int64_t i) const {
    const double length = 2 * std::numbers::pi * std::pow(theta, 2 * static_cast<double>(i) / dim);
    const double smooth = std::clamp((original / length - low) / (high - low), 0.0, 1.0);
    return 1 / ((1 - smooth) / factor + smooth);
  }
};

// rope_freqs.weight holds the divisors. The rule that made them is found again: the factor is the
// largest, and the original length the power of two that gives all others.
OrderedJson Reader::llama3_rope(const TensorInfo& factors, double theta) const {
  const auto refuse = [&](std::string what, std::string value) {
    throw Error({.what = std::move(what),
                 .where = fmt::format("tensor 'rope_freqs.weight' in {}", meta_.file()),
                 .value = std::move(value),
                 .accepted = fmt::format("F32 [{}], made by Llama 3's rule with the frequency "
                                         "factors {} and {}",
                                         head_dim() / 2, Llama3Rule::low, Llama3Rule::high)});
  };
  if (factors.type->plain != DType::f32 || factors.dims != std::vector{head_dim() / 2}) {
    refuse("the rotary factors have the wrong type or shape",
           fmt::format("{}, {} dimensions", factors.type->name, factors.dims.size()));
  }
  std::vector<float> divisors(static_cast<size_t>(factors.dims[0]));
  std::memcpy(divisors.data(), factors.bytes.data(), factors.bytes.size());
  Llama3Rule rule{.theta = theta,
                  .dim = static_cast<double>(head_dim()),
                  .factor = shortest(std::ranges::max(divisors))};
  for (int power = 5; power <= 20; ++power) {
    rule.original = std::exp2(power);
    int64_t i = 0;
    const bool all = std::ranges::all_of(
        divisors, [&](float divisor) { return std::abs(divisor / rule.divisor(i++) - 1) < 1e-4; });
    if (!all) continue;
    return {{"rope_type", "llama3"},
            {"factor", rule.factor},
            {"low_freq_factor", Llama3Rule::low},
            {"high_freq_factor", Llama3Rule::high},
            {"original_max_position_embeddings", static_cast<int64_t>(rule.original)}};
  }
  refuse("the rotary factors follow no rule that Octet knows",
         fmt::format("{} numbers, at most {}", divisors.size(), rule.factor));
  return {};
}

void Reader::add_rope(OrderedJson& config) const {
  const int64_t rotated = integer("rope.dimension_count", head_dim());
  if (rotated != head_dim()) {
    meta_.refuse(key("rope.dimension_count"), "only a part of each head is rotated",
                 fmt::format("{}", rotated), fmt::format("{}, the length of a head", head_dim()));
  }
  // The format's default, which converters rely on: Llama 2's.
  const double theta = shortest(meta_.number(key(kRopeBase), kDefaultRopeBase));
  config["rope_theta"] = theta;
  // As llama.cpp reads it: a factor that is there without a type is linear, under its first name,
  // too.
  const std::string type = meta_.text(key("rope.scaling.type"), "linear");
  const char* const name = has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
  const double stored = type == "none" ? 1 : shortest(meta_.number(key(name), 1));
  const double factor = stored == 0 ? 1 : stored;
  if (const TensorInfo* factors = tensor("rope_freqs.weight")) {
    if (factor != 1) {
      meta_.refuse(key(name), "a scaling of rotary positions beside factors of single frequencies",
                   fmt::format("{} x {:g}, and rope_freqs.weight", type, factor), "one of the two");
    }
    config["rope_scaling"] = llama3_rope(*factors, theta);
  } else if (type == "yarn") {
    OrderedJson yarn = {
        {"rope_type", "yarn"},
        {"factor", shortest(meta_.number(key("rope.scaling.factor")))},
        {"original_max_position_embeddings", integer("rope.scaling.original_context_length")}};
    if (has("rope.scaling.attn_factor")) {
      // The format's is on top of YaRN's own, Hugging Face's is all of it.
      const double more = meta_.number(key("rope.scaling.attn_factor"));
      yarn["attention_factor"] = shortest(more * yarn_mscale(factor, 1.0));
    }
    config["rope_scaling"] = std::move(yarn);
  } else if (type != "none" && type != "linear") {
    meta_.refuse(key("rope.scaling.type"), "a scaling of rotary positions that Octet cannot take",
                 type, "none, linear, yarn");
  } else if (factor != 1) {
    config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", factor}};
  }
}

void Reader::add_tokens(OrderedJson& config) const {
  constexpr const char* bos = "tokenizer.ggml.bos_token_id";
  constexpr const char* eos = "tokenizer.ggml.eos_token_id";
  // llama.cpp ends generation at any of these.
  constexpr const char* others[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
  const int64_t most = vocabulary() - 1;
  if (meta_.has(bos)) config["bos_token_id"] = meta_.integer(bos, 0, most);
  OrderedJson ends = OrderedJson::array();
  if (meta_.has(eos)) ends.push_back(meta_.integer(eos, 0, most));
  for (const char* other : others) {
    if (!meta_.has(other)) continue;
    const OrderedJson id = meta_.integer(other, 0, most);
    if (std::ranges::find(ends, id) == ends.end()) ends.push_back(id);
  }
  if (ends.size() == 1) config["eos_token_id"] = ends[0];
  if (ends.size() > 1) config["eos_token_id"] = std::move(ends);
}

int64_t Reader::vocabulary() const {
  const TensorInfo* embedding = tensor("token_embd.weight");
  if (!embedding || embedding->dims.size() != 2) {
    throw Error({.what = "the GGUF file has no embedding, so it is no whole model",
                 .where = meta_.file(),
                 .value = embedding ? "an embedding that is no matrix" : "no token_embd.weight",
                 .accepted = "a matrix token_embd.weight"});
  }
  return embedding->dims[1];
}

// The type of the weights as they are read: blocks become BF16.
std::string Reader::dtype() const {
  bool f16 = false;
  for (const TensorInfo& info : file_.tensors) {
    if (!info.type->plain || info.type->plain == DType::bf16) return "bfloat16";
    f16 = f16 || info.type->plain == DType::f16;
  }
  return f16 ? "float16" : "float32";
}

OrderedJson Reader::config() {
  const auto* row = std::ranges::find(kArchitectures, arch_, &ArchitectureRow::gguf);
  std::string class_name(row->class_name), model_type(row->model_type);
  if (arch_ == "llama" && integer("expert_count", 0) > 0) {
    class_name = "MixtralForCausalLM", model_type = "mixtral";
  } else if (arch_ == "llama" && has("attention.sliding_window")) {
    class_name = "MistralForCausalLM", model_type = "mistral";
  }
  OrderedJson config = {{"architectures", {class_name}},
                        {"model_type", model_type},
                        {"hidden_act", "silu"},
                        {"hidden_size", integer("embedding_length")},
                        {"intermediate_size", same_in_all_layers("feed_forward_length")},
                        {"num_hidden_layers", integer("block_count")}};
  add_attention(config);
  add_experts(config);
  config["max_position_embeddings"] = integer("context_length");
  config["rms_norm_eps"] = shortest(meta_.number(key("attention.layer_norm_rms_epsilon")));
  add_rope(config);
  config["tie_word_embeddings"] = tensor("output.weight") == nullptr;
  config["vocab_size"] = vocabulary();
  add_tokens(config);
  config["torch_dtype"] = dtype();
  return config;
}

}  // namespace

std::string architecture_of(const Metadata& metadata) {
  constexpr const char* key = "general.architecture";
  std::string name = metadata.text(key);
  std::string known;
  for (const ArchitectureRow& row : kArchitectures) {
    if (row.gguf == name) return name;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.gguf);
  }
  metadata.refuse(key, "Octet does not read this architecture from GGUF", name, known,
                  "use the model's safetensors, if it is one that Octet knows");
}

std::vector<std::string> config_notes(const File& file, double rope_theta) {
  const std::string key = fmt::format("{}.{}", architecture_of(file.metadata), kRopeBase);
  if (file.metadata.has(key) || rope_theta != kDefaultRopeBase) return {};
  return {
      fmt::format("{} has no {}: the RoPE base is {:g}, as the format and llama.cpp have it; "
                  "--rope-theta sets another",
                  file.metadata.file(), key, kDefaultRopeBase)};
}

std::string config_json(const File& file) {
  const std::string count = "split.count";
  if (const int64_t parts = file.metadata.integer(count, 0, 65535, 1); parts > 1) {
    file.metadata.refuse(count, "the model is split into several GGUF files",
                         fmt::format("{} files", parts), "one file",
                         "merge them with llama.cpp's llama-gguf-split --merge");
  }
  return dump_json(Reader(file).config(), 2) + "\n";
}

}  // namespace octet::model::gguf
