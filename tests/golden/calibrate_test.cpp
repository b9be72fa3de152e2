// What calibration makes of tiny models: ranges, the scales that a checkpoint gets from them, and
// the texts that a model writes itself.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "backends/cpu/cpu_backend.h"
#include "backends/probe/observe.h"
#include "engine/session.h"
#include "model/binder.h"
#include "model/identity.h"
#include "model/model.h"
#include "numerics/scheme.h"
#include "offline/calibration.h"
#include "offline/quantize.h"
#include "offline/self_text.h"
#include "unit/base/temp_dir.h"

namespace octet::golden {
namespace {

using offline::Calibration;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string folder_of(const std::string& golden) {
  return std::string(OCTET_SOURCE_DIR) + "/tests/golden/" + golden;
}

constexpr int64_t kSamples = 12, kTokens = 20;

std::vector<int32_t> sample(int64_t index) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < kTokens; ++i) {
    ids.push_back(static_cast<int32_t>((i * (7 + index) + 3 * index) % 50));
  }
  return ids;
}

// Everything that was told, beside the calibration of it.
struct Seen {
  Calibration calibration;
  std::map<std::string, std::vector<float>> inputs;  // by the first module
  std::map<std::string, std::vector<float>> k, v;    // by attention module
  std::map<std::string, std::vector<float>> k_amax;  // by attention module, of each sample
};

Seen calibrate(const std::string& golden) {
  Seen seen;
  const std::string folder = folder_of(golden);
  cpu::CpuBackend cpu({.threads = 2});
  offline::Calibrator calibrator(seen.calibration);
  probe::ObservingBackend observing(cpu,
                                    [&](std::span<const ops::Linear* const> ws, const Tensor& x) {
                                      calibrator.add_input(ws, x);
                                      std::vector<float>& all = seen.inputs[ws.front()->name];
                                      const std::vector<float> values = model::to_float(x);
                                      all.insert(all.end(), values.begin(), values.end());
                                    });
  const model::ModelConfig config = model::read_config(folder);
  const auto source = model::open_weights(folder);
  const auto model =
      model::load_model(config, source, observing, {.compute = model::Compute::bf16});
  engine::Session session(*model, observing, {.max_tokens = 64, .chunk = 7});
  int64_t samples_begun = 0;
  observing.observe_cache([&](const void* cache, const Tensor& k, const Tensor& v) {
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      const std::string name = "model.layers." + std::to_string(layer) + ".self_attn";
      if (cache == &session.kv().mla(layer)) calibrator.add_latent(name, k);
      if (cache != &session.kv().gqa(layer)) continue;
      calibrator.add_cache(name, k, v);
      for (const auto& [side, to] : {std::pair(&k, &seen.k), std::pair(&v, &seen.v)}) {
        const std::vector<float> values = model::to_float(*side);
        (*to)[name].insert((*to)[name].end(), values.begin(), values.end());
      }
      std::vector<float>& amax = seen.k_amax[name];
      amax.resize(static_cast<size_t>(samples_begun));
      for (const float x : model::to_float(k)) amax.back() = std::max(amax.back(), std::abs(x));
    }
  });
  for (int64_t i = 0; i < kSamples; ++i) {
    calibrator.begin_sample(i % 10 == 9);
    ++samples_begun;
    session.reset();
    session.extend(0, sample(i));
  }
  seen.calibration.engine = "test";
  seen.calibration.model = folder;
  seen.calibration.model_hash = model::identity_of(folder);
  seen.calibration.data = "numbers";
  seen.calibration.data_hash = "0";
  seen.calibration.window = kTokens;
  seen.calibration.samples = seen.calibration.samples_in_all = kSamples;
  seen.calibration.tokens = kSamples * kTokens;
  return seen;
}

float absmax(const std::vector<float>& values) {
  float most = 0;
  for (const float x : values) most = std::max(most, std::abs(x));
  return most;
}

