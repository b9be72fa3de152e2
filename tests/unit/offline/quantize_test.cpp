#include "offline/quantize.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "model/binder.h"
#include "model/model.h"
#include "model/quant_schema.h"
#include "numerics/e8m0.h"
#include "numerics/scheme.h"
#include "ops/null_backend.h"
#include "unit/base/temp_dir.h"

namespace octet::offline {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

const std::string kGolden = std::string(OCTET_SOURCE_DIR) + "/tests/golden/";

class Quantize : public ::testing::Test {
 protected:
  QuantizeOptions options(const std::string& golden, std::string_view scheme = "fp8_channel") {
    return {.source = kGolden + golden,
            .out = (root_ / "out").string(),
            .scheme = scheme_named(scheme).format};
  }
  ErrorParts error_of(const QuantizeOptions& options) {
    try {
      quantize_checkpoint(options);
    } catch (const Error& error) {
      return error.parts();
    }
    ADD_FAILURE() << "accepted";
    return {};
  }
  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(root_))
      names.push_back(entry.path().filename());
    return names;
  }

  // A copy of llama_mha, which is FP32, in which a tensor begins with these values.
  std::string poisoned(const std::string& tensor, const std::vector<float>& values) {
    const fs::path copy = dir_ / "source";
    if (!fs::exists(copy)) fs::copy(kGolden + "llama_mha", copy);
    const fs::path path = copy / "model.safetensors";
    size_t offset = 0;
    {
      const MappedFile file(path);
      for (const model::StoredTensor& stored : model::parse_safetensors(file.bytes(), "source")) {
        if (stored.name == tensor) offset = stored.file_offset;
      }
    }
    EXPECT_GT(offset, 0u) << tensor;
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(float)));
    return copy.string();
  }

  const test::TempDir dir_;
  const fs::path root_ = dir_.path();
};

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

PolicyRow row(Role role, const LinearFormat& format) {
  return {.role = role, .name = "", .format = format, .reason = "test", .origin = "test"};
}

TEST_F(Quantize, LinearsBecomeFp8AndTheRestIsCopied) {
  const QuantizeOptions wanted = options("deepseek_v3_groups", "fp8_block");
  const QuantizeReport report = quantize_checkpoint(wanted);
  const model::Checkpoint before(wanted.source), after(wanted.out);
  const model::ModelConfig config = model::read_config(wanted.out);
  ASSERT_TRUE(config.quant.has_value());
  EXPECT_EQ(config.quant->groups.at(0).format, wanted.scheme);
  int64_t fp8 = 0;
  for (const std::string& name : before.names()) {
    const Tensor& old = *before.find(name);
    const Tensor* found = after.find(name);
    ASSERT_NE(found, nullptr) << name;
    EXPECT_EQ(found->shape, old.shape) << name;
    if (found->type == DType::e4m3) {
      ++fp8;
      const std::string scale = name.substr(0, name.size() - 7) + ".weight_scale_inv";
      ASSERT_NE(after.find(scale), nullptr) << scale;
      continue;
    }
    EXPECT_EQ(found->type, old.type) << name;
    EXPECT_EQ(0, std::memcmp(found->data, old.data, static_cast<size_t>(old.bytes()))) << name;
  }
  EXPECT_EQ(fp8, static_cast<int64_t>(report.quantized.size()));
  EXPECT_EQ(after.bytes(), report.bytes_after);
  // Routers and the head stay, kv_b_proj does not.
  EXPECT_NE(after.find("model.layers.1.mlp.gate.weight")->type, DType::e4m3);
  EXPECT_NE(after.find("lm_head.weight")->type, DType::e4m3);
  EXPECT_EQ(after.find("model.layers.0.self_attn.kv_b_proj.weight")->type, DType::e4m3);
  EXPECT_TRUE(model::ignores(*config.quant, "model.layers.1.mlp.gate"));
  EXPECT_FALSE(model::ignores(*config.quant, "model.layers.1.mlp.experts.0.gate_proj"));
}

