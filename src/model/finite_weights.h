// Weights that are to be quantized must be finite: a scale is chosen from finite values, and an
// infinity would become one of them.
#pragma once

#include <fmt/format.h>

#include <string>

#include "base/error.h"
#include "model/checkpoint.h"
#include "numerics/quantize.h"

namespace octet::model {

// Throws Error if quantizing the weight `name` met NaN or infinities.
inline void require_finite(const QuantStats& stats, const std::string& name,
                           const WeightSource& source, const std::string& fix) {
  if (stats.nonfinite() == 0) return;
  throw Error({.what = "a weight to quantize holds values that are not finite",
               .where = fmt::format("tensor '{}' in {}", name, source.locate(name)),
               .value = fmt::format("{} NaN and {} infinite ones of {}", stats.nan, stats.inf,
                                    stats.elements),
               .accepted = "finite values",
               .fix = fix});
}

}  // namespace octet::model