TEST(Calibrate, HasTheRangesOfEverythingThatWasTold) {
  for (const char* golden : {"llama_gqa_rope3", "mixtral_window", "deepseek_v3_groups"}) {
    SCOPED_TRACE(golden);
    const Seen seen = calibrate(golden);
    ASSERT_EQ(seen.inputs.size(), seen.calibration.inputs.size());
    for (const auto& [name, values] : seen.inputs) {
      const offline::InputRange& input = seen.calibration.inputs.at(name);
      EXPECT_EQ(input.range.values.count(), static_cast<int64_t>(values.size())) << name;
      EXPECT_EQ(input.range.values.absmax(), absmax(values)) << name;
      EXPECT_EQ(std::max(input.range.fitted, input.range.held_out), absmax(values)) << name;
      EXPECT_EQ(absmax(input.channel_absmax), absmax(values)) << name;
      EXPECT_EQ(seen.calibration.input_of(input.modules.back()), &input);
    }
    for (const auto& [name, values] : seen.k) {
      const offline::CacheRange& cache = seen.calibration.caches.at(name);
      int64_t count = 0;
      float most = 0;
      for (const offline::Range& head : cache.k) {
        count += head.values.count();
        most = std::max(most, head.values.absmax());
      }
      EXPECT_EQ(count, static_cast<int64_t>(values.size()));
      EXPECT_EQ(most, absmax(values));
      EXPECT_EQ(absmax(cache.k_channels), absmax(values));
    }
  }
  EXPECT_FALSE(calibrate("deepseek_v3_groups").calibration.caches.begin()->second.latent.empty());
}

TEST(Calibrate, NamesTheLayerWhoseActivationsAreNotFinite) {
  Calibration calibration;
  offline::Calibrator calibrator(calibration);
  const ops::Linear linear{.name = "model.layers.3.mlp.down_proj"};
  const ops::Linear* const ws[] = {&linear};
  std::vector<float> good = {1, 2, 3, 4}, bad = {1, 2, INFINITY, 4};
  const Tensor k(good.data(), DType::f32, {1, 2, 2}), v(bad.data(), DType::f32, {1, 2, 2});
  const auto where = [](const auto& work) {
    try {
      work();
    } catch (const Error& error) {
      return error.parts().where;
    }
    return std::string("accepted");
  };
  EXPECT_EQ(where([&] {
              calibrator.add_input(ws, Tensor(bad.data(), DType::f32, {2, 2}));
            }),
            "input of 'model.layers.3.mlp.down_proj'");
  EXPECT_EQ(where([&] { calibrator.add_cache("model.layers.3.self_attn", k, v); }),
            "model.layers.3.self_attn, V");
  EXPECT_EQ(where([&] { calibrator.add_latent("model.layers.4.self_attn", v); }),
            "model.layers.4.self_attn, latent");
}

TEST(Calibrate, ComesBackFromItsFile) {
  const test::TempDir dir;
  for (const char* golden : {"llama_gqa_rope3", "deepseek_v3_groups"}) {
    const Calibration calibration = calibrate(golden).calibration;
    const auto path = dir.file("it.json", dump_json(offline::to_json(calibration)));
    EXPECT_EQ(offline::read_calibration(path), calibration);
  }
}

TEST(Calibrate, ScalesThatAreDelayedGoByTheLastSamples) {
  const Seen seen = calibrate("llama_gqa_rope3");
  const model::ModelConfig config = model::read_config(folder_of("llama_gqa_rope3"));
  for (const auto algorithm : {offline::AmaxAlgorithm::max, offline::AmaxAlgorithm::most_recent}) {
    for (const int64_t history : {1, 3, 1024}) {
      const auto scales =
          offline::kv_scales(seen.calibration, config,
                             {.kv = offline::RangeMethod::delayed,
                              .delayed = {.history = history, .algorithm = algorithm}});
      for (const auto& [attention, amax] : seen.k_amax) {
        ASSERT_EQ(amax.size(), static_cast<size_t>(kSamples));
        const size_t last =
            algorithm == offline::AmaxAlgorithm::max ? std::min<size_t>(history, kSamples) : 1;
        const float most = *std::max_element(amax.end() - static_cast<int64_t>(last), amax.end());
        EXPECT_EQ(scales.at(attention + ".k_scale"), std::vector<float>{most / 448.0f});
      }
    }
  }
  // What an earlier version kept has no order.
  Calibration old = seen.calibration;
  for (auto& [name, cache] : old.caches) {
    for (offline::Range& range : cache.k) range.amax.clear();
  }
  EXPECT_THROW(offline::kv_scales(old, config, {.kv = offline::RangeMethod::delayed}), Error);
}

