// What an entry of an ignore list names. The dialects differ, and older exporters of one dialect
// meant more than its rules say; so a match may be sure, or possible: then the type in which the
// module's weight is stored decides.
#pragma once

#include <compare>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace octet::model {

enum class Match : uint8_t { none, possible, sure };

// clang-format off
//              sure                                            possible
//   full       the module's name                               its components (below)
//   parts      "mlp.gate": whole components in a row           any substring ("gate" of "gate_proj")
//   targets    the name, "Linear", re: matched at the start    the same of "qkv_proj" for q_proj
//   wildcards  fnmatch; "layers.3*" is it and all below        "layers.3*" for layers.30; substrings
// clang-format on
Match match_entry(QuantConfig::Names names, const std::string& entry, std::string_view module);

// How a target of compressed-tensors names a module: the less, the closer. Of two regular
// expressions, the one that comes first as text.
struct TargetMatch {
  enum class By : uint8_t { name, regex, fused_name, fused_regex, class_name, none };
  By by = By::none;
  std::string_view regex = {};
  friend auto operator<=>(const TargetMatch&, const TargetMatch&) = default;
};
TargetMatch match_target(const std::string& target, std::string_view module);

// Globs (policy.h) that select modules of which the entry is sure, for rows that people read. They
// may select fewer than it does, never more; none where no glob can say it.
std::vector<std::string> globs_of(QuantConfig::Names names, const std::string& entry);

}  // namespace octet::model
