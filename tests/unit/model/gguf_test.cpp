// GGUF: the parser on good and broken files, the block types against llama.cpp's Python package,
// and whole models against the checkpoints that they are made from.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <numbers>

#include "model/gguf/checkpoint.h"
#include "model/model.h"
#include "numerics/half.h"
#include "numerics/scheme.h"
#include "unit/model/gguf_writer.h"
#include "unit/model/host_backend.h"
#include "unit/model/support.h"

namespace octet::model {
namespace {

using test::bytes_of;
using test::error_of;
using test::gguf_string;
using test::GgufWriter;
using test::raw;
using test::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

gguf::File parse(const std::string& file) {
  return gguf::parse(bytes_of(file), "a.gguf");
}

std::string fault_of(const std::string& file) {
  return error_of([&] { parse(file); });
}

// Two tensors and a key of every kind.
GgufWriter small() {
  GgufWriter writer;
  writer.text("general.architecture", "llama")
      .u32("a.u32", 7)
      .f32("a.f32", 0.5f)
      .flag("a.flag", true)
      .strings("a.strings", {"x", "", "yz"})
      .i32s("a.i32s", {-1, 2})
      .tensor("one", {4, 2}, 0, std::string(32, 'a'))
      .tensor("two", {32}, 8, std::string(34, 'b'));
  return writer;
}

TEST(Gguf, KeysAndTensorsAreRead) {
  for (const uint32_t version : {2u, 3u}) {
    const std::string bytes = small().file(version);
    const gguf::File file = parse(bytes);
    EXPECT_EQ(file.version, version);
    EXPECT_EQ(file.metadata.text("general.architecture"), "llama");
    EXPECT_EQ(file.metadata.integer("a.u32", 0, 10), 7);
    EXPECT_EQ(file.metadata.number("a.f32"), 0.5);
    EXPECT_TRUE(file.metadata.flag("a.flag", false));
    EXPECT_THAT(file.metadata.strings("a.strings"), testing::ElementsAre("x", "", "yz"));
    EXPECT_THAT(file.metadata.integers("a.i32s"), testing::ElementsAre(-1, 2));
    ASSERT_EQ(file.tensors.size(), 2u);
    EXPECT_EQ(file.tensors[0].name, "one");
    EXPECT_THAT(file.tensors[0].dims, testing::ElementsAre(4, 2));
    EXPECT_EQ(file.tensors[0].bytes.size(), 32u);
    EXPECT_EQ(file.tensors[1].type->name, "Q8_0");
    EXPECT_EQ(static_cast<char>(file.tensors[1].bytes[33]), 'b');
  }
}

TEST(Gguf, GettersNameFileAndKey) {
  const std::string bytes = small().file();
  const gguf::File file = parse(bytes);
  const gguf::Metadata& meta = file.metadata;
  EXPECT_THAT(error_of([&] { meta.text("none"); }),
              AllOf(HasSubstr("a.gguf, key 'none'"), HasSubstr("no such key")));
  EXPECT_THAT(error_of([&] { meta.text("a.u32"); }), HasSubstr("found:    u32"));
  EXPECT_THAT(error_of([&] { meta.integer("a.u32", 0, 6); }), HasSubstr("0 to 6"));
  EXPECT_THAT(error_of([&] { meta.integer("a.f32", 0, 6); }), HasSubstr("wrong type"));
  EXPECT_THAT(error_of([&] { meta.strings("a.i32s"); }), HasSubstr("an array of 2 i32"));
  EXPECT_THAT(error_of([&] { meta.flag("a.u32", true); }), HasSubstr("wrong type"));
  const std::string broken = GgufWriter().f32("k", std::nanf("")).file();
  EXPECT_THAT(error_of([&] { parse(broken).metadata.number("k"); }), HasSubstr("not finite"));
}

// A file that ends anywhere is an Error that names it, never more and never less.
TEST(Gguf, EveryTruncationIsAnError) {
  const std::string bytes = small().file();
  const size_t end = bytes.size() - 30;  // behind the last tensor is padding
  for (size_t length = 0; length < end; ++length) {
    EXPECT_THAT(fault_of(bytes.substr(0, length)), HasSubstr("a.gguf")) << length;
  }
  EXPECT_EQ(fault_of(bytes.substr(0, end)), "no error");
}

// Every byte set to 0, 0xFF and 0x80: an Error, or a file whose views stay inside it.
TEST(Gguf, NoChangedByteLeadsOutsideTheFile) {
  const std::string good = small().file();
  for (size_t at = 0; at < good.size(); ++at) {
    for (const char value : {'\0', '\xff', '\x80'}) {
      std::string bytes = good;
      bytes[at] = value;
      try {
        const gguf::File file = parse(bytes);
        const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
        for (const gguf::TensorInfo& tensor : file.tensors) {
          EXPECT_GE(tensor.bytes.data(), begin);
          EXPECT_LE(tensor.bytes.data() + tensor.bytes.size(), begin + bytes.size());
        }
      } catch (const Error&) {
      }
    }
  }
}

TEST(Gguf, HeaderIsChecked) {
  EXPECT_THAT(fault_of("GGUF"), HasSubstr("too short"));
  std::string bytes = small().file();
  EXPECT_THAT(fault_of("X" + bytes.substr(1)),
              AllOf(HasSubstr("not a GGUF file"), HasSubstr("offset 0")));
  EXPECT_THAT(fault_of(small().file(1)), HasSubstr("2 or 3"));
  EXPECT_THAT(fault_of(small().file(0x03000000)), HasSubstr("big-endian"));
  const std::string huge = raw(uint64_t{1} << 63);
  EXPECT_THAT(fault_of(std::string(bytes).replace(8, 8, huge)),
              AllOf(HasSubstr("offset 8"), HasSubstr("the number of tensors"),
                    HasSubstr("9223372036854775808")));
  EXPECT_THAT(fault_of(std::string(bytes).replace(16, 8, huge)), HasSubstr("the number of keys"));
}

TEST(Gguf, ValuesAreChecked) {
  const std::string huge = raw(uint64_t{1} << 63);
  const auto with = [](uint32_t type, const std::string& value) {
    return GgufWriter().add("k", type, value).file() + std::string(64, '\0');
  };
  EXPECT_THAT(fault_of(with(13, "")), AllOf(HasSubstr("key 'k'"), HasSubstr("0 to 12")));
  EXPECT_THAT(fault_of(with(8, huge)), AllOf(HasSubstr("key 'k'"), HasSubstr("beyond the end")));
  EXPECT_THAT(fault_of(with(9, raw(uint32_t{4}) + huge)), HasSubstr("length of an array"));
  EXPECT_THAT(fault_of(with(9, raw(uint32_t{8}) + huge)), HasSubstr("length of an array"));
  EXPECT_THAT(fault_of(with(7, "\x02")), HasSubstr("neither 0 nor 1"));
  std::string nest;
  for (int i = 0; i < 5; ++i) nest += raw(uint32_t{9}) + raw(uint64_t{1});
  EXPECT_THAT(fault_of(with(9, nest)), HasSubstr("nested too deeply"));
  const std::string two = raw(uint32_t{9}) + raw(uint64_t{1}) + raw(uint32_t{0}) + raw(uint64_t{0});
  EXPECT_EQ(fault_of(with(9, two)), "no error");
  EXPECT_THAT(fault_of(GgufWriter().u32("k", 1).u32("k", 1).file()),
              HasSubstr("a key occurs twice"));
  EXPECT_THAT(fault_of(GgufWriter().u32("a\nb", 1).file()), HasSubstr("printable ASCII"));
  EXPECT_THAT(fault_of(GgufWriter().u32("", 1).file()), HasSubstr("printable ASCII"));
  EXPECT_THAT(fault_of(small().u32("general.alignment", 48).file()), HasSubstr("power of two"));
  EXPECT_THAT(fault_of(small().u32("general.alignment", 0).file()), HasSubstr("alignment"));
}

TEST(Gguf, TensorsAreChecked) {
  const auto with = [](const std::vector<uint64_t>& dims, uint32_t type, size_t bytes) {
    return GgufWriter().tensor("t", dims, type, std::string(bytes, 'x')).file();
  };
  EXPECT_EQ(fault_of(with({4}, 0, 16)), "no error");
  EXPECT_THAT(fault_of(with({16}, 0, 16)), AllOf(HasSubstr("'t'"), HasSubstr("beyond the end")));
  EXPECT_THAT(fault_of(with({}, 0, 4)), HasSubstr("dimensions"));
  EXPECT_THAT(fault_of(with({1, 1, 1, 1, 1}, 0, 4)), HasSubstr("dimensions"));
  EXPECT_THAT(fault_of(with({0}, 0, 4)), HasSubstr("out of range"));
  EXPECT_THAT(fault_of(with({uint64_t{1} << 63}, 0, 4)), HasSubstr("out of range"));
  EXPECT_THAT(fault_of(with({uint64_t{1} << 32, uint64_t{1} << 32}, 0, 4)),
              HasSubstr("out of range"));
  EXPECT_THAT(fault_of(with({4}, 10, 16)), AllOf(HasSubstr("GGML type 10"), HasSubstr("Q4_K")));
  EXPECT_THAT(fault_of(with({33}, 8, 64)), HasSubstr("a multiple of 32"));
  EXPECT_THAT(fault_of(small().tensor("one", {1}, 0, "1234").file()), HasSubstr("occurs twice"));

  // Offsets: the last 8 bytes of an info.
  std::string bytes = GgufWriter().tensor("t", {4}, 0, std::string(64, 'x')).file();
  const size_t offset = 24 + 8 + 1 + 4 + 8 + 4;
  EXPECT_THAT(fault_of(std::string(bytes).replace(offset, 8, raw(uint64_t{4}))),
              HasSubstr("not aligned"));
  EXPECT_THAT(fault_of(std::string(bytes).replace(offset, 8, raw(uint64_t{1} << 63))),
              HasSubstr("beyond the end"));
  bytes = small().file();
  const size_t second = bytes.find("two") + 3 + 4 + 8 + 4;
  EXPECT_THAT(fault_of(bytes.replace(second, 8, raw(uint64_t{0}))),
              AllOf(HasSubstr("overlaps"), HasSubstr("'one'")));
}

// blocks.f32 is what llama.cpp's Python package decodes (tests/golden/generate_gguf.py).
TEST(Gguf, BlocksDecodeToTheSameBitsAsTheReference) {
  const MappedFile mapped(test::source("tests/golden/gguf_blocks.gguf"));
  const gguf::File file = gguf::parse(mapped.bytes(), "blocks.gguf");
  const std::string expected = test::slurp(test::source("tests/golden/gguf_blocks.f32"));
  size_t at = 0;
  int decoded = 0;
  for (const gguf::TensorInfo& info : file.tensors) {
    const gguf::BlockType& type = *info.type;
    const auto count = static_cast<size_t>(info.dims[0]);
    std::vector<float> values(count), wanted(count);
    ASSERT_LE(at + count * sizeof(float), expected.size());
    std::memcpy(wanted.data(), expected.data() + at, count * sizeof(float));
    at += count * sizeof(float);
    if (!type.decode) continue;
    ++decoded;
    for (size_t i = 0; i < count; i += static_cast<size_t>(type.elements)) {
      const auto block = i / static_cast<size_t>(type.elements);
      type.decode(info.bytes.data() + block * static_cast<size_t>(type.bytes), &values[i]);
    }
    EXPECT_EQ(std::memcmp(values.data(), wanted.data(), count * sizeof(float)), 0) << type.name;
  }
  EXPECT_EQ(at, expected.size());
  EXPECT_EQ(decoded, 8);
}

// What a quantized tensor is read as: its FP32 values, rounded once.
TEST(Gguf, BlocksAreReadAsBf16AndGivenBack) {
  const GgufCheckpoint source(test::source("tests/golden/gguf_blocks.gguf").string());
  const std::string expected = test::slurp(test::source("tests/golden/gguf_blocks.f32"));
  size_t at = 0;
  for (const char* name :
       {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"}) {
    const Tensor* found = source.find(name);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->shape, (Shape{1, found->count()}));
    if (std::string(name).starts_with("Q")) {
      for (int turn = 0; turn < 2; ++turn) {
        const Tensor tensor = source.read(name, *found);
        EXPECT_EQ(tensor.type, DType::bf16);
        for (int64_t i = 0; i < tensor.count(); ++i) {
          float wanted;
          std::memcpy(&wanted, expected.data() + at + static_cast<size_t>(i) * 4, 4);
          ASSERT_EQ(tensor.as<bf16>()[i], to_bf16(wanted)) << name << " " << i;
        }
        source.release(name);
      }
    }
    at += static_cast<size_t>(found->count()) * 4;
  }
}

// The rotary factors that convert_hf_to_gguf.py writes for Llama 3.
std::string rope_factors(const Json& config) {
  const Json& scaling = config.at("rope_scaling");
  const double factor = scaling.at("factor"), low = scaling.at("low_freq_factor"),
               high = scaling.at("high_freq_factor"),
               original = scaling.at("original_max_position_embeddings");
  const int dim = config.at("head_dim");
  std::string bytes;
  for (int i = 0; i < dim; i += 2) {
    const double frequency =
        1 / std::pow(config.at("rope_theta").get<double>(), static_cast<double>(i) / dim);
    const double length = 2 * std::numbers::pi / frequency;
    double divisor = 1;
    if (length > original / low) {
      divisor = factor;
    } else if (length >= original / high) {
      const double smooth = (original / length - low) / (high - low);
      divisor = 1 / ((1 - smooth) / factor + smooth);
    }
    bytes += raw(static_cast<float>(divisor));
  }
  return bytes;
}

class GgufModel : public testing::TestWithParam<const char*> {
 protected:
  // The golden case as GGUF.
  GgufWriter writer(const Checkpoint& checkpoint) const {
    GgufWriter out = test::llama_gguf(checkpoint, config_);
    if (config_.contains("rope_scaling") && config_["rope_scaling"].is_object()) {
      const Json& scaling = config_["rope_scaling"];
      if (scaling.value("rope_type", "") == "llama3") {
        out.tensor("rope_freqs.weight", {config_.at("head_dim").get<uint64_t>() / 2}, 0,
                   rope_factors(config_));
      } else {
        out.text("llama.rope.scaling.type", "linear");
        out.f32("llama.rope.scaling.factor", scaling.at("factor").get<float>());
      }
    }
    return out;
  }

