#include "model/packed_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "model/binder.h"
#include "numerics/half.h"
#include "numerics/int8.h"

namespace octet::model {
namespace {

using Layout = Packing::Layout;

constexpr std::array<int64_t, 8> kAwqOrder = {0, 2, 4, 6, 1, 3, 5, 7};
constexpr std::array<int64_t, 8> kAscending = {0, 1, 2, 3, 4, 5, 6, 7};

// The parts of one packed linear, checked.
class Parts {
 public:
  Parts(const std::string& module, const FindPart& find, const WeightSource& source)
      : module_(module), find_(find), source_(source) {}

  const Tensor* optional(std::string_view suffix) const { return find_(name_of(suffix)); }

  const Tensor& words(std::string_view suffix, const Shape& shape) const {
    const Tensor& found = require(suffix, shape);
    if (found.type != DType::i32 && found.type != DType::u32) {
      fail(suffix, "packed weights must be 32-bit words", safetensors_name(found.type), "I32");
    }
    return found;
  }

  // [rows, cols] scales; a column of them may be a vector.
  std::vector<float> scales(std::string_view suffix, const Shape& shape, DType& type) const {
    const Tensor* found = optional(suffix);
    const bool vector = found && shape[1] == 1 && found->shape == Shape{shape[0]};
    const Tensor& tensor = vector ? *found : require(suffix, shape);
    if (tensor.type != DType::f16 && tensor.type != DType::bf16 && tensor.type != DType::f32) {
      fail(suffix, "scales must be floats", safetensors_name(tensor.type), "F16, BF16 or F32");
    }
    type = tensor.type;
    std::vector<float> values = to_float(tensor);
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] - values[i] == 0.0f) continue;
      fail(suffix, "a scale is not finite", fmt::format("{}", values[i]), "finite numbers");
    }
    return values;
  }

  [[noreturn]] void fail(std::string_view suffix, std::string what, std::string_view value,
                         std::string accepted) const {
    const std::string name = name_of(suffix);
    throw Error({.what = std::move(what),
                 .where = fmt::format("tensor '{}' in {}", name, source_.locate(name)),
                 .value = std::string(value),
                 .accepted = std::move(accepted),
                 .fix = "check bits and group_size of quantization_config against the checkpoint"});
  }

 private:
  std::string name_of(std::string_view suffix) const { return module_ + std::string(suffix); }

  const Tensor& require(std::string_view suffix, const Shape& shape) const {
    const Tensor* found = optional(suffix);
    if (!found) {
      throw Error({.what = "a packed weight lacks one of its tensors",
                   .where = fmt::format("module '{}'", module_),
                   .value = fmt::format("no tensor '{}'", name_of(suffix)),
                   .accepted = fmt::format("a tensor of shape {}", to_string(shape)),
                   .fix = "check that all shards are there"});
    }
    if (found->shape != shape) {
      fail(suffix, "a part of a packed weight has the wrong shape", to_string(found->shape),
           to_string(shape));
    }
    return *found;
  }

  const std::string& module_;
  const FindPart& find_;
  const WeightSource& source_;
};

uint32_t word_at(const Tensor& words, int64_t index) {
  uint32_t word;
  std::memcpy(&word, static_cast<const std::byte*>(words.data) + index * 4, 4);
  return word;
}

void require_multiple(const Parts& parts, std::string_view suffix, int64_t extent) {
  if (extent % 8 == 0) return;
  parts.fail(suffix, "this many values do not fill words of 8", fmt::format("{}", extent),
             "a multiple of 8");
}

// zeros[group, output] from words along the outputs.
std::vector<uint8_t> zeros_along_outputs(const Tensor& words, int64_t groups, int64_t out,
                                         const std::array<int64_t, 8>& order, int offset) {
  std::vector<uint8_t> zeros(static_cast<size_t>(groups * out));
  for (int64_t i = 0; i < groups * out / 8; ++i) {
    const uint32_t word = word_at(words, i);
    for (size_t nibble = 0; nibble < 8; ++nibble) {
      zeros[static_cast<size_t>(i * 8 + order[nibble])] =
          static_cast<uint8_t>((word >> (4 * nibble) & 15u) + static_cast<uint32_t>(offset));
    }
  }
  return zeros;
}

