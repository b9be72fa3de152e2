// Stored scales of the KV cache, in whole models: applied once where K and V are FP8, on every
// path, and inert where they are not.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "backends/cpu/cpu_backend.h"
#include "engine/session.h"
#include "model/checkpoint.h"
#include "model/model.h"
#include "unit/base/temp_dir.h"

namespace octet::golden {
namespace {

const std::string kFolder = std::string(OCTET_SOURCE_DIR) + "/tests/golden/llama_gqa_rope3";

// The golden model with scales under `name`.k_scale and .v_scale of every layer.
class Scaled {
 public:
  Scaled(float k, float v) : k_(k), v_(v) {
    const model::Checkpoint source(kFolder);
    std::vector<model::PendingTensor> tensors;
    const auto add = [&](const std::string& name, const Tensor& t) {
      tensors.push_back({name, t.type, t.shape, [t] {
                           const auto* data = static_cast<const std::byte*>(t.data);
                           return std::vector<std::byte>(data, data + t.bytes());
                         }});
    };
    for (const std::string& name : source.names()) add(name, *source.find(name));
    for (const char* layer : {"0", "1"}) {
      const std::string attention = std::string("model.layers.") + layer + ".self_attn.";
      add(attention + "k_scale", Tensor(&k_, DType::f32, {1}));
      add(attention + "v_scale", Tensor(&v_, DType::f32, {1}));
    }
    model::write_checkpoint(dir_.path().string(), tensors, int64_t{1} << 30);
    std::filesystem::copy(kFolder + "/config.json", dir_.path() / "config.json");
  }
  std::string path() const { return dir_.path().string(); }

 private:
  const test::TempDir dir_;
  float k_, v_;
};

struct Logits {
  std::vector<float> prefill, decode;
  friend bool operator==(const Logits&, const Logits&) = default;
};

// 24 tokens at once and in chunks of 7, then 8 one by one.
Logits run(const std::string& path, const char* kernels, model::KvType kv, bool fp8_attention) {
  cpu::CpuBackend backend({.threads = 2, .kernels = kernels});
  const auto model = model::load_model(
      model::read_config(path), std::make_shared<model::Checkpoint>(path), backend,
      {.compute = fp8_attention ? model::Compute::fp8 : model::Compute::bf16,
       .fp8_attention = fp8_attention});
  Logits logits;
  engine::Session session(*model, backend, {.max_tokens = 64, .chunk = 7, .kv_type = kv});
  std::vector<int32_t> ids;
  for (int i = 0; i < 24; ++i) ids.push_back((i * 37 + 11) % 97);
  session.extend(0, ids, engine::Wanted::all, [&](int64_t, const Tensor& rows) {
    logits.prefill.insert(logits.prefill.end(), rows.as<float>(), rows.as<float>() + rows.count());
  });
  for (int32_t i = 0; i < 8; ++i) {
    const int32_t next[] = {(i * 53 + 5) % 97};
    const Tensor row = session.decode(next);
    logits.decode.insert(logits.decode.end(), row.as<float>(), row.as<float>() + row.count());
  }
  return logits;
}

double relative(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0, signal = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += std::pow(double{a[i]} - double{b[i]}, 2);
    signal += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(error / signal);
}

TEST(StoredKvScales, AreInertWhereTheCacheIsNotE4m3) {
  const Scaled scaled(0.06f, 3.0f);
  for (const model::KvType kv :
       {model::KvType::bf16, model::KvType::fp32, model::KvType::fp8_e5m2}) {
    EXPECT_TRUE(run(scaled.path(), "auto", kv, false) == run(kFolder, "auto", kv, false))
        << static_cast<int>(kv);
  }
}

// With stored scales the logits are as far from those of an FP32 cache as with scales that the
// blocks choose. A scale that is applied twice, or on one side only, or not in decoding, moves them
// by far more: 0.06 for 1 divides the scores by 16.
TEST(StoredKvScales, AreAppliedOnceOnEveryPath) {
  const Scaled scaled(0.06f, 0.25f);
  for (const char* kernels : {"exact", "auto", "portable"}) {
    for (const bool fp8 : {false, true}) {
      SCOPED_TRACE(std::string(kernels) + (fp8 ? " fp8" : ""));
      const Logits high = run(kFolder, kernels, model::KvType::fp32, false);
      const Logits low = run(scaled.path(), kernels, model::KvType::fp8_e4m3, fp8);
      const Logits chosen = run(kFolder, kernels, model::KvType::fp8_e4m3, fp8);
      EXPECT_LT(relative(low.prefill, high.prefill), 1.5 * relative(chosen.prefill, high.prefill));
      EXPECT_LT(relative(low.decode, high.decode), 1.5 * relative(chosen.decode, high.decode));
      EXPECT_GT(relative(low.decode, high.decode), 1e-4);  // the cache is FP8 indeed
    }
  }
}

}  // namespace
}  // namespace octet::golden
