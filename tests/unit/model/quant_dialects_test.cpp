// The dialects of `quantization_config`, field by field, and that a checkpoint in each of them
// binds to the very linears of the equivalent one in compressed-tensors.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/quant/ignore_list.h"
#include "unit/model/tiny_checkpoint.h"

namespace octet::model {
namespace {

using test::error_of;
using test::fault_of;
using test::HostBackend;
using test::kLlama;
using test::kQ;
using test::load;
using test::TempDir;
using test::Tiny;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Names = QuantConfig::Names;

QuantConfig read(const std::string& text) {
  return read_quant_config(parse_json(text, "q"), "config.json, quantization_config");
}
std::string fault_in(const std::string& text) {
  return error_of([&] { read(text); });
}
std::string format_of(const std::string& text) {
  return to_string(read(text).groups.at(0).format);
}

// --- ignore lists -------------------------------------------------------------------------------

TEST(IgnoreList, FourMeanings) {
  struct Case {
    Names names;
    const char *entry, *module;
    Match match;
  };
  const Case cases[] = {
      {Names::full, "model.layers.1.mlp.gate", "model.layers.1.mlp.gate", Match::sure},
      {Names::full, "mlp.gate", "model.layers.1.mlp.gate", Match::possible},
      {Names::full, "mlp.gate", "model.layers.1.mlp.gate_proj", Match::none},
      {Names::full, "model.layers.1.mlp.gate", "model.layers.11.mlp.gate", Match::none},

      {Names::parts, "mlp.gate", "model.layers.1.mlp.gate", Match::sure},
      {Names::parts, "mlp.gate", "model.layers.1.mlp.gate_proj", Match::possible},
      {Names::parts, "lm_head", "lm_head", Match::sure},
      {Names::parts, "model.layers.1", "model.layers.10.mlp.up_proj", Match::possible},
      {Names::parts, "model.layers.1", "model.layers.1.mlp.up_proj", Match::sure},
      {Names::parts, "visual", "model.layers.1.mlp.up_proj", Match::none},
      {Names::parts, "", "lm_head", Match::none},

      {Names::targets, "re:.*mlp.gate$", "model.layers.1.mlp.gate", Match::sure},
      {Names::targets, "re:.*mlp.gate$", "model.layers.1.mlp.gate_proj", Match::none},
      {Names::targets, "re:mlp", "model.layers.1.mlp.gate", Match::none},
      {Names::targets, "mlp.gate", "model.layers.1.mlp.gate", Match::none},
      {Names::targets, "Linear", "lm_head", Match::sure},
      {Names::targets, "a.qkv_proj", "a.q_proj", Match::possible},
      {Names::targets, "re:.*gate_up_proj$", "a.up_proj", Match::possible},
      {Names::targets, "re:.*gate_up_proj$", "a.down_proj", Match::none},

      {Names::wildcards, "lm_head", "lm_head", Match::sure},
      {Names::wildcards, "model.layers.3*", "model.layers.3", Match::sure},
      {Names::wildcards, "model.layers.3*", "model.layers.3.mlp.up_proj", Match::sure},
      {Names::wildcards, "model.layers.3*", "model.layers.30.mlp.up_proj", Match::possible},
      {Names::wildcards, "model.layers.3", "model.layers.3.mlp.up_proj", Match::sure},
      {Names::wildcards, "model.layers.3", "model.layers.30.mlp.up_proj", Match::possible},
      {Names::wildcards, "*.mlp.gate", "model.layers.3.mlp.gate", Match::sure},
      {Names::wildcards, "*.mlp.gate", "model.layers.3.mlp.gate_proj", Match::none},
      {Names::wildcards, "*mlp.gate*", "model.layers.3.mlp.gate_proj", Match::possible},
      {Names::wildcards, "model.layers.?.mlp.*", "model.layers.3.mlp.gate", Match::sure},
      {Names::wildcards, "model.layers.[0-4].*", "model.layers.3.mlp.gate", Match::sure},
      {Names::wildcards, "model.layers.[!0-4].*", "model.layers.3.mlp.gate", Match::none},
      {Names::wildcards, "router", "model.layers.3.mlp.router_x", Match::possible},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(match_entry(c.names, c.entry, c.module), c.match) << c.entry << " on " << c.module;
    // A glob that people read may say less than the entry, never more.
    for (const std::string& glob : globs_of(c.names, c.entry)) {
      Policy policy = default_policy(LinearFormat{});
      policy.rows.insert(policy.rows.begin(), PolicyRow{std::nullopt, glob, {}, "here", "test"});
      const bool selects = resolve(policy, Role::attn_in, c.module).reason == "here";
      EXPECT_TRUE(!selects || c.match == Match::sure) << glob << " on " << c.module;
    }
  }
}

// --- readers ------------------------------------------------------------------------------------

TEST(QuantDialects, AutoFp8NamesModulesInFull) {
  const QuantConfig config = read(R"({"quant_method":"fp8","activation_scheme":"static",
      "ignored_layers":["lm_head","model.layers.0.mlp.gate"]})");
  EXPECT_EQ(config.names, Names::full);
  EXPECT_TRUE(ignores(config, "model.layers.0.mlp.gate"));
  EXPECT_FALSE(ignores(config, "model.layers.1.mlp.gate"));
  EXPECT_FALSE(may_ignore(config, "model.layers.0.mlp.gate_proj"));
  EXPECT_EQ(read(R"({"quant_method":"fp8","modules_to_not_convert":["gate"]})").names,
            Names::parts);
}

TEST(QuantDialects, ModelOptAlgorithms) {
  const auto of = [](const std::string& algorithm) {
    return format_of(R"({"quant_method":"modelopt","quant_algo":")" + algorithm + "\"}");
  };
  EXPECT_EQ(of("FP8"), "weight e4m3[*x*]f32, input e4m3[*x*]f32 calibrated");
  EXPECT_EQ(of("FP8_PER_CHANNEL_PER_TOKEN"), "weight e4m3[1x*]f32, input e4m3[1x*]f32 dynamic");
  EXPECT_EQ(of("FP8_PB_WO"), "weight e4m3[128x128]f32, input 16-bit");
  EXPECT_EQ(of("fp8_pb_wo"), "weight e4m3[128x128]f32, input 16-bit");
  EXPECT_EQ(of("MXFP8"), "weight e4m3[1x32]e8m0, input e4m3[1x32]e8m0 dynamic");
  EXPECT_THAT(fault_in(R"({"quant_method":"modelopt","quant_algo":"NVFP4"})"),
              AllOf(HasSubstr("$.quant_algo"), HasSubstr("NVFP4"), HasSubstr("FP8_PB_WO")));
  EXPECT_THAT(fault_in(R"({"quant_method":"modelopt"})"), HasSubstr("quant_algo"));
}

