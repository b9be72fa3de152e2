// The quantization schemes that Octet knows: one row each. Reader, writer, planner, kernels'
// conformance cases and the command line all follow from the row.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "numerics/quant_format.h"

namespace octet {

// When an activation's scale is found.
enum class InputScale : uint8_t {
  dynamic,     // from the values themselves, at run time
  calibrated,  // stored beside the weight (`input_scale`), one a tensor
};

// The arithmetic of one linear: what its weight is stored as, and what its input is quantized to
// before the product. Either may be absent (16-bit).
struct LinearFormat {
  std::optional<QuantFormat> weight;
  std::optional<QuantFormat> input;
  InputScale when = InputScale::dynamic;
  friend bool operator==(const LinearFormat&, const LinearFormat&) = default;
};
std::string to_string(const LinearFormat& format);

struct Scheme {
  std::string_view name;  // "fp8_block"
  LinearFormat format;
  std::string_view summary;  // one line for --help
};

// All rows; the order is the order of the help text.
std::span<const Scheme> schemes();

// Throws Error naming the accepted schemes.
const Scheme& scheme_named(std::string_view name);

}  // namespace octet
