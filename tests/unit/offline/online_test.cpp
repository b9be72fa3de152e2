// Quantizing at load and quantizing to a checkpoint are the same: every code, every scale.
#include <gtest/gtest.h>

#include <cstring>

#include "model/model.h"
#include "numerics/scheme.h"
#include "offline/quantize.h"
#include "unit/base/temp_dir.h"
#include "unit/model/gguf_writer.h"
#include "unit/model/host_backend.h"

namespace octet::offline {
namespace {

std::unique_ptr<model::Model> load(const std::string& path, ops::Backend& backend,
                                   const LinearFormat& online) {
  return model::load_model(model::read_config(path), model::open_weights(path), backend,
                           {.compute = model::Compute::fp8, .online = online});
}

void expect_same(const Tensor& a, const Tensor& b, const std::string& what) {
  ASSERT_EQ(a.type, b.type) << what;
  ASSERT_EQ(a.shape, b.shape) << what;
  EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())), 0) << what;
}

// Loads `source` both ways and compares all linears.
void expect_online_is_offline(const std::string& source, const Scheme& scheme) {
  const test::TempDir dir;
  const std::string out = (dir / "out").string();
  quantize_checkpoint({.source = source, .out = out, .scheme = scheme.format});
  test::HostBackend online_backend, offline_backend;
  const auto online = load(source, online_backend, scheme.format);
  const auto offline = load(out, offline_backend, {});
  const auto a = online->linears(), b = offline->linears();
  ASSERT_EQ(a.size(), b.size());
  int quantized = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const ops::Linear &x = *a[i].linear, &y = *b[i].linear;
    const std::string what = std::string(scheme.name) + " " + x.name;
    ASSERT_EQ(x.name, y.name);
    EXPECT_EQ(x.input, y.input) << what;
    ASSERT_EQ(static_cast<bool>(x.quant), static_cast<bool>(y.quant)) << what;
    if (!x.quant) {
      expect_same(x.plain, y.plain, what);
      continue;
    }
    ++quantized;
    EXPECT_EQ(x.quant.format, y.quant.format) << what;
    expect_same(x.quant.codes, y.quant.codes, what);
    expect_same(x.quant.scales, y.quant.scales, what);
  }
  EXPECT_GT(quantized, 0) << scheme.name;
}

const std::string kGolden = std::string(OCTET_SOURCE_DIR) + "/tests/golden/";

TEST(OnlineQuantization, IsTheOfflineOneByteForByte) {
  for (const Scheme& scheme : schemes()) {
    if (scheme.format.when == InputScale::calibrated) continue;  // needs a calibration, not a load
    for (const char* name : {"llama_mha", "llama_f16", "llama_gqa_rope3", "llama_bias_sharded",
                             "deepseek_v3_groups", "deepseek_v2_group_limited"}) {
      SCOPED_TRACE(name);
      expect_online_is_offline(kGolden + name, scheme);
    }
  }
}

TEST(OnlineQuantization, IsTheOfflineOneFromGguf) {
  const test::TempDir dir;
  const std::string folder = kGolden + "llama_gqa_rope3";
  Json config = parse_json_file(folder + "/config.json");
  const std::string path =
      dir.file("m.gguf", test::llama_gguf(model::Checkpoint(folder), config).file()).string();
  for (const Scheme& scheme : schemes()) {
    if (scheme.format.when == InputScale::calibrated) continue;
    expect_online_is_offline(path, scheme);
  }
}

}  // namespace
}  // namespace octet::offline
