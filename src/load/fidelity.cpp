#include "load/fidelity.h"

#include <algorithm>
#include <cmath>

namespace octet::load {
namespace {

constexpr double kLeast = 1e-9;

const double* find(const Place& place, const std::string& token) {
  const auto it = std::ranges::find(place.top, token, &std::pair<std::string, double>::first);
  return it == place.top.end() ? nullptr : &it->second;
}

}  // namespace

std::vector<Place> places_of(const Json& answer) {
  const auto at = [](const Json& json, const char* key) -> const Json* {
    if (!json.is_object()) return nullptr;
    const auto it = json.find(key);
    return it == json.end() ? nullptr : &*it;
  };
  const Json* choices = at(answer, "choices");
  if (choices == nullptr || !choices->is_array() || choices->empty()) return {};
  const Json* logprobs = at(choices->front(), "logprobs");
  if (logprobs == nullptr) return {};
  const Json* tokens = at(*logprobs, "tokens");
  const Json* values = at(*logprobs, "token_logprobs");
  const Json* tops = at(*logprobs, "top_logprobs");
  const auto is_list = [](const Json* list) { return list != nullptr && list->is_array(); };
  if (!is_list(tokens) || !is_list(values) || !is_list(tops)) return {};
  if (tokens->size() != values->size() || tokens->size() != tops->size()) return {};
  std::vector<Place> places;
  for (size_t i = 0; i < tokens->size(); ++i) {
    const Json& top = (*tops)[i];
    if (!(*tokens)[i].is_string() || !(*values)[i].is_number() || !top.is_object()) return {};
    Place place{(*tokens)[i].get<std::string>(), (*values)[i].get<double>(), {}};
    for (const auto& [token, value] : top.items()) {
      if (!value.is_number()) return {};
      place.top.emplace_back(token, value.get<double>());
    }
    places.push_back(std::move(place));
  }
  return places;
}

TruncatedKl truncated_kl(const Place& left, const Place& right) {
  TruncatedKl result;
  for (const auto& [token, logprob] : left.top) {
    const double* other = find(right, token);
    if (other == nullptr) continue;
    const double p = std::exp(logprob);
    result.kl += p * (logprob - *other);
    result.covered_left += p;
    result.covered_right += std::exp(*other);
  }
  const double p = std::max(1 - result.covered_left, kLeast);
  const double q = std::max(1 - result.covered_right, kLeast);
  result.kl = std::max(result.kl + p * std::log(p / q), 0.0);
  return result;
}

void compare_answers(const std::vector<Place>& left, const std::vector<Place>& right, Fidelity& f) {
  const size_t count = std::min(left.size(), right.size());
  bool same = left.size() == right.size();
  for (size_t i = 0; i < count; ++i) {
    const TruncatedKl kl = truncated_kl(left[i], right[i]);
    f.kl.push_back(kl.kl);
    f.covered += (kl.covered_left - f.covered) / static_cast<double>(f.kl.size());
    if (const double* other = find(right[i], left[i].token)) {
      f.difference.push_back(std::abs(left[i].logprob - *other));
    }
    ++f.places;
    if (left[i].token == right[i].token) {
      ++f.same_tokens;
      continue;
    }
    same = false;
    f.splits.push_back({static_cast<size_t>(f.answers), i, left[i].token, right[i].token});
    break;
  }
  ++f.answers;
  f.same_answers += same ? 1 : 0;
}

}  // namespace octet::load
