#include "model/quant_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "model/name_pattern.h"
#include "unit/model/support.h"

namespace octet::model {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

QuantConfig read_text(const std::string& text) {
  return read_quant_config(parse_json(text, "q"), "config.json, quantization_config");
}
QuantConfig read(const Json& json) {
  return read_quant_config(json, "config.json, quantization_config");
}
std::string fault_of(const Json& json) {
  return error_of([&] { read(json); });
}

std::string print(const LinearFormat& format) {
  return to_string(format);
}

// --- DeepSeek
// -------------------------------------------------------------------------------------

Json deepseek() {
  return parse_json(R"({"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic",
                        "weight_block_size":[128,128]})",
                    "q");
}

TEST(QuantSchema, DeepseekBlocks) {
  const QuantConfig config = read(deepseek());
  EXPECT_EQ(config.schema, QuantConfig::Schema::fp8);
  EXPECT_EQ(print(config.groups.at(0).format),
            "weight e4m3[128x128]f32, input e4m3[1x128]f32 dynamic");
  EXPECT_EQ(scale_suffix(config), ".weight_scale_inv");
  EXPECT_FALSE(ignores(config, "lm_head"));

  Json json = deepseek();
  json["scale_fmt"] = "ue8m0";
  EXPECT_EQ(print(read(json).groups.at(0).format),
            "weight e4m3[128x128]f32, input e4m3[1x128]e8m0 dynamic");
  // The block size comes from the config, never from shapes: 64 x 32 is 64 x 32.
  json["weight_block_size"] = {64, 32};
  EXPECT_EQ(print(read(json).groups.at(0).format),
            "weight e4m3[64x32]f32, input e4m3[1x32]e8m0 dynamic");
}

TEST(QuantSchema, DeepseekFaults) {
  const auto with = [](const char* key, const Json& value) {
    Json json = deepseek();
    json[key] = value;
    return fault_of(json);
  };
  EXPECT_THAT(with("weight_block_size", {128}), HasSubstr("$.weight_block_size"));
  EXPECT_THAT(with("weight_block_size", {128, 0}), HasSubstr("1 to 1048576"));
  EXPECT_THAT(with("weight_block_size", {-128, 128}), HasSubstr("[-128,128]"));
  EXPECT_THAT(with("weight_block_size", {"128", "128"}), HasSubstr("every element is an integer"));
  EXPECT_THAT(with("activation_scheme", "static"), HasSubstr("dynamic"));
  EXPECT_THAT(with("activation_scheme", "none"), HasSubstr("dynamic, static"));
  EXPECT_THAT(with("scale_fmt", "f16"), HasSubstr("ue8m0"));
  EXPECT_THAT(with("fmt", "e3m4"), HasSubstr("e4m3, e5m2"));
  EXPECT_THAT(with("modules_to_not_convert", "lm_head"), HasSubstr("an array"));
  EXPECT_THAT(with("quant_method", "bitnet"),
              AllOf(HasSubstr("config.json, quantization_config, $.quant_method"),
                    HasSubstr("bitnet"), HasSubstr("compressed-tensors")));
  EXPECT_THAT(fault_of(Json::object()), HasSubstr("$.quant_method"));
}

TEST(QuantSchema, ShortPatternsOfModulesNotConverted) {
  Json json = deepseek();
  json["modules_to_not_convert"] = {"lm_head", "mlp.gate", "model.layers.1"};
  const QuantConfig config = read(json);
  EXPECT_TRUE(ignores(config, "lm_head"));
  EXPECT_TRUE(ignores(config, "model.layers.7.mlp.gate"));
  EXPECT_FALSE(ignores(config, "model.layers.7.mlp.gate_proj"));
  EXPECT_TRUE(ignores(config, "model.layers.1.self_attn.q_proj"));
  EXPECT_FALSE(ignores(config, "model.layers.10.self_attn.q_proj"));
  EXPECT_FALSE(ignores(config, "model.layers.0.self_attn.q_proj"));
}

TEST(QuantSchema, AutoFp8OneScaleATensor) {
  QuantConfig config = read_text(R"({"quant_method":"fp8","activation_scheme":"static",
                                "ignored_layers":["lm_head"],"kv_cache_scheme":"static"})");
  EXPECT_EQ(print(config.groups.at(0).format),
            "weight e4m3[*x*]f32, input e4m3[*x*]f32 calibrated");
  EXPECT_EQ(scale_suffix(config), ".weight_scale");
  EXPECT_TRUE(ignores(config, "lm_head"));
  EXPECT_THAT(config.notes, ElementsAre(HasSubstr("kv_cache_scheme")));
  config = read_text(R"({"quant_method":"fp8","activation_scheme":"dynamic"})");
  EXPECT_EQ(print(config.groups.at(0).format), "weight e4m3[*x*]f32, input e4m3[1x*]f32 dynamic");
}

