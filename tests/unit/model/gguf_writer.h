// Writes small GGUF files for tests, as convert_hf_to_gguf.py of llama.cpp would: header, metadata,
// tensor infos, aligned data. What a test wants broken it breaks itself.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/checkpoint.h"

namespace octet::test {

template <class T>
std::string raw(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

inline std::string gguf_string(const std::string& text) {
  return raw(uint64_t{text.size()}) + text;
}

class GgufWriter {
 public:
  // A key with the encoded bytes of its value.
  GgufWriter& add(const std::string& key, uint32_t type, const std::string& bytes) {
    keys_ += gguf_string(key) + raw(type) + bytes;
    ++key_count_;
    return *this;
  }
  GgufWriter& u32(const std::string& key, uint32_t v) { return add(key, 4, raw(v)); }
  GgufWriter& f32(const std::string& key, float v) { return add(key, 6, raw(v)); }
  GgufWriter& flag(const std::string& key, bool v) { return add(key, 7, raw(uint8_t{v})); }
  GgufWriter& text(const std::string& key, const std::string& v) {
    return add(key, 8, gguf_string(v));
  }
  GgufWriter& strings(const std::string& key, const std::vector<std::string>& values) {
    std::string bytes = raw(uint32_t{8}) + raw(uint64_t{values.size()});
    for (const std::string& value : values) bytes += gguf_string(value);
    return add(key, 9, bytes);
  }
  GgufWriter& i32s(const std::string& key, const std::vector<int32_t>& values) {
    std::string bytes = raw(uint32_t{5}) + raw(uint64_t{values.size()});
    for (const int32_t value : values) bytes += raw(value);
    return add(key, 9, bytes);
  }

  // `dims` innermost first, `type` a GGML type, `bytes` its blocks.
  GgufWriter& tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                     const std::string& bytes) {
    infos_ += gguf_string(name) + raw(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) infos_ += raw(dim);
    infos_ += raw(type) + raw(uint64_t{data_.size()});
    data_ += bytes;
    data_.resize((data_.size() + 31) / 32 * 32);
    ++tensor_count_;
    return *this;
  }

  std::string file(uint32_t version = 3) const {
    std::string bytes = "GGUF" + raw(version) + raw(tensor_count_) + raw(key_count_);
    bytes += keys_ + infos_;
    bytes.resize((bytes.size() + 31) / 32 * 32);
    return bytes + data_;
  }

 private:
  std::string keys_, infos_, data_;
  uint64_t key_count_ = 0, tensor_count_ = 0;
};

// The rows of a matrix (or the values of a vector) as the converter orders them for the
// architecture "llama": each head's two halves are woven into one, as reshape(heads, 2, dim / 2,
// ...) and swapaxes(1, 2) do.
inline std::string woven(const std::string& rows, size_t count, size_t heads) {
  const size_t row = rows.size() / count, dim = count / heads;
  std::string out;
  for (size_t head = 0; head < heads; ++head) {
    for (size_t pair = 0; pair < dim / 2; ++pair) {
      for (size_t half = 0; half < 2; ++half) {
        out += rows.substr((head * dim + half * (dim / 2) + pair) * row, row);
      }
    }
  }
  return out;
}

// A Llama checkpoint of tests/golden as GGUF: F32, F16 and BF16 tensors under GGUF's names. The
// caller adds what its config has beside sizes and rotary base.
inline GgufWriter llama_gguf(const model::Checkpoint& source, const Json& config) {
  const std::pair<const char*, const char*> names[] = {
      {"model.embed_tokens.", "token_embd."},
      {"model.norm.", "output_norm."},
      {"lm_head.", "output."},
      {"model.layers.", "blk."},
      {"input_layernorm.", "attn_norm."},
      {"post_attention_layernorm.", "ffn_norm."},
      {"self_attn.q_proj.", "attn_q."},
      {"self_attn.k_proj.", "attn_k."},
      {"self_attn.v_proj.", "attn_v."},
      {"self_attn.o_proj.", "attn_output."},
      {"mlp.gate_proj.", "ffn_gate."},
      {"mlp.up_proj.", "ffn_up."},
      {"mlp.down_proj.", "ffn_down."},
  };
  const auto size = [&](const char* key) { return config.at(key).get<uint32_t>(); };
  const uint32_t heads = size("num_attention_heads");
  const uint32_t kv_heads = config.value("num_key_value_heads", heads);
  GgufWriter writer;
  writer.text("general.architecture", "llama")
      .u32("llama.block_count", size("num_hidden_layers"))
      .u32("llama.context_length", size("max_position_embeddings"))
      .u32("llama.embedding_length", size("hidden_size"))
      .u32("llama.feed_forward_length", size("intermediate_size"))
      .u32("llama.attention.head_count", heads)
      .u32("llama.attention.head_count_kv", kv_heads)
      .u32("llama.attention.key_length", config.value("head_dim", size("hidden_size") / heads))
      .f32("llama.rope.freq_base", config.value("rope_theta", 10000.0f))
      .f32("llama.attention.layer_norm_rms_epsilon", config.value("rms_norm_eps", 1e-6f));
  for (const std::string& name : source.names()) {
    const Tensor& tensor = *source.find(name);
    std::string renamed = name;
    for (const auto& [hf, gguf] : names) {
      if (const size_t at = renamed.find(hf); at != renamed.npos) {
        renamed.replace(at, std::string(hf).size(), gguf);
      }
    }
    std::string bytes(tensor.as<const char>(), static_cast<size_t>(tensor.bytes()));
    const auto rows = static_cast<size_t>(tensor.shape[0]);
    if (renamed.find("attn_q.") != renamed.npos) bytes = woven(bytes, rows, heads);
    if (renamed.find("attn_k.") != renamed.npos) bytes = woven(bytes, rows, kv_heads);
    std::vector<uint64_t> dims;
    for (int axis = tensor.shape.rank - 1; axis >= 0; --axis) {
      dims.push_back(static_cast<uint64_t>(tensor.shape[axis]));
    }
    const uint32_t type = tensor.type == DType::f32 ? 0 : tensor.type == DType::f16 ? 1 : 30;
    writer.tensor(renamed, dims, type, bytes);
  }
  return writer;
}

}  // namespace octet::test
