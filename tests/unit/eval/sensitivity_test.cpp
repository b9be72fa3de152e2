// Parts of a model, one at a time in FP8: which linears a trial quantizes, and what it costs.
#include "eval/sensitivity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "backends/cpu/cpu_backend.h"
#include "eval/reference.h"
#include "model/binder.h"
#include "numerics/scheme.h"
#include "unit/model/support.h"

namespace octet::eval {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

// Not a constant: the table of schemes may be made after this file's constants.
LowPrecision low() {
  return {.linear = scheme_named("fp8_channel").format};
}

// A model of tests/golden, computed in FP32 where nothing is on trial.
struct Golden {
  explicit Golden(const std::string& name)
      : path(std::string(OCTET_SOURCE_DIR) + "/tests/golden/" + name) {}

  std::unique_ptr<model::Model> load(const Trial& trial = {}) {
    model::LoadOptions options{.compute = model::Compute::fp32};
    options.policy = trial.policy;
    return model::load_model(config, rounded_ends(source, config, *low().linear.weight, trial),
                             backend, options);
  }
  std::vector<Part> parts(PartBy by, bool high_roles = false) {
    return parts_of(*load(), by, low(), high_roles);
  }
  Trial trial(std::vector<const Part*> parts) { return trial_of(parts, low(), config.layers); }

