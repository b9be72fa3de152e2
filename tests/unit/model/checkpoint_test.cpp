#include "model/checkpoint.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/json.h"
#include "unit/model/support.h"

namespace octet::model {
namespace {

using test::error_of;
using test::safetensors_file;
using test::source;
using test::TempDir;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string open_fault(const TempDir& dir) {
  return error_of([&] { Checkpoint(dir.path().string()); });
}

// A file with tensors of one byte each, a U8 [1].
std::string shard(const std::vector<std::string>& names) {
  std::string header;
  for (size_t i = 0; i < names.size(); ++i) {
    header += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})",
                          i ? "," : "", names[i], i, i + 1);
  }
  return safetensors_file("{" + header + "}", std::string(names.size(), 'x'));
}

TEST(Checkpoint, SingleFile) {
  const TempDir dir;
  dir.file("model.safetensors", shard({"b", "a"}));
  dir.file("other.safetensors", "not looked at");
  const Checkpoint checkpoint(dir.path().string());
  EXPECT_THAT(checkpoint.names(), ElementsAre("a", "b"));
  ASSERT_NE(checkpoint.find("a"), nullptr);
  EXPECT_EQ(checkpoint.find("a")->type, DType::u8);
  EXPECT_EQ(checkpoint.find("c"), nullptr);
  EXPECT_EQ(checkpoint.locate("a"), (dir / "model.safetensors").string());
  EXPECT_EQ(checkpoint.locate("c"), dir.path().string());
  EXPECT_EQ(checkpoint.bytes(), 2);
}

TEST(Checkpoint, ShardsOfAnIndex) {
  const TempDir dir;
  dir.file("x.safetensors", shard({"a", "unmapped"}));
  dir.file("y.safetensors", shard({"b"}));
  dir.file(
      "model.safetensors.index.json",
      R"({"metadata":{"total_size":2},"weight_map":{"a":"x.safetensors","b":"y.safetensors"}})");
  const Checkpoint checkpoint(dir.path().string());
  EXPECT_THAT(checkpoint.names(), ElementsAre("a", "b"));
  EXPECT_EQ(checkpoint.locate("b"), (dir / "y.safetensors").string());
}

TEST(Checkpoint, MissingFilesAreNamed) {
  const TempDir dir;
  EXPECT_THAT(error_of([&] { Checkpoint((dir / "none").string()); }),
              AllOf(HasSubstr("none"), HasSubstr("no such file"), HasSubstr("config.json")));
  EXPECT_THAT(error_of([&] { Checkpoint(dir.file("f", "x").string()); }), HasSubstr("a file"));
  EXPECT_THAT(open_fault(dir),
              AllOf(HasSubstr("no checkpoint"), HasSubstr(dir.path().string()),
                    HasSubstr("neither of the two"), HasSubstr("model.safetensors.index.json")));
  dir.file("pytorch_model.bin", "x");
  EXPECT_THAT(open_fault(dir), HasSubstr("a PyTorch pickle (pytorch_model.bin)"));
  dir.file("model-00001-of-00002.safetensors", shard({"a"}));
  EXPECT_THAT(open_fault(dir), HasSubstr("model-00001-of-00002.safetensors, but no index"));

  dir.file("model.safetensors.index.json",
           R"({"weight_map":{"a":"model-00001-of-00002.safetensors",)"
           R"("b":"model-00002-of-00002.safetensors"}})");
  EXPECT_THAT(open_fault(dir),
              AllOf(HasSubstr("shard of the checkpoint is missing"),
                    HasSubstr((dir / "model-00002-of-00002.safetensors").string()),
                    HasSubstr("1 tensors ('b'"), HasSubstr("the checkpoint has 2 files")));
  dir.file("model-00002-of-00002.safetensors", shard({"c"}));
  EXPECT_THAT(open_fault(dir),
              AllOf(HasSubstr("lacks a tensor"), HasSubstr("tensor 'b' in"),
                    HasSubstr("model-00002-of-00002.safetensors"), HasSubstr("download")));
  dir.file("model-00002-of-00002.safetensors", "");
  EXPECT_THAT(open_fault(dir), AllOf(HasSubstr("model-00002"), HasSubstr("an empty file")));
  dir.file("model-00002-of-00002.safetensors", shard({"b"}).substr(0, 30));
  EXPECT_THAT(open_fault(dir), AllOf(HasSubstr("model-00002"), HasSubstr("beyond the end")));
}