// --- compressed-tensors
// ---------------------------------------------------------------------------

Json compressed() {
  return parse_json(R"({
    "quant_method": "compressed-tensors", "format": "float-quantized",
    "quantization_status": "compressed", "global_compression_ratio": 1.5, "kv_cache_scheme": null,
    "ignore": ["lm_head", "re:.*mlp.gate$"],
    "config_groups": {"group_0": {
      "targets": ["Linear"],
      "weights": {"num_bits": 8, "type": "float", "symmetric": true, "strategy": "channel",
                  "dynamic": false, "group_size": null, "block_structure": null, "actorder": null,
                  "observer": "minmax", "observer_kwargs": {}},
      "input_activations": {"num_bits": 8, "type": "float", "symmetric": true,
                            "strategy": "token", "dynamic": true, "group_size": null,
                            "observer": null},
      "output_activations": null}}})",
                    "q");
}

Json& weights_of(Json& json) {
  return json["config_groups"]["group_0"]["weights"];
}
Json& input_of(Json& json) {
  return json["config_groups"]["group_0"]["input_activations"];
}

TEST(QuantSchema, CompressedTensorsPresets) {
  Json json = compressed();
  EXPECT_EQ(print(read(json).groups.at(0).format),
            "weight e4m3[1x*]f32, input e4m3[1x*]f32 dynamic");
  EXPECT_EQ(read(json).schema, QuantConfig::Schema::compressed_tensors);
  EXPECT_EQ(scale_suffix(read(json)), ".weight_scale");

  // FP8: one static scale a tensor.
  weights_of(json)["strategy"] = "tensor";
  input_of(json)["strategy"] = "tensor";
  input_of(json)["dynamic"] = false;
  EXPECT_EQ(print(read(json).groups.at(0).format),
            "weight e4m3[*x*]f32, input e4m3[*x*]f32 calibrated");
  input_of(json)["dynamic"] = true;
  EXPECT_EQ(print(read(json).groups.at(0).format),
            "weight e4m3[*x*]f32, input e4m3[*x*]f32 dynamic");

  // FP8_BLOCK.
  weights_of(json)["strategy"] = "block";
  input_of(json)["strategy"] = "group";
  input_of(json)["group_size"] = 128;
  for (const Json& block : {Json{128, 128}, Json("128x128")}) {
    weights_of(json)["block_structure"] = block;
    EXPECT_EQ(print(read(json).groups.at(0).format),
              "weight e4m3[128x128]f32, input e4m3[1x128]f32 dynamic");
  }
  EXPECT_EQ(scale_suffix(read(json)), ".weight_scale");

  // Weights only.
  input_of(json) = nullptr;
  EXPECT_EQ(print(read(json).groups.at(0).format), "weight e4m3[128x128]f32, input 16-bit");
}

TEST(QuantSchema, CompressedTensorsFaults) {
  const auto in_weights = [](const char* key, const Json& value) {
    Json json = compressed();
    weights_of(json)[key] = value;
    return fault_of(json);
  };
  EXPECT_THAT(in_weights("num_bits", 4),
              AllOf(HasSubstr("$.config_groups.group_0.weights.num_bits"), HasSubstr("found:    4"),
                    HasSubstr("accepted: 8")));
  EXPECT_THAT(in_weights("type", "posit"), HasSubstr("float, int"));
  EXPECT_THAT(in_weights("symmetric", false), HasSubstr("zero points"));
  EXPECT_THAT(in_weights("strategy", "group"), HasSubstr("group_size"));
  EXPECT_THAT(in_weights("strategy", "attn_head"), HasSubstr("tensor, channel, group, block"));
  EXPECT_THAT(in_weights("strategy", "block"), HasSubstr("block_structure"));
  EXPECT_THAT(in_weights("dynamic", true), HasSubstr("stored, not dynamic"));
  EXPECT_THAT(in_weights("dynamic", "local"), HasSubstr("dynamic"));
  EXPECT_THAT(in_weights("rotation", 1),
              AllOf(HasSubstr("unknown field"), HasSubstr("weights.rotation")));
  EXPECT_THAT(in_weights("actorder", "group"), HasSubstr("reordered"));

  const auto in_input = [](const char* key, const Json& value) {
    Json json = compressed();
    input_of(json)[key] = value;
    return fault_of(json);
  };
  EXPECT_THAT(in_input("dynamic", false), HasSubstr("only one scale a tensor can be stored"));
  EXPECT_THAT(in_input("strategy", "channel"), HasSubstr("tensor, token, group"));

  const auto in_config = [](const char* key, const Json& value) {
    Json json = compressed();
    json[key] = value;
    return fault_of(json);
  };
  EXPECT_THAT(in_config("format", "marlin-24"), HasSubstr("float-quantized"));
  EXPECT_THAT(in_config("format", "pack-quantized"), HasSubstr("packed weights are integers"));
  EXPECT_THAT(in_config("sparsity_config", {{"format", "sparse-24-bitmask"}}), HasSubstr("sparse"));
  EXPECT_EQ(in_config("sparsity_config", {{"format", "dense"}}), "no error");
  EXPECT_THAT(in_config("transform_config", {{"config_groups", {{"u", 1}}}}), HasSubstr("rotated"));
  EXPECT_EQ(in_config("transform_config", Json::object()), "no error");
  EXPECT_EQ(in_config("a_field_of_the_future", 1), "no error");
  EXPECT_THAT(in_config("ignore", {"re:("}),
              AllOf(HasSubstr("$.ignore"), HasSubstr("'re:('"), HasSubstr("regular expression")));
  Json json = compressed();
  json["config_groups"]["group_0"]["format"] = "nvfp4-pack-quantized";
  EXPECT_THAT(fault_of(json), HasSubstr("$.config_groups.group_0.format"));
  json = compressed();
  json["kv_cache_scheme"] = input_of(json);
  EXPECT_THAT(read(json).notes, ElementsAre(HasSubstr("k_scale")));
}

