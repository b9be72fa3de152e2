// compressed-tensors' groups: which of them holds a module, and checkpoints that store modules in
// several formats.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "unit/model/tiny_checkpoint.h"

namespace octet::model {
namespace {

using test::error_of;
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
using ::testing::IsEmpty;

const Json kChannel = Json::parse(R"({"num_bits":8,"type":"float","strategy":"channel"})");
const Json kToken =
    Json::parse(R"({"num_bits":8,"type":"float","strategy":"token","dynamic":true})");
const Json kBlock =
    Json::parse(R"({"num_bits":8,"type":"float","strategy":"block","block_structure":[128,128]})");
const Json kGroup = Json::parse(
    R"({"num_bits":8,"type":"float","strategy":"group","group_size":128,"dynamic":true})");

Json group(const std::vector<std::string>& targets, const Json& weights, const Json& input) {
  return {{"targets", targets}, {"weights", weights}, {"input_activations", input}};
}
Json channel(const std::vector<std::string>& targets) {
  return group(targets, kChannel, kToken);
}
Json block(const std::vector<std::string>& targets) {
  return group(targets, kBlock, kGroup);
}

Json config_of(const Json& groups) {
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"config_groups", groups},
          {"ignore", {"lm_head", "model.embed_tokens"}}};
}

QuantConfig read(const Json& groups) {
  return read_quant_config(config_of(groups), "config.json, quantization_config");
}

// The group of a module, by name.
std::string holder(const QuantConfig& config, std::string_view module) {
  const QuantGroup* found = group_of(config, module);
  return found ? found->name : "none";
}

TEST(QuantGroups, TheClosestTargetHolds) {
  const std::string q = "model.layers.0.self_attn.q_proj", up = "model.layers.1.mlp.up_proj";
  QuantConfig config = read({{"a", channel({"Linear"})},
                             {"b", block({"re:.*mlp.*"})},
                             {"c", channel({"model.layers.1.mlp.up_proj"})}});
  EXPECT_EQ(holder(config, q), "a");
  EXPECT_EQ(holder(config, "model.layers.0.mlp.up_proj"), "b");
  EXPECT_EQ(holder(config, up), "c");

  // Without the class, linears that no group names stay as they are.
  config = read({{"b", block({"re:.*mlp.*"})}});
  EXPECT_EQ(holder(config, q), "none");
  EXPECT_EQ(holder(config, up), "b");
  // Matched from the first character on: "mlp" alone is in the middle of the name.
  EXPECT_EQ(holder(read({{"b", block({"re:mlp"})}}), up), "none");
  // Of two expressions, the first as text, wherever its group stands.
  config = read({{"a", channel({"re:.*up_proj"})}, {"b", block({"re:.*mlp.*"})}});
  EXPECT_EQ(holder(config, up), "b");

  // Names of what engines run as one linear.
  config = read({{"a", channel({"Linear"})},
                 {"b", block({"re:.*qkv_proj$", "model.layers.1.mlp.gate_up_proj"})}});
  for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
    EXPECT_EQ(holder(config, fmt::format("model.layers.3.self_attn.{}", name)), "b");
  }
  EXPECT_EQ(holder(config, "model.layers.3.self_attn.o_proj"), "a");
  EXPECT_EQ(holder(config, up), "b");
  EXPECT_EQ(holder(config, "model.layers.0.mlp.up_proj"), "a");
}

TEST(QuantGroups, EachHasItsOwnFormat) {
  const QuantConfig config =
      read({{"group_0", channel({"re:.*self_attn.*"})},
            {"group_1",
             {{"targets", {"re:.*mlp.*"}},
              {"format", "pack-quantized"},
              {"weights",
               {{"num_bits", 4}, {"type", "int"}, {"strategy", "group"}, {"group_size", 128}}}}}});
  ASSERT_EQ(config.groups.size(), 2u);
  EXPECT_EQ(to_string(config.groups[0].format), "weight e4m3[1x*]f32, input e4m3[1x*]f32 dynamic");
  EXPECT_FALSE(config.groups[0].packing);
  EXPECT_EQ(to_string(config.groups[1].format), "weight i8[1x128]f32, input 16-bit");
  EXPECT_TRUE(config.groups[1].packing);

  Policy policy = default_policy(LinearFormat{});
  const auto rows = policy_rows(config, {"*.k_proj"});
  policy.rows.insert(policy.rows.begin(), rows.begin(), rows.end());
  const auto format_of = [&](Role role, std::string_view module) {
    return resolve(policy, role, module).format;
  };
  EXPECT_EQ(format_of(Role::attn_in, "model.layers.0.self_attn.q_proj"), config.groups[0].format);
  EXPECT_EQ(format_of(Role::mlp_down, "model.layers.0.mlp.down_proj"), config.groups[1].format);
  EXPECT_EQ(format_of(Role::attn_in, "model.layers.0.self_attn.k_proj"),
            LinearFormat{.weight = config.groups[0].format.weight});
  EXPECT_EQ(format_of(Role::attn_in, "model.layers.0.linear_attn.q_proj"), LinearFormat{});
}

// --- checkpoints
// -------------------------------------------------------------------------------------

// Attention by channel, MLPs by block, and the down projections in 16 bits.
struct Mixed {
  Tiny channels{kLlama, "fp8_channel"}, blocks{kLlama, "fp8_block"}, high{kLlama};
  Tiny all{channels};

