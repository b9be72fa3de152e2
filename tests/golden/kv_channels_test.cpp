// Fixed scales of the channels of a KV cache, in whole models: what is divided before it is stored
// is multiplied back where it is read, in K, in V and in a latent, on every path.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "backends/cpu/cpu_backend.h"
#include "engine/session.h"
#include "model/kv_scales.h"
#include "model/model.h"
#include "numerics/scheme.h"

namespace octet::golden {
namespace {

using Floats = std::vector<float>;
using Scales = std::map<std::string, Floats>;

struct Variant {
  const char* golden;
  const char* kernels = "auto";
  model::KvType cache = model::KvType::fp8_e4m3;
  bool fp8_attention = true;
  bool unit_scale = false;
  model::Compute compute = model::Compute::fp8;
};

// Logits of 24 tokens in chunks of 7 and of 8 one by one, with these scales in the checkpoint's
// place.
Floats logits_of(const Variant& run, Scales scales) {
  const std::string folder = std::string(OCTET_SOURCE_DIR) + "/tests/golden/" + run.golden;
  cpu::CpuBackend cpu({.threads = 2, .kernels = run.kernels});
  model::LoadOptions options{.compute = run.compute};
  if (run.compute == model::Compute::fp8) {
    options.online = scheme_named("fp8_channel").format;
    options.fp8_attention = run.fp8_attention;
  }
  const auto model = model::load_model(
      model::read_config(folder),
      model::with_kv_scales(model::open_weights(folder), std::move(scales), "the test"), cpu,
      options);
  engine::Session session(
      *model, cpu,
      {.max_tokens = 64, .chunk = 7, .kv_type = run.cache, .unit_kv_scale = run.unit_scale});
  Floats all;
  const auto add = [&](const Tensor& rows) {
    all.insert(all.end(), rows.as<float>(), rows.as<float>() + rows.count());
  };
  std::vector<int32_t> ids;
  for (int i = 0; i < 24; ++i) ids.push_back((i * 37 + 11) % 50);
  session.extend(0, ids, engine::Wanted::all, [&](int64_t, const Tensor& rows) { add(rows); });
  for (int32_t i = 0; i < 8; ++i) {
    const int32_t next[] = {(i * 53 + 5) % 50};
    add(session.decode(next));
  }
  return all;
}

double relative(const Floats& a, const Floats& b) {
  double error = 0, signal = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += std::pow(double{a[i]} - double{b[i]}, 2);
    signal += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(error / signal);
}

constexpr const char* kGqa = "llama_gqa_rope3";
constexpr const char* kMla = "deepseek_v3_groups";

model::ModelConfig config_of(const char* golden) {
  return model::read_config(std::string(OCTET_SOURCE_DIR) + "/tests/golden/" + golden);
}

// Of every layer's K and V: the heads' scales, and those of channels, which are 2^exponent(i).
template <class Exponent>
Scales gqa_scales(float k, float v, Exponent exponent) {
  const model::ModelConfig config = config_of(kGqa);
  const auto& shape = std::get<model::Gqa>(config.attention);
  Scales scales;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string attention = "model.layers." + std::to_string(layer) + ".self_attn.";
    scales[attention + "k_scale"] = Floats(static_cast<size_t>(shape.kv_heads), k);
    scales[attention + "v_scale"] = Floats(static_cast<size_t>(shape.kv_heads), v);
    for (const char* side : {"k", "v"}) {
      Floats& channels = scales[attention + side + "_channel_scale"];
      for (int i = 0; i < static_cast<int>(shape.kv_heads * shape.head_dim); ++i) {
        channels.push_back(std::ldexp(1.0f, exponent(i)));
      }
    }
  }
  return scales;
}

template <class Exponent>
Scales mla_scales(Exponent exponent) {
  const model::ModelConfig config = config_of(kMla);
  Scales scales;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    Floats& channels =
        scales["model.layers." + std::to_string(layer) + ".self_attn.latent_channel_scale"];
    for (int i = 0; i < static_cast<int>(std::get<model::Mla>(config.attention).kv_lora); ++i) {
      channels.push_back(std::ldexp(1.0f, exponent(i)));
    }
  }
  return scales;
}

// Channels that all have a factor of 1/8 under heads' scales that are 8 times larger: the same
// codes, and every product and sum is a power of two off.
TEST(KvChannels, OfOneSizeAreTheHeadsScaleToTheBit) {
  for (const bool fp8_attention : {true, false}) {
    for (const char* kernels : {"exact", "portable", "auto"}) {
      const Variant run{.golden = kGqa, .kernels = kernels, .fp8_attention = fp8_attention};
      const Floats plain = logits_of(run, gqa_scales(0.01f, 0.02f, [](int) { return 0; }));
      EXPECT_EQ(logits_of(run, gqa_scales(0.08f, 0.16f, [](int) { return -3; })), plain)
          << kernels << fp8_attention;
      EXPECT_NE(logits_of(run, gqa_scales(0.08f, 0.16f, [](int) { return 0; })), plain);
    }
  }
}

TEST(KvChannels, OfALatentThatAreOneAreNoScale) {
  for (const bool fp8_attention : {true, false}) {
    for (const char* kernels : {"exact", "portable", "auto"}) {
      Variant run{.golden = kMla, .kernels = kernels, .fp8_attention = fp8_attention};
      const Floats ones = logits_of(run, mla_scales([](int) { return 0; }));
      const Floats others = logits_of(run, mla_scales([](int i) { return i % 3 - 5; }));
      EXPECT_NE(others, ones);
      run.unit_scale = true;  // which leaves stored ones out as well
      EXPECT_EQ(logits_of(run, {}), ones);
      EXPECT_EQ(logits_of(run, mla_scales([](int i) { return i % 3 - 5; })), ones);
    }
  }
}

// Channels of different factors, none of which saturates: what codes cost stays what it was.
TEST(KvChannels, OfDifferentSizesCostNoMore) {
  const auto spread = [](int i) { return -(i * 5 % 4); };
  for (const char* golden : {kGqa, kMla}) {
    const bool latent = golden == kMla;
    const Floats high = logits_of(
        {.golden = golden, .cache = model::KvType::automatic, .compute = model::Compute::fp32}, {});
    const auto cost = [&](model::KvType cache, bool fp8_attention, const Scales& scales) {
      return relative(
          logits_of({.golden = golden, .cache = cache, .fp8_attention = fp8_attention}, scales),
          high);
    };
    const Scales scales =
        latent ? mla_scales([](int i) { return i * 5 % 4 - 5; }) : gqa_scales(0.16f, 0.16f, spread);
    using enum model::KvType;
    for (const model::KvType cache :
         {fp8_e4m3, fp8_e5m2, latent ? int8_token_groups : int8_token_heads}) {
      const bool fp8 = model::is_fp8(cache);
      SCOPED_TRACE(golden);
      EXPECT_LT(cost(cache, fp8, scales), 1.25 * cost(cache, fp8, {})) << static_cast<int>(cache);
    }
  }
}

// Where the cache is no codes, nothing is divided.
TEST(KvChannels, AreInertWithoutCodes) {
  for (const char* golden : {kGqa, kMla}) {
    const Variant run{.golden = golden, .cache = model::KvType::bf16, .fp8_attention = false};
    const auto exponent = [](int i) { return -(i % 4); };
    EXPECT_EQ(
        logits_of(run, golden == kGqa ? gqa_scales(0.02f, 0.02f, exponent) : mla_scales(exponent)),
        logits_of(run, {}));
  }
}

}  // namespace
}  // namespace octet::golden