TEST(QuantDialects, ModelOptInConfigJson) {
  for (const char* cache : {"\"FP8\"", R"({"num_bits":8,"type":"float","dynamic":false})"}) {
    const QuantConfig config = read(
        R"({"quant_method":"modelopt","quant_algo":"FP8","ignore":["lm_head"],"kv_cache_scheme":)" +
        std::string(cache) + "}");
    EXPECT_EQ(config.schema, QuantConfig::Schema::modelopt);
    EXPECT_EQ(scale_suffix(config), ".weight_scale");
    EXPECT_TRUE(ignores(config, "lm_head"));
    EXPECT_THAT(config.notes, ElementsAre(HasSubstr("k_scale")));
  }
  EXPECT_THAT(
      read(R"({"quant_method":"modelopt","quant_algo":"FP8","kv_cache_scheme":"NVFP4"})").notes,
      ElementsAre(HasSubstr("does not have")));
}

// hf_quant_config.json beside a config.json that says nothing; and not read where that says it.
TEST(QuantDialects, ModelOptSideFile) {
  const TempDir dir;
  dir.file("config.json", kLlama);
  dir.file("hf_quant_config.json", R"({"producer":{"name":"modelopt","version":"0.29"},
      "quantization":{"quant_algo":"FP8","kv_cache_quant_algo":"FP8",
                      "exclude_modules":["lm_head","model.layers.1*"]}})");
  const ModelConfig config = read_config(dir.path().string());
  ASSERT_TRUE(config.quant);
  EXPECT_EQ(to_string(config.quant->groups.at(0).format),
            "weight e4m3[*x*]f32, input e4m3[*x*]f32 calibrated");
  EXPECT_TRUE(ignores(*config.quant, "model.layers.1.mlp.up_proj"));
  EXPECT_FALSE(ignores(*config.quant, "model.layers.10.mlp.up_proj"));

  Json json = Json::parse(kLlama);
  json["quantization_config"] = {{"quant_method", "fp8"}};
  dir.file("config.json", json.dump());
  EXPECT_EQ(read_config(dir.path().string()).quant->schema, QuantConfig::Schema::fp8);

  dir.file("config.json", kLlama);
  dir.file("hf_quant_config.json", R"({"quantization":{"quant_algo":5}})");
  EXPECT_THAT(error_of([&] { read_config(dir.path().string()); }),
              AllOf(HasSubstr("hf_quant_config.json"), HasSubstr("$.quantization.quant_algo")));
}

