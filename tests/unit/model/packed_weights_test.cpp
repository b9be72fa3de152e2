// AWQ, GPTQ and packed compressed-tensors: what the reader makes of words that are known.
#include "model/packed_weights.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "numerics/half.h"
#include "unit/model/packed_writer.h"
#include "unit/model/tiny_checkpoint.h"

namespace octet::model {
namespace {

using test::at;
using test::error_of;
using test::HostBackend;
using test::kLlama;
using test::Layout;
using test::load;
using test::Numbers;
using test::Parts;
using test::TempDir;
using test::Tiny;
using test::unpack;
using test::written;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

struct Case {
  Packing packing;
  int64_t out, in;
  bool shuffled = false;
};
std::vector<Case> cases() {
  const auto packing = [](Layout layout, int64_t group, bool symmetric, int offset) {
    return Packing{
        .layout = layout, .bits = 4, .group = group, .symmetric = symmetric, .zero_offset = offset};
  };
  return {{packing(Layout::awq, 128, false, 0), 72, 384},
          {packing(Layout::awq, 32, false, 0), 136, 96},
          {packing(Layout::awq, 0, false, 0), 8, 80},
          {packing(Layout::gptq, 128, false, 1), 72, 384},
          {packing(Layout::gptq, 64, false, 0), 136, 160},
          {packing(Layout::gptq, 128, false, 1), 72, 384, true},
          {packing(Layout::compressed, 128, true, 0), 71, 300},
          {packing(Layout::compressed, 32, false, 0), 30, 96},
          {packing(Layout::compressed, 0, false, 0), 5, 17}};
}

TEST(PackedWeights, NumbersComeOutExactly) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(fmt::format("layout {} group {} [{}, {}]", static_cast<int>(c.packing.layout),
                             c.packing.group, c.out, c.in));
    const Numbers x(c.out, c.in, c.packing.group, c.packing.symmetric, c.shuffled);
    const UnpackedWeight weight = unpack(written(x, c.packing, "m"), c.packing, c.out, c.in);
    EXPECT_EQ(weight.scales, x.scale);
    EXPECT_EQ(weight.groups, x.groups);
    EXPECT_EQ(weight.scale_type, DType::f16);
    EXPECT_EQ(weight.group_of, c.shuffled ? x.group_of : std::vector<int32_t>{});
    const std::vector<std::byte> halves = expand(weight, c.out, c.in);
    for (int64_t n = 0; n < c.out; ++n) {
      for (int64_t k = 0; k < c.in; ++k) {
        ASSERT_EQ(static_cast<int8_t>(weight.codes[at(n * c.in + k)]), x.code(n, k))
            << n << " " << k;
        fp16 half;
        std::memcpy(&half, halves.data() + at(n * c.in + k) * 2, 2);
        ASSERT_EQ(to_float(half), to_float(to_fp16(x.value(n, k)))) << n << " " << k;
      }
    }
  }
}

TEST(PackedWeights, EightBitsOfCompressedTensors) {
  const Packing packing{.layout = Layout::compressed, .bits = 8, .group = 0, .symmetric = true};
  Parts parts;
  parts.words("m.weight_packed", {1, 2}, {0x00FF8081u, 0x0000017Fu});
  parts.halves("m.weight_scale", {1, 1}, {0.5f});
  const UnpackedWeight weight = unpack(parts, packing, 1, 6);
  const std::vector<int> want = {1, 0, 127, -128, -1, -127};
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(static_cast<int8_t>(weight.codes[i]), want[i]);
  }
}