TEST(Calibrate, WarnsOfFewSamplesAndOfHeldOutOnesBeyondTheOthers) {
  Calibration calibration = calibrate("llama_gqa_rope3").calibration;
  for (auto& [name, input] : calibration.inputs) input.range.held_out = 0;
  for (auto& [name, cache] : calibration.caches) {
    for (offline::Range& range : cache.k) range.held_out = 0;
    for (offline::Range& range : cache.v) range.held_out = 0;
  }
  EXPECT_THAT(offline::warnings_of(calibration), ElementsAre(HasSubstr("12 calibration samples")));
  calibration.samples = calibration.samples_in_all = 256;
  EXPECT_THAT(offline::warnings_of(calibration), ElementsAre());
  offline::Range& range = calibration.caches.begin()->second.v.front();
  range.held_out = 2 * range.fitted;
  EXPECT_THAT(offline::warnings_of(calibration), ElementsAre(HasSubstr("100.0 %")));
}

class CalibratedQuantize : public ::testing::Test {
 protected:
  offline::QuantizeOptions options(const std::string& golden, const Calibration& calibration,
                                   std::string_view scheme) {
    return {.source = folder_of(golden),
            .out = (dir_ / "out").string(),
            .scheme = scheme_named(scheme).format,
            .overwrite = true,
            .calibration = &calibration};
  }
  ErrorParts error_of(const offline::QuantizeOptions& options) {
    try {
      offline::quantize_checkpoint(options);
    } catch (const Error& error) {
      return error.parts();
    }
    ADD_FAILURE() << "accepted";
    return {};
  }
  const test::TempDir dir_;
};

// Logits of one sample after another.
std::vector<float> logits_of(const std::string& path, model::Compute compute, bool calibrated) {
  cpu::CpuBackend cpu({.threads = 2});
  const model::ModelConfig config = model::read_config(path);
  const auto model =
      model::load_model(config, model::open_weights(path), cpu, {.compute = compute});
  EXPECT_EQ(model->kv_scales().k.size(), static_cast<size_t>(calibrated ? config.layers : 0));
  engine::Session session(*model, cpu, {.max_tokens = 64});
  std::vector<float> all;
  for (int64_t i = 0; i < 3; ++i) {
    session.reset();
    session.extend(0, sample(i), engine::Wanted::all, [&](int64_t, const Tensor& logits) {
      all.insert(all.end(), logits.as<float>(), logits.as<float>() + logits.count());
    });
  }
  return all;
}

double relative(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0, signal = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += std::pow(double{a[i]} - double{b[i]}, 2);
    signal += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(error / signal);
}