  const std::string folder_ = test::source(std::string("tests/golden/") + GetParam()).string();
  const Json config_ = parse_json_file(folder_ + "/config.json");
  const TempDir dir_;
};
INSTANTIATE_TEST_SUITE_P(Gguf, GgufModel,
                         testing::Values("llama_mha", "llama_f16", "llama_gqa_rope3",
                                         "llama_bias_sharded"));

TEST_P(GgufModel, IsTheCheckpointThatItWasMadeFrom) {
  const Checkpoint wanted(folder_);
  const std::string path = dir_.file("m.gguf", writer(wanted).file()).string();
  const GgufCheckpoint found(path);
  EXPECT_EQ(found.names(), wanted.names());
  for (const std::string& name : wanted.names()) {
    const Tensor& tensor = *wanted.find(name);
    ASSERT_NE(found.find(name), nullptr) << name;
    const Tensor read = found.read(name, *found.find(name));
    EXPECT_EQ(read.type, tensor.type) << name;
    ASSERT_EQ(read.shape, tensor.shape) << name;
    EXPECT_EQ(std::memcmp(read.data, tensor.data, static_cast<size_t>(read.bytes())), 0) << name;
  }
}

TEST_P(GgufModel, HasTheSameConfiguration) {
  const Checkpoint checkpoint(folder_);
  const std::string path = dir_.file("m.gguf", writer(checkpoint).file()).string();
  const ModelConfig wanted = read_config(folder_), found = read_config(path);
  EXPECT_EQ(found.architecture, wanted.architecture);
  EXPECT_EQ(found.layers, wanted.layers);
  EXPECT_EQ(found.hidden, wanted.hidden);
  EXPECT_EQ(found.vocab, wanted.vocab);
  EXPECT_EQ(found.max_positions, wanted.max_positions);
  EXPECT_EQ(found.norm_eps, wanted.norm_eps);
  EXPECT_EQ(found.tied_embeddings, wanted.tied_embeddings);
  EXPECT_EQ(found.dtype, wanted.dtype);
  const Gqa &a = std::get<Gqa>(found.attention), &b = std::get<Gqa>(wanted.attention);
  EXPECT_EQ(a.heads, b.heads);
  EXPECT_EQ(a.kv_heads, b.kv_heads);
  EXPECT_EQ(a.head_dim, b.head_dim);
  EXPECT_EQ(a.qkv_bias, b.qkv_bias);
  EXPECT_EQ(a.o_bias, b.o_bias);
  EXPECT_EQ(std::get<DenseFfn>(found.ffn).intermediate,
            std::get<DenseFfn>(wanted.ffn).intermediate);
  EXPECT_EQ(std::get<DenseFfn>(found.ffn).bias, std::get<DenseFfn>(wanted.ffn).bias);
  EXPECT_EQ(found.rope.kind, wanted.rope.kind);
  EXPECT_EQ(found.rope.theta, wanted.rope.theta);
  EXPECT_EQ(found.rope.dim, wanted.rope.dim);
  EXPECT_EQ(found.rope.factor, wanted.rope.factor);
  EXPECT_EQ(found.rope.original_positions, wanted.rope.original_positions);
}

// What the source made for a weight goes when a quantized copy, or one on a device, is there.
TEST(Gguf, WeightsThatWereCopiedAreGivenBack) {
  const std::string folder = test::source("tests/golden/llama_gqa_rope3").string();
  const Json config = parse_json_file(folder + "/config.json");
  const TempDir dir;
  const std::string path =
      dir.file("m.gguf", test::llama_gguf(Checkpoint(folder), config).file()).string();
  const auto made_after = [&](const Device& device, Compute compute) {
    const auto source = std::make_shared<const GgufCheckpoint>(path);
    test::HostBackend backend(device);
    const auto model = load_model(
        read_config(path), source, backend,
        {.compute = compute, .online = scheme_named("fp8_channel").format, .max_positions = 8});
    return source->made_bytes();
  };
  const Device cpu, gpu{DeviceKind::cuda, 0};
  const int64_t q_and_k = 2 * (128 + 32) * 136 * 2;  // two layers; the rest are views of the file
  EXPECT_EQ(made_after(cpu, Compute::bf16), q_and_k);
  EXPECT_EQ(made_after(cpu, Compute::fp8), 0);
  EXPECT_EQ(made_after(gpu, Compute::bf16), 0);
}

TEST(Gguf, RotaryFactorsOfNoKnownRuleAreRefused) {
  const std::string folder = test::source("tests/golden/llama_gqa_rope3").string();
  const Json config = parse_json_file(folder + "/config.json");
  std::string factors = rope_factors(config);
  factors.replace(12, 4, raw(3.0f));
  const TempDir dir;
  const std::string path = dir.file("m.gguf", test::llama_gguf(Checkpoint(folder), config)
                                                  .tensor("rope_freqs.weight", {8}, 0, factors)
                                                  .file())
                               .string();
  EXPECT_THAT(error_of([&] { read_config(path); }),
              AllOf(HasSubstr("rope_freqs.weight"), HasSubstr("no rule")));
}

// As llama.cpp reads them: a factor without a type is linear, by either of its names.
TEST(Gguf, RotaryScalingsOfEveryForm) {
  const std::string folder = test::source("tests/golden/llama_mha").string();
  const Json config = parse_json_file(folder + "/config.json");
  const TempDir dir;
  const auto rope_of = [&](const std::function<void(GgufWriter&)>& add) {
    GgufWriter out = test::llama_gguf(Checkpoint(folder), config);
    add(out);
    return read_config(dir.file("m.gguf", out.file()).string()).rope;
  };
  using Kind = RopeConfig::Kind;
  for (const char* name : {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
    const RopeConfig linear = rope_of([&](GgufWriter& out) { out.f32(name, 8.0f); });
    EXPECT_EQ(linear.kind, Kind::linear) << name;
    EXPECT_EQ(linear.factor, 8) << name;
  }
  EXPECT_EQ(rope_of([](GgufWriter&) {}).kind, Kind::plain);
  EXPECT_EQ(rope_of([](GgufWriter& out) { out.text("llama.rope.scaling.type", "linear"); }).kind,
            Kind::plain);
  EXPECT_EQ(rope_of([](GgufWriter& out) {
              out.text("llama.rope.scaling.type", "none");
              out.f32("llama.rope.scaling.factor", 8.0f);
            }).kind,
            Kind::plain);
  const RopeConfig yarn = rope_of([](GgufWriter& out) {
    out.text("llama.rope.scaling.type", "yarn");
    out.f32("llama.rope.scaling.factor", 4.0f);
    out.u32("llama.rope.scaling.original_context_length", 16);
    out.f32("llama.rope.scaling.attn_factor", 1.5f);
  });
  EXPECT_EQ(yarn.kind, Kind::yarn);
  EXPECT_NEAR(yarn.attention_factor.value_or(0), 1.5 * (1 + 0.1 * std::log(4.0)), 1e-6);
  EXPECT_THAT(error_of([&] {
                rope_of([&](GgufWriter& out) {
                  out.f32("llama.rope.scaling.factor", 4.0f);
                  out.tensor("rope_freqs.weight", {8}, 0, std::string(32, '\0'));
                });
              }),
              AllOf(HasSubstr("llama.rope.scaling.factor"), HasSubstr("rope_freqs.weight")));
}

TEST(Gguf, WhatOctetCannotRunIsRefusedByName) {
  const TempDir dir;
  const auto fault = [&](const GgufWriter& writer) {
    const std::string path = dir.file("m.gguf", writer.file()).string();
    return error_of([&] { read_config(path); });
  };
  EXPECT_THAT(fault(GgufWriter().u32("x", 1)), HasSubstr("general.architecture"));
  EXPECT_THAT(fault(GgufWriter().text("general.architecture", "mamba")),
              AllOf(HasSubstr("mamba"), HasSubstr("llama, qwen2")));
  EXPECT_THAT(fault(small()), HasSubstr("llama."));
  EXPECT_THAT(fault(small().add("split.count", 2, raw(uint16_t{3}))),
              AllOf(HasSubstr("several GGUF files"), HasSubstr("--merge")));
}

// A llama all of whose dimensions are 8, but for the one called `but`, which is left out.
GgufWriter llama_of_eights(const std::string& but = "") {
  GgufWriter writer;
  writer.text("general.architecture", "llama");
  for (const char* name :
       {"block_count", "embedding_length", "context_length", "feed_forward_length",
        "attention.head_count", "attention.head_count_kv"}) {
    const std::string key = std::string("llama.") + name;
    if (key != but) writer.u32(key, 8);
  }
  writer.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  return writer;
}

TEST(Gguf, HeadsOfWhichThereAreNoneAreRefusedByTheirKey) {
  const TempDir dir;
  for (const char* key : {"llama.attention.head_count", "llama.attention.head_count_kv"}) {
    const std::string path = dir.file("m.gguf", llama_of_eights(key).u32(key, 0).file()).string();
    EXPECT_THAT(error_of([&] { read_config(path); }),
                AllOf(HasSubstr(key), HasSubstr("without heads")));
  }
}

// Layers of different shapes have no place in a configuration of one.
TEST(Gguf, ValuesOfLayersThatDifferAreRefused) {
  const TempDir dir;
  for (const char* key : {"llama.attention.head_count", "llama.attention.head_count_kv",
                          "llama.feed_forward_length"}) {
    const std::string path =
        dir.file("m.gguf", llama_of_eights(key).i32s(key, {8, 4}).file()).string();
    EXPECT_THAT(error_of([&] { read_config(path); }),
                AllOf(HasSubstr(key), HasSubstr("the layers of the model differ")));
  }
}

TEST(Gguf, ARotaryBaseThatIsTakenForGrantedIsTold) {
  const TempDir dir;
  const auto notes = [&](bool given, const std::string& overrides) {
    GgufWriter writer = llama_of_eights();
    writer.u32("llama.attention.key_length", 2);
    if (given) writer.f32("llama.rope.freq_base", 10000.0f);
    writer.tensor("token_embd.weight", {8, 4}, 0, std::string(128, '\0'));
    const std::string path = dir.file("m.gguf", writer.file()).string();
    const ModelConfig config = read_config(path, overrides);
    if (overrides.empty()) {
      EXPECT_EQ(config.rope.theta, 10000.0);
    }
    return gguf_notes(path, config.rope.theta);
  };
  EXPECT_THAT(notes(false, ""),
              testing::ElementsAre(AllOf(HasSubstr("llama.rope.freq_base"), HasSubstr("10000"),
                                         HasSubstr("--rope-theta"))));
  EXPECT_THAT(notes(true, ""), testing::IsEmpty());
  EXPECT_THAT(notes(false, R"({"rope_theta": 500000})"), testing::IsEmpty());
}

TEST(Gguf, TensorsThatCannotBePutBackAreRefused) {
  const TempDir dir;
  const auto fault = [&](const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                         size_t bytes, uint32_t heads) {
    const std::string path = dir.file("m.gguf", GgufWriter()
                                                    .text("general.architecture", "llama")
                                                    .u32("llama.attention.head_count", heads)
                                                    .tensor(name, dims, type, std::string(bytes, 0))
                                                    .file())
                                 .string();
    return error_of([&] { const GgufCheckpoint source(path); });
  };
  EXPECT_EQ(fault("blk.0.attn_q.weight", {4, 8}, 0, 128, 2), "no error");
  EXPECT_THAT(fault("blk.0.attn_q.weight", {4, 6}, 0, 96, 2), HasSubstr("6 rows for 2 heads"));
  EXPECT_THAT(fault("blk.0.attn_k.weight", {4, 8}, 0, 128, 3), HasSubstr("attn_k"));
  EXPECT_THAT(fault("blk.0.attn_q.weight", {4, 8}, 0, 128, 0), HasSubstr("heads"));
  EXPECT_THAT(fault("blk.0.attn_q.bias", {32}, 8, 34, 2), HasSubstr("Q8_0"));
  EXPECT_THAT(fault("blk.0.ffn_up_exps.weight", {1, 1, 70000}, 0, 280000, 2),
              HasSubstr("too many experts"));
}

// Stacked experts become one tensor each.
TEST(Gguf, ExpertsAreUnstacked) {
  std::string data;
  for (int i = 0; i < 3 * 2 * 4; ++i) data += raw(static_cast<float>(i));
  const TempDir dir;
  const std::string path =
      dir.file("m.gguf", GgufWriter()
                             .text("general.architecture", "qwen3moe")
                             .tensor("blk.5.ffn_up_exps.weight", {4, 2, 3}, 0, data)
                             .tensor("blk.5.ffn_gate_inp.weight", {4, 3}, 0, data.substr(0, 48))
                             .file())
          .string();
  const GgufCheckpoint source(path);
  ASSERT_EQ(source.names().size(), 4u);
  EXPECT_NE(source.find("model.layers.5.mlp.gate.weight"), nullptr);
  for (int e = 0; e < 3; ++e) {
    const Tensor* up = source.find(fmt::format("model.layers.5.mlp.experts.{}.up_proj.weight", e));
    ASSERT_NE(up, nullptr);
    EXPECT_EQ(up->shape, (Shape{2, 4}));
    float first;
    std::memcpy(&first, up->data, 4);
    EXPECT_EQ(first, static_cast<float>(8 * e));
  }
}

}  // namespace
}  // namespace octet::model
