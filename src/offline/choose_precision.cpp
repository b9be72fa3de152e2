#include "offline/choose_precision.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace octet::offline {
namespace {

double per_byte(const Candidate& candidate) {
  return candidate.cost / static_cast<double>(candidate.bytes - candidate.bytes_low);
}

}  // namespace

std::string fused_name(std::string_view module) {
  constexpr std::string_view experts = ".experts.";
  if (const size_t at = module.find(experts); at != module.npos) {
    return std::string(module.substr(0, at)) + ".experts";
  }
  constexpr std::pair<std::string_view, std::string_view> fused[] = {
      {"q_proj", "qkv"},
      {"k_proj", "qkv"},
      {"v_proj", "qkv"},
      {"q_a_proj", "qkv_a"},
      {"kv_a_proj_with_mqa", "qkv_a"},
      {"gate_proj", "gate_up"},
      {"up_proj", "gate_up"}};
  const size_t dot = module.rfind('.');
  const std::string_view leaf = module.substr(dot + 1);
  for (const auto& [part, whole] : fused) {
    if (leaf == part) return std::string(module.substr(0, dot + 1)) + std::string(whole);
  }
  return std::string(module);
}

std::vector<size_t> keeping_order(std::span<const Candidate> candidates, const KeepBudget& budget) {
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](size_t i) { return per_byte(candidates[i]); });
  double all = 0;
  for (const Candidate& candidate : candidates) all += static_cast<double>(candidate.bytes);
  double kept = 0;
  int64_t added = 0;
  std::vector<size_t> chosen;
  for (const size_t i : order) {
    const Candidate& candidate = candidates[i];
    const auto bytes = static_cast<double>(candidate.bytes);
    const int64_t more = candidate.bytes - candidate.bytes_low;
    if (candidate.cost <= 0) continue;
    if (budget.extra ? added + more > *budget.extra : kept + bytes > budget.most_kept * all)
      continue;
    kept += bytes;
    added += more;
    chosen.push_back(i);
  }
  return chosen;
}

Choice choose_kept(std::span<const Candidate> candidates, const KeepBudget& budget,
                   FunctionRef<double(std::span<const size_t>)> measure) {
  const std::vector<size_t> order = keeping_order(candidates, budget);
  Choice choice;
  const auto try_first = [&](size_t count) {
    const double kl = measure(std::span(order).first(count));
    choice.trials.push_back({count, kl});
    return kl;
  };
  const auto saved_by = [&](size_t count) {
    double saved = 0;
    for (const size_t i : std::span(order).first(count)) saved += candidates[i].cost;
    return saved;
  };
  const double none = try_first(0);
  const auto take = [&](size_t count, double kl) {
    choice.kept.assign(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count));
    choice.kl = kl;
    choice.estimated = none - saved_by(count);
  };
  if (!budget.kl) {
    take(order.size(), order.empty() ? none : try_first(order.size()));
    return choice;
  }
  if (none <= *budget.kl || order.empty()) {
    take(0, none);
  } else {
    take(order.size(), try_first(order.size()));
  }
  if (!(choice.kl <= *budget.kl)) {
    throw Error(
        {.what = "no choice of what stays in 16 bits meets the budget",
         .where = "--budget",
         .value = fmt::format("kl={}: {:.5f} with all in FP8, {:.5f} with {} of {} parts in "
                              "16 bits, which is all that may be",
                              *budget.kl, none, choice.kl, choice.kept.size(), candidates.size()),
         .accepted = fmt::format("a budget of {:.5f} or more", std::ceil(choice.kl * 1e5) / 1e5),
         .fix = "allow more, keep more (--min-fp8-share), leave inputs in 16 bits "
                "(--min-fp8-input-share), or round better (--rounding compensated)"});
  }
  // `fails` parts do not suffice, choice.kept do; the first guess is where the sum of costs says.
  size_t fails = 0;
  while (choice.kept.size() > fails + 1) {
    size_t guess = fails + 1;
    while (guess + 1 < choice.kept.size() && none - saved_by(guess) > *budget.kl) ++guess;
    // Where the sum was wrong already, halve what is left.
    if (choice.trials.size() > 3) guess = fails + (choice.kept.size() - fails) / 2;
    const double kl = try_first(guess);
    if (kl <= *budget.kl) {
      take(guess, kl);
    } else {
      fails = guess;
    }
  }
  return choice;
}

}  // namespace octet::offline