// K and V by their largest value, for the layer and for each head; and the model that loads them.
TEST_F(CalibratedQuantize, WritesScalesThatTheModelIsLoadedWith) {
  const Seen seen = calibrate("llama_gqa_rope3");
  const std::vector<float> high =
      logits_of(folder_of("llama_gqa_rope3"), model::Compute::fp32, false);
  auto dynamic = options("llama_gqa_rope3", seen.calibration, "fp8_channel");
  dynamic.calibration = nullptr;
  offline::quantize_checkpoint(dynamic);
  // What the same weights cost with scales that are chosen as values come.
  const double plain = relative(logits_of(dynamic.out, model::Compute::fp8, false), high);
  EXPECT_GT(plain, 0.0);
  using offline::KvGranularity;
  for (const auto granularity :
       {KvGranularity::tensor, KvGranularity::head, KvGranularity::channel}) {
    const bool per_head = granularity != KvGranularity::tensor;
    for (const char* scheme : {"fp8_channel", "fp8_tensor_static"}) {
      SCOPED_TRACE(fmt::format("{} {}", scheme, static_cast<int>(granularity)));
      auto o = options("llama_gqa_rope3", seen.calibration, scheme);
      o.scales.granularity = granularity;
      offline::quantize_checkpoint(o);
      const auto source = model::open_weights(o.out);
      for (const auto& [attention, values] : seen.v) {
        const Tensor* const scale = source->find(attention + ".v_scale", {});
        ASSERT_NE(scale, nullptr);
        const std::vector<float> scales = model::to_float(*scale);
        EXPECT_EQ(scales.size(), per_head ? seen.calibration.caches.at(attention).v.size() : 1);
        EXPECT_EQ(absmax(scales), absmax(values) / 448.0f);
        const Tensor* const found = source->find(attention + ".v_channel_scale", {});
        ASSERT_EQ(found != nullptr, granularity == KvGranularity::channel);
        if (!found) continue;
        // Every channel's largest value uses at least half of the range that its scales leave it.
        const std::vector<float> channels = model::to_float(*found);
        const std::vector<float>& most = seen.calibration.caches.at(attention).v_channels;
        ASSERT_EQ(channels.size(), most.size());
        for (size_t i = 0; i < channels.size(); ++i) {
          const float head = scales[i / (channels.size() / scales.size())];
          EXPECT_LE(most[i], 448.0f * head * channels[i] * 1.000001f);
          EXPECT_GT(most[i], 448.0f * head * channels[i] * 0.499999f);
        }
      }
      const Tensor* const input = source->find("model.layers.0.mlp.down_proj.input_scale", {});
      EXPECT_EQ(input != nullptr, std::string_view(scheme) == "fp8_tensor_static");
      if (input) {
        EXPECT_EQ(model::to_float(*input)[0],
                  absmax(seen.inputs.at("model.layers.0.mlp.down_proj")) / 448.0f);
      }
      EXPECT_LT(relative(logits_of(o.out, model::Compute::fp8, true), high), 1.25 * plain);
    }
  }
}

TEST_F(CalibratedQuantize, AddsNothingToALatent) {
  const Calibration calibration = calibrate("deepseek_v3_groups").calibration;
  const auto o = options("deepseek_v3_groups", calibration, "fp8_channel");
  offline::quantize_checkpoint(o);
  for (const std::string& name : model::open_weights(o.out)->names()) {
    EXPECT_FALSE(name.ends_with("k_scale") || name.ends_with("_channel_scale")) << name;
  }
}

// Unless it is asked for: powers of two, for 128 dimensions or for each.
TEST_F(CalibratedQuantize, GivesALatentScalesThatAreAskedFor) {
  const char* const golden = "deepseek_v3_groups";
  const Calibration calibration = calibrate(golden).calibration;
  const std::vector<float> high = logits_of(folder_of(golden), model::Compute::fp32, false);
  auto o = options(golden, calibration, "fp8_channel");
  offline::quantize_checkpoint(o);
  const double plain = relative(logits_of(o.out, model::Compute::fp8, false), high);
  for (const auto granularity : {offline::KvGranularity::group, offline::KvGranularity::channel}) {
    o.scales.granularity = granularity;
    offline::quantize_checkpoint(o);
    const auto source = model::open_weights(o.out);
    for (const auto& [attention, cache] : calibration.caches) {
      const Tensor* const found = source->find(attention + ".latent_channel_scale", {});
      ASSERT_NE(found, nullptr);
      const std::vector<float> scales = model::to_float(*found);
      ASSERT_EQ(scales.size(), cache.latent_channels.size());
      for (size_t i = 0; i < scales.size(); ++i) {
        const bool channel = granularity == offline::KvGranularity::channel;
        const float most =
            channel ? cache.latent_channels[i] : cache.latent[i / 128].values.absmax();
        EXPECT_LE(most, 448.0f * scales[i]);
        EXPECT_GT(most, 448.0f * scales[i] / 4);  // each of two roundings up leaves a bit
      }
    }
    EXPECT_LT(relative(logits_of(o.out, model::Compute::fp8, false), high), 1.25 * plain);
  }
  // What a latent does not have, K and V have not either, and what earlier versions did not see.
  o.scales.granularity = offline::KvGranularity::head;
  EXPECT_THAT(error_of(o).value, HasSubstr("head"));
  Calibration old = calibration;
  for (auto& [name, cache] : old.caches) cache.latent_channels.clear();
  o.calibration = &old;
  o.scales.granularity = offline::KvGranularity::channel;
  EXPECT_THAT(error_of(o).what, HasSubstr("largest values of channels"));
  const Calibration other = calibrate("llama_gqa_rope3").calibration;
  o = options("llama_gqa_rope3", other, "fp8_channel");
  o.scales.granularity = offline::KvGranularity::group;
  EXPECT_THAT(error_of(o).value, HasSubstr("group"));
}