// [groups, out] to [out, groups].
std::vector<float> transposed(const std::vector<float>& values, int64_t groups, int64_t out) {
  std::vector<float> result(values.size());
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t n = 0; n < out; ++n) {
      result[static_cast<size_t>(n * groups + g)] = values[static_cast<size_t>(g * out + n)];
    }
  }
  return result;
}

int64_t groups_of(const Packing& packing, int64_t in) {
  return packing.group == 0 ? 1 : (in + packing.group - 1) / packing.group;
}

// The group of each input: from g_idx, which act-order shuffles, or by position.
std::vector<int32_t> group_of_inputs(const Packing& packing, const Parts& parts, int64_t in,
                                     int64_t groups) {
  std::vector<int32_t> group(static_cast<size_t>(in));
  for (int64_t i = 0; i < in; ++i) {
    group[static_cast<size_t>(i)] = static_cast<int32_t>(packing.group ? i / packing.group : 0);
  }
  if (packing.layout != Layout::gptq || !parts.optional(".g_idx")) return group;
  const Tensor& stored = parts.words(".g_idx", {in});
  for (int64_t i = 0; i < in; ++i) {
    const auto index = static_cast<int32_t>(word_at(stored, i));
    if (index < 0 || index >= groups) {
      parts.fail(".g_idx", "an input's group does not exist",
                 fmt::format("{} of input {}", index, i), fmt::format("0 to {}", groups - 1));
    }
    group[static_cast<size_t>(i)] = index;
  }
  return group;
}

bool in_order(const Packing& packing, const std::vector<int32_t>& group) {
  if (packing.group == 0) return std::ranges::all_of(group, [](int32_t g) { return g == 0; });
  for (size_t i = 0; i < group.size(); ++i) {
    if (group[i] != static_cast<int32_t>(static_cast<int64_t>(i) / packing.group)) return false;
  }
  return true;
}

// AWQ and GPTQ: [in, out] matrices, transposed on the way, a tile of outputs at a time.
void unpack_by_inputs(const Packing& packing, const Parts& parts, int64_t out, int64_t in,
                      UnpackedWeight& weight) {
  const bool awq = packing.layout == Layout::awq;
  const int64_t groups = weight.groups;
  require_multiple(parts, ".qweight", awq ? out : in);
  require_multiple(parts, ".qzeros", out);
  const Tensor& words = parts.words(".qweight", awq ? Shape{in, out / 8} : Shape{in / 8, out});
  const Tensor& zero_words = parts.words(".qzeros", {groups, out / 8});
  weight.scales =
      transposed(parts.scales(".scales", {groups, out}, weight.scale_type), groups, out);
  const std::vector<uint8_t> zeros = zeros_along_outputs(
      zero_words, groups, out, awq ? kAwqOrder : kAscending, packing.zero_offset);
  const std::vector<int32_t> group = group_of_inputs(packing, parts, in, groups);
  const auto put = [&](int64_t n, int64_t k, uint32_t number) {
    const int zero = zeros[static_cast<size_t>(group[static_cast<size_t>(k)] * out + n)];
    weight.codes[static_cast<size_t>(n * in + k)] =
        static_cast<uint8_t>(static_cast<int>(number) - zero);
  };
  constexpr int64_t tile = 64;
  for (int64_t first = 0; first < out; first += tile) {
    const int64_t last = std::min(out, first + tile);
    if (awq) {
      for (int64_t k = 0; k < in; ++k) {
        for (int64_t w = first / 8; w < last / 8; ++w) {
          const uint32_t word = word_at(words, k * (out / 8) + w);
          for (size_t i = 0; i < 8; ++i) put(w * 8 + kAwqOrder[i], k, word >> (4 * i) & 15u);
        }
      }
    } else {
      for (int64_t r = 0; r < in / 8; ++r) {
        for (int64_t n = first; n < last; ++n) {
          const uint32_t word = word_at(words, r * out + n);
          for (int i = 0; i < 8; ++i) put(n, r * 8 + i, word >> (4 * i) & 15u);
        }
      }
    }
  }
  if (!in_order(packing, group)) weight.group_of = group;
}