  std::string path;
  model::ModelConfig config = model::read_config(path);
  std::shared_ptr<const model::WeightSource> source = model::open_weights(path);
  cpu::CpuBackend backend{{.threads = 1, .kernels = "exact"}};
};

std::vector<std::string> names_of(const std::vector<Part>& parts) {
  std::vector<std::string> names;
  for (const Part& part : parts) names.push_back(part.name);
  return names;
}

const Part& named(const std::vector<Part>& parts, const std::string& name) {
  const auto found = std::ranges::find(parts, name, &Part::name);
  if (found == parts.end()) throw std::runtime_error("no part " + name);
  return *found;
}

std::set<std::string> quantized(const model::Model& model) {
  std::set<std::string> names;
  for (const model::LinearUse& use : model.linears()) {
    if (use.linear->quant) names.insert(use.linear->name);
  }
  return names;
}

std::vector<Piece> pieces_of(int64_t vocab) {
  std::vector<Piece> pieces(3);
  for (int32_t i = 0; i < 3; ++i) {
    for (int32_t j = 0; j < 24; ++j) {
      pieces[static_cast<size_t>(i)].tokens.push_back((7 * i + 5 * j + i * j) %
                                                      static_cast<int32_t>(vocab));
    }
  }
  return pieces;
}

TEST(Sensitivity, PartsAreLinearsLayersOrRoles) {
  Golden golden("deepseek_v3_groups");
  const std::vector<Part> linears = golden.parts(PartBy::linear);
  EXPECT_THAT(
      names_of(linears),
      IsSupersetOf({"model.layers.0.self_attn.q_a_proj", "model.layers.0.self_attn.kv_b_proj",
                    "model.layers.1.mlp.experts.*.down_proj", "model.layers.1 KV cache"}));
  EXPECT_THAT(names_of(linears), Not(Contains(HasSubstr("router"))));
  EXPECT_GT(named(linears, "model.layers.1.mlp.experts.*.down_proj").linears, 1);

  const std::vector<Part> layers = golden.parts(PartBy::layer), roles = golden.parts(PartBy::role);
  EXPECT_THAT(names_of(layers), Contains("model.layers.0.*"));
  EXPECT_THAT(names_of(roles), IsSupersetOf({"*.self_attn.o_proj", "KV cache"}));
  // The same bytes, however they are told apart.
  const auto bytes = [](const std::vector<Part>& parts, int64_t Part::*field) {
    int64_t sum = 0;
    for (const Part& part : parts) sum += part.*field;
    return sum;
  };
  for (int64_t Part::*field : {&Part::bytes, &Part::bytes_low, &Part::linears}) {
    EXPECT_EQ(bytes(linears, field), bytes(layers, field));
    EXPECT_EQ(bytes(linears, field), bytes(roles, field));
  }
  EXPECT_THAT(names_of(golden.parts(PartBy::linear, true)),
              IsSupersetOf({"model.layers.1.mlp.gate (router)", "model.embed_tokens", "lm_head"}));
}

TEST(Sensitivity, ATrialQuantizesItsPartAndNothingElse) {
  for (const char* name : {"deepseek_v3_groups", "llama_gqa_rope3"}) {
    SCOPED_TRACE(name);
    Golden golden(name);
    std::set<std::string> seen;
    const std::vector<Part> parts = golden.parts(PartBy::linear);
    std::vector<const Part*> all;
    for (const Part& part : parts) {
      all.push_back(&part);
      const Trial trial = golden.trial({&part});
      const std::set<std::string> found = quantized(*golden.load(trial));
      EXPECT_EQ(static_cast<int64_t>(found.size()), part.linears) << part.name;
      for (const std::string& one : found) EXPECT_TRUE(seen.insert(one).second) << one;
      const auto caches = std::ranges::count(trial.kv_by_layer, model::KvType::fp8_e4m3);
      EXPECT_EQ(caches, part.kind == Part::Kind::cache ? 1 : 0) << part.name;
    }
    EXPECT_EQ(quantized(*golden.load(golden.trial(all))), seen);
  }
}

TEST(Sensitivity, WeightsOrInputsAlone) {
  Golden golden("deepseek_v3_groups");
  const std::vector<Part> parts = golden.parts(PartBy::linear);
  for (const char* name :
       {"model.layers.0.self_attn.o_proj", "model.layers.0.self_attn.kv_b_proj"}) {
    for (const bool weight : {false, true}) {
      LowPrecision one = low();
      (weight ? one.linear.input : one.linear.weight).reset();
      const Part* part = &named(parts, name);
      const auto model = golden.load(trial_of({&part, 1}, one, golden.config.layers));
      for (const model::LinearUse& use : model->linears()) {
        const bool on_trial = use.linear->name == name;
        EXPECT_EQ(static_cast<bool>(use.linear->quant), on_trial && weight) << use.linear->name;
        // The latent that kv_b_proj multiplies is no input of its own.
        EXPECT_EQ(use.linear->input.has_value(),
                  on_trial && !weight && use.linear->role != Role::attn_latent)
            << use.linear->name;
      }
    }
  }
}

TEST(Sensitivity, ByRoleAndLayerTheyAreTheSameLinears) {
  Golden golden("deepseek_v3_groups");
  for (const PartBy by : {PartBy::layer, PartBy::role}) {
    for (const Part& part : golden.parts(by)) {
      if (part.kind != Part::Kind::linear) continue;
      EXPECT_EQ(static_cast<int64_t>(quantized(*golden.load(golden.trial({&part}))).size()),
                part.linears)
          << part.name;
    }
  }
}

TEST(Sensitivity, ARouterIsOnTrialByItsOwnPart) {
  Golden golden("deepseek_v3_groups");
  const std::vector<Part> parts = golden.parts(PartBy::linear, true);
  const Part& router = named(parts, "model.layers.1.mlp.gate (router)");
  EXPECT_THAT(quantized(*golden.load(golden.trial({&router}))),
              ElementsAre("model.layers.1.mlp.gate"));
}

// The reference: each pair of runs is computed side by side.
TEST(Sensitivity, CostsAreThoseOfCompare) {
  for (const char* name : {"deepseek_v3_groups", "llama_gqa_rope3"}) {
    SCOPED_TRACE(name);
    Golden golden(name);
    const auto stored = golden.load();
    const Subject as_stored{*stored, golden.backend};
    const std::vector<Piece> pieces = pieces_of(golden.config.vocab);
    ThreadPool threads(2);
    const Reference reference(as_stored, pieces, threads);
    EXPECT_NEAR(reference.perplexity(), perplexity(as_stored, pieces).value(), 1e-9);
    const Fidelity self = reference.measure(as_stored);
    // One piece does not tell how pieces differ: that is no error of 0.
    EXPECT_EQ(Reference(as_stored, std::span(pieces).first(1), threads).measure(as_stored).kl_error,
              std::nullopt);
    EXPECT_EQ(self.kl, 0);
    EXPECT_EQ(self.top1, 1);
    double sum = 0;
    for (const Part& part : golden.parts(PartBy::role)) {
      const Trial trial = golden.trial({&part});
      const auto model = golden.load(trial);
      const Subject subject{
          .model = *model, .backend = golden.backend, .kv_by_layer = trial.kv_by_layer};
      const Fidelity found = reference.measure(subject);
      const Comparison slow = compare(subject, as_stored, pieces);
      EXPECT_NEAR(found.kl, slow.kl_mean, 1e-12) << part.name;
      EXPECT_NEAR(found.perplexity, slow.candidate.value(), 1e-9) << part.name;
      EXPECT_EQ(found.top1, slow.top1_agreement()) << part.name;
      EXPECT_GT(found.kl, 0) << part.name;
      EXPECT_GT(found.kl_error.value(), 0) << part.name;
      sum += found.kl;
    }
    EXPECT_GT(sum, 0);
  }
}

TEST(Sensitivity, EndsAreRoundedEachByItself) {
  for (const char* name : {"deepseek_v3_groups", "qwen2_window"}) {
    SCOPED_TRACE(name);
    Golden golden(name);
    const auto stored = golden.load();
    const Subject as_stored{*stored, golden.backend};
    const std::vector<Piece> pieces = pieces_of(golden.config.vocab);
    ThreadPool threads(1);
    const Reference reference(as_stored, pieces, threads);
    const std::vector<Part> parts = golden.parts(PartBy::linear, true);
    const auto cost = [&](std::vector<const Part*> low) {
      const auto model = golden.load(golden.trial(std::move(low)));
      return reference.measure({*model, golden.backend}).kl;
    };
    const Part &embedding = named(parts, "model.embed_tokens"), &head = named(parts, "lm_head");
    const double first = cost({&embedding}), last = cost({&head}), both = cost({&embedding, &head});
    EXPECT_GT(first, 0);
    EXPECT_GT(last, 0);
    EXPECT_NE(first, last);
    EXPECT_GT(both, std::max(first, last) / 2);
  }
}

TEST(Sensitivity, AModuleHasAPlace) {
  const auto is = [](std::string_view module, int64_t layer, std::string_view role) {
    const ModulePlace place = place_of(module);
    EXPECT_EQ(place.layer, layer) << module;
    EXPECT_EQ(place.role, role) << module;
  };
  is("model.layers.13.mlp.experts.7.up_proj", 13, "mlp.experts.*.up_proj");
  is("model.layers.0 KV cache", 0, "KV cache");
  is("lm_head", -1, "lm_head");
  is("model.layers.x.y", -1, "model.layers.x.y");
  is("model.layers.3", -1, "model.layers.3");
  is("model.layers.99999999999999999999.q", -1, "model.layers.99999999999999999999.q");
}

TEST(Sensitivity, UnknownPartsAreRefused) {
  EXPECT_THAT(test::error_of([] { parse_part_by("tensor"); }), HasSubstr("linear, layer, role"));
}

}  // namespace
}  // namespace octet::eval