TEST(PackedWeights, WhatDoesNotFitIsAnErrorThatNamesIt) {
  for (const Case& c : cases()) {
    const Numbers x(c.out, c.in, c.packing.group, c.packing.symmetric, c.shuffled);
    const Parts good = written(x, c.packing, "m");
    for (const auto& [name, tensor] : good.tensors) {
      if (name.ends_with("_shape")) continue;
      SCOPED_TRACE(name);
      Parts parts = good;
      Shape longer = tensor.shape;
      longer.dims[0] += 1;
      parts.tensors[name] = Tensor(tensor.data, tensor.type, longer);
      EXPECT_THAT(
          error_of([&] { unpack(parts, c.packing, c.out, c.in); }),
          AllOf(HasSubstr("wrong shape"), HasSubstr("'" + name + "'"), HasSubstr("a file")));
      parts.tensors[name] = Tensor(tensor.data, DType::u8, tensor.shape);
      EXPECT_THAT(error_of([&] { unpack(parts, c.packing, c.out, c.in); }),
                  AllOf(HasSubstr("'" + name + "'"), HasSubstr("U8")));
      if (name.ends_with("g_idx")) continue;  // without it groups are in order
      parts.tensors.erase(name);
      EXPECT_THAT(error_of([&] { unpack(parts, c.packing, c.out, c.in); }),
                  HasSubstr("no tensor '" + name + "'"));
    }
  }
  const Packing packing{.layout = Layout::gptq, .bits = 4, .group = 64};
  const Numbers x(8, 128, 64, false);
  for (const int32_t bad : {-1, 2, 1 << 30}) {
    Parts parts = written(x, packing, "m");
    std::memcpy(static_cast<char*>(parts.tensors.at("m.g_idx").data) + 20, &bad, 4);
    EXPECT_THAT(error_of([&] { unpack(parts, packing, 8, 128); }),
                AllOf(HasSubstr("m.g_idx'"), HasSubstr("of input 5"), HasSubstr("0 to 1")));
  }
  EXPECT_THAT(error_of([&] { unpack(written(x, packing, "m"), packing, 8, 127); }),
              AllOf(HasSubstr("127"), HasSubstr("a multiple of 8")));
}

// A whole model: linears hold the codes and scales, or 16-bit values where groups are out of order.
TEST(PackedWeights, BindToLinears) {
  for (const bool shuffled : {false, true}) {
    Tiny tiny(kLlama);
    tiny.config["quantization_config"] = {
        {"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"desc_act", shuffled}};
    const Packing packing{.layout = Layout::gptq, .bits = 4, .group = 128, .zero_offset = 1};
    std::map<std::string, Numbers> numbers;
    std::vector<Parts> kept;
    for (const auto& [name, tensor] : std::map(tiny.tensors)) {
      if (!name.ends_with("_proj.weight")) continue;
      const std::string module = name.substr(0, name.size() - 7);
      const auto& x =
          numbers.emplace(module, Numbers(tensor.rows(), tensor.cols(), 128, false, shuffled))
              .first->second;
      kept.push_back(written(x, packing, module));
      // As the tools write it, whether the model has biases or not.
      kept.back().halves(module + ".bias", {tensor.rows()}, std::vector<float>(at(tensor.rows())));
      for (const auto& [part, words] : kept.back().tensors) tiny.tensors[part] = words;
      tiny.tensors.erase(name);
    }
    ASSERT_EQ(numbers.size(), 14u);
    const TempDir dir;
    tiny.write(dir);
    HostBackend backend;
    const auto model = load(dir, backend);
    for (const LinearUse& use : model->linears()) {
      const ops::Linear& linear = *use.linear;
      const auto found = numbers.find(linear.name);
      if (found == numbers.end()) continue;
      const Numbers& x = found->second;
      SCOPED_TRACE(linear.name);
      EXPECT_FALSE(linear.input);
      // One group is in order whatever its inputs' order is.
      if (!shuffled || x.groups == 1) {
        ASSERT_EQ(to_string(linear.quant.format), "i8[1x128]f32");
        EXPECT_EQ(linear.quant.codes.as<int8_t>()[x.in + 3], x.code(1, 3));
        EXPECT_EQ(linear.quant.scales.as<float>()[x.groups], x.scale[at(x.groups)]);
      } else {
        ASSERT_EQ(linear.plain.type, DType::f16);
        EXPECT_EQ(to_float(linear.plain.as<fp16>()[x.in + 3]), to_float(to_fp16(x.value(1, 3))));
      }
    }
    if (shuffled) {
      EXPECT_THAT(model->notices(), Contains(HasSubstr("act-order")));
    }

    auto* bias = tiny.tensors.at("model.layers.0.mlp.up_proj.bias").as<fp16>();
    std::memset(bias, 0x3C, 2);
    EXPECT_THAT(test::fault_of(tiny),
                AllOf(HasSubstr("has one that is not zero"), HasSubstr("up_proj.bias'")));
  }
}

}  // namespace
}  // namespace octet::model
