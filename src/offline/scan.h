// What is in a tensor: its range, and values that no weight should have.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace octet::offline {

struct TensorScan {
  int64_t elements = 0;
  int64_t nan = 0, inf = 0;
  int64_t saturated = 0;  // FP8 codes of the largest magnitude
  int64_t zero = 0;
  // Of codes, without rows whose codes are all the same: how many are the largest, and how many the
  // most frequent of the three next to it; and how many different magnitudes there are.
  int64_t at_end = 0, near_end = 0, magnitudes = 0;
  float least = 0, most = 0;  // of the finite values; FP8 codes are taken without their scale
  float least_magnitude = 0;  // of the finite values that are not zero; 0 if there is none
  // The mean of floor(log2(|x|)) of values that are neither 0 nor 1 (the scale of cells of zeros);
  // 0 if there is none.
  double mean_exponent = 0;
};

// Reads every element, at any alignment. Integer tensors are only counted.
TensorScan scan(const Tensor& tensor);

}  // namespace octet::offline