TEST(QuantSchema, CompressedTensorsIgnoreList) {
  const QuantConfig config = read(compressed());
  EXPECT_TRUE(ignores(config, "lm_head"));
  EXPECT_FALSE(ignores(config, "model.lm_head"));  // exact
  EXPECT_TRUE(ignores(config, "model.layers.3.mlp.gate"));
  EXPECT_FALSE(ignores(config, "model.layers.3.mlp.gate_proj"));
  Json json = compressed();
  json["ignore"] = {"re:model.layers.1\\.", "re:^.*\\.(q|k)_proj$", "re:lm"};
  const QuantConfig regexes = read(json);
  EXPECT_TRUE(ignores(regexes, "model.layers.1.mlp.up_proj"));
  EXPECT_FALSE(ignores(regexes, "model.layers.11.mlp.up_proj"));
  EXPECT_TRUE(ignores(regexes, "a.b.k_proj"));
  EXPECT_FALSE(ignores(regexes, "a.b.v_proj"));
  EXPECT_TRUE(ignores(regexes, "lm_head"));         // the end may stay unmatched,
  EXPECT_FALSE(ignores(regexes, "model.lm_head"));  // the start may not
}

TEST(QuantSchema, UnmatchedIgnoresAreReported) {
  const QuantConfig config = read(compressed());
  EXPECT_THAT(unmatched_ignores(config, {"lm_head", "model.layers.0.mlp.gate"}), IsEmpty());
  EXPECT_THAT(unmatched_ignores(config, {"lm_head", "model.layers.0.mlp.gate_proj"}),
              ElementsAre("re:.*mlp.gate$"));
}

TEST(QuantSchema, RunawayRegexIsAnError) {
  Json json = compressed();
  json["ignore"] = {"re:(a+)+(a+)+(a+)+$"};
  const QuantConfig config = read(json);
  EXPECT_THAT(error_of([&] { ignores(config, std::string(200, 'a') + "!"); }),
              AllOf(HasSubstr("(a+)+"), HasSubstr("limit")));
}

TEST(NamePattern, GlobsOfSimpleRegexes) {
  EXPECT_EQ(regex_glob(".*mlp.gate$"), "*mlp?gate");
  EXPECT_EQ(regex_glob("^model\\.layers\\.0\\..*"), "model.layers.0.*");
  EXPECT_EQ(regex_glob("lm_head"), "lm_head*");
  EXPECT_FALSE(regex_glob(".*(q|k)_proj"));
  EXPECT_FALSE(regex_glob("a+"));
  EXPECT_FALSE(regex_glob("ab*"));
  EXPECT_FALSE(regex_glob("[0-9]"));
  EXPECT_FALSE(regex_glob("\\d"));
}

// --- rows and writing
// -----------------------------------------------------------------------------