TEST(QuantDialects, AwqAndGptq) {
  QuantConfig config = read(R"({"quant_method":"awq","bits":4,"group_size":128,"zero_point":true,
      "version":"gemm","modules_to_not_convert":["lm_head"]})");
  EXPECT_EQ(to_string(config.groups.at(0).format), "weight i8[1x128]f32, input 16-bit");
  EXPECT_TRUE(ignores(config, "lm_head"));
  EXPECT_EQ(config.groups.at(0).packing->layout, Packing::Layout::awq);
  EXPECT_EQ(format_of(R"({"quant_method":"awq","w_bit":4,"q_group_size":-1})"),
            "weight i8[1x*]f32, input 16-bit");

  config = read(R"({"quant_method":"gptq","bits":4,"group_size":64,"desc_act":true,"sym":false})");
  EXPECT_EQ(to_string(config.groups.at(0).format), "weight i8[1x64]f32, input 16-bit");
  EXPECT_EQ(config.groups.at(0).packing->zero_offset, 1);
  config =
      read(R"({"quant_method":"gptq","bits":4,"group_size":64,"checkpoint_format":"gptq_v2"})");
  EXPECT_EQ(config.groups.at(0).packing->zero_offset, 0);

  EXPECT_THAT(fault_in(R"({"quant_method":"gptq","bits":3,"group_size":128})"),
              AllOf(HasSubstr("$.bits"), HasSubstr("accepted: 4")));
  EXPECT_THAT(fault_in(R"({"quant_method":"gptq","bits":4,"group_size":0})"),
              HasSubstr("$.group_size"));
  EXPECT_THAT(fault_in(R"({"quant_method":"gptq","bits":4})"), HasSubstr("$.group_size"));
  EXPECT_THAT(
      fault_in(R"({"quant_method":"gptq","bits":4,"group_size":128,"checkpoint_format":"marlin"})"),
      HasSubstr("gptq_v2"));
  EXPECT_THAT(
      fault_in(R"({"quant_method":"gptq","bits":4,"group_size":128,"dynamic":{"-:.*":{}}})"),
      HasSubstr("$.dynamic"));
  EXPECT_THAT(fault_in(R"({"quant_method":"awq","bits":4,"group_size":128,"version":"gemv"})"),
              AllOf(HasSubstr("$.version"), HasSubstr("gemm")));
  EXPECT_THAT(fault_in(R"({"quant_method":"awq","bits":4,"group_size":128,"zero_point":false})"),
              HasSubstr("$.zero_point"));
}

