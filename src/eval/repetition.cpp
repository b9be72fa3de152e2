#include "eval/repetition.h"

#include <algorithm>
#include <set>

namespace octet::eval {
namespace {

constexpr size_t kLongestLoop = 64, kLeastTurns = 4, kLeastTokens = 16;

// Adds the n-grams of `tokens` to `seen`; how many there are.
int64_t add_grams(std::span<const int32_t> tokens, size_t n, std::set<std::vector<int32_t>>& seen) {
  int64_t count = 0;
  for (size_t first = 0; first + n <= tokens.size(); ++first, ++count) {
    const auto gram = tokens.subspan(first, n);
    seen.emplace(gram.begin(), gram.end());
  }
  return count;
}

}  // namespace

double distinct_n(std::span<const int32_t> tokens, int64_t n) {
  std::set<std::vector<int32_t>> seen;
  const int64_t count = add_grams(tokens, static_cast<size_t>(n), seen);
  return count == 0 ? 0 : static_cast<double>(seen.size()) / static_cast<double>(count);
}

double distinct_n(std::span<const std::vector<int32_t>> answers, int64_t n) {
  std::set<std::vector<int32_t>> seen;
  int64_t count = 0;
  for (const std::vector<int32_t>& tokens : answers) {
    count += add_grams(tokens, static_cast<size_t>(n), seen);
  }
  return count == 0 ? 0 : static_cast<double>(seen.size()) / static_cast<double>(count);
}

bool ends_in_loop(std::span<const int32_t> tokens) {
  for (size_t period = 1; period <= kLongestLoop; ++period) {
    const size_t needed = std::max(kLeastTokens, kLeastTurns * period);
    if (needed > tokens.size()) break;
    const auto tail = tokens.last(needed);
    if (std::ranges::equal(tail.subspan(period), tail.first(needed - period))) return true;
  }
  return false;
}

Repetition repetition(std::span<const std::vector<int32_t>> answers) {
  Repetition sum;
  for (const std::vector<int32_t>& tokens : answers) {
    sum.distinct2 += distinct_n(tokens, 2);
    sum.distinct4 += distinct_n(tokens, 4);
    sum.loop_rate += ends_in_loop(tokens) ? 1 : 0;
  }
  const auto count = static_cast<double>(std::max<size_t>(answers.size(), 1));
  return {sum.distinct2 / count, sum.distinct4 / count, sum.loop_rate / count};
}

}  // namespace octet::eval
