#include "offline/expert_use.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace octet::offline {
namespace {

constexpr std::string_view kExperts = ".experts.";

}  // namespace

void ExpertUse::add(std::span<const ops::Linear* const> ws, const Tensor& x) {
  // Once for each expert: its down projection has the same rows.
  if (ws.front()->role != Role::expert_gate_up) return;
  const std::string& name = ws.front()->name;
  const size_t at = name.find(kExperts);
  invariant(at != name.npos, "an expert's name has its number");
  const size_t expert = std::stoul(name.substr(at + kExperts.size()));
  std::vector<int64_t>& counts = counts_[name.substr(0, at + kExperts.size() - 1)];
  if (counts.size() <= expert) counts.resize(expert + 1);
  counts[expert] += x.rows();
}

std::vector<int64_t> hot_experts(std::span<const int64_t> counts, int64_t experts, double share) {
  std::vector<int64_t> order(counts.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](int64_t e) { return counts[static_cast<size_t>(e)]; });
  std::erase_if(order, [&](int64_t e) { return counts[static_cast<size_t>(e)] == 0; });
  const auto most = static_cast<size_t>(std::ceil(share * static_cast<double>(experts)));
  if (order.size() > most) order.resize(most);
  return order;
}

std::vector<PolicyRow> keep_hot_experts(const ExpertUse::Counts& counts, int64_t experts,
                                        double share) {
  std::vector<PolicyRow> rows;
  for (const auto& [mixture, by_expert] : counts) {
    const int64_t all = std::accumulate(by_expert.begin(), by_expert.end(), int64_t{0});
    for (const int64_t expert : hot_experts(by_expert, experts, share)) {
      const auto used = static_cast<double>(by_expert[static_cast<size_t>(expert)]);
      rows.push_back({.role = std::nullopt,
                      .name = fmt::format("{}.{}.*", mixture, expert),
                      .format = {},
                      .reason = fmt::format("a hot expert: {:.1f} % of its layer's tokens",
                                            100 * used / static_cast<double>(all)),
                      .origin = "--expert-policy"});
    }
  }
  return rows;
}

double hot_share_of_tokens(const ExpertUse::Counts& counts, int64_t experts, double share) {
  int64_t all = 0, hot = 0;
  for (const auto& [mixture, by_expert] : counts) {
    all += std::accumulate(by_expert.begin(), by_expert.end(), int64_t{0});
    for (const int64_t expert : hot_experts(by_expert, experts, share)) {
      hot += by_expert[static_cast<size_t>(expert)];
    }
  }
  return all > 0 ? static_cast<double>(hot) / static_cast<double>(all) : 0;
}

}  // namespace octet::offline
