#include "model/gguf/tensor_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "base/error.h"
#include "model/gguf/hf_files.h"

namespace octet::model::gguf {
namespace {

constexpr int64_t kMostExperts = int64_t{1} << 16;

enum class Change : uint8_t { none, permute_q, permute_k };

struct Rule {
  std::string_view gguf, hf;
  Change change = Change::none;  // of the architecture "llama" alone
};

// Of the whole model.
constexpr Rule kEnds[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
};

// Below "blk.N." and "model.layers.N.".
constexpr Rule kLayer[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj", Change::permute_q},
    {"attn_k", "self_attn.k_proj", Change::permute_k},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};

// Routers, and experts that are stacked along a third axis: "{}" is the expert's number.
constexpr Rule kQwenExperts[] = {
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.experts.{}.gate_proj"},
    {"ffn_up_exps", "mlp.experts.{}.up_proj"},
    {"ffn_down_exps", "mlp.experts.{}.down_proj"},
};
constexpr Rule kMixtralExperts[] = {
    {"ffn_gate_inp", "block_sparse_moe.gate"},
    {"ffn_gate_exps", "block_sparse_moe.experts.{}.w1"},
    {"ffn_up_exps", "block_sparse_moe.experts.{}.w3"},
    {"ffn_down_exps", "block_sparse_moe.experts.{}.w2"},
};

const Rule* find(std::span<const Rule> rules, std::string_view name) {
  const auto it = std::ranges::find(rules, name, &Rule::gguf);
  return it == rules.end() ? nullptr : &*it;
}

int64_t rows_of(const TensorInfo& info) {
  int64_t rows = 1;
  for (size_t i = 1; i < info.dims.size(); ++i) rows *= info.dims[i];
  return rows;
}

class Namer {
 public:
  explicit Namer(const File& file) : file_(file), arch_(architecture_of(file.metadata)) {}

  std::vector<NamedTensor> names() {
    for (const TensorInfo& info : file_.tensors) {
      if (info.name != "rope_freqs.weight") add(info);
    }
    return std::move(named_);
  }

 private:
  void add(const TensorInfo& info) {
    // "blk.12.attn_q.weight": layer 12, stem attn_q, suffix .weight.
    std::string_view stem = info.name, layer;
    if (stem.starts_with("blk.")) {
      const size_t dot = stem.find('.', 4);
      layer = stem.substr(4, dot == stem.npos ? 0 : dot - 4);
      if (is_number(layer)) stem.remove_prefix(dot + 1);
    }
    const size_t dot = stem.rfind('.');
    const std::string_view suffix = dot == stem.npos ? "" : stem.substr(dot);
    stem = stem.substr(0, dot);
    if (!is_number(layer)) {
      const Rule* rule = find(kEnds, stem);
      put({.name = rule ? fmt::format("{}{}", rule->hf, suffix) : info.name, .info = &info});
      return;
    }
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    if (const Rule* rule = find(kLayer, stem)) {
      put({.name = fmt::format("{}{}{}", prefix, rule->hf, suffix),
           .info = &info,
           .permuted_heads = permuted_heads(*rule, info)});
      return;
    }
    const std::span<const Rule> experts =
        arch_ == "llama" ? std::span<const Rule>(kMixtralExperts) : kQwenExperts;
    if (const Rule* rule = find(experts, stem)) {
      put_experts(prefix, *rule, suffix, info);
    } else {
      put({.name = info.name, .info = &info});
    }
  }

  void put_experts(const std::string& prefix, const Rule& rule, std::string_view suffix,
                   const TensorInfo& info) {
    const size_t hole = rule.hf.find("{}");
    if (hole == rule.hf.npos || info.dims.size() != 3) {
      put({.name = fmt::format("{}{}{}", prefix, rule.hf, suffix), .info = &info});
      return;
    }
    const int64_t experts = info.dims[2], rows = info.dims[1];
    if (experts > kMostExperts) {
      refuse(info, "too many experts in a tensor", fmt::format("{}", experts),
             fmt::format("at most {}", kMostExperts));
    }
    for (int64_t e = 0; e < experts; ++e) {
      put({.name = fmt::format("{}{}{}{}{}", prefix, rule.hf.substr(0, hole), e,
                               rule.hf.substr(hole + 2), suffix),
           .info = &info,
           .rows = rows,
           .first_row = e * rows,
           .stacked = true});
    }
  }

  void put(NamedTensor tensor) {
    if (tensor.info->dims.size() == 1) {
      // A bias is permuted as its weight is: its values stand for rows.
      tensor.rows = tensor.permuted_heads > 0 ? tensor.info->dims[0] : 1;
    } else if (!tensor.stacked) {
      tensor.rows = rows_of(*tensor.info);
    }
    if (!seen_.insert(tensor.name).second) {
      throw Error(
          {.what = "two tensors of the file stand for one",
           .where = fmt::format("{}, tensor '{}'", file_.metadata.file(), tensor.info->name),
           .value = tensor.name,
           .accepted = "distinct tensors"});
    }
    named_.push_back(std::move(tensor));
  }

  [[noreturn]] void refuse(const TensorInfo& info, std::string what, std::string value,
                           std::string accepted) const {
    throw Error({.what = std::move(what),
                 .where = fmt::format("{}, tensor '{}'", file_.metadata.file(), info.name),
                 .value = std::move(value),
                 .accepted = std::move(accepted)});
  }

  static bool is_number(std::string_view text) {
    return !text.empty() && text.size() <= 6 && text.find_first_not_of("0123456789") == text.npos &&
           (text == "0" || text[0] != '0');
  }

  int64_t permuted_heads(const Rule& rule, const TensorInfo& info) const {
    if (arch_ != "llama" || rule.change == Change::none) return 0;
    const char* q = "llama.attention.head_count";
    const char* k = "llama.attention.head_count_kv";
    const char* key = rule.change == Change::permute_k && file_.metadata.has(k) ? k : q;
    const std::vector<int64_t> counts = file_.metadata.integers(key);
    const int64_t heads = counts.empty() ? 0 : counts.front();
    const int64_t rows = info.dims.size() == 1 ? info.dims[0] : rows_of(info);
    if (info.dims.size() == 1 && !info.type->plain) {
      refuse(info, "a bias is stored in blocks, which its rows would tear",
             std::string(info.type->name), "F32, F16 or BF16");
    }
    if (heads > 0 && rows % heads == 0 && rows / heads % 2 == 0) return heads;
    refuse(info, "the heads do not divide the rows of a tensor into even parts",
           fmt::format("{} rows for {} heads", rows, heads),
           fmt::format("a multiple of twice the {} of key '{}'", heads, key));
  }

  const File& file_;
  std::string arch_;
  std::vector<NamedTensor> named_;
  std::set<std::string> seen_;
};

}  // namespace

int64_t NamedTensor::source_row(int64_t row) const {
  if (permuted_heads == 0) return first_row + row;
  const int64_t dim = rows / permuted_heads, head = row / dim, j = row % dim;
  return head * dim + (j < dim / 2 ? 2 * j : 2 * (j - dim / 2) + 1);
}

std::vector<NamedTensor> hf_tensors(const File& file) {
  return Namer(file).names();
}

}  // namespace octet::model::gguf