TEST(QuantSchema, PolicyRowsPutTheCheckpointFirst) {
  Policy policy = default_policy(LinearFormat{});
  const QuantConfig config = read(compressed());
  // An input that is recorded to stay in 16 bits changes nothing of its weight, nor of what the
  // checkpoint ignores.
  const auto rows = policy_rows(config, {"*.q_proj", "lm_head"});
  policy.rows.insert(policy.rows.begin(), rows.begin(), rows.end());

  const PolicyRow& linear = resolve(policy, Role::mlp_down, "model.layers.0.mlp.down_proj");
  EXPECT_EQ(linear.format, config.groups.at(0).format);
  EXPECT_EQ(linear.origin, "quantization_config");
  const PolicyRow& query = resolve(policy, Role::attn_in, "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(query.format.weight, config.groups.at(0).format.weight);
  EXPECT_FALSE(query.format.input);
  EXPECT_EQ(query.origin, "octet.weight_only of config.json");
  // The latent projection never quantizes its input.
  const PolicyRow& latent =
      resolve(policy, Role::attn_latent, "model.layers.0.self_attn.kv_b_proj");
  EXPECT_EQ(latent.format.weight, config.groups.at(0).format.weight);
  EXPECT_FALSE(latent.format.input);
  for (const auto& [role, name] : {std::pair{Role::router, "model.layers.0.mlp.gate"},
                                   {Role::lm_head, "lm_head"},
                                   {Role::norm, "model.norm"},
                                   {Role::embedding, "model.embed_tokens"}}) {
    EXPECT_EQ(resolve(policy, role, name).format, LinearFormat{}) << name;
  }
  EXPECT_EQ(resolve(policy, Role::lm_head, "lm_head").origin, "quantization_config");
}

TEST(QuantSchema, WhatIsWrittenIsRead) {
  const std::vector<std::string> ignored = {"lm_head", "model.layers.1.mlp.gate"};
  LinearFormat block = scheme_named("fp8_block").format;
  const LinearFormat channel = scheme_named("fp8_channel").format;
  const QuantFormat tensor{Code::e4m3, grids::tensor, ScaleType::f32};
  LinearFormat block_e8m0 = block;
  block_e8m0.input->scale = ScaleType::e8m0;
  const LinearFormat block_only{block.weight, std::nullopt, InputScale::dynamic};
  LinearFormat odd_block = block;
  odd_block.weight->grid = {64, 32};
  odd_block.input->grid = {1, 32};
  LinearFormat mixed = channel;
  mixed.input = block.input;
  for (const LinearFormat& format :
       {block, block_e8m0, block_only, odd_block, channel, mixed,
        LinearFormat{tensor, tensor, InputScale::calibrated},
        LinearFormat{tensor, tensor, InputScale::dynamic},
        LinearFormat{channel.weight, tensor, InputScale::calibrated},
        scheme_named("fp8_group").format, scheme_named("fp8_tensor").format,
        scheme_named("fp8_tensor_static").format, scheme_named("fp8_w8a16").format,
        scheme_named("mxfp8").format, scheme_named("int8").format,
        LinearFormat{channel.weight, std::nullopt, InputScale::dynamic}}) {
    SCOPED_TRACE(print(format));
    const OrderedJson written = write_quant_config(format, ignored);
    const QuantConfig config = read_text(written.dump());
    EXPECT_EQ(print(config.groups.at(0).format), print(format));
    EXPECT_EQ(config.ignored, ignored);
    EXPECT_TRUE(ignores(config, "model.layers.1.mlp.gate"));
    EXPECT_FALSE(ignores(config, "model.layers.1.mlp.gate_proj"));
  }
}

TEST(QuantSchema, WrittenDeepseekConfig) {
  EXPECT_EQ(write_quant_config(scheme_named("fp8_block").format, {"lm_head"}).dump(),
            R"({"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic",)"
            R"("weight_block_size":[128,128],"modules_to_not_convert":["lm_head"]})");
}

TEST(QuantSchema, WrittenCompressedConfig) {
  EXPECT_EQ(
      write_quant_config(scheme_named("fp8_channel").format, {"lm_head"}).dump(),
      R"({"quant_method":"compressed-tensors","format":"float-quantized",)"
      R"("quantization_status":"compressed","config_groups":{"group_0":{"targets":["Linear"],)"
      R"("weights":{"num_bits":8,"type":"float","symmetric":true,"strategy":"channel",)"
      R"("dynamic":false},"input_activations":{"num_bits":8,"type":"float","symmetric":true,)"
      R"("strategy":"token","dynamic":true},"output_activations":null}},"ignore":["lm_head"],)"
      R"("kv_cache_scheme":null})");
}

TEST(QuantSchema, FormatsThatNoSchemaCanSay) {
  LinearFormat e5m2 = scheme_named("fp8_block").format;
  e5m2.weight->code = Code::e5m2;
  EXPECT_THAT(error_of([&] { write_quant_config(e5m2, {}); }), HasSubstr("e5m2[128x128]f32"));
  LinearFormat heads = scheme_named("fp8_channel").format;
  heads.weight->grid = {0, 128};
  EXPECT_THAT(error_of([&] { write_quant_config(heads, {}); }), HasSubstr("e4m3[*x128]f32"));
  LinearFormat e8m0 = scheme_named("fp8_channel").format;
  e8m0.input->scale = ScaleType::e8m0;
  EXPECT_THAT(error_of([&] { write_quant_config(e8m0, {}); }), HasSubstr("activations"));
  EXPECT_THROW(write_quant_config(LinearFormat{}, {}), Fault);
}

}  // namespace
}  // namespace octet::model
