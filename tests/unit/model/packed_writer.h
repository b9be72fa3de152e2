// A plain writer of each layout of 4-bit weights, from numbers that are known.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "model/packed_weights.h"
#include "numerics/half.h"

namespace octet::test {

using model::Packing;
using Layout = Packing::Layout;

inline size_t at(int64_t i) {
  return static_cast<size_t>(i);
}

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

  // Values [out, in] rounded to the nearest, as such checkpoints are made: symmetric ones with the
  // scale absmax / 7, others with zero points and the scale (max - min) / 15. GPTQ v1 cannot write
  // the zero point 0. `backwards`: the groups run from the last input to the first.
  Numbers(const std::vector<float>& values, int64_t out_, int64_t in_, const Packing& packing,
          bool backwards)
      : Numbers(out_, in_, packing.group, packing.symmetric) {
    const bool symmetric = packing.symmetric;
    if (backwards) std::ranges::reverse(group_of);
    for (int64_t n = 0; n < out; ++n) {
      std::vector<float> least(at(groups)), most(at(groups));
      for (int64_t k = 0; k < in; ++k) {
        const size_t g = at(group_of[at(k)]);
        least[g] = std::min(least[g], values[at(n * in + k)]);
        most[g] = std::max(most[g], values[at(n * in + k)]);
      }
      for (int64_t g = 0; g < groups; ++g) {
        const float low = least[at(g)], high = most[at(g)];
        const float step = symmetric ? std::max(-low, high) / 7 : (high - low) / 15;
        float& s = scale[at(n * groups + g)] = to_float(to_fp16(step));
        zero[at(n * groups + g)] =
            symmetric
                ? 8
                : std::clamp(static_cast<int>(std::nearbyint(-low / s)), packing.zero_offset, 15);
      }
      for (int64_t k = 0; k < in; ++k) {
        const size_t g = at(n * groups + group_of[at(k)]);
        const float steps = std::nearbyint(values[at(n * in + k)] / scale[g]);
        number[at(n * in + k)] = std::clamp(static_cast<int>(steps) + zero[g], 0, 15);
      }
    }
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

inline Parts written(const Numbers& x, const Packing& packing, const std::string& m) {
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
class Nowhere : public model::WeightSource {
 public:
  const Tensor* find(std::string_view, const Shape&) const override { return nullptr; }
  std::vector<std::string> names() const override { return {}; }
  std::string locate(std::string_view) const override { return "a file"; }
};

inline model::UnpackedWeight unpack(const Parts& parts, const Packing& packing, int64_t out,
                                    int64_t in) {
  const model::FindPart find = [&](const std::string& name) -> const Tensor* {
    const auto found = parts.tensors.find(name);
    return found == parts.tensors.end() ? nullptr : &found->second;
  };
  return model::unpack_weight(packing, "m", out, in, find, Nowhere());
}

}  // namespace octet::test
