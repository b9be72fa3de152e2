// Weights must be finite. Of one that is to be quantized a scale is chosen from finite values, and
// an infinity would become one of them; one that is not gives logits that are NaN.
#pragma once

#include <fmt/format.h>

#include <string>

#include "base/error.h"
#include "model/checkpoint.h"

namespace octet::model {

// Throws Error if `counts` (QuantStats, TensorScan) of the tensor `name` has NaN or infinities.
template <class Counts>
void require_finite(const Counts& counts, const std::string& name, const WeightSource& source,
                    const std::string& fix) {
  if (counts.nan + counts.inf == 0) return;
  throw Error({.what = "a weight holds values that are not finite",
               .where = fmt::format("tensor '{}' in {}", name, source.locate(name)),
               .value = fmt::format("{} NaN and {} infinite ones of {}", counts.nan, counts.inf,
                                    counts.elements),
               .accepted = "finite values",
               .fix = fix});
}

}  // namespace octet::model
