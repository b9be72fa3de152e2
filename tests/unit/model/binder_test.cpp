// What the loader says of checkpoints that are wrong. Each case takes a good tiny checkpoint,
// damages one thing, and wants the tensor, its file, what was expected and what was found.
#include "model/binder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/quant_schema.h"
#include "numerics/half.h"
#include "unit/model/tiny_checkpoint.h"

namespace octet::model {
namespace {

using test::error_of;
using test::fault_of;
using test::HostBackend;
using test::kDeepseek;
using test::kLlama;
using test::kQ;
using test::load;
using test::TempDir;
using test::Tiny;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class EveryScheme : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Binder, EveryScheme,
                         testing::Values("fp8_block", "fp8_channel", "fp8_group", "fp8_w8a16",
                                         "mxfp8", "int8"));

TEST_P(EveryScheme, LoadsWhatTheWriterWrote) {
  for (const char* text : {kLlama, kDeepseek}) {
    const Tiny tiny(text, GetParam());
    const TempDir dir;
    tiny.write(dir);
    HostBackend backend;
    const auto model = load(dir, backend);
    int quantized = 0;
    for (const LinearUse& use : model->linears()) {
      const ops::Linear& linear = *use.linear;
      SCOPED_TRACE(linear.name);
      const Tensor& stored = tiny.tensors.at(linear.name + ".weight");
      if (!is_quantizable(linear.role)) {
        EXPECT_TRUE(linear.plain);
        continue;
      }
      ++quantized;
      ASSERT_TRUE(linear.quant);
      EXPECT_EQ(linear.quant.format, *scheme_named(GetParam()).format.weight);
      EXPECT_EQ(
          std::memcmp(linear.quant.codes.data, stored.data, static_cast<size_t>(stored.bytes())),
          0);
      const auto suffix = std::string(scale_suffix(*model->config().quant));
      const Tensor& scales = tiny.tensors.at(linear.name + ".weight" + suffix.substr(7));
      EXPECT_EQ(
          std::memcmp(linear.quant.scales.data, scales.data, static_cast<size_t>(scales.bytes())),
          0);
      EXPECT_EQ(linear.input.has_value(), linear.role != Role::attn_latent &&
                                              scheme_named(GetParam()).format.input.has_value());
    }
    EXPECT_GT(quantized, 10);
  }
}

TEST_P(EveryScheme, ScaleOfTheWrongShape) {
  Tiny tiny(kLlama, GetParam());
  const std::string name =
      kQ + std::string(scale_suffix(*parse_config(tiny.config.dump(), "t").quant));
  tiny.retype(name, DType::f32, {1, 1});
  const ScaleShape cells = scale_shape(scheme_named(GetParam()).format.weight->grid, 128, 160);
  EXPECT_THAT(fault_of(tiny), AllOf(HasSubstr("wrong shape"), HasSubstr("'" + name + "'"),
                                    HasSubstr("model.safetensors"), HasSubstr("found:    [1, 1]"),
                                    HasSubstr("of a [128, 160] weight"),
                                    HasSubstr(to_string(Shape{cells.rows, cells.cols}) + ": ")));
}

TEST_P(EveryScheme, WeightWithoutScale) {
  Tiny tiny(kLlama, GetParam());
  const std::string name =
      kQ + std::string(scale_suffix(*parse_config(tiny.config.dump(), "t").quant));
  tiny.tensors.erase(name);
  EXPECT_THAT(fault_of(tiny),
              AllOf(HasSubstr("no scale"), HasSubstr("q_proj.weight'"),
                    HasSubstr("model.safetensors"), HasSubstr("no tensor '" + name + "'")));
}

TEST_P(EveryScheme, IgnoredModuleInFp8) {
  Tiny tiny(kLlama, GetParam());
  const char* key = std::string(GetParam()) == "fp8_block" ? "modules_to_not_convert" : "ignore";
  tiny.config["quantization_config"][key].push_back(kQ);
  const bool integers = std::string(GetParam()) == "int8";
  EXPECT_THAT(fault_of(tiny), AllOf(HasSubstr(integers ? "on the ignore list is stored in INT8"
                                                       : "on the ignore list is stored in FP8"),
                                    HasSubstr("q_proj.weight'"), HasSubstr("model.safetensors"),
                                    HasSubstr(integers ? "found:    I8" : "found:    F8_E4M3"),
                                    HasSubstr("accepted: BF16, F16 or F32")));
}

TEST(Binder, SixteenBitModuleThatIsNotIgnored) {
  // compressed-tensors names every exception...
  Tiny tiny(kLlama, "fp8_channel");
  std::vector<uint16_t> plain(128 * 160);
  tiny.tensors[kQ + std::string(".weight")] = Tensor(plain.data(), DType::bf16, {128, 160});
  EXPECT_THAT(fault_of(tiny),
              AllOf(HasSubstr("not on the ignore list"), HasSubstr("q_proj.weight'"),
                    HasSubstr("found:    BF16"), HasSubstr("F8_E4M3"), HasSubstr("ignore list")));
  tiny.config["quantization_config"]["ignore"].push_back(kQ);
  EXPECT_THAT(fault_of(tiny), HasSubstr("1 unused: model.layers.0.self_attn.q_proj.weight_scale"));
  tiny.tensors.erase(kQ + std::string(".weight_scale"));
  EXPECT_EQ(fault_of(tiny), "no error");
  // ... DeepSeek's schema leaves it to the stored types.
  Tiny deepseek(kLlama, "fp8_block");
  deepseek.tensors[kQ + std::string(".weight")] = Tensor(plain.data(), DType::bf16, {128, 160});
  EXPECT_THAT(fault_of(deepseek), HasSubstr("1 unused: model.layers.0.self_attn.q_proj.weight_sc"));
  deepseek.tensors.erase(kQ + std::string(".weight_scale_inv"));
  EXPECT_EQ(fault_of(deepseek), "no error");
}

// A quantization_config over a checkpoint in 16 bits: an export gone wrong, which must not run as
// if nothing had been asked for.
TEST(Binder, QuantizationConfigOverWeightsThatAreNot) {
  for (const char* text : {kLlama, kDeepseek}) {
    Tiny tiny(text);
    tiny.config["quantization_config"] = Tiny(text, "fp8_block").config["quantization_config"];
    EXPECT_THAT(fault_of(tiny),
                AllOf(HasSubstr("no weight of it is"), HasSubstr("layers.0.self_attn.q"),
                      HasSubstr("model.safetensors"), HasSubstr("found:    BF16"),
                      HasSubstr("octet quantize")));
  }
  // Some are: a notice with the number.
  Tiny tiny(kLlama, "fp8_block");
  std::vector<uint16_t> plain(128 * 160);
  tiny.tensors[kQ + std::string(".weight")] = Tensor(plain.data(), DType::bf16, {128, 160});
  tiny.tensors.erase(kQ + std::string(".weight_scale_inv"));
  const TempDir dir;
  tiny.write(dir);
  HostBackend backend;
  EXPECT_THAT(load(dir, backend)->notices(),
              Contains(AllOf(HasSubstr("1 of 14 linears"), HasSubstr(kQ))));
}

TEST(Binder, AWeightHasOneScaleTensor) {
  Tiny tiny(kLlama, "fp8_block");
  const std::string scale = kQ + std::string(".weight_scale");
  tiny.tensors[scale] = tiny.tensors.at(scale + "_inv");
  EXPECT_THAT(fault_of(tiny), AllOf(HasSubstr("config.json leaves out"), HasSubstr(scale + "'")));
}

TEST(Binder, TheStoredFp8TypeIsTheOneOfTheConfig) {
  Tiny tiny(kLlama, "fp8_block");
  tiny.config["quantization_config"]["fmt"] = "e5m2";
  EXPECT_THAT(fault_of(tiny),
              AllOf(HasSubstr("another type"), HasSubstr("q_proj.weight' in"),
                    HasSubstr("found:    F8_E4M3"), HasSubstr("accepted: F8_E5M2")));
}

TEST(Binder, Fp8WithoutQuantizationConfig) {
  Tiny tiny(kLlama, "fp8_block");
  tiny.config.erase("quantization_config");
  EXPECT_THAT(fault_of(tiny), AllOf(HasSubstr("without a quantization_config"),
                                    HasSubstr("q_proj.weight'"), HasSubstr("F8_E4M3")));
}

TEST(Binder, MissingAndMisshapenTensors) {
  Tiny tiny(kLlama);
  tiny.tensors.erase("model.layers.1.mlp.down_proj.weight");
  EXPECT_THAT(fault_of(tiny),
              AllOf(HasSubstr("lacks a tensor"), HasSubstr("'model.layers.1.mlp.down_proj.weight'"),
                    HasSubstr("LlamaForCausalLM"), HasSubstr("[160, 96]")));
  tiny = Tiny(kLlama);
  tiny.retype("model.norm.weight", DType::bf16, {159});
  EXPECT_THAT(fault_of(tiny), AllOf(HasSubstr("'model.norm.weight' in"), HasSubstr("[159]"),
                                    HasSubstr("accepted: [160]")));
  tiny = Tiny(kLlama);
  tiny.retype("lm_head.weight", DType::i16, {50, 160});
  EXPECT_THAT(fault_of(tiny),
              AllOf(HasSubstr("'lm_head.weight' in"), HasSubstr("I16"), HasSubstr("BF16")));
  tiny = Tiny(kLlama);
  tiny.retype(kQ + std::string(".weight"), DType::i16, {128, 160});
  EXPECT_THAT(fault_of(tiny), AllOf(HasSubstr("q_proj.weight'"), HasSubstr("I16")));
}

TEST(Binder, ScalesMustBePositiveNumbers) {
  for (const float bad : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    Tiny tiny(kLlama, "fp8_block");
    tiny.tensors.at(kQ + std::string(".weight_scale_inv")).as<float>()[1] = bad;
    EXPECT_THAT(fault_of(tiny),
                AllOf(HasSubstr("not a positive number"), HasSubstr("q_proj.weight_scale_inv'"),
                      HasSubstr("element 1")));
  }
}

TEST(Binder, ScalesAtTheEndsOfFp32AreTold) {
  for (const float extreme : {1e-39f, 1e36f}) {
    Tiny tiny(kLlama, "fp8_block");
    tiny.tensors.at(kQ + std::string(".weight_scale_inv")).as<float>()[1] = extreme;
    const TempDir dir;
    tiny.write(dir);
    HostBackend backend;
    EXPECT_THAT(
        load(dir, backend)->notices(),
        Contains(AllOf(HasSubstr("1 scales of weights are outside 1.18e-38 .. 7.6e+35"),
                       HasSubstr("in 'model.layers.0.self_attn.q_proj.weight_scale_inv'"))));
  }
}

TEST(Binder, ScalesOfOtherTypesAndShapesThatMeanTheSame) {
  // llm-compressor writes BF16 scales; some write [out] for [out, 1].
  Tiny tiny(kLlama, "fp8_channel");
  std::vector<uint16_t> ones(128, 0x3F80);
  tiny.tensors.at(kQ + std::string(".weight_scale")) = Tensor(ones.data(), DType::bf16, {128});
  const TempDir dir;
  tiny.write(dir);
  HostBackend backend;
  const auto model = load(dir, backend);
  const ops::Linear& q = *model->linears()[0].linear;
  ASSERT_EQ(q.name, kQ);
  EXPECT_EQ(q.quant.scales.type, DType::f32);
  EXPECT_EQ(q.quant.scales.shape, (Shape{128, 1}));
  EXPECT_EQ(q.quant.scales.as<float>()[127], 1.0f);
}

TEST(Binder, RouterInFp8IsRefused) {
  Tiny tiny(kDeepseek, "fp8_channel");
  const std::string gate = "model.layers.1.mlp.gate.weight";
  tiny.retype(gate, DType::e4m3, {4, 64});
  EXPECT_THAT(fault_of(tiny), AllOf(HasSubstr("ignore list"), HasSubstr("'" + gate + "'")));
}

// A head in 8 bits is not left unread: its values in 16 bits, and a notice.
TEST(Binder, AHeadInCodesIsExpanded) {
  for (const char* scheme : {"fp8_block", "fp8_channel", "int8"}) {
    SCOPED_TRACE(scheme);
    Tiny tiny(kLlama, scheme);
    const bool block = std::string(scheme) == "fp8_block";
    tiny.config["quantization_config"][block ? "modules_to_not_convert" : "ignore"] = Json::array();
    const LinearFormat format = scheme_named(scheme).format;
    tiny.retype("lm_head.weight", dtype_of(format.weight->code), {50, 160});
    const ScaleShape cells = scale_shape(format.weight->grid, 50, 160);
    std::vector<float> scales(static_cast<size_t>(cells.count()), 0.25f);
    tiny.tensors[block ? "lm_head.weight_scale_inv" : "lm_head.weight_scale"] =
        Tensor(scales.data(), DType::f32, {cells.rows, cells.cols});
    auto* codes = tiny.tensors.at("lm_head.weight").as<uint8_t>();
    std::fill_n(codes, 50 * 160, uint8_t{1});
    codes[7] = 0x38;
    const TempDir dir;
    tiny.write(dir);
    HostBackend backend;
    const auto model = load(dir, backend);
    const ops::Linear& head = *model->linears().back().linear;
    ASSERT_EQ(head.name, "lm_head");
    ASSERT_EQ(head.plain.type, DType::bf16);
    EXPECT_EQ(to_float(head.plain.as<bf16>()[7]), 0.25f * code_decode(format.weight->code, 0x38));
    EXPECT_THAT(model->notices(), Contains(HasSubstr("the head is stored as")));
  }
}

TEST(Binder, OnlineQuantizationOfSixteenBitWeights) {
  const Tiny tiny(kDeepseek);
  const TempDir dir;
  tiny.write(dir);
  HostBackend backend;
  LoadOptions options;
  options.online = scheme_named("fp8_block").format;
  const auto model = load(dir, backend, options);
  for (const LinearUse& use : model->linears()) {
    EXPECT_EQ(static_cast<bool>(use.linear->quant), is_quantizable(use.linear->role))
        << use.linear->name;
  }
}

// Config.json of another checkpoint: what it leaves out is not silently ignored.
TEST(Binder, TensorsThatTheConfigLeavesOutAreRefused) {
  Json biased = Json::parse(kLlama);
  biased["attention_bias"] = true;
  Tiny tiny(biased.dump().c_str());
  tiny.config["attention_bias"] = false;
  EXPECT_THAT(fault_of(tiny), AllOf(HasSubstr("tensor 'model.layers.0.self_attn.k_proj.bias' in"),
                                    HasSubstr("8 unused: model.layers.0.self_attn.k_proj.bias, "),
                                    HasSubstr("config.json belongs to this checkpoint")));

  Tiny shared(kDeepseek);
  shared.config["n_shared_experts"] = 0;
  EXPECT_THAT(fault_of(shared),
              HasSubstr("3 unused: model.layers.1.mlp.shared_experts.down_proj.weight"));
}

TEST(Binder, EndTokensBeyondTheVocabularyAreTold) {
  Tiny tiny(kLlama);
  tiny.config["eos_token_id"] = {49, 50};
  const TempDir dir;
  tiny.write(dir);
  dir.file("generation_config.json", R"({"eos_token_id": [49, 12345]})");
  HostBackend backend;
  EXPECT_THAT(load(dir, backend)->notices(),
              ElementsAre(HasSubstr("the end token 50 lies beyond the vocabulary of 50 tokens"),
                          HasSubstr("the end token 12345 lies beyond")));
}

// An entry of megabytes is not printed whole.
TEST(Binder, NoticesHaveALargestLength) {
  Tiny tiny(kLlama, "fp8_channel");
  tiny.config["quantization_config"]["ignore"].push_back(std::string(size_t{5} << 20, 'x'));
  const TempDir dir;
  tiny.write(dir);
  HostBackend backend;
  const auto model = load(dir, backend);
  ASSERT_THAT(model->notices(), ElementsAre(HasSubstr("ignores 'xxx")));
  EXPECT_LE(model->notices()[0].size(), 1000u);
}

TEST(Binder, OtherUnusedTensorsAreTold) {
  Tiny tiny(kLlama);
  tiny.config["num_hidden_layers"] = 1;
  tiny.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] =
      tiny.tensors.at("model.norm.weight");
  const TempDir dir;
  tiny.write(dir);
  HostBackend backend;
  EXPECT_THAT(load(dir, backend)->notices(),
              ElementsAre(AllOf(HasSubstr("num_hidden_layers is 1, and the checkpoint goes on to "
                                          "layer 1 (9 tensors, 'model.layers.1.input_layernorm"),
                                HasSubstr("not run"))));
  tiny.tensors["vision.patches.weight"] = tiny.tensors.at("model.norm.weight");
  const TempDir more;
  tiny.write(more);
  EXPECT_THAT(load(more, backend)->notices(),
              ElementsAre(HasSubstr("not run"),
                          HasSubstr("1 of the checkpoint's tensors are not used (vision.patches")));