  explicit Mixed(const Json& groups) {
    all.config["quantization_config"] = config_of(groups);
    std::erase_if(all.tensors, [](const auto& tensor) {
      return tensor.first.find(".mlp.") != tensor.first.npos;
    });
    for (const auto& [name, tensor] : blocks.tensors) {
      if (name.find(".mlp.") == name.npos || name.find("down_proj") != name.npos) continue;
      constexpr std::string_view theirs = ".weight_scale_inv";
      const bool scale = name.ends_with(theirs);
      all.tensors[scale ? name.substr(0, name.size() - 4) : name] = tensor;
    }
    for (const auto& [name, tensor] : high.tensors) {
      if (name.find("down_proj") != name.npos) all.tensors[name] = tensor;
    }
  }
};

const std::vector<std::string> kNotDown = {"re:.*mlp.(gate|up)_proj$"};

TEST(QuantGroups, LinearsOfSeveralFormatsAreThoseOfTheirOwnCheckpoints) {
  const Mixed mixed({{"group_0", channel({"re:.*self_attn.*"})}, {"group_1", block(kNotDown)}});
  const TempDir here, channels, blocks, high;
  mixed.all.write(here);
  mixed.channels.write(channels);
  mixed.blocks.write(blocks);
  mixed.high.write(high);
  HostBackend backend;
  const auto model = load(here, backend);
  const auto linear_of = [](const Model& other, const std::string& name) {
    for (const LinearUse& use : other.linears()) {
      if (use.linear->name == name) return *use.linear;
    }
    throw Fault("no linear " + name);
  };
  const auto by_channel = load(channels, backend), by_block = load(blocks, backend),
             in_16 = load(high, backend, {.compute = Compute::bf16});
  const auto same = [](const Tensor& x, const Tensor& y) {
    return x.type == y.type && x.shape == y.shape &&
           (!x || std::memcmp(x.data, y.data, static_cast<size_t>(x.bytes())) == 0);
  };
  int checked = 0;
  for (const LinearUse& use : model->linears()) {
    const ops::Linear& x = *use.linear;
    SCOPED_TRACE(x.name);
    if (x.role == Role::lm_head) continue;
    const Model& from = x.role == Role::mlp_down      ? *in_16
                        : x.role == Role::mlp_gate_up ? *by_block
                                                      : *by_channel;
    const ops::Linear y = linear_of(from, x.name);
    EXPECT_TRUE(same(x.plain, y.plain) && same(x.quant.codes, y.quant.codes) &&
                same(x.quant.scales, y.quant.scales));
    EXPECT_EQ(x.quant.format, y.quant.format);
    EXPECT_EQ(x.input, y.input);
    ++checked;
  }
  EXPECT_EQ(checked, 14);
  EXPECT_THAT(model->notices(), IsEmpty());
}

TEST(QuantGroups, WhatGroupsAndWeightsDisagreeOn) {
  // 16 bits, where a group says FP8.
  Mixed mixed({{"group_0", channel({"re:.*self_attn.*"})}, {"group_1", block({"re:.*mlp.*"})}});
  EXPECT_THAT(fault_of(mixed.all), AllOf(HasSubstr("not on the ignore list"),
                                         HasSubstr("layers.0.mlp.down_proj"), HasSubstr("BF16")));
  // FP8, where no group says so.
  mixed.all.config["quantization_config"] =
      config_of({{"group_0", channel({"re:.*self_attn.*"})},
                 {"group_1", block({"model.layers.0.mlp.gate_proj"})}});
  EXPECT_THAT(fault_of(mixed.all),
              AllOf(HasSubstr("no group of quantization_config"),
                    HasSubstr("model.layers.0.mlp.up_proj"), HasSubstr("\"targets\"")));
  // A group that quantizes inputs alone.
  mixed.all.config["quantization_config"] =
      config_of({{"group_0", channel({"re:.*self_attn.*"})},
                 {"group_1", block(kNotDown)},
                 {"group_2", group({"re:.*down_proj"}, nullptr, kToken)}});
  EXPECT_THAT(fault_of(mixed.all), AllOf(HasSubstr("group_2"), HasSubstr("down_proj")));
  // A pattern that misses.
  mixed.all.config["quantization_config"] =
      config_of({{"group_0", channel({"re:.*self_attn.*"})},
                 {"group_1", block({kNotDown[0], "re:.*mpl.*"})},
                 {"group_2", group({"LlamaAttention"}, nullptr, kToken)}});
  const TempDir dir;
  mixed.all.write(dir);
  HostBackend backend;
  EXPECT_THAT(load(dir, backend)->notices(),
              ElementsAre(HasSubstr("group_1's target 're:.*mpl.*' matches no module")));
}

TEST(QuantGroups, Faults) {
  const auto fault = [](const Json& groups) { return error_of([&] { read(groups); }); };
  EXPECT_THAT(fault(Json::object()), HasSubstr("no group of modules has quantized weights"));
  EXPECT_THAT(fault({{"g", channel({})}}), AllOf(HasSubstr("no targets"), HasSubstr("$.config_")));
  EXPECT_THAT(fault({{"g", channel({"re:("})}}),
              AllOf(HasSubstr("$.config_groups.g.targets"), HasSubstr("'re:('")));
  EXPECT_THAT(
      fault({{"g", channel({"Linear"})}, {"h", block({"re:.*", "Linear"})}}),
      AllOf(HasSubstr("g and h both have the target 'Linear'"), HasSubstr("e4m3[128x128]f32")));
  EXPECT_EQ(fault({{"g", channel({"Linear"})}, {"h", channel({"Linear"})}}), "no error");
  Json four = channel({"re:.*mlp.*"});
  four["weights"]["num_bits"] = 4;
  EXPECT_THAT(fault({{"g", channel({"Linear"})}, {"h", four}}),
              HasSubstr("$.config_groups.h.weights.num_bits"));
}

}  // namespace
}  // namespace octet::model