TEST_F(CalibratedQuantize, RefusesWhatIsNotOfThisModelOrNotWhole) {
  Calibration calibration = calibrate("llama_gqa_rope3").calibration;
  auto other = options("llama_mha", calibration, "fp8_channel");
  EXPECT_THAT(error_of(other).what, HasSubstr("another model"));
  other.scales.any_model = true;  // its heads are not those
  EXPECT_THAT(error_of(other).what, HasSubstr("lacks K and V"));

  auto o = options("llama_gqa_rope3", calibration, "fp8_tensor_static");
  calibration.samples -= 1;
  EXPECT_THAT(error_of(o).what, HasSubstr("interrupted"));
  calibration.samples += 1;
  const auto down = calibration.inputs.extract("model.layers.1.mlp.down_proj");
  EXPECT_THAT(error_of(o).where, HasSubstr("model.layers.1.mlp.down_proj"));
  o.scheme = scheme_named("fp8_channel").format;
  offline::quantize_checkpoint(o);  // which needs no inputs
  calibration.caches.erase("model.layers.1.self_attn");
  o.overwrite = true;
  EXPECT_THAT(error_of(o).where, HasSubstr("model.layers.1.self_attn"));
}

TEST(OwnText, IsTheSameForASeedOnAnyNumberOfThreads) {
  const std::string folder = folder_of("llama_gqa_rope3");
  const model::ModelConfig config = model::read_config(folder);
  std::vector<std::vector<std::vector<int32_t>>> texts;
  for (const int threads : {1, 2}) {
    cpu::CpuBackend cpu({.threads = threads});
    const auto model = model::load_model(config, model::open_weights(folder), cpu,
                                         {.compute = model::Compute::bf16});
    for (const uint64_t seed : {1, 2}) {
      int64_t last = 0;
      texts.push_back(offline::write_own_text(*model, cpu,
                                              {.samples = 35, .window = 12, .bos = 5, .seed = seed},
                                              [&](int64_t done, int64_t total) {
                                                EXPECT_GE(done, last);
                                                EXPECT_EQ(total, 35 * 11);
                                                last = done;
                                              }));
      EXPECT_EQ(last, 35 * 11);
    }
    EXPECT_EQ(offline::write_own_text(*model, cpu, {.samples = 2, .window = 12})[0].size(), 12);
  }
  EXPECT_EQ(texts[0], texts[2]);
  EXPECT_EQ(texts[1], texts[3]);
  EXPECT_NE(texts[0], texts[1]);
  for (const auto& ids : texts[0]) {
    EXPECT_EQ(ids.size(), 12);
    EXPECT_EQ(ids[0], 5);
  }
  EXPECT_NE(texts[0][0], texts[0][1]);  // no two are the same draw
}

}  // namespace
}  // namespace octet::golden
