#include "offline/delayed_scaling.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace octet::offline {

AmaxAlgorithm parse_amax_algorithm(std::string_view text, const std::string& where) {
  if (text == "max") return AmaxAlgorithm::max;
  if (text == "most_recent") return AmaxAlgorithm::most_recent;
  throw Error({.what = "unknown algorithm of delayed scaling",
               .where = where,
               .value = std::string(text),
               .accepted = "max, most_recent"});
}

float delayed_range(std::span<const float> amax, const DelayedScaling& how) {
  invariant(how.history >= 1, "a history has one step or more");
  // A step whose history is all zeros keeps the range of the step before it: so the last step that
  // is not zero decides, and with `max` what lies within the history that ends there.
  size_t end = amax.size();
  while (end > 0 && !(amax[end - 1] > 0.0f)) --end;
  if (end == 0) return 0.0f;
  const bool recent = how.algorithm == AmaxAlgorithm::most_recent;
  // The history reaches back from the last step that was taken over, zeros included, as far as it
  // still holds that one.
  const auto length = static_cast<size_t>(how.history);
  const size_t last = std::min(amax.size(), end - 1 + length);
  const size_t begin = recent ? end - 1 : last - std::min(last, length);
  const float most = *std::max_element(amax.begin() + static_cast<std::ptrdiff_t>(begin),
                                       amax.begin() + static_cast<std::ptrdiff_t>(end));
  return std::ldexp(most, how.margin);
}

}  // namespace octet::offline