// Sources in FP32, FP16 and BF16 by every scheme that needs no data: the codes and scales are those
// of the rule, in the types that the schema has for them, and the loader takes them.
TEST_F(Quantize, EverySchemeFromEverySourceType) {
  for (const char* golden : {"llama_mha", "llama_f16", "llama_gqa_rope3", "deepseek_v3_groups"}) {
    for (const Scheme& scheme : schemes()) {
      if (scheme.format.when == InputScale::calibrated) continue;
      SCOPED_TRACE(fmt::format("{} {}", golden, scheme.name));
      QuantizeOptions wanted = options(golden, scheme.name);
      wanted.overwrite = true;
      const int64_t foreseen = quantized_bytes(wanted);
      const QuantizeReport report = quantize_checkpoint(wanted);
      EXPECT_EQ(foreseen, report.bytes_after);
      const model::Checkpoint before(wanted.source);
      const auto after = std::make_shared<model::Checkpoint>(wanted.out);
      const model::ModelConfig config = model::read_config(wanted.out);
      EXPECT_EQ(config.quant->groups.at(0).format, scheme.format);
      ops::NullBackend nowhere;
      EXPECT_NO_THROW(model::load_model(config, after, nowhere, {.max_positions = 1}));
      for (const QuantizedTensor& tensor : report.quantized) {
        EXPECT_GT(tensor.sqnr_db, scheme.name == "int8" ? 36 : 29) << tensor.module;
        const QuantFormat& format = *scheme.format.weight;
        const auto weight = model::quantize_weight(*before.find(tensor.module + ".weight"), format);
        const Tensor& codes = *after->find(tensor.module + ".weight");
        EXPECT_EQ(codes.type, dtype_of(format.code));
        EXPECT_EQ(std::memcmp(codes.data, weight.codes.data(), weight.codes.size()), 0);
        const std::string suffix(model::scale_suffix(*config.quant));
        const Tensor& scales = *after->find(tensor.module + suffix);
        ASSERT_EQ(scales.count(), static_cast<int64_t>(weight.scales.size()));
        if (format.scale == ScaleType::e8m0) {
          EXPECT_EQ(scales.type, DType::u8);
          EXPECT_EQ(scales.as<uint8_t>()[0], e8m0_encode(weight.scales[0]));
        } else {
          EXPECT_EQ(std::memcmp(scales.data, weight.scales.data(), weight.scales.size() * 4), 0);
        }
      }
    }
  }
}

TEST_F(Quantize, RefusesSchemesThatNeedData) {
  const ErrorParts error = error_of(options("llama_mha", "fp8_tensor_static"));
  EXPECT_THAT(error.what, HasSubstr("measured on data"));
  EXPECT_THAT(error.fix, HasSubstr("fp8_channel"));
  EXPECT_TRUE(entries().empty());
}

TEST_F(Quantize, MtpLayersAreCopiedIgnoredAndMentioned) {
  const QuantizeOptions wanted = options("deepseek_v3_yarn_mtp");
  const QuantizeReport report = quantize_checkpoint(wanted);
  const model::Checkpoint before(wanted.source), after(wanted.out);
  int64_t matrices = 0;
  for (const std::string& name : before.names()) {
    if (!name.starts_with("model.layers.2.")) continue;
    EXPECT_EQ(after.find(name)->type, before.find(name)->type) << name;
    if (before.find(name)->shape.rank != 2) continue;
    ++matrices;
    const model::ModelConfig config = model::read_config(wanted.out);
    EXPECT_TRUE(model::ignores(*config.quant, name.substr(0, name.size() - 7))) << name;
  }
  EXPECT_GT(matrices, 0);
  EXPECT_THAT(report.notices, Contains(HasSubstr("copied as they are")));
}

TEST_F(Quantize, ManyShardsLoadAgain) {
  QuantizeOptions wanted = options("llama_bias_sharded");
  wanted.shard_bytes = 20000;
  quantize_checkpoint(wanted);
  EXPECT_TRUE(fs::exists(fs::path(wanted.out) / "model.safetensors.index.json"));
  EXPECT_EQ(model::Checkpoint(wanted.out).find("model.layers.0.mlp.up_proj.weight")->type,
            DType::e4m3);
}

