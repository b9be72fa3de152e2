// What a model is: config.json, read once into plain structs.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "numerics/policy.h"
#include "ops/op_types.h"

namespace octet::model {

// Grouped-query attention. head_dim is explicit: it need not be hidden / heads.
struct Gqa {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  bool qkv_bias = false;
  bool o_bias = false;
  bool qk_norm = false;  // RMS norm of each head of q and of k, before RoPE (Qwen3)
};

// Multi-head latent attention (DeepSeek-V2 paper, section 2.1).
struct Mla {
  int64_t heads = 0;
  int64_t q_lora = 0;  // 0: a single q_proj
  int64_t kv_lora = 0, nope = 0, rope = 0, v = 0;
};

struct DenseFfn {
  int64_t intermediate = 0;
  bool bias = false;
};

struct MoeFfn {
  ops::RouterSpec router;
  bool router_bias = false;              // e_score_correction_bias exists (noaux_tc)
  std::string router_name = "mlp.gate";  // of its module in a layer
  int64_t intermediate = 0;              // of one routed expert
  int64_t shared = 0;              // shared experts, stored as one MLP of shared * intermediate
  std::vector<bool> layers;        // by layer: whether its FFN is this mixture, or dense...
  int64_t dense_intermediate = 0;  // ...of this width
};

// Rotary positions (models-numerics E.1; HF modeling_rope_utils.py).
struct RopeConfig {
  enum class Kind : uint8_t { plain, linear, ntk, dynamic, yarn, llama3, longrope };
  Kind kind = Kind::plain;
  double theta = 0;
  int64_t dim = 0;  // rotated dimensions of a head
  bool interleaved = false;
  double factor = 1;
  int64_t original_positions = 0;  // before the scaling
  bool original_given = false;     // by config.json; else they are max_position_embeddings
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  double mscale = 0, mscale_all_dim = 0;             // yarn
  std::optional<double> attention_factor;            // yarn, longrope
  bool truncate = true;                              // yarn
  std::vector<double> short_factor, long_factor;     // longrope: dim / 2 values each
  // The length of sequence that the frequencies of dynamic and longrope are for. Theirs depend on
  // it, and keys of one cache must share them: docs/NUMERICS.md.
  int64_t length = 0;
};

enum class Family : uint8_t { llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, deepseek };

// How weights of fewer than 8 bits lie in 32-bit words: model/packed_weights.h.
struct Packing {
  enum class Layout : uint8_t { awq, gptq, compressed };
  Layout layout = Layout::awq;
  int bits = 4;
  int64_t group = 0;       // inputs that share a scale; 0 = all
  bool symmetric = false;  // no zero points are stored
  int zero_offset = 0;     // to add to stored zero points
};

// Linears that a checkpoint stores in one format.
struct QuantGroup {
  std::string name;                  // "group_0", as its dialect calls it; "" = it has but one
  std::vector<std::string> targets;  // as written: quant_schema's group_of(); empty = every linear
  LinearFormat format;               // of those that are not ignored
  std::optional<Packing> packing;    // of their weights; absent: one code a byte
};

// `quantization_config`, whichever schema wrote it: see model/quant_schema.h.
struct QuantConfig {
  enum class Schema : uint8_t { fp8, compressed_tensors, modelopt, awq, gptq };
  // What entries of the ignore list mean: model/quant/ignore_list.h.
  enum class Names : uint8_t { full, parts, targets, wildcards };
  Schema schema = Schema::fp8;
  Names names = Names::parts;
  std::vector<QuantGroup> groups;    // at least one; linears of none stay in 16 bits
  std::vector<std::string> ignored;  // as written; matched by quant_schema's ignores()
  std::string scale_suffix;          // ".weight_scale_inv" or ".weight_scale"
  std::vector<std::string> notes;    // what it says beside the format, for people
};

// "octet" of config.json, a member of Octet's own that other readers pass over: the arithmetic that
// the checkpoint's maker measured and found right. It holds under FP8 arithmetic, where no flag
// says otherwise: docs/NUMERICS.md.
struct RecordedArithmetic {
  std::string attention;       // "fp8" or "bf16"; "" = not recorded
  std::string kv_cache_dtype;  // what parse_kv_type() takes but "auto"; "" = not recorded
  // Linears whose weights are codes and whose inputs stay in 16 bits, though quantization_config
  // says otherwise: names, or globs as in a policy file.
  std::vector<std::string> weight_only;
};

struct ModelConfig {
  Family family = Family::llama;
  std::string architecture;  // "DeepseekV3ForCausalLM"
  std::string model_type;
  int64_t layers = 0, hidden = 0, vocab = 0;
  int64_t max_positions = 0;
  float norm_eps = 1e-6f;
  bool tied_embeddings = false;
  std::variant<Gqa, Mla> attention;
  std::variant<DenseFfn, MoeFfn> ffn;
  RopeConfig rope;
  std::vector<int64_t> windows;  // of attention, by layer: see window(); empty = none has one
  int64_t mtp_layers = 0;  // multi-token-prediction layers after the last: recognised, not loaded
  DType dtype = DType::bf16;
  std::optional<int32_t> bos;
  std::vector<int32_t> eos;  // config.json and generation_config.json together
  std::optional<QuantConfig> quant;
  RecordedArithmetic recorded;

  bool is_moe_layer(int64_t layer) const;
  // The sliding window of a layer in tokens, the query included: key j is visible to query i iff
  // i - window < j <= i. 0 = all keys up to i.
  int64_t window(int64_t layer) const;
};

// Reads `path`/config.json (and generation_config.json beside it if there), `path` itself when it
// is a .json file, or the metadata of a GGUF file. Both RoPE dialects; a missing rope_theta is
// refused, never defaulted. Throws Error naming file, key, value and what is accepted; an unknown
// architecture lists the known ones. `overrides` (a JSON object, "" = none) replaces members of
// config.json first: config_overrides.h.
ModelConfig read_config(const std::string& path, const std::string& overrides = {});

// The same from text, for tests and fuzzing; `where` names the source in errors.
ModelConfig parse_config(const std::string& text, const std::string& where,
                         const std::string& overrides = {});

}  // namespace octet::model
