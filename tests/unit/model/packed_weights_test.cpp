// AWQ, GPTQ and packed compressed-tensors: a plain writer of each layout, from numbers that are
// known, and what the reader makes of it.
#include "model/packed_weights.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "numerics/half.h"
#include "unit/model/tiny_checkpoint.h"

namespace octet::model {
namespace {

using test::error_of;
using test::HostBackend;
using test::kLlama;
using test::load;
using test::TempDir;
using test::Tiny;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using Layout = Packing::Layout;

// Numbers 0 .. 15 and zero points by group, and scales that F16 holds.
struct Numbers {
  int64_t out, in, group, groups;
  std::vector<int> number, zero;  // [out, in], [out, groups]
  std::vector<float> scale;       // [out, groups]
  std::vector<int32_t> group_of;  // [in]

  Numbers(int64_t out_, int64_t in_, int64_t group_, bool symmetric, bool shuffled = false)
      : out(out_), in(in_), group(group_), groups(group_ ? (in_ + group_ - 1) / group_ : 1) {
    std::mt19937 random(static_cast<uint32_t>(out + in + group));
    number.resize(static_cast<size_t>(out * in));
    for (int& n : number) n = static_cast<int>(random() % 16);
    zero.resize(static_cast<size_t>(out * groups));
    for (int& z : zero) z = symmetric ? 8 : 1 + static_cast<int>(random() % 15);
    scale.resize(zero.size());
    for (float& s : scale)
      s = to_float(to_fp16(0.001f + 0.0001f * static_cast<float>(random() % 64)));
    for (int64_t k = 0; k < in; ++k) {
      group_of.push_back(static_cast<int32_t>(group ? k / group : 0));
    }
    if (shuffled) std::ranges::shuffle(group_of, random);
  }
  int code(int64_t n, int64_t k) const {
    const auto g = static_cast<size_t>(n * groups + group_of[static_cast<size_t>(k)]);
    return number[static_cast<size_t>(n * in + k)] - zero[g];
  }
  float value(int64_t n, int64_t k) const {
    return static_cast<float>(code(n, k)) *
           scale[static_cast<size_t>(n * groups + group_of[static_cast<size_t>(k)])];
  }
};

// Tensors with memory of their own.
class Parts {
 public:
  void words(const std::string& name, Shape shape, std::vector<uint32_t> values) {
    put(name, DType::i32, shape, values.data());
  }
  void halves(const std::string& name, Shape shape, const std::vector<float>& values) {
    std::vector<fp16> stored;
    for (const float value : values) stored.push_back(to_fp16(value));
    put(name, DType::f16, shape, stored.data());
  }
  void put(const std::string& name, DType type, Shape shape, const void* data) {
    const auto bytes = static_cast<size_t>(shape.count()) * size_of(type);
    // At an odd address, as files have them.
    memory_.push_back(std::make_shared<std::vector<char>>(bytes + 1));
    std::memcpy(memory_.back()->data() + 1, data, bytes);
    tensors[name] = Tensor(memory_.back()->data() + 1, type, shape);
  }
  std::map<std::string, Tensor> tensors;

 private:
  std::vector<std::shared_ptr<std::vector<char>>> memory_;
};

size_t at(int64_t i) {
  return static_cast<size_t>(i);
}

Parts written(const Numbers& x, const Packing& packing, const std::string& m) {
  Parts parts;
  if (packing.layout == Layout::compressed) {
    const int64_t width = (x.in + 7) / 8, zero_rows = (x.out + 7) / 8;
    std::vector<uint32_t> words(at(x.out * width)), zeros(at(zero_rows * x.groups));
    for (int64_t n = 0; n < x.out; ++n) {
      for (int64_t k = 0; k < x.in; ++k) {
        words[at(n * width + k / 8)] |= static_cast<uint32_t>(x.number[at(n * x.in + k)])
                                        << (4 * (k % 8));
      }
      for (int64_t g = 0; g < x.groups; ++g) {
        zeros[at(n / 8 * x.groups + g)] |= static_cast<uint32_t>(x.zero[at(n * x.groups + g)])
                                           << (4 * (n % 8));
      }
    }
    parts.words(m + ".weight_packed", {x.out, width}, words);
    if (!packing.symmetric) parts.words(m + ".weight_zero_point", {zero_rows, x.groups}, zeros);
    parts.halves(m + ".weight_scale", {x.out, x.groups}, x.scale);
    const int64_t shape[2] = {x.out, x.in};
    parts.put(m + ".weight_shape", DType::i64, {2}, shape);
    return parts;
  }
  const bool awq = packing.layout == Layout::awq;
  // The place of an output within its word.
  const int64_t place[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  const auto shift = [&](int64_t n) { return 4 * (awq ? place[n % 8] : n % 8); };
  std::vector<uint32_t> words(at(x.out * x.in / 8)), zeros(at(x.groups * x.out / 8));
  std::vector<float> scales(x.scale.size());
  for (int64_t n = 0; n < x.out; ++n) {
    for (int64_t k = 0; k < x.in; ++k) {
      const auto number = static_cast<uint32_t>(x.number[at(n * x.in + k)]);
      if (awq) words[at(k * (x.out / 8) + n / 8)] |= number << shift(n);
      if (!awq) words[at(k / 8 * x.out + n)] |= number << (4 * (k % 8));
    }
    for (int64_t g = 0; g < x.groups; ++g) {
      const int zero = x.zero[at(n * x.groups + g)] - packing.zero_offset;
      zeros[at(g * (x.out / 8) + n / 8)] |= static_cast<uint32_t>(zero) << shift(n);
      scales[at(g * x.out + n)] = x.scale[at(n * x.groups + g)];
    }
  }
  parts.words(m + ".qweight", awq ? Shape{x.in, x.out / 8} : Shape{x.in / 8, x.out}, words);
  parts.words(m + ".qzeros", {x.groups, x.out / 8}, zeros);
  parts.halves(m + ".scales", {x.groups, x.out}, scales);
  if (!awq) parts.put(m + ".g_idx", DType::i32, {x.in}, x.group_of.data());
  return parts;
}

// Where error texts say that a tensor lies.
class Nowhere : public WeightSource {
 public:
  const Tensor* find(std::string_view, const Shape&) const override { return nullptr; }
  std::vector<std::string> names() const override { return {}; }
  std::string locate(std::string_view) const override { return "a file"; }
};

UnpackedWeight unpack(const Parts& parts, const Packing& packing, int64_t out, int64_t in) {
  const FindPart find = [&](const std::string& name) -> const Tensor* {
    const auto found = parts.tensors.find(name);
    return found == parts.tensors.end() ? nullptr : &found->second;
  };
  return unpack_weight(packing, "m", out, in, find, Nowhere());
}

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