TEST_F(Quantize, PolicyKeepsWhatItNames) {
  QuantizeOptions wanted = options("llama_mha");
  wanted.policy = {row(Role::mlp_down, {})};
  quantize_checkpoint(wanted);
  const model::Checkpoint after(wanted.out);
  EXPECT_NE(after.find("model.layers.0.mlp.down_proj.weight")->type, DType::e4m3);
  EXPECT_EQ(after.find("model.layers.0.mlp.up_proj.weight")->type, DType::e4m3);
}

TEST_F(Quantize, SearchedScalesLeaveLessError) {
  const auto quantized = [&](bool search) {
    QuantizeOptions wanted = options("deepseek_v3_groups");
    wanted.overwrite = true;
    wanted.search_scales = search;
    return quantize_checkpoint(wanted).quantized;
  };
  const std::vector<QuantizedTensor> plain = quantized(false), searched = quantized(true);
  ASSERT_EQ(plain.size(), searched.size());
  double gained = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_GE(searched[i].sqnr_db, plain[i].sqnr_db) << plain[i].module;
    EXPECT_EQ(searched[i].stats.saturated, 0);
    gained += searched[i].sqnr_db - plain[i].sqnr_db;
  }
  EXPECT_GT(gained / static_cast<double>(plain.size()), 0.3);
}

// quantization_config says one format; config.json's octet.weight_only, whose inputs it is not for.
TEST_F(Quantize, InputsThatStayIn16BitsAreRecorded) {
  for (const char* scheme : {"fp8_channel", "fp8_block"}) {
    SCOPED_TRACE(scheme);
    QuantizeOptions wanted = options("deepseek_v3_groups", scheme);
    wanted.overwrite = true;
    LinearFormat weight_only = wanted.scheme;
    weight_only.input.reset();
    wanted.policy = {row(Role::attn_in, weight_only)};
    quantize_checkpoint(wanted);
    ops::NullBackend nowhere;
    const auto model =
        model::load_model(model::read_config(wanted.out), model::open_weights(wanted.out), nowhere,
                          {.compute = model::Compute::fp8});
    for (const model::LinearUse& use : model->linears()) {
      const ops::Linear& linear = *use.linear;
      if (!is_quantizable(linear.role)) continue;
      EXPECT_TRUE(linear.quant) << linear.name;
      EXPECT_EQ(linear.input.has_value(),
                linear.role != Role::attn_in && linear.role != Role::attn_latent)
          << linear.name;
    }
  }
  // Where no input is quantized the format says it, and where all are there is nothing to say.
  for (const char* scheme : {"fp8_w8a16", "fp8_channel"}) {
    QuantizeOptions wanted = options("deepseek_v3_groups", scheme);
    wanted.overwrite = true;
    quantize_checkpoint(wanted);
    EXPECT_TRUE(model::read_config(wanted.out).recorded.weight_only.empty()) << scheme;
  }
}

TEST_F(Quantize, RefusesWhatNoCheckpointCanSay) {
  QuantizeOptions two = options("llama_mha");
  two.policy = {row(Role::mlp_down, scheme_named("fp8_block").format)};
  EXPECT_THAT(error_of(two).what, HasSubstr("two"));
  QuantizeOptions nothing = options("llama_mha");
  nothing.scheme = {};
  EXPECT_THAT(error_of(nothing).what, HasSubstr("nothing to quantize"));
  EXPECT_THAT(entries(), UnorderedElementsAre());
}