  Tiny mtp(kDeepseek);
  mtp.config["num_hidden_layers"] = 1;
  mtp.config["num_nextn_predict_layers"] = 1;
  const TempDir other;
  mtp.write(other);
  EXPECT_THAT(load(other, backend)->notices(), Not(Contains(HasSubstr("not run"))));
  // A config that does not count it: its tensors say what it is.
  mtp.config.erase("num_nextn_predict_layers");
  const TempDir uncounted;
  mtp.write(uncounted);
  EXPECT_THAT(load(uncounted, backend)->notices(), Contains(HasSubstr("not run")));
  mtp.tensors["model.layers.1.eh_proj.weight"] = mtp.tensors.at("model.norm.weight");
  mtp.write(uncounted);
  EXPECT_THAT(load(uncounted, backend)->notices(), Not(Contains(HasSubstr("not run"))));
}

TEST(Binder, GoldenCasesBind) {
  for (const auto& entry : std::filesystem::directory_iterator(test::source("tests/golden"))) {
    if (!entry.is_directory()) continue;
    SCOPED_TRACE(entry.path().string());
    HostBackend backend;
    const std::string path = entry.path().string();
    EXPECT_NO_THROW(load_model(read_config(path), std::make_shared<Checkpoint>(path), backend, {}));
  }
}

