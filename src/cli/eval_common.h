// What the tasks of octet eval share: a text that is cut into pieces, and words for a result.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/open_model.h"
#include "eval/evaluate.h"

namespace octet::cli {

struct TextOptions {
  std::string file, convention = "windows";
  std::optional<int64_t> window;
  int64_t max_tokens = 0;  // of the text; 0 = all
};
void add_text_rows(OptionTable& table, TextOptions& options);

struct Cut {
  std::vector<eval::Piece> pieces;
  std::string convention;  // in words
};
// The text in the model's tokens. Throws Error if there is nothing to score, or a window is longer
// than the model allows.
Cut cut_text(const TextOptions& options, const OpenModel& open);

eval::Subject subject_of(const OpenModel& open, ops::Backend& backend);

// "fp8, KV cache e4m3, attention fp8": what a run computed, for people and the JSON.
std::string arithmetic_of(const OpenModel& open);

}  // namespace octet::cli