std::string compressed(const std::string& format, const std::string& weights,
                       const std::string& input) {
  return R"({"quant_method":"compressed-tensors","format":")" + format +
         R"(","config_groups":{"group_0":{"targets":["Linear"],"weights":)" + weights +
         R"(,"input_activations":)" + input + R"(}},"ignore":["lm_head"]})";
}

TEST(QuantDialects, CompressedTensorsBesideFloats) {
  const std::string token =
      R"({"num_bits":8,"type":"int","symmetric":true,"strategy":"token","dynamic":true})";
  EXPECT_EQ(format_of(compressed(
                "int-quantized",
                R"({"num_bits":8,"type":"int","symmetric":true,"strategy":"channel"})", token)),
            "weight i8[1x*]f32, input i8[1x*]f32 dynamic");
  const std::string mx = R"({"num_bits":8,"type":"float","strategy":"group","group_size":32,
                             "scale_dtype":"torch.uint8"})";
  const std::string mx_input = R"({"num_bits":8,"type":"float","strategy":"group","group_size":32,
                                   "scale_dtype":"torch.uint8","dynamic":true})";
  EXPECT_EQ(format_of(compressed("mxfp8-quantized", mx, mx_input)),
            "weight e4m3[1x32]e8m0, input e4m3[1x32]e8m0 dynamic");
  const std::string four = R"({"num_bits":4,"type":"int","strategy":"group","group_size":128,)";
  QuantConfig config = read(compressed("pack-quantized", four + R"("symmetric":false})", "null"));
  EXPECT_EQ(to_string(config.groups.at(0).format), "weight i8[1x128]f32, input 16-bit");
  EXPECT_FALSE(config.groups.at(0).packing->symmetric);
  // The group's own format stands above the config's.
  std::string own = compressed("mixed-precision", four + R"("symmetric":true})", "null");
  own.replace(own.find("\"targets\""), 0, R"("format":"pack-quantized",)");
  EXPECT_TRUE(read(own).groups.at(0).packing->symmetric);

  EXPECT_THAT(fault_in(compressed("int-quantized", four + R"("symmetric":true})", "null")),
              HasSubstr("must be packed"));
  EXPECT_THAT(fault_in(compressed("int-quantized",
                                  R"({"num_bits":8,"type":"int","symmetric":false})", token)),
              AllOf(HasSubstr("zero points"), HasSubstr("weights.symmetric")));
  EXPECT_THAT(fault_in(compressed("pack-quantized",
                                  R"({"num_bits":4,"type":"int","strategy":"tensor"})", "null")),
              HasSubstr("channel, group"));
}

// --- one checkpoint, told in each dialect
// ---------------------------------------------------------

using Renames = std::vector<std::pair<std::string, std::string>>;

// The checkpoint with other names (suffix -> suffix; "" takes the tensor out) and another config.
Tiny retold(Tiny tiny, const std::string& quant, const Renames& renames) {
  tiny.config["quantization_config"] = Json::parse(quant);
  for (const auto& [from, to] : renames) {
    std::map<std::string, Tensor> tensors;
    for (const auto& [name, tensor] : tiny.tensors) {
      if (!name.ends_with(from)) {
        tensors[name] = tensor;
      } else if (!to.empty()) {
        tensors[name.substr(0, name.size() - from.size()) + to] = tensor;
      }
    }
    tiny.tensors = std::move(tensors);
  }
  return tiny;
}

void expect_same_linears(const Tiny& a, const Tiny& b) {
  const TempDir here, there;
  a.write(here);
  b.write(there);
  HostBackend backend;
  const auto one = load(here, backend), other = load(there, backend);
  const auto same = [](const Tensor& x, const Tensor& y) {
    return x.type == y.type && x.shape == y.shape &&
           (!x || std::memcmp(x.data, y.data, static_cast<size_t>(x.bytes())) == 0);
  };
  const auto ours = one->linears(), theirs = other->linears();
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    const ops::Linear &x = *ours[i].linear, &y = *theirs[i].linear;
    SCOPED_TRACE(x.name);
    EXPECT_TRUE(same(x.plain, y.plain) && same(x.quant.codes, y.quant.codes) &&
                same(x.quant.scales, y.quant.scales) && same(x.input_scale, y.input_scale));
    EXPECT_EQ(x.quant.format, y.quant.format);
    EXPECT_EQ(x.input, y.input);
    EXPECT_EQ(x.when, y.when);
  }
}