TEST_F(Quantize, RefusesAnFp8SourceAnExistingTargetAndItself) {
  const QuantizeOptions first = options("llama_mha");
  quantize_checkpoint(first);
  QuantizeOptions again = first;
  again.source = first.out;
  again.out = (root_ / "twice").string();
  EXPECT_THAT(error_of(again).what, HasSubstr("quantized already"));
  EXPECT_THAT(error_of(first).what, HasSubstr("exists"));

  QuantizeOptions replace = first;
  replace.overwrite = true;
  replace.scheme = scheme_named("fp8_block").format;
  quantize_checkpoint(replace);
  EXPECT_EQ(model::read_config(replace.out).quant->groups.at(0).format, replace.scheme);

  fs::copy(kGolden + "llama_mha", root_ / "copy");
  QuantizeOptions itself = first;
  itself.source = itself.out = (root_ / "copy").string();
  itself.overwrite = true;
  EXPECT_THAT(error_of(itself).what, HasSubstr("cannot replace"));
  EXPECT_THAT(entries(), UnorderedElementsAre("out", "copy"));
}

TEST_F(Quantize, OverwriteRemovesNeitherTheSourceNorWhatIsNoCheckpoint) {
  QuantizeOptions wanted = options("llama_mha");
  wanted.overwrite = true;
  const fs::path out = wanted.out;
  fs::create_directories(out / "deep");
  std::ofstream(out / "notes.txt") << "keep";
  EXPECT_THAT(error_of(wanted).what, HasSubstr("something else"));
  EXPECT_TRUE(fs::exists(out / "notes.txt"));

  fs::copy(kGolden + "llama_mha", out / "deep/source");
  std::ofstream(out / "config.json") << "{}";
  wanted.source = (out / "deep/source").string();
  EXPECT_THAT(error_of(wanted).what, HasSubstr("cannot replace"));

  // A source whose files are links into the target.
  fs::create_directory(root_ / "links");
  for (const auto& entry : fs::directory_iterator(out / "deep/source")) {
    fs::create_symlink(entry.path(), root_ / "links" / entry.path().filename());
  }
  wanted.source = (root_ / "links").string();
  EXPECT_THAT(error_of(wanted).what, HasSubstr("cannot replace"));
  EXPECT_TRUE(fs::exists(out / "deep/source/config.json"));

  wanted.out.clear();
  EXPECT_THAT(error_of(wanted).what, HasSubstr("needs a directory"));
}

TEST_F(Quantize, AFailureOnTheWayLeavesNothing) {
  QuantizeOptions wanted = options("llama_mha");
  int calls = 0;
  const auto fail = [&](int64_t, int64_t) {
    if (++calls == 4) throw Error({.what = "the disk is full"});
  };
  EXPECT_THROW(quantize_checkpoint(wanted, fail), Error);
  EXPECT_THAT(entries(), UnorderedElementsAre());
}

TEST_F(Quantize, WeightsThatAreNotFiniteAreRefusedUnlessAllowed) {
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  QuantizeOptions wanted = options("llama_mha");
  wanted.source = poisoned(up, {kNaN, kInfinity, -kInfinity, kInfinity});
  const ErrorParts refused = error_of(wanted);
  EXPECT_THAT(refused.where, HasSubstr(up));
  EXPECT_THAT(refused.value, HasSubstr("1 NaN and 3 infinite"));
  EXPECT_THAT(refused.fix, HasSubstr("--allow-nonfinite"));
  EXPECT_THAT(entries(), UnorderedElementsAre("source"));

  wanted.allow_nonfinite = true;
  const QuantizeReport report = quantize_checkpoint(wanted);
  ASSERT_EQ(report.broken.size(), 1u);
  EXPECT_EQ(report.broken[0].name, up);
  EXPECT_EQ(report.broken[0].nan, 1);
  EXPECT_EQ(report.broken[0].inf, 3);
  EXPECT_TRUE(report.broken[0].quantized);
  const model::Checkpoint after(wanted.out);
  const auto* codes = after.find(up)->as<uint8_t>();
  EXPECT_EQ(codes[0] & 0x7F, 0x7F);  // NaN
  EXPECT_EQ(codes[1], 0x7E);         // 448
  EXPECT_EQ(codes[2], 0xFE);
}