TEST(Checkpoint, IndexIsChecked) {
  const auto fault = [](const std::string& text) {
    return error_of([&] { parse_weight_map(text, "index.json"); });
  };
  EXPECT_THAT(fault("{"), HasSubstr("index.json, line 1"));
  EXPECT_THAT(fault("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(fault("{}"), HasSubstr("$.weight_map"));
  EXPECT_THAT(fault(R"({"weight_map":[]})"), HasSubstr("$.weight_map"));
  EXPECT_THAT(fault(R"({"weight_map":{}})"), HasSubstr("names no tensor"));
  EXPECT_THAT(fault(R"({"weight_map":{"a":1}})"), HasSubstr("$.weight_map.a"));
  EXPECT_THAT(fault(R"({"weight_map":{"a":"x","a":"y"}})"), HasSubstr("twice"));
  for (const char* name : {"", ".", "..", "../x.safetensors", "/etc/passwd", "d/x.safetensors",
                           "d\\\\x.safetensors", "x\\u0000y"}) {
    EXPECT_THAT(fault(fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", name)),
                AllOf(HasSubstr("$.weight_map.a"), HasSubstr("no plain file name")))
        << name;
  }
}

TEST(Checkpoint, GoldenModelsOpen) {
  for (const char* name : {"models/octet-demo", "tests/golden/llama_bias_sharded",
                           "tests/golden/deepseek_v3_yarn_mtp", "tests/golden/llama_f16"}) {
    SCOPED_TRACE(name);
    const Checkpoint checkpoint(source(name).string());
    const Tensor* embedding = checkpoint.find("model.embed_tokens.weight");
    ASSERT_NE(embedding, nullptr);
    EXPECT_EQ(embedding->shape.rank, 2);
  }
  const auto golden = MappedFile(source("tests/golden/llama_mha/golden.safetensors"));
  EXPECT_THAT(parse_safetensors(golden.bytes(), "golden"), SizeIs(testing::Gt(5u)));
}

// --- writing ------------------------------------------------------------------------------------

PendingTensor pending(const std::string& name, DType type, Shape shape, char fill) {
  return {name, type, shape, [type, shape, fill] {
            return std::vector<std::byte>(static_cast<size_t>(shape.count()) * size_of(type),
                                          static_cast<std::byte>(fill));
          }};
}

std::vector<PendingTensor> sample() {
  return {pending("layer.0.weight", DType::e4m3, {3, 5}, 'a'),
          pending("layer.0.weight_scale_inv", DType::f32, {1, 1}, 'b'),
          pending("norm.weight", DType::bf16, {5}, 'c'),
          pending("scalar", DType::f32, {}, 'd'),
          pending("empty", DType::i64, {0, 4}, 'e'),
          pending("a \"quoted\" \xc3\xa9 name", DType::u8, {2, 1, 2, 1}, 'f')};
}

TEST(WriteCheckpoint, SingleFileComesBack) {
  const TempDir dir;
  int64_t last = 0, total = 0;
  write_checkpoint(dir.path().string(), sample(), 1 << 20, [&](int64_t done, int64_t all) {
    EXPECT_GE(done, last);
    last = done;
    total = all;
  });
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, 15 + 4 + 10 + 4 + 0 + 4);
  EXPECT_FALSE(std::filesystem::exists(dir / "model.safetensors.index.json"));

  const MappedFile file(dir / "model.safetensors");
  const auto stored = parse_safetensors(file.bytes(), "f");
  std::vector<std::string> names;
  for (const StoredTensor& tensor : stored) names.push_back(tensor.name);
  // Wide types first, then by name.
  EXPECT_THAT(names, ElementsAre("empty", "layer.0.weight_scale_inv", "scalar", "norm.weight",
                                 "a \"quoted\" \xc3\xa9 name", "layer.0.weight"));
  EXPECT_EQ(stored[0].file_offset % 8, 0u);
  for (const StoredTensor& tensor : stored) {
    EXPECT_EQ(tensor.file_offset % size_of(tensor.tensor.type), 0u) << tensor.name;
  }
  EXPECT_EQ(*stored[3].tensor.as<char>(), 'c');
  EXPECT_EQ(stored[4].tensor.shape, (Shape{2, 1, 2, 1}));
  EXPECT_THAT(test::slurp(dir / "model.safetensors"),
              HasSubstr(R"({"__metadata__":{"format":"pt"},"empty":{)"));
}

TEST(WriteCheckpoint, ShardsAndIndexComeBackAndRepeatByteForByte) {
  const TempDir first, second;
  write_checkpoint(first.path().string(), sample(), 19);
  write_checkpoint(second.path().string(), sample(), 19);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(first.path())) {
    ++files;
    EXPECT_EQ(test::slurp(entry.path()), test::slurp(second / entry.path().filename().string()));
  }
  EXPECT_EQ(files, 3);  // two shards and the index
  const Json index = parse_json_file(first / "model.safetensors.index.json");
  EXPECT_EQ(index["metadata"]["total_size"], 37);
  EXPECT_EQ(index["weight_map"]["scalar"], "model-00002-of-00002.safetensors");
  const Checkpoint checkpoint(first.path().string());
  EXPECT_THAT(checkpoint.names(), SizeIs(6));
  EXPECT_EQ(checkpoint.find("layer.0.weight")->shape, (Shape{3, 5}));
  EXPECT_EQ(*checkpoint.find("layer.0.weight")->as<char>(), 'a');
  // A tensor larger than a shard has one of its own.
  const TempDir third;
  write_checkpoint(third.path().string(), sample(), 1);
  EXPECT_EQ(Checkpoint(third.path().string()).locate("norm.weight"),
            (third / "model-00003-of-00006.safetensors").string());
}

TEST(WriteCheckpoint, FaultsAndErrors) {
  const TempDir dir;
  auto twice = sample();
  twice.push_back(twice.front());
  EXPECT_THROW(write_checkpoint(dir.path().string(), twice, 100), Fault);
  auto wrong = sample();
  wrong[0].produce = [] { return std::vector<std::byte>(3); };
  EXPECT_THROW(write_checkpoint(dir.path().string(), wrong, 100), Fault);
  EXPECT_THAT(error_of([&] { write_checkpoint((dir / "none").string(), sample(), 100); }),
              AllOf(HasSubstr("cannot write"), HasSubstr("none/model"), HasSubstr("No such file")));
}

TEST(WriteCheckpoint, ManyTensorsTakeLinearTime) {
  std::vector<PendingTensor> many;
  for (int i = 0; i < 50'000; ++i) {
    many.push_back(pending(fmt::format("model.layers.{}.weight", i), DType::u8, {1}, 'x'));
  }
  const TempDir dir;
  const std::clock_t start = std::clock();
  write_checkpoint(dir.path().string(), many, 25'000);
  EXPECT_THAT(Checkpoint(dir.path().string()).names(), SizeIs(50'000));
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 5.0);
}

}  // namespace
}  // namespace octet::model