TEST(QuantDialects, StaticTensorScalesInEachDialect) {
  const Tiny ours(kLlama, "fp8_tensor_static");
  ASSERT_TRUE(ours.tensors.contains(std::string(kQ) + ".input_scale"));
  expect_same_linears(ours, retold(ours,
                                   R"({"quant_method":"fp8","activation_scheme":"static",
                                       "ignored_layers":["lm_head"]})",
                                   {}));
  expect_same_linears(ours, retold(ours,
                                   R"({"quant_method":"modelopt","quant_algo":"FP8",
                                       "ignore":["lm_head"]})",
                                   {}));
  // As HF names them where there are no blocks.
  expect_same_linears(ours, retold(ours,
                                   R"({"quant_method":"fp8","activation_scheme":"static",
                                       "modules_to_not_convert":["lm_head"]})",
                                   {{".weight_scale", ".weight_scale_inv"},
                                    {".input_scale", ".activation_scale"}}));
}

TEST(QuantDialects, ChannelScalesInEachDialect) {
  const Tiny ours(kLlama, "fp8_channel");
  expect_same_linears(ours, retold(ours,
                                   R"({"quant_method":"modelopt",
                                       "quant_algo":"FP8_PER_CHANNEL_PER_TOKEN",
                                       "ignore":["lm_head"]})",
                                   {}));
}

TEST(QuantDialects, BlockScalesInEachDialect) {
  const Tiny deepseek(kLlama, "fp8_block");
  const Renames renames = {{".weight_scale_inv", ".weight_scale"}};
  const std::string block = R"({"num_bits":8,"type":"float","strategy":"block",)";
  const std::string group =
      R"({"num_bits":8,"type":"float","strategy":"group","group_size":128,"dynamic":true})";
  const Tiny ours = retold(
      deepseek, compressed("float-quantized", block + R"("block_structure":[128,128]})", group),
      renames);
  expect_same_linears(deepseek, ours);
  expect_same_linears(
      ours, retold(deepseek,
                   compressed("float-quantized", block + R"("block_structure":"128x128"})", group),
                   renames));
  // ModelOpt's blocks: weights alone, scales of rank 4.
  const Tiny weights_only = retold(
      deepseek, compressed("float-quantized", block + R"("block_structure":[128,128]})", "null"),
      renames);
  Tiny modelopt = retold(deepseek,
                         R"({"quant_method":"modelopt","quant_algo":"FP8_PB_WO",
                             "ignore":["lm_head"]})",
                         renames);
  for (auto& [name, tensor] : modelopt.tensors) {
    if (!name.ends_with(".weight_scale")) continue;
    tensor = Tensor(tensor.data, tensor.type, {tensor.rows(), 1, tensor.cols(), 1});
  }
  expect_same_linears(weights_only, modelopt);
}

// A module that only the loosest reading of the list names: what it is stored as decides.
TEST(QuantDialects, TheStoredTypeDecidesWhatAnEntryMayMean) {
  Tiny tiny(kLlama, "fp8_block");
  tiny.config["quantization_config"]["modules_to_not_convert"] = {"lm_head", "mlp.gate"};
  EXPECT_EQ(fault_of(tiny), "no error");  // gate_proj is FP8, and so it stays
  for (const int layer : {0, 1}) {
    const std::string gate = fmt::format("model.layers.{}.mlp.gate_proj", layer);
    static const std::vector<uint16_t> plain(96 * 160);
    tiny.tensors[gate + ".weight"] =
        Tensor(const_cast<uint16_t*>(plain.data()), DType::bf16, {96, 160});
    tiny.tensors.erase(gate + ".weight_scale_inv");
  }
  const TempDir dir;
  tiny.write(dir);
  HostBackend backend;
  EXPECT_THAT(load(dir, backend)->notices(), Not(Contains(HasSubstr("stored in 16 bits"))));
}