TEST(WeightMemory, SmallTensorsShareBlocksAndLargeOnesDoNot) {
  HostBackend backend;
  WeightMemory memory(nullptr);
  std::vector<Tensor> tensors;
  int64_t bytes = 0;
  for (int i = 0; i < 5000; ++i) {
    tensors.push_back(memory.take(backend, DType::f32, {1 + i * 7 % 500}, "scales"));
    bytes += tensors.back().bytes();
    std::fill_n(tensors.back().as<float>(), tensors.back().count(), static_cast<float>(i));
  }
  EXPECT_LT(memory.allocations(), static_cast<size_t>(bytes >> 20) + 3);
  EXPECT_LT(memory.bytes(), bytes * 3 / 2);
  for (int i = 0; i < 5000; ++i) {
    const Tensor& tensor = tensors[static_cast<size_t>(i)];
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data) % kTensorAlignment, 0u);
    ASSERT_EQ(std::count(tensor.as<float>(), tensor.as<float>() + tensor.count(), i),
              tensor.count());
  }
  const size_t before = memory.allocations();
  memory.take(backend, DType::u8, {1 << 20}, "weights");
  EXPECT_EQ(memory.allocations(), before + 1);
  // The block that was open stays so.
  memory.take(backend, DType::u8, {1}, "scales");
  EXPECT_EQ(memory.allocations(), before + 1);
}

TEST(Binder, RefusesToQuantizeWhatIsNotFinite) {
  const TempDir dir;
  Tiny tiny(kLlama);
  bf16* weight = tiny.tensors.at(std::string(kQ) + ".weight").as<bf16>();
  weight[3] = to_bf16(std::numeric_limits<float>::infinity());
  weight[5] = to_bf16(std::numeric_limits<float>::quiet_NaN());
  tiny.write(dir);
  HostBackend backend;
  EXPECT_EQ(error_of([&] { load(dir, backend); }), "no error");
  const LoadOptions fp8{.compute = Compute::fp8, .online = scheme_named("fp8_channel").format};
  EXPECT_THAT(error_of([&] { load(dir, backend, fp8); }),
              AllOf(HasSubstr("not finite"), HasSubstr(kQ), HasSubstr("model.safetensors"),
                    HasSubstr("1 NaN and 1 infinite ones"), HasSubstr("inspect")));
}

}  // namespace
}  // namespace octet::model
