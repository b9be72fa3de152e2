// Each finding of `octet inspect`, from a tiny checkpoint in which one thing is odd.
#include "offline/diagnose.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
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
                           std::make_shared<TinySource>(tiny), backend, {});
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

TEST(Diagnose, ARouterOrHeadInEightBits) {
  Tiny tiny(kDeepseek, "fp8_channel");
  tiny.config["quantization_config"]["ignore"] = Json::array();
  const std::string gate = "model.layers.1.mlp.gate";
  std::vector<float> scales(50, 0.01f);
  for (const auto& [module, shape] :
       {std::pair<std::string, Shape>{gate, {4, 64}}, {"lm_head", {50, 64}}}) {
    tiny.retype(module + ".weight", DType::e4m3, shape);
    auto* codes = tiny.tensors.at(module + ".weight").as<uint8_t>();
    std::fill_n(codes, shape.count(), 0x38);
    tiny.tensors[module + ".weight_scale"] = Tensor(scales.data(), DType::f32, {shape[0], 1});
  }
  EXPECT_THAT(findings(tiny),
              ElementsAre(is_finding(Severity::wrong, "ignore_list", gate, "the router"),
                          is_finding(Severity::note, "ignore_list", "lm_head", "the head")));
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
