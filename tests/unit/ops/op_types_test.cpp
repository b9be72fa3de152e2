#include "ops/op_types.h"

#include <gtest/gtest.h>

#include "ops/kernel_choice.h"
#include "ops/kv_layout.h"
#include "ops/null_backend.h"

namespace octet::ops {
namespace {

TEST(KvLayoutTest, BytesOfABlockCountScales) {
  KvLayout layout;
  layout.block_tokens = 16;
  KvLayerFormat mla{.kind = KvLayerFormat::Kind::mla, .kv_lora = 512, .rope_dim = 64};
  mla.type = DType::e4m3;
  layout.layers = {mla};
  // The public layout of DeepSeek: 512 codes, 4 scales, 64 rope values of 16 bits.
  EXPECT_EQ(layout.bytes_per_token(), 656);
  layout.layers[0].scale = ScaleType::unit;
  EXPECT_EQ(layout.bytes_per_token(), 640);
  layout.layers[0].type = DType::bf16;
  EXPECT_EQ(layout.bytes_per_token(), 1152);

  KvLayerFormat gqa{.kind = KvLayerFormat::Kind::gqa, .kv_heads = 8, .head_dim = 128};
  gqa.type = DType::e4m3;
  layout.layers.assign(32, gqa);
  // 64 KiB a token for Llama-3-8B, and 64 bytes of scales a block and layer.
  EXPECT_EQ(layout.bytes_per_block(), 16 * 65536 + 32 * 64);
  for (KvLayerFormat& layer : layout.layers) layer.scaling = KvScaling::groups;
  EXPECT_EQ(layout.bytes_per_block(), 16 * 65536 + 32 * 128);
  // 4 bytes for each token and head of K and of V.
  for (KvLayerFormat& layer : layout.layers) layer.scaling = KvScaling::token_heads;
  EXPECT_EQ(layout.bytes_per_token(), 65536 + 32 * 64);
  for (KvLayerFormat& layer : layout.layers) layer.type = DType::i8;
  EXPECT_EQ(layout.bytes_per_token(), 65536 + 32 * 64);
}

TEST(LinearTest, BytesAreThoseOfCodesAndScales) {
  uint8_t memory[1];
  Linear linear;
  EXPECT_FALSE(linear);
  linear.plain = Tensor(memory, DType::bf16, {3, 5});
  EXPECT_TRUE(linear);
  EXPECT_EQ(linear.bytes(), 30);
  linear.plain = {};
  linear.quant = {Tensor(memory, DType::e4m3, {3, 5}),
                  Tensor(memory, DType::f32, {3, 1}),
                  {Code::e4m3, grids::row, ScaleType::f32}};
  linear.bias = Tensor(memory, DType::f32, {3});
  EXPECT_EQ(linear.bytes(), 15 + 12 + 12);
}

TEST(OpDescTest, PrintsShapesAndFormats) {
  OpDesc desc{.op = "linear", .m = 1, .n = 2048, .k = 512};
  EXPECT_EQ(to_string(desc), "linear m=1 n=2048 k=512 w=bf16 x=bf16");
  desc.weight_format = QuantFormat{Code::e4m3, grids::block128, ScaleType::f32};
  desc.input_format = QuantFormat{Code::e4m3, grids::group128, ScaleType::f32};
  EXPECT_EQ(to_string(desc), "linear m=1 n=2048 k=512 w=e4m3[128x128]f32 x=e4m3[1x128]f32");
}

// A default body is the specification of a fused op: it must call its parts, in order.
class Recorder final : public NullBackend {
 public:
  std::vector<std::string> calls;
  void add(const Tensor&, const Tensor&, const Tensor&) override { calls.emplace_back("add"); }
  void rms_norm(const Tensor&, const NormWeight&, const Activation&) override {
    calls.emplace_back("rms_norm");
  }
  void linear(const Activation&, const Linear& w, const Tensor&) override {
    calls.push_back("linear " + w.name);
  }
};

TEST(BackendTest, DefaultBodiesCallTheirParts) {
  Recorder recorder;
  Backend& backend = recorder;
  backend.add_rms_norm({}, {}, {}, {});
  Linear q, k;
  q.name = "q";
  k.name = "k";
  const Linear* const weights[] = {&q, &k};
  const Tensor outs[2] = {};
  backend.linear_group({}, weights, outs);
  bool ran = false;
  backend.run_step(7, [&] { ran = true; });
  EXPECT_TRUE(ran);
  EXPECT_EQ(recorder.calls, (std::vector<std::string>{"add", "rms_norm", "linear q", "linear k"}));
  EXPECT_THROW(backend.linear_group({}, weights, std::span(outs, 1)), Fault);
}

TEST(NullBackendTest, GivesAddressesThatNobodyOwns) {
  NullBackend nowhere;
  const Buffer buffer = nowhere.alloc(size_t{1} << 50, "anything");
  EXPECT_NE(buffer.data(), nullptr);
  EXPECT_EQ(buffer.bytes(), size_t{1} << 50);
}

}  // namespace
}  // namespace octet::ops
