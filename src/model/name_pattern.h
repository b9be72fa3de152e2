// Patterns on module names, as the ignore lists of checkpoints write them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace octet::model {

// Python's re.match: the pattern must match from the first character, but need not reach the last.
// Throws Error for a pattern that is invalid or runs away.
bool regex_matches_start(const std::string& pattern, std::string_view text);

// What is wrong with a pattern; nullopt if nothing.
std::optional<std::string> regex_fault(const std::string& pattern);

// Python's fnmatch: all of the text; `*` any run of characters, `?` one, [seq] and [!seq].
bool fnmatches(const std::string& pattern, std::string_view text);

// Whether `part` occurs in `name` between dots or ends: "mlp.gate" is in "model.layers.3.mlp.gate"
// but not in "model.layers.3.mlp.gate_proj", "layers.1" not in "layers.10".
bool contains_components(std::string_view name, std::string_view part);

// The glob (* and ?) that selects the same names as regex_matches_start, for policy rows; nullopt
// where none does.
std::optional<std::string> regex_glob(std::string_view pattern);

}  // namespace octet::model
