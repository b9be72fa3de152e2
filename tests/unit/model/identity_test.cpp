#include "model/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "unit/model/support.h"

namespace octet::model {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using ::testing::HasSubstr;

// A folder with the files of a model; what they say does not matter here.
class Identity : public ::testing::Test {
 protected:
  Identity() {
    dir_.file("config.json", "{}");
    dir_.file("tokenizer.json", "{}");
    dir_.file("model-00001-of-00002.safetensors", std::string(1 << 20, 'a'));
    dir_.file("model-00002-of-00002.safetensors", std::string(1000, 'b'));
  }
  std::string identity() const { return identity_of(dir_.path().string()); }
  void flip(const std::string& name, std::streamoff at) const {
    std::fstream file(dir_ / name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 1));
  }
  test::TempDir dir_;
};

TEST_F(Identity, IsThatOfACopyAndOfAnotherFolder) {
  const test::TempDir copy;
  fs::copy(dir_.path(), copy / "another name", fs::copy_options::recursive);
  EXPECT_EQ(identity_of((copy / "another name").string()), identity());
  EXPECT_EQ(identity().size(), 16u);
}

TEST_F(Identity, SeesOneValueOfTheWeightsWhereverItIs) {
  const std::string before = identity();
  for (const std::streamoff at : {0, 4097, 500000, 524288, (1 << 20) - 1}) {
    flip("model-00001-of-00002.safetensors", at);
    EXPECT_NE(identity(), before) << at;
    flip("model-00001-of-00002.safetensors", at);
    EXPECT_EQ(identity(), before) << at;
  }
}

TEST_F(Identity, SeesConfigurationTokenizerAndTemplate) {
  const std::string before = identity();
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json",
                           "chat_template.jinja", "generation_config.json"}) {
    const fs::path path = dir_ / name;
    const bool there = fs::exists(path);
    dir_.file(name, "{ }");
    EXPECT_NE(identity(), before) << name;
    if (there) {
      dir_.file(name, "{}");
    } else {
      dir_.file(name, "");  // even an empty one: it may be a template
      EXPECT_NE(identity(), before) << name;
      fs::remove(path);
    }
    EXPECT_EQ(identity(), before) << name;
  }
}

TEST_F(Identity, PassesOverWhatChangesNoAnswer) {
  const std::string before = identity();
  dir_.file("README.md", "text");
  dir_.file("LICENSE", "text");
  EXPECT_EQ(identity(), before);
}

TEST_F(Identity, OfOneFileIsThatOfItsBytes) {
  const fs::path a = dir_.file("a.gguf", "GGUF1"), b = dir_.file("b.gguf", "GGUF1");
  EXPECT_EQ(identity_of(a.string()), identity_of(b.string()));
  dir_.file("b.gguf", "GGUF2");
  EXPECT_NE(identity_of(a.string()), identity_of(b.string()));
  EXPECT_THAT(error_of([&] { identity_of((dir_ / "none").string()); }), HasSubstr("none"));
}

}  // namespace
}  // namespace octet::model
