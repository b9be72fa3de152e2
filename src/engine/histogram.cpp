#include "engine/histogram.h"

#include <algorithm>

namespace octet::engine {

Histogram::Histogram(std::span<const double> bounds)
    : bounds_(bounds), counts_(std::make_unique<std::atomic<uint64_t>[]>(bounds.size() + 1)) {}

void Histogram::add(double value) {
  const auto bucket = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  counts_[static_cast<size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

Histogram::View Histogram::view() const {
  View view{.bounds = bounds_, .at_most = {}, .sum = sum_.load(std::memory_order_relaxed)};
  uint64_t total = 0;
  for (size_t i = 0; i <= bounds_.size(); ++i) {
    total += counts_[i].load(std::memory_order_relaxed);
    view.at_most.push_back(total);
  }
  return view;
}

}  // namespace octet::engine
