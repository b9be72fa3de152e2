#include "model/quant/ignore_list.h"

#include <utility>

#include "model/name_pattern.h"

namespace octet::model {
namespace {

using Names = QuantConfig::Names;

// What engines that run several linears as one call it: "a.qkv_proj" of "a.q_proj"; "" of others.
std::string fused_name(std::string_view module) {
  static constexpr std::pair<std::string_view, std::string_view> kFused[] = {
      {"q_proj", "qkv_proj"},
      {"k_proj", "qkv_proj"},
      {"v_proj", "qkv_proj"},
      {"gate_proj", "gate_up_proj"},
      {"up_proj", "gate_up_proj"},
      {"q_a_proj", "fused_qkv_a_proj"},
      {"kv_a_proj_with_mqa", "fused_qkv_a_proj"},
  };
  const size_t last = module.rfind('.') + 1;
  for (const auto& [part, whole] : kFused) {
    if (module.substr(last) == part) {
      return std::string(module.substr(0, last)) + std::string(whole);
    }
  }
  return "";
}

Match match_ignored(const std::string& entry, std::string_view module) {
  using By = TargetMatch::By;
  const By by = match_target(entry, module).by;
  if (by == By::none) return Match::none;
  return by == By::fused_name || by == By::fused_regex ? Match::possible : Match::sure;
}

bool has_substring(const std::string& entry, std::string_view module) {
  return !entry.empty() && module.find(entry) != module.npos;
}

// "model.layers.3*": a star that follows a component, and no dot.
bool is_subtree(std::string_view entry) {
  return entry.size() >= 2 && entry.ends_with('*') && entry[entry.size() - 2] != '.' &&
         entry[entry.size() - 2] != '*';
}

bool is_below(std::string_view module, std::string_view entry) {
  return module.size() > entry.size() && module[entry.size()] == '.';
}

Match match_wildcard(const std::string& entry, std::string_view module) {
  const std::string_view stem(entry.data(), entry.size() - (is_subtree(entry) ? 1 : 0));
  const bool plain = stem.find_first_of("*?[") == stem.npos;
  if (plain && module.starts_with(stem) &&
      (module.size() == stem.size() || is_below(module, stem))) {
    return Match::sure;
  }
  if (plain) return has_substring(std::string(stem), module) ? Match::possible : Match::none;
  if (!is_subtree(entry)) return fnmatches(entry, module) ? Match::sure : Match::none;
  if (fnmatches(std::string(stem), module) || fnmatches(std::string(stem) + ".*", module)) {
    return Match::sure;
  }
  return fnmatches(entry, module) ? Match::possible : Match::none;
}

}  // namespace

TargetMatch match_target(const std::string& target, std::string_view module) {
  using By = TargetMatch::By;
  const std::string fused = fused_name(module);
  if (!target.starts_with("re:")) {
    return {target == module                    ? By::name
            : target == "Linear"                ? By::class_name
            : !fused.empty() && target == fused ? By::fused_name
                                                : By::none};
  }
  const std::string regex = target.substr(3);
  const std::string_view text = std::string_view(target).substr(3);
  if (regex_matches_start(regex, module)) return {By::regex, text};
  if (!fused.empty() && regex_matches_start(regex, fused)) return {By::fused_regex, text};
  return {};
}

Match match_entry(Names names, const std::string& entry, std::string_view module) {
  switch (names) {
    case Names::full:
      if (entry == module) return Match::sure;
      return contains_components(module, entry) ? Match::possible : Match::none;
    case Names::parts:
      if (contains_components(module, entry)) return Match::sure;
      return has_substring(entry, module) ? Match::possible : Match::none;
    case Names::targets:
      return match_ignored(entry, module);
    case Names::wildcards:
      return match_wildcard(entry, module);
  }
  return Match::none;
}

std::vector<std::string> globs_of(Names names, const std::string& entry) {
  if (entry.empty()) return {};  // as a glob it would select all
  switch (names) {
    case Names::full:
      return {entry};
    case Names::parts:
      // A list may name every router of a large model; such names begin with the model's own.
      if (entry.starts_with("model.")) return {entry, entry + ".*"};
      return {entry, entry + ".*", "*." + entry, "*." + entry + ".*"};
    case Names::targets: {
      if (!entry.starts_with("re:")) return {entry};
      const auto glob = regex_glob(entry.substr(3));
      return glob ? std::vector{*glob} : std::vector<std::string>{};
    }
    case Names::wildcards:
      if (entry.find('[') != entry.npos) return {};
      if (is_subtree(entry)) {
        const std::string stem = entry.substr(0, entry.size() - 1);
        return {stem, stem + ".*"};
      }
      if (entry.find_first_of("*?") != entry.npos) return {entry};
      return {entry, entry + ".*"};
  }
  return {};
}

}  // namespace octet::model