TEST_F(Quantize, HighPrecisionTensorsThatAreNotFiniteAreRefusedUnlessAllowed) {
  QuantizeOptions wanted = options("llama_mha");
  for (const std::string name : {"model.norm.weight", "model.embed_tokens.weight"}) {
    wanted.source = poisoned(name, {kNaN, kInfinity});
    const ErrorParts refused = error_of(wanted);
    EXPECT_THAT(refused.where, HasSubstr(name));  // the first in the order of names
    EXPECT_THAT(refused.value, HasSubstr("1 NaN and 1 infinite"));
    EXPECT_THAT(refused.fix, HasSubstr("--allow-nonfinite"));
  }
  EXPECT_THAT(entries(), UnorderedElementsAre("source"));

  wanted.allow_nonfinite = true;
  const QuantizeReport report = quantize_checkpoint(wanted);
  ASSERT_EQ(report.broken.size(), 2u);
  for (const BrokenTensor& tensor : report.broken) {
    EXPECT_EQ(tensor.nan, 1) << tensor.name;
    EXPECT_EQ(tensor.inf, 1) << tensor.name;
    EXPECT_FALSE(tensor.quantized) << tensor.name;
  }
  const model::Checkpoint after(wanted.out);
  EXPECT_TRUE(std::isnan(model::to_float(*after.find("model.norm.weight"))[0]));
}

TEST_F(Quantize, RoundsByWhatWasSeenOfTheInputs) {
  quantize_checkpoint(options("llama_mha"));
  const auto nearest = model::open_weights((root_ / "out").string());
  const std::string module = "model.layers.0.mlp.down_proj", weight = module + ".weight";
  const Tensor stored = *nearest->find(weight, {});
  const int64_t width = stored.cols();

  // One input, whose columns are all but equal; nothing was seen of the others.
  ThreadPool threads(2);
  InputMoments inputs(threads);
  std::vector<float> x(static_cast<size_t>(width * width));
  for (int64_t r = 0; r < width; ++r) {
    for (int64_t c = 0; c < width; ++c) x[r * width + c] = 1.0f + 0.1f * static_cast<float>(r == c);
  }
  const ops::Linear linear{.name = module};
  const ops::Linear* const ws[] = {&linear};
  inputs.add(ws, Tensor(x.data(), DType::f32, {width, width}));
  QuantizeOptions wanted = options("llama_mha");
  wanted.out = (root_ / "compensated").string();
  wanted.inputs = &inputs;
  wanted.threads = &threads;
  const QuantizeReport report = quantize_checkpoint(wanted);
  const auto compensated = model::open_weights(wanted.out);
  for (const std::string& name : nearest->names()) {
    const Tensor a = *nearest->find(name, {}), b = *compensated->find(name, {});
    ASSERT_EQ(a.bytes(), b.bytes());
    const auto bytes_a = nearest->read(name, a), bytes_b = compensated->read(name, b);
    const bool same = std::memcmp(bytes_a.data, bytes_b.data, static_cast<size_t>(a.bytes())) == 0;
    EXPECT_EQ(same, name != weight) << name;
  }
  for (const QuantizedTensor& t : report.quantized) {
    EXPECT_EQ(t.output_error.has_value(), t.module == module) << t.module;
    if (t.output_error) {
      EXPECT_LT(*t.output_error, 0.2 * *t.output_error_nearest);
    }
  }
  EXPECT_THAT(report.notices, Contains(HasSubstr("too few calibration tokens")));
}

TEST_F(Quantize, ReportsWhatItDid) {
  const QuantizeReport report = quantize_checkpoint(options("llama_mha"));
  EXPECT_EQ(report.quantized.size(), 14u);  // 7 linears in 2 layers
  EXPECT_EQ(report.stats.saturated, 0);
  EXPECT_EQ(report.stats.nonfinite(), 0);
  for (const QuantizedTensor& tensor : report.quantized) {
    EXPECT_GT(tensor.sqnr_db, 25.0) << tensor.module;
    EXPECT_LT(tensor.sqnr_db, 45.0) << tensor.module;
  }
}

}  // namespace
}  // namespace octet::offline
