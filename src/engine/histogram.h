// A histogram that any thread adds to and any thread reads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace octet::engine {

// How many values were at most each bound, and their sum.
class Histogram {
 public:
  // Ascending; they outlive it.
  explicit Histogram(std::span<const double> bounds);

  void add(double value);

  struct View {
    std::span<const double> bounds;
    std::vector<uint64_t> at_most;  // by bound, then of all values: ascending
    double sum = 0;
  };
  View view() const;

 private:
  std::span<const double> bounds_;
  std::unique_ptr<std::atomic<uint64_t>[]> counts_;  // by bucket
  std::atomic<double> sum_{0};
};

}  // namespace octet::engine
