// The names of KV scales, in their order, and what is said where they are odd.
#include "model/kv_scales.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "unit/model/tiny_checkpoint.h"

namespace octet::model {
namespace {

using test::fault_of;
using test::HostBackend;
using test::kLlama;
using test::load;
using test::TempDir;
using test::Tiny;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// The scales of both layers under these names ("self_attn.k_scale" and so on).
struct Scales {
  std::map<std::string, std::vector<float>> values;
  bool modelopt = false;
};

struct Loaded {
  std::vector<std::vector<float>> k, v;  // by layer
  std::vector<std::string> notices;
};

Tiny tiny_with(Scales& scales, int layers) {
  Tiny tiny(kLlama, "fp8_tensor_static");
  if (scales.modelopt) {
    tiny.config["quantization_config"] = {
        {"quant_method", "modelopt"}, {"quant_algo", "FP8"}, {"ignore", {"lm_head"}}};
  }
  for (int layer = 0; layer < layers; ++layer) {
    for (auto& [name, values] : scales.values) {
      const auto count = static_cast<int64_t>(values.size());
      tiny.tensors[fmt::format("model.layers.{}.{}", layer, name)] =
          Tensor(values.data(), DType::f32, count == 1 ? Shape{} : Shape{count, 1, 1});
    }
  }
  return tiny;
}

Loaded loaded(Scales scales, int layers = 2) {
  const TempDir dir;
  tiny_with(scales, layers).write(dir);
  HostBackend backend;
  const auto model = load(dir, backend);
  Loaded result{.notices = model->notices()};
  const auto copy = [](const std::vector<Tensor>& tensors) {
    std::vector<std::vector<float>> all;
    for (const Tensor& t : tensors) all.emplace_back(t.as<float>(), t.as<float>() + t.count());
    return all;
  };
  result.k = copy(model->kv_scales().k);
  result.v = copy(model->kv_scales().v);
  return result;
}

TEST(KvScales, EveryNameInItsOrder) {
  // Each name with its rank: the first that is there holds.
  const std::vector<std::pair<std::string, std::string>> names = {
      {"self_attn.kv_scale", "self_attn.kv_scale"},
      {"self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"},
      {"self_attn.k_scale", "self_attn.v_scale"},
      {"self_attn.attn.k_scale", "self_attn.attn.v_scale"},
      {"self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"}};
  for (size_t first = 0; first < names.size(); ++first) {
    Scales scales;
    for (size_t i = first; i < names.size(); ++i) {
      scales.values[names[i].first] = {0.25f + static_cast<float>(i)};
      scales.values[names[i].second] = {i == 0 ? 0.25f : 0.5f + static_cast<float>(i)};
    }
    SCOPED_TRACE(names[first].first);
    const Loaded got = loaded(scales);
    const float k = 0.25f + static_cast<float>(first), v = first == 0 ? k : k + 0.25f;
    ASSERT_EQ(got.k.size(), 2u);
    EXPECT_THAT(got.k[1], ElementsAre(k, k));  // one a KV head
    EXPECT_THAT(got.v[1], ElementsAre(v, v));
    EXPECT_THAT(got.notices, Not(Contains(HasSubstr("KV scale"))));
  }
}

TEST(KvScales, OneAHeadInAnyShape) {
  const Loaded got =
      loaded({.values = {{"self_attn.k_scale", {0.5f, 0.25f}}, {"self_attn.v_scale", {2, 3}}}});
  EXPECT_THAT(got.k[0], ElementsAre(0.5f, 0.25f));
  EXPECT_THAT(got.v[0], ElementsAre(2.0f, 3.0f));
  Scales three{.values = {{"self_attn.k_scale", {1, 2, 3}}}};
  EXPECT_THAT(fault_of(tiny_with(three, 2)), AllOf(HasSubstr("k_scale'"), HasSubstr("3, 1, 1")));
}

// Given ones stand in the place of all that a checkpoint has, under whatever name.
TEST(KvScales, GivenOnesHideTheStored) {
  Scales stored{.values = {{"self_attn.kv_scale", {7}},
                           {"self_attn.k_proj.k_scale", {8}},
                           {"self_attn.v_proj.output_scale", {9}}}};
  const TempDir dir;
  tiny_with(stored, 2).write(dir);
  std::map<std::string, std::vector<float>> given;
  for (const char* layer : {"0", "1"}) {
    const std::string attention = fmt::format("model.layers.{}.self_attn", layer);
    given[attention + ".k_scale"] = {0.5f, 0.25f};
    given[attention + ".v_scale"] = {2, 3};
  }
  HostBackend backend;
  const std::string path = dir.path().string();
  const auto source = with_kv_scales(open_weights(path), given, "a warm-up");
  const auto model = load_model(read_config(path), source, backend, {});
  for (const Tensor& k : model->kv_scales().k) {
    EXPECT_THAT(std::vector<float>(k.as<float>(), k.as<float>() + k.count()),
                ElementsAre(0.5f, 0.25f));
  }
  for (const Tensor& v : model->kv_scales().v) {
    EXPECT_THAT(std::vector<float>(v.as<float>(), v.as<float>() + v.count()), ElementsAre(2, 3));
  }
  EXPECT_THAT(model->notices(), Not(Contains(HasSubstr("KV scale"))));
  EXPECT_EQ(source->locate("model.layers.0.self_attn.k_scale"), "a warm-up");
  // A bad one is named by where it comes from.
  given["model.layers.1.self_attn.v_scale"] = {0, 1};
  EXPECT_THAT(test::error_of([&] {
                load_model(read_config(path),
                           with_kv_scales(open_weights(path), given, "a warm-up"), backend, {});
              }),
              HasSubstr("in a warm-up"));
}

std::vector<float> values_of(const Tensor& t) {
  return {t.as<float>(), t.as<float>() + t.count()};
}

// Beside those of heads, of each dimension; their inverses are exact.
TEST(KvScales, OfChannels) {
  std::vector<float> of_k, of_v, inverse;
  for (int i = 0; i < 2 * 32; ++i) {
    of_k.push_back(std::ldexp(1.0f, -(i % 7)));
    inverse.push_back(std::ldexp(1.0f, i % 7));
    of_v.push_back(i % 2 == 0 ? 1.0f : 0.5f);
  }
  Scales scales{.values = {{"self_attn.k_scale", {0.5f, 0.25f}},
                           {"self_attn.v_scale", {2, 3}},
                           {"self_attn.k_channel_scale", of_k},
                           {"self_attn.v_channel_scale", of_v}}};
  const TempDir dir;
  tiny_with(scales, 2).write(dir);
  HostBackend backend;
  const auto model = load(dir, backend);
  const KvScales& got = model->kv_scales();
  ASSERT_EQ(got.channels.size(), 2u);
  EXPECT_THAT(values_of(got.k[1]), ElementsAre(0.5f, 0.25f));
  EXPECT_EQ(values_of(got.channels[1].k.scale), of_k);
  EXPECT_EQ(values_of(got.channels[1].k.inverse), inverse);
  EXPECT_EQ(values_of(got.channels[1].v.scale), of_v);
  EXPECT_EQ(got.channels[0].k.scale.shape, (Shape{2, 32}));

  // A warm-up finds scales for values that nothing divides.
  const std::string path = dir.path().string();
  const auto warm = with_kv_scales(open_weights(path),
                                   {{"model.layers.0.self_attn.k_scale", {1, 2}},
                                    {"model.layers.0.self_attn.v_scale", {1, 2}},
                                    {"model.layers.1.self_attn.k_scale", {1, 2}},
                                    {"model.layers.1.self_attn.v_scale", {1, 2}}},
                                   "a warm-up");
  EXPECT_TRUE(load_model(read_config(path), warm, backend, {})->kv_scales().channels.empty());

  EXPECT_THAT(loaded(scales, 1).notices, Contains(HasSubstr("channels are stored for 1 of 2")));
  scales.values["self_attn.v_channel_scale"][5] = 0.3f;
  EXPECT_THAT(fault_of(tiny_with(scales, 2)),
              AllOf(HasSubstr("v_channel_scale'"), HasSubstr("no power of two")));
  scales.values.erase("self_attn.v_channel_scale");
  EXPECT_THAT(fault_of(tiny_with(scales, 2)), HasSubstr("v_channel_scale'"));
}

TEST(KvScales, AMissingSideTakesTheOther) {
  Loaded got = loaded({.values = {{"self_attn.k_scale", {0.5f}}}});
  EXPECT_THAT(got.v[0], ElementsAre(0.5f, 0.5f));
  EXPECT_THAT(got.notices, Contains(AllOf(HasSubstr("only one of K and V"), HasSubstr("k_scale"))));
  // A negative value says "not loaded": that side is missing, or an older name holds.
  got = loaded({.values = {{"self_attn.k_scale", {0.5f}}, {"self_attn.v_scale", {-1}}}});
  EXPECT_THAT(got.v[0], ElementsAre(0.5f, 0.5f));
  EXPECT_THAT(got.notices, Contains(AllOf(HasSubstr("not loaded"), HasSubstr("v_scale"))));
  got = loaded({.values = {{"self_attn.k_scale", {0.5f}},
                           {"self_attn.v_scale", {-1}},
                           {"self_attn.v_proj.output_scale", {0.125f}}}});
  EXPECT_THAT(got.v[0], ElementsAre(0.125f, 0.125f));
}

TEST(KvScales, SomeLayersOnlyAreNone) {
  const Loaded got = loaded({.values = {{"self_attn.k_scale", {0.5f}}}}, 1);
  EXPECT_TRUE(got.k.empty() && got.v.empty());
  EXPECT_THAT(got.notices, Contains(HasSubstr("1 of 2 layers")));
}

TEST(KvScales, AllOnesAreToldByWhoWroteThem) {
  const std::map<std::string, std::vector<float>> ones = {{"self_attn.k_scale", {1}},
                                                          {"self_attn.v_scale", {1}}};
  EXPECT_THAT(loaded({.values = ones}).notices, Contains(HasSubstr("without calibration")));
  EXPECT_THAT(loaded({.values = ones, .modelopt = true}).notices,
              Contains(HasSubstr("ModelOpt lets none fall below 1")));
}

// Nobody reads them here, and who stored them is told.
TEST(KvScales, ThoseOfQueriesAndProbabilitiesAreTold) {
  const Scales scales{{{"self_attn.q_scale", {0.5f}}, {"self_attn.attn.prob_scale", {0.25f}}}};
  EXPECT_THAT(loaded(scales).notices,
              Contains(AllOf(HasSubstr("4 stored scales of queries and probabilities"),
                             HasSubstr("model.layers.0.self_attn.attn.prob_scale"))));
  EXPECT_THAT(loaded({}).notices, Not(Contains(HasSubstr("queries and probabilities"))));
}

TEST(KvScales, NumbersThatNoCacheCanHave) {
  for (const float bad :
       {0.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Scales scales{.values = {{"self_attn.k_scale", {bad}}, {"self_attn.v_scale", {1}}}};
    EXPECT_THAT(fault_of(tiny_with(scales, 2)),
                AllOf(HasSubstr("scale of the KV cache"), HasSubstr("self_attn.k_scale'")));
  }
}

}  // namespace
}  // namespace octet::model
