#include "numerics/scheme.h"

#include "base/error.h"

namespace octet {
namespace {

constexpr QuantFormat kTensor{Code::e4m3, grids::tensor, ScaleType::f32};
constexpr QuantFormat kRow{Code::e4m3, grids::row, ScaleType::f32};
constexpr QuantFormat kGroup{Code::e4m3, grids::group128, ScaleType::f32};
constexpr QuantFormat kBlock{Code::e4m3, grids::block128, ScaleType::f32};
constexpr QuantFormat kMx{Code::e4m3, {1, 32}, ScaleType::e8m0};
constexpr QuantFormat kInt8{Code::i8, grids::row, ScaleType::f32};

const Scheme kSchemes[] = {
    {"fp8_channel",
     {kRow, kRow, InputScale::dynamic},
     "E4M3, one scale per output channel and per token: all scales outside the dot product"},
    {"fp8_block",
     {kBlock, kGroup, InputScale::dynamic},
     "E4M3, one scale per 128x128 block and per 128 values of a token: DeepSeek's format"},
    {"fp8_group",
     {kGroup, kGroup, InputScale::dynamic},
     "E4M3, one scale per 128 inputs of a weight's row and of a token: the finest, 3 % more bytes"},
    {"fp8_tensor",
     {kTensor, kTensor, InputScale::dynamic},
     "E4M3, one scale a tensor; that of an input depends on who shares the step, so it is for "
     "measuring"},
    {"fp8_tensor_static",
     {kTensor, kTensor, InputScale::calibrated},
     "E4M3, one scale a tensor, those of inputs calibrated: with --calibration-file"},
    {"fp8_w8a16",
     {kRow, std::nullopt, InputScale::dynamic},
     "E4M3 weights, one scale per output channel; inputs stay 16-bit"},
    {"mxfp8",
     {kMx, kMx, InputScale::dynamic},
     "E4M3, a power of two per 32 inputs of a weight's row and of a token: OCP MX"},
    {"int8",
     {kInt8, kInt8, InputScale::dynamic},
     "INT8, one scale per output channel and per token; CPU only"},
};

}  // namespace

std::string to_string(const LinearFormat& format) {
  if (!format.weight && !format.input) return "16-bit";
  std::string text = "weight ";
  text += format.weight ? to_string(*format.weight) : "16-bit";
  text += ", input ";
  if (!format.input) return text + "16-bit";
  text += to_string(*format.input);
  text += format.when == InputScale::dynamic ? " dynamic" : " calibrated";
  return text;
}

std::span<const Scheme> schemes() {
  return kSchemes;
}

const Scheme& scheme_named(std::string_view name) {
  std::string accepted;
  for (const Scheme& scheme : kSchemes) {
    if (scheme.name == name) return scheme;
    if (!accepted.empty()) accepted += ", ";
    accepted += scheme.name;
  }
  throw Error({.what = "unknown quantization scheme",
               .where = "--scheme",
               .value = std::string(name),
               .accepted = accepted,
               .fix = ""});
}

}  // namespace octet
