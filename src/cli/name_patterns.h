// Names of tensors and modules with their numbers folded, so that 61 layers of 256 experts are a
// few lines on a terminal.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octet::cli {

// "model.layers.12.mlp.gate" -> "model.layers.*.mlp.gate".
inline std::string folded(std::string_view name) {
  std::string text;
  for (size_t i = 0; i < name.size();) {
    const bool starts = i == 0 || name[i - 1] == '.';
    size_t end = i;
    while (end < name.size() && name[end] >= '0' && name[end] <= '9') ++end;
    if (starts && end > i && (end == name.size() || name[end] == '.')) {
      text += '*';
      i = end;
    } else {
      text += name[i++];
    }
  }
  return text;
}

// Values by key, in the order in which the keys came first.
template <class Key, class Value>
class OrderedGroups {
 public:
  Value& operator[](const Key& key) {
    const auto [at, added] = index_.try_emplace(key, entries_.size());
    if (added) entries_.push_back({key, Value{}});
    return entries_[at->second].second;
  }
  const std::vector<std::pair<Key, Value>>& entries() const { return entries_; }

 private:
  std::map<Key, size_t> index_;
  std::vector<std::pair<Key, Value>> entries_;
};

}  // namespace octet::cli