// An ignore list that names nothing of the model is told, with its text, in every dialect.
TEST(QuantDialects, EntriesThatMatchNothingAreTold) {
  const Tiny ours(kLlama, "fp8_tensor_static");
  for (const char* quant : {R"({"quant_method":"fp8","activation_scheme":"static",
                                "ignored_layers":["lm_head","no_such"]})",
                            R"({"quant_method":"fp8","activation_scheme":"static",
                                "modules_to_not_convert":["lm_head","no_such"]})",
                            R"({"quant_method":"modelopt","quant_algo":"FP8",
                                "ignore":["lm_head","no_such*"]})"}) {
    const TempDir dir;
    retold(ours, quant, {}).write(dir);
    HostBackend backend;
    EXPECT_THAT(load(dir, backend)->notices(), Contains(HasSubstr("'no_such")));
  }
}

TEST(QuantDialects, InputScalesMustBePositiveNumbers) {
  for (const float bad : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    Tiny tiny(kLlama, "fp8_tensor_static");
    tiny.tensors.at(std::string(kQ) + ".input_scale").as<float>()[0] = bad;
    EXPECT_THAT(fault_of(tiny), AllOf(HasSubstr("q_proj.input_scale'"), HasSubstr("positive")));
  }
  Tiny tiny(kLlama, "fp8_tensor_static");
  tiny.tensors.erase(std::string(kQ) + ".input_scale");
  EXPECT_THAT(fault_of(tiny), HasSubstr("q_proj.input_scale'"));
}

// Powers of two as writers store them: F8_E8M0, and U8 in compressed-tensors.
TEST(QuantDialects, ScalesAsExponents) {
  const Tiny floats(kLlama, "mxfp8");
  for (const DType type : {DType::u8, DType::e8m0}) {
    Tiny tiny = floats;
    std::vector<uint8_t> exponents(128 * 5, 125);
    exponents[1] = 130;
    tiny.tensors.at(std::string(kQ) + ".weight_scale") = Tensor(exponents.data(), type, {128, 5});
    const TempDir dir;
    tiny.write(dir);
    HostBackend backend;
    const auto model = load(dir, backend);
    const Tensor& scales = model->linears()[0].linear->quant.scales;
    EXPECT_EQ(scales.as<float>()[0], 0.25f);
    EXPECT_EQ(scales.as<float>()[1], 8.0f);
    exponents[2] = 0xFF;
    EXPECT_THAT(fault_of(tiny), HasSubstr("not a positive number"));
  }
  Tiny channel(kLlama, "fp8_channel");
  std::vector<uint8_t> bytes(128, 1);
  channel.tensors.at(std::string(kQ) + ".weight_scale") = Tensor(bytes.data(), DType::u8, {128, 1});
  EXPECT_THAT(fault_of(channel),
              AllOf(HasSubstr("type that Octet does not read"), HasSubstr("U8")));
}

// A device that multiplies no integers says so by name, at load.
TEST(QuantDialects, IntegersNeedADeviceThatMultipliesThem) {
  class Float8Device : public HostBackend {
   public:
    Float8Device() {
      info_ = HostBackend::info();
      info_.int8 = false;
      info_.name = "float8";
    }
    const ops::BackendInfo& info() const override { return info_; }

   private:
    ops::BackendInfo info_;
  };
  const Tiny tiny(kLlama, "int8");
  const TempDir dir;
  tiny.write(dir);
  Float8Device backend;
  EXPECT_THAT(error_of([&] { load(dir, backend); }),
              AllOf(HasSubstr("integer codes"), HasSubstr("i8[1x*]f32"), HasSubstr("float8"),
                    HasSubstr("--device cpu")));
}

}  // namespace
}  // namespace octet::model
