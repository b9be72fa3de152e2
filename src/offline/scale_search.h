// Scales of weights by least squared error. An absmax scale puts a cell's largest value on the
// largest code; where the others then fall between the codes is chance, since E4M3's steps double
// with every power of two. Somewhat larger scales, the same at run time, are tried as well.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "numerics/quantize.h"

namespace octet::offline {

inline constexpr int kScaleSteps = 16;  // to the octave

// Of plain rounding, for each cell of w [rows, cols]: choose_scale of its absmax.
std::vector<float> plain_scales(std::span<const float> w, int64_t rows, int64_t cols,
                                const QuantFormat& format);

// For each cell of w [rows, cols] the scale that leaves the least squared error, of choose_scale's
// s · 2^(j/16), j from 0 to 15: a whole octave, after which codes of normal numbers repeat. Nothing
// saturates. The scales of plain rounding where `format` has integer codes, whose steps are equal,
// or scales that are powers of two. NaN and infinities do not count.
std::vector<float> search_scales(std::span<const float> w, int64_t rows, int64_t cols,
                                 const QuantFormat& format);

}  // namespace octet::offline
