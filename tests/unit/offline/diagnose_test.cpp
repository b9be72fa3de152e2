// Each finding of `octet inspect`, from a tiny checkpoint in which one thing is odd.
#include "offline/diagnose.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "numerics/fp8.h"
#include "numerics/half.h"
#include "offline/twin.h"
#include "unit/model/tiny_checkpoint.h"

namespace octet::offline {
namespace {

using test::HostBackend;
using test::kDeepseek;
using test::kLlama;
using test::kQ;
using test::Tiny;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class TinySource : public model::WeightSource {
 public:
  explicit TinySource(const Tiny& tiny) : tensors_(tiny.tensors) {}
  const Tensor* find(std::string_view name, const Shape&) const override {
    const auto found = tensors_.find(std::string(name));
    return found == tensors_.end() ? nullptr : &found->second;
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return names;
  }
  std::string locate(std::string_view) const override { return "memory"; }

 private:
  std::map<std::string, Tensor> tensors_;
};

std::unique_ptr<model::Model> bound(const Tiny& tiny, HostBackend& backend) {
  return model::load_model(model::parse_config(tiny.config.dump(), "tiny"),
                           std::make_shared<TinySource>(tiny), backend,
                           {.compute = model::Compute::bf16});
}

std::vector<Finding> findings(const Tiny& tiny, std::optional<int64_t> max_length = {}) {
  HostBackend backend;
  const auto model = bound(tiny, backend);
  std::vector<ScannedTensor> tensors;
  for (const auto& [name, tensor] : tiny.tensors) tensors.push_back({name, tensor, scan(tensor)});
  return diagnose(model->config(), *model, tensors, max_length);
}

auto is_finding(Severity severity, const std::string& check, const std::string& where,
                const std::string& what) {
  return AllOf(Field(&Finding::severity, severity), Field(&Finding::check, check),
               Field(&Finding::where, where), Field(&Finding::what, HasSubstr(what)),
               Field(&Finding::fix, HasSubstr(" ")));
}

const std::string kModule = kQ;

TEST(Diagnose, ASoundCheckpointHasNoFinding) {
  for (const char* scheme : {"fp8_channel", "fp8_block", "fp8_group", "mxfp8", "int8", ""}) {
    EXPECT_THAT(findings(Tiny(kLlama, scheme)), IsEmpty()) << scheme;
  }
  EXPECT_THAT(findings(Tiny(kDeepseek, "fp8_block")), IsEmpty());
}

TEST(Diagnose, ValuesThatAreNotFinite) {
  const Tiny tiny(kLlama, "fp8_channel");
  tiny.tensors.at(kModule + ".weight").as<uint8_t>()[3] = 0x7F;
  EXPECT_THAT(findings(tiny), ElementsAre(is_finding(Severity::wrong, "nonfinite",
                                                     kModule + ".weight", "1 NaN, 0 infinite")));
}

TEST(Diagnose, ValuesThatNoModelHas) {
  const Tiny tiny(kLlama, "fp8_channel");
  const std::string name = "model.layers.1.input_layernorm.weight";
  tiny.tensors.at(name).as<bf16>()[2] = to_bf16(-1e30f);
  EXPECT_THAT(findings(tiny),
              ElementsAre(is_finding(Severity::note, "magnitude", name, "up to 1e+30")));
  std::fill_n(tiny.tensors.at(name).as<uint16_t>(), 160, uint16_t{0});
  EXPECT_THAT(findings(tiny),
              ElementsAre(is_finding(Severity::note, "magnitude", name, "all zeros")));
}

TEST(Diagnose, ScalesOutOfRangeAndAllOnes) {
  for (const float extreme : {1e-39f, 1e36f}) {
    const Tiny tiny(kLlama, "fp8_channel");
    tiny.tensors.at(kModule + ".weight_scale").as<float>()[1] = extreme;
    EXPECT_THAT(findings(tiny), ElementsAre(is_finding(Severity::wrong, "scale_range",
                                                       kModule + ".weight_scale", "a scale of")));
  }
  const Tiny ones(kLlama, "fp8_channel");
  for (const auto& [name, tensor] : ones.tensors) {
    if (!name.ends_with(".weight_scale")) continue;
    std::fill_n(tensor.as<float>(), tensor.count(), 1.0f);
  }
  EXPECT_THAT(findings(ones), ElementsAre(is_finding(Severity::note, "scale_ones", "",
                                                     "all 14 weight scales are 1")));
}

// One module among sound ones.
TEST(Diagnose, ScalesOfOneModuleUnlikeItsNeighbours) {
  const std::string name = kModule + ".weight_scale";
  const auto with = [&](float factor, float given) {
    Json config = Json::parse(kLlama);
    config["num_hidden_layers"] = 4;
    const Tiny tiny(config.dump().c_str(), "fp8_channel");
    const Tensor& scales = tiny.tensors.at(name);
    for (int64_t i = 0; i < scales.count(); ++i) {
      float& scale = scales.as<float>()[i];
      scale = given > 0 ? given : scale * factor;
    }
    return findings(tiny);
  };
  EXPECT_THAT(with(1, 0), IsEmpty());
  EXPECT_THAT(with(1, 1),
              ElementsAre(is_finding(Severity::note, "scale_ones", name, "its 128 scales are 1")));
  EXPECT_THAT(with(500, 0), ElementsAre(is_finding(Severity::note, "scale_apart", name, "times")));
  EXPECT_THAT(with(0.002f, 0),
              ElementsAre(is_finding(Severity::note, "scale_apart", name, "times")));
  EXPECT_THAT(with(20, 0), IsEmpty());
}

// A row of a sound model may be as good as zero.
TEST(Diagnose, ADeadRowIsNoFault) {
  Json config = Json::parse(kLlama);
  config["num_hidden_layers"] = 4;
  const Tiny tiny(config.dump().c_str(), "fp8_channel");
  for (const auto& [name, tensor] : tiny.tensors) {
    if (name.ends_with(".weight_scale")) tensor.as<float>()[0] = 1e-20f;
  }
  // A third of one module's.
  std::fill_n(tiny.tensors.at(kModule + ".weight_scale").as<float>(), 40, 1e-16f);
  EXPECT_THAT(findings(tiny), IsEmpty());
}

TEST(Diagnose, ScalesThatMakeWeightsOfNoModel) {
  const std::string name = kModule + ".weight_scale";
  const auto with = [&](float scale) {
    const Tiny tiny(kLlama, "fp8_tensor");
    tiny.tensors.at(name).as<float>()[0] = scale;
    return findings(tiny);
  };
  EXPECT_THAT(with(1e30f), Contains(is_finding(Severity::wrong, "scale_range", name, "4.48e+32")));
  EXPECT_THAT(with(1e-30f), Contains(is_finding(Severity::note, "scale_range", name, "1e-30")));
  // All of them: three are shown.
  const Tiny all(kLlama, "fp8_tensor");
  for (const auto& [tensor, scale] : all.tensors) {
    if (tensor.ends_with(".weight_scale")) scale.as<float>()[0] = 1e-30f;
  }
  const auto found = findings(all);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_THAT(found[2], is_finding(Severity::wrong, "scale_range",
                                   "model.layers.0.mlp.up_proj.weight_scale", "11 more like this"));
  // Scales that divide instead.
  const Tiny inverted(kLlama, "fp8_tensor");
  for (const auto& [tensor, scale] : inverted.tensors) {
    if (tensor.ends_with(".weight_scale")) scale.as<float>()[0] = 1 / scale.as<float>()[0];
  }
  EXPECT_THAT(findings(inverted), Each(Field(&Finding::severity, Severity::wrong)));
  EXPECT_THAT(findings(inverted), Not(IsEmpty()));
  // Nothing is infinite where it is printed.
  for (const float most : {1e30f, 7e35f, 1e37f, 3e38f}) {
    for (const Finding& finding : with(most)) {
      EXPECT_THAT(finding.what, Not(HasSubstr("inf"))) << most;
    }
  }
}

TEST(Diagnose, WeightsThatWereCutOff) {
  const Tiny tiny(kLlama, "fp8_channel");
  const Tensor& codes = tiny.tensors.at(kModule + ".weight");
  // 5 more in each row of 160 than the one or two that a sound row has.
  for (int64_t row = 0; row < codes.rows(); ++row) {
    for (int64_t i = 0; i < 7; ++i) codes.as<uint8_t>()[row * codes.cols() + i] = 0x7E;
  }
  EXPECT_THAT(findings(tiny), ElementsAre(is_finding(Severity::note, "saturated",
                                                     kModule + ".weight", "% of its codes")));
}

// An even distribution, constants, and few values have many codes at the end; none was cut off.
TEST(Diagnose, ManyLargestCodesAloneAreNoCutOff) {
  const auto with = [](auto code_at, const std::string& scheme = "fp8_tensor") {
    const Tiny tiny(kLlama, scheme);
    const Tensor& codes = tiny.tensors.at(kModule + ".weight");
    for (int64_t i = 0; i < codes.count(); ++i) codes.as<uint8_t>()[i] = code_at(i);
    return findings(tiny);
  };
  const auto even = [](int64_t i) {
    // Twice as wide as what becomes the largest code.
    const float x = static_cast<float>(i * 7919 % 4481) / 4480.0f * 896.0f - 448.0f;
    return fp8_encode<Code::e4m3>(x);
  };
  EXPECT_THAT(with(even), IsEmpty());
  EXPECT_THAT(with([](int64_t) { return 0x7E; }), IsEmpty());
  EXPECT_THAT(with([](int64_t i) { return i % 2 ? 0x7E : 0xFE; }), IsEmpty());
  EXPECT_THAT(with([](int64_t i) { return i % 3 == 0   ? 0x00
                                          : i % 3 == 1 ? 0x7E
                                                       : 0xFE; }),
              IsEmpty());
  // Constant rows among others.
  EXPECT_THAT(with([&](int64_t i) { return i / 160 < 100 ? 0x7E : even(i); }), IsEmpty());
  // The same even distribution, cut at two thirds and at a fiftieth.
  for (const float cut : {1.5f, 50.0f}) {
    EXPECT_THAT(with([&](int64_t i) {
                  const float x = static_cast<float>(i * 7919 % 4481) / 4480.0f * 896.0f - 448.0f;
                  return fp8_encode<Code::e4m3>(std::clamp(cut * x, -448.0f, 448.0f));
                }),
                ElementsAre(is_finding(Severity::note, "saturated", kModule + ".weight", "%")));
  }
}

TEST(Diagnose, LayersThatTheConfigDoesNotCount) {
  Tiny tiny(kLlama, "fp8_channel");
  tiny.config["num_hidden_layers"] = 1;
  const auto found = findings(tiny);
  EXPECT_THAT(found, ElementsAre(is_finding(Severity::wrong, "layers",
                                            "model.layers.1.input_layernorm.weight",
                                            "num_hidden_layers is 1, and the checkpoint goes on to "
                                            "layer 1 (16 tensors)")));
  EXPECT_THAT(found[0].fix, HasSubstr("num_hidden_layers to 2"));
}

TEST(Diagnose, ARouterOrHeadInEightBits) {
  Tiny tiny(kDeepseek, "fp8_channel");
  tiny.config["quantization_config"]["ignore"] = Json::array();
  const std::string gate = "model.layers.1.mlp.gate";
  std::vector<float> scales(50, 0.01f);
  for (const auto& [module, shape] :
       {std::pair<std::string, Shape>{gate, {4, 64}}, {"lm_head", {50, 64}}}) {
    tiny.retype(module + ".weight", DType::e4m3, shape);
    auto* codes = tiny.tensors.at(module + ".weight").as<uint8_t>();
    std::fill_n(codes, shape.count(), 0x7E);
    tiny.tensors[module + ".weight_scale"] = Tensor(scales.data(), DType::f32, {shape[0], 1});
  }
  const auto found = findings(tiny);
  EXPECT_THAT(found, ElementsAre(is_finding(Severity::wrong, "ignore_list", gate, "the router"),
                                 is_finding(Severity::note, "ignore_list", "lm_head", "the head")));
  EXPECT_THAT(found[0].fix, AllOf(HasSubstr("16-bit checkpoint"), HasSubstr("re:.*mlp.gate$")));
  // What the loader says of a list that does not fit them sends nobody back to the list alone.
  tiny.config["quantization_config"]["ignore"] = {"re:.*mlp.gate$"};
  EXPECT_THAT(test::fault_of(tiny), AllOf(HasSubstr("on the ignore list is stored in FP8"),
                                          HasSubstr("take 'model.layers.1.mlp.gate.weight' from "
                                                    "the 16-bit checkpoint")));
}

TEST(Diagnose, InputScalesThatFitNoActivation) {
  for (const float absurd : {1e-9f, 1e5f}) {
    const Tiny tiny(kLlama, "fp8_tensor_static");
    for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
      tiny.tensors.at(fmt::format("model.layers.0.self_attn.{}.input_scale", name)).as<float>()[0] =
          absurd;
    }
    const auto found = findings(tiny);
    ASSERT_EQ(found.size(), 3u);
    EXPECT_THAT(found[1], is_finding(Severity::wrong, "input_scale", kModule + ".input_scale",
                                     "range ends at"));
    EXPECT_THAT(found[1].fix, HasSubstr(absurd < 1 ? "saturate" : "zero"));
  }
  // None at all, and none of some.
  for (const bool all : {true, false}) {
    Tiny tiny(kLlama, "fp8_tensor_static");
    std::erase_if(tiny.tensors, [&](const auto& tensor) {
      return tensor.first.ends_with(".input_scale") &&
             (all || tensor.first.find("layers.1.mlp") != tensor.first.npos);
    });
    EXPECT_THAT(findings(tiny),
                ElementsAre(is_finding(
                    Severity::wrong, "input_scale",
                    all ? "model.layers.0.self_attn.q_proj" : "model.layers.1.mlp.gate_proj",
                    all ? "14 of 14 linears lack" : "3 of 14 linears lack")));
  }
  const Tiny ones(kLlama, "fp8_tensor_static");
  for (const auto& [name, tensor] : ones.tensors) {
    if (name.ends_with(".input_scale")) tensor.as<float>()[0] = 1;
  }
  EXPECT_THAT(findings(ones),
              ElementsAre(is_finding(Severity::note, "scale_ones", "", "all 14 scales of inputs")));
  // The three read the same input.
  const Tiny tiny(kLlama, "fp8_tensor_static");
  tiny.tensors.at(kModule + ".input_scale").as<float>()[0] *= 5.0f;
  EXPECT_THAT(findings(tiny),
              ElementsAre(is_finding(Severity::note, "input_scale",
                                     "model.layers.0.self_attn.k_proj", "5 times")));
}

TEST(Diagnose, ScalesOfFusedShardsFarApart) {
  const Tiny tiny(kLlama, "fp8_tensor_static");
  tiny.tensors.at("model.layers.1.mlp.up_proj.weight_scale").as<float>()[0] *= 100.0f;
  const auto found = findings(tiny);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(found[0], is_finding(Severity::note, "fused_scales", "model.layers.1.mlp.gate_proj",
                                   "(1 of 2 groups)"));
}

// A tool gave q, k and v one scale: the codes of what was smaller tell.
TEST(Diagnose, ShardsThatWereMerged) {
  const auto shrunk = [](Tiny& tiny, const std::string& module, float factor) {
    const Tensor& codes = tiny.tensors.at(module + ".weight");
    for (int64_t i = 0; i < codes.count(); ++i) {
      uint8_t& code = codes.as<uint8_t>()[i];
      code = fp8_encode<Code::e4m3>(fp8_decode<Code::e4m3>(code) / factor);
    }
  };
  const std::string attention = "model.layers.0.self_attn.";
  for (const float factor : {1.0f, 3.0f, 30.0f}) {
    Tiny tiny(kLlama, "fp8_tensor");
    shrunk(tiny, attention + "k_proj", factor);
    for (const char* shard : {"q_proj", "k_proj", "v_proj"}) {
      tiny.tensors.at(attention + shard + ".weight_scale").as<float>()[0] = 0.001f;
    }
    if (factor < 8) {
      EXPECT_THAT(findings(tiny), IsEmpty()) << factor;
    } else {
      EXPECT_THAT(findings(tiny), ElementsAre(is_finding(Severity::note, "merged_shards",
                                                         attention + "k_proj", "of 448")));
    }
  }
  // A scale that is too large, with none beside it that needs it.
  Tiny alone(kLlama, "fp8_channel");
  shrunk(alone, "model.layers.0.mlp.down_proj", 30);
  EXPECT_THAT(findings(alone), ElementsAre(is_finding(Severity::note, "scale_loose",
                                                      "model.layers.0.mlp.down_proj", "of 448")));
}

TEST(Diagnose, ScalesOfTheCacheThatFitNoKeyOrValue) {
  const auto with = [](float factor) {
    Json config = Json::parse(kLlama);
    config["num_hidden_layers"] = 4;
    Tiny tiny(config.dump().c_str(), "fp8_channel");
    static std::array<float, 8> scales;
    scales.fill(0.05f);
    scales[5] *= factor;
    for (int64_t layer = 0; layer < 4; ++layer) {
      for (const bool value : {false, true}) {
        tiny.tensors[fmt::format("model.layers.{}.self_attn.{}_scale", layer, value ? "v" : "k")] =
            Tensor(&scales[static_cast<size_t>(2 * layer + value)], DType::f32, {1});
      }
    }
    return findings(tiny);
  };
  const std::string name = "model.layers.2.self_attn.v_scale";
  for (const float sound : {1.0f, 20.0f, 0.05f, -20.0f}) EXPECT_THAT(with(sound), IsEmpty());
  for (const float odd : {1000.0f, 0.001f}) {
    EXPECT_THAT(with(odd), ElementsAre(is_finding(Severity::note, "scale_apart", name, "times")));
  }
  for (const float absurd : {1e30f, 1e-30f}) {
    const auto found = with(absurd);
    EXPECT_THAT(found, ElementsAre(is_finding(Severity::wrong, "kv_scale", name, "range")));
    EXPECT_THAT(found[0].fix, HasSubstr(absurd < 1 ? "saturate" : "zero"));
  }
}

TEST(Diagnose, AContextThatTheTokenizerDoesNotShare) {
  EXPECT_THAT(findings(Tiny(kLlama, "fp8_channel"), 64), IsEmpty());
  EXPECT_THAT(findings(Tiny(kLlama, "fp8_channel"), 32),
              ElementsAre(is_finding(Severity::note, "context", "tokenizer_config.json", "32")));
}

// --- what is served against what was measured
// ------------------------------------------------------

std::vector<Finding> served(std::initializer_list<std::string_view> measured, ServedAs as,
                            const std::string& overrides = {}) {
  const auto config = [](const std::string& more) {
    return model::parse_config(kLlama, "tiny", more);
  };
  const auto is = [&](std::string_view what) {
    return std::ranges::find(measured, what) != measured.end();
  };
  as.rope = config(overrides).rope;
  return diagnose_calibration({.kv_cache = is("kv_cache"),
                               .inputs = is("inputs"),
                               .rounding = is("rounding"),
                               .longest = 16,
                               .samples = 5,
                               .tokens = 80,
                               .rope = config("").rope},
                              as);
}

TEST(Diagnose, SequencesLongerThanWhatTheScalesWereMeasuredOn) {
  const ServedAs all{.length = 17, .fp8_inputs = true, .e4m3_cache = true};
  const auto is_length = [](const std::string& what) {
    return ElementsAre(is_finding(Severity::note, "calibration_length", "config.json", what));
  };
  EXPECT_THAT(
      served({"kv_cache", "inputs"}, all),
      is_length("scales of inputs and of the KV cache were measured on 5 samples of at most "
                "16 tokens, and sequences of up to 17 are served"));
  EXPECT_THAT(served({"inputs"}, all), is_length("its scales of inputs were"));
  EXPECT_THAT(served({"kv_cache"}, {.length = 17, .e4m3_cache = true}), is_length("KV cache were"));
  // Nothing that was measured is in use, or nothing is longer.
  EXPECT_THAT(served({"kv_cache"}, {.length = 17, .fp8_inputs = true}), IsEmpty());
  EXPECT_THAT(served({"inputs"}, {.length = 17, .e4m3_cache = true}), IsEmpty());
  EXPECT_THAT(served({"rounding"}, all), IsEmpty());
  EXPECT_THAT(
      served({"kv_cache", "inputs"}, {.length = 16, .fp8_inputs = true, .e4m3_cache = true}),
      IsEmpty());
}

TEST(Diagnose, ARopeOtherThanTheOneOfTheCalibration) {
  const ServedAs as{.length = 16, .fp8_inputs = true, .e4m3_cache = true};
  const auto is_rope = [](const std::string& what) {
    return ElementsAre(is_finding(Severity::note, "calibration_rope", "config.json", what));
  };
  for (const char* measured : {"kv_cache", "inputs", "rounding"}) {
    EXPECT_THAT(served({measured}, as), IsEmpty());
    EXPECT_THAT(served({measured}, as, R"({"rope_theta": 5e5})"), is_rope("base 500000 is served"));
  }
  EXPECT_THAT(served({"kv_cache"}, as, R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}})"),
              is_rope("RoPE yarn x 4"));
  // Another way to write the same.
  EXPECT_THAT(
      served({"kv_cache"}, as, R"({"rope_scaling": {"rope_type": "linear", "factor": 1.0}})"),
      IsEmpty());
}

