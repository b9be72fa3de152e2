// 4-bit weights in 32-bit words, as AWQ, GPTQ and compressed-tensors store them, turned into codes
// of one byte: exactly, one linear at a time.
//
//             words                     one word                          zero points
//   awq       qweight [in, out/8]       outputs 8w + 0 2 4 6 1 3 5 7      qzeros [groups, out/8],
//                                       from the lowest bits up           alike
//   gptq      qweight [in/8, out]       8 inputs, ascending               qzeros [groups, out/8],
//                                                                         ascending, less 1 in v1
//   compressed weight_packed            inputs, ascending, plus 8         weight_zero_point
//             [out, in*bits/32]                                           [out/8, groups], plus 8
//
// In all of them value = (word's number - zero point) * scale, so that a code of Octet is their
// difference, which lies in -16 .. 15 (-128 .. 127 for 8 bits).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "model/config.h"

namespace octet::model {

// The format of a weight once it is unpacked: i8[1xgroup]f32.
QuantFormat unpacked_format(const Packing& packing);

// The tensor that holds a module's words: ".qweight", ".weight_packed".
std::string_view packed_suffix(const Packing& packing);

struct UnpackedWeight {
  std::vector<uint8_t> codes;     // i8 [out, in]
  std::vector<float> scales;      // [out, groups]
  DType scale_type = DType::f16;  // as stored
  // GPTQ with act-order: the group of each input; empty where input i is in group i / size.
  std::vector<int32_t> group_of;
  int64_t groups = 0;
  int64_t group = 0;  // inputs of each
};

// What a linear [out, in] named `module` is made of. `find` gives its tensors by suffix
// (".qweight"), or nullptr. Throws Error naming tensor and file if one is missing, has another
// shape or type, or a group index is out of range.
using FindPart = std::function<const Tensor*(const std::string& name)>;
UnpackedWeight unpack_weight(const Packing& packing, const std::string& module, int64_t out,
                             int64_t in, const FindPart& find, const WeightSource& source);

// The values code * scale, each rounded once to the scales' own type (f16, bf16 or f32): row-major
// [out, in] bytes of that type.
std::vector<std::byte> expand(const UnpackedWeight& weight, int64_t out, int64_t in);

}  // namespace octet::model
