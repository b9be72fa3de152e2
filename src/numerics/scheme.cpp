#include "numerics/scheme.h"

#include "base/error.h"

namespace octet {
namespace {

constexpr QuantFormat kRow{Fp8::e4m3, grids::row, ScaleType::f32};
constexpr QuantFormat kGroup{Fp8::e4m3, grids::group128, ScaleType::f32};
constexpr QuantFormat kBlock{Fp8::e4m3, grids::block128, ScaleType::f32};

const Scheme kSchemes[] = {
    {"fp8_channel",
     {kRow, kRow, InputScale::dynamic},
     "E4M3, one scale per output channel and per token: all scales outside the dot product"},
    {"fp8_block",
     {kBlock, kGroup, InputScale::dynamic},
     "E4M3, one scale per 128x128 block and per 128 values of a token: DeepSeek's format"},
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