TEST(Diagnose, ATwinWithAnotherRope) {
  const Tiny tiny(kLlama);
  const auto config = [&](const std::string& overrides) {
    return model::parse_config(tiny.config.dump(), "tiny", overrides);
  };
  EXPECT_THAT(diagnose_twin(config(""), config("")), IsEmpty());
  EXPECT_THAT(diagnose_twin(config(""), config(R"({"rope_theta": 1234})")),
              ElementsAre(is_finding(Severity::wrong, "twin_rope", "config.json",
                                     "has RoPE default, base 1234")));
}

// --- the 16-bit twin
// ------------------------------------------------------------------------------

TEST(Twin, TheErrorOfEveryQuantizedWeight) {
  for (const Scheme& scheme : schemes()) {
    if (scheme.format.when == InputScale::calibrated) continue;
    SCOPED_TRACE(scheme.name);
    Tiny plain(kLlama);
    HostBackend backend;
    const TinySource twin(plain);
    const auto model =
        model::load_model(model::parse_config(plain.config.dump(), "tiny"),
                          std::make_shared<TinySource>(plain), backend, {.online = scheme.format});
    const auto errors = compare_with_twin(*model, twin);
    ASSERT_EQ(errors.size(), 14u);
    for (const TwinError& error : errors) {
      EXPECT_GT(error.relative_rms, 0.001) << error.module;
      EXPECT_LT(error.relative_rms, 0.035) << error.module;
      EXPECT_NEAR(error.norm_ratio, 1.0, 0.01) << error.module;
    }
  }
}

TEST(Twin, AWrongScaleShows) {
  Tiny plain(kLlama);
  HostBackend backend;
  const auto model = model::load_model(model::parse_config(plain.config.dump(), "tiny"),
                                       std::make_shared<TinySource>(plain), backend,
                                       {.online = scheme_named("fp8_channel").format});
  for (const model::LinearUse& use : model->linears()) {
    if (use.linear->name != kModule) continue;
    for (int64_t i = 0; i < use.linear->out; ++i) {
      use.linear->quant.scales.as<float>()[i] *= 2.0f;
    }
  }
  const auto errors = compare_with_twin(*model, TinySource(plain));
  EXPECT_EQ(errors[0].module, kModule);
  EXPECT_NEAR(errors[0].relative_rms, 1.0, 0.1);
  EXPECT_NEAR(errors[0].norm_ratio, 2.0, 0.01);

  Tiny other(kLlama);
  other.tensors.erase(kModule + ".weight");
  EXPECT_THAT(test::error_of([&] { compare_with_twin(*model, TinySource(other)); }),
              AllOf(HasSubstr("twin does not fit"), HasSubstr("q_proj.weight'")));
}

}  // namespace
}  // namespace octet::offline
