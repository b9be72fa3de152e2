// What the parts of a diagnosis share: the checkpoint's tensors by name, and the findings so far.
#pragma once

#include <fmt/format.h>

#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "offline/diagnose.h"

namespace octet::offline {

class Findings {
 public:
  explicit Findings(std::span<const ScannedTensor> tensors) : tensors_(tensors) {
    for (const ScannedTensor& tensor : tensors_) by_name_.emplace(tensor.name, &tensor);
  }

  std::span<const ScannedTensor> tensors() const { return tensors_; }
  const ScannedTensor* find(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }

  void add(Severity severity, std::string_view check, std::string where, std::string what,
           std::string fix) {
    known_.insert(where);
    found_.push_back({severity, check, std::move(where), std::move(what), std::move(fix)});
  }
  // Whether something was found at `where`: one fault of a tensor often has several symptoms.
  bool has(const std::string& where) const { return known_.contains(where); }

  // Of many that differ in their place alone, three; the third says how many follow. All of those
  // that are not finite, which other texts promise.
  std::vector<Finding> take() {
    std::vector<Finding> shown;
    std::map<std::pair<std::string_view, std::string>, std::vector<size_t>> alike;
    for (Finding& finding : found_) {
      auto& places = alike[{finding.check, finding.fix}];
      places.push_back(shown.size());
      if (places.size() <= 3 || finding.check == "nonfinite") shown.push_back(std::move(finding));
    }
    for (const auto& [kind, places] : alike) {
      if (places.size() <= 3 || kind.first == "nonfinite") continue;
      shown[places[2]].what += fmt::format(" (and {} more like this)", places.size() - 3);
    }
    return shown;
  }

 private:
  std::span<const ScannedTensor> tensors_;
  std::map<std::string_view, const ScannedTensor*> by_name_;
  std::vector<Finding> found_;
  std::set<std::string> known_;
};

// The part of diagnose() that is about scales: those of weights, inputs and the KV cache.
void diagnose_scales(const model::Model& model, Findings& found);

}  // namespace octet::offline