// compressed-tensors: rows as they are; numbers are stored plus half their range.
void unpack_rows(const Packing& packing, const Parts& parts, int64_t out, int64_t in,
                 UnpackedWeight& weight) {
  const int64_t groups = weight.groups, each = 32 / packing.bits;
  const int64_t width = (in + each - 1) / each;
  const int half = 1 << (packing.bits - 1);
  const uint32_t mask = (1u << packing.bits) - 1u;
  const Tensor& words = parts.words(".weight_packed", {out, width});
  weight.scales = parts.scales(".weight_scale", {out, groups}, weight.scale_type);
  std::vector<int> zeros(static_cast<size_t>(out * groups), half);
  if (!packing.symmetric) {
    const Tensor& stored = parts.words(".weight_zero_point", {(out + each - 1) / each, groups});
    for (int64_t n = 0; n < out; ++n) {
      for (int64_t g = 0; g < groups; ++g) {
        const uint32_t word = word_at(stored, n / each * groups + g);
        zeros[static_cast<size_t>(n * groups + g)] =
            static_cast<int>(word >> (n % each * packing.bits) & mask);
      }
    }
  }
  for (int64_t n = 0; n < out; ++n) {
    for (int64_t k = 0; k < in; ++k) {
      const uint32_t word = word_at(words, n * width + k / each);
      const auto number = static_cast<int>(word >> (k % each * packing.bits) & mask);
      weight.codes[static_cast<size_t>(n * in + k)] =
          static_cast<uint8_t>(number - zeros[static_cast<size_t>(n * groups + k / weight.group)]);
    }
  }
}

template <typename T, typename Convert>
void store(float value, std::byte* to, Convert convert) {
  const T rounded = convert(value);
  std::memcpy(to, &rounded, sizeof rounded);
}

}  // namespace

QuantFormat unpacked_format(const Packing& packing) {
  return {Code::i8, {1, static_cast<int32_t>(packing.group)}, ScaleType::f32};
}

std::string_view packed_suffix(const Packing& packing) {
  return packing.layout == Layout::compressed ? ".weight_packed" : ".qweight";
}

UnpackedWeight unpack_weight(const Packing& packing, const std::string& module, int64_t out,
                             int64_t in, const FindPart& find, const WeightSource& source) {
  const Parts parts(module, find, source);
  UnpackedWeight weight;
  weight.groups = groups_of(packing, in);
  weight.group = packing.group == 0 ? std::max<int64_t>(in, 1) : packing.group;
  weight.codes.resize(static_cast<size_t>(out * in));
  if (packing.layout == Layout::compressed) {
    if (parts.optional(".weight_g_idx")) {
      parts.fail(".weight_g_idx", "reordered channels are not supported", "a tensor", "none");
    }
    unpack_rows(packing, parts, out, in, weight);
  } else {
    unpack_by_inputs(packing, parts, out, in, weight);
  }
  return weight;
}

std::vector<std::byte> expand(const UnpackedWeight& weight, int64_t out, int64_t in) {
  const size_t bytes = size_of(weight.scale_type);
  std::vector<std::byte> values(static_cast<size_t>(out * in) * bytes);
  for (int64_t n = 0; n < out; ++n) {
    for (int64_t k = 0; k < in; ++k) {
      const auto at = static_cast<size_t>(n * in + k);
      const int64_t group =
          weight.group_of.empty() ? k / weight.group : weight.group_of[static_cast<size_t>(k)];
      // Exact in FP32: 5 bits times the 11 of an F16.
      const float value = int8_decode(weight.codes[at]) *
                          weight.scales[static_cast<size_t>(n * weight.groups + group)];
      std::byte* to = values.data() + at * bytes;
      if (weight.scale_type == DType::f16) {
        store<fp16>(value, to, [](float v) { return to_fp16(v); });
      } else if (weight.scale_type == DType::bf16) {
        store<bf16>(value, to, [](float v) { return to_bf16(v); });
      } else {
        store<float>(value, to, [](float v) { return v; });
      }
    }
  }
  return values;
}

}  // namespace octet::model
