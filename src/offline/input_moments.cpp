#include "offline/input_moments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/binder.h"
#include "offline/combine.h"

namespace octet::offline {
namespace {

// How many rows of x are added in one pass over a row of the sum.
constexpr int64_t kRows = 64;

void require_finite(const std::vector<float>& values, int64_t cols, const std::string& module) {
  const auto bad = std::ranges::find_if(values, [](float v) { return !std::isfinite(v); });
  if (bad == values.end()) return;
  throw Error({.what = "what enters a linear is NaN or infinite, so calibration has no meaning",
               .where = fmt::format("input of '{}'", module),
               .value = fmt::format("{} in column {}", *bad, (bad - values.begin()) % cols),
               .accepted = "finite activations",
               .fix = "look at the checkpoint with `octet inspect MODEL --scan`"});
}

}  // namespace

void InputMoments::add(std::span<const ops::Linear* const> ws, const Tensor& x) {
  const int64_t width = x.cols(), rows = x.rows();
  std::shared_ptr<Moments>& first = by_module_[ws.front()->name];
  if (!first) {
    first = std::make_shared<Moments>();
    first->width = width;
    first->sum.resize(static_cast<size_t>(width * width));
  }
  for (const ops::Linear* w : ws) by_module_[w->name] = first;
  const std::vector<float> values = model::to_float(x);
  require_finite(values, width, ws.front()->name);

  // coefficients[i][t] = x[t, i], so that row i of the sum is a combination of rows of x.
  std::vector<float> coefficients(static_cast<size_t>(width * kRows));
  for (int64_t begin = 0; begin < rows; begin += kRows) {
    const int64_t count = std::min(kRows, rows - begin);
    const float* const block = values.data() + begin * width;
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t i = 0; i < width; ++i) coefficients[i * kRows + t] = block[t * width + i];
    }
    // Row i has i + 1 elements: a short and a long one together are even work.
    threads_.parallel_for((width + 1) / 2, 1, [&](int64_t from, int64_t to, int) {
      const auto row = [&](int64_t i) {
        add_combination(coefficients.data() + i * kRows, block, width, count, i + 1,
                        first->sum.data() + i * width);
      };
      for (int64_t i = from; i < to; ++i) {
        row(i);
        if (width - 1 - i != i) row(width - 1 - i);
      }
    });
  }
  first->rows += rows;
}

std::shared_ptr<const Moments> InputMoments::find(const std::string& module) const {
  const auto found = by_module_.find(module);
  return found == by_module_.end() ? nullptr : found->second;
}

}  // namespace octet::offline
