// Second moments of what enters the linears of a model: how inputs vary, and which vary together.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "ops/op_types.h"

namespace octet::offline {

// H = sum over rows of x xᵀ, [width, width]; its lower triangle alone is filled.
struct Moments {
  int64_t width = 0, rows = 0;
  std::vector<float> sum;
  double at(int64_t i, int64_t j) const {
    return double{sum[static_cast<size_t>(i >= j ? i * width + j : j * width + i)]};
  }
};

// Linears that share an input share its moments.
class InputMoments {
 public:
  explicit InputMoments(ThreadPool& threads) : threads_(threads) {}

  // x [rows, in] of any float type enters all of `ws`. Error if it holds NaN or an infinity.
  void add(std::span<const ops::Linear* const> ws, const Tensor& x);

  // Null if no row of an input was seen.
  std::shared_ptr<const Moments> find(const std::string& module) const;

 private:
  ThreadPool& threads_;
  std::map<std::string, std::shared_ptr<Moments>, std::less<>> by_module_;
};

}  // namespace octet::offline
