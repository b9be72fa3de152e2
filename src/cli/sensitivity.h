// One part of a model after another in low precision, over windows of a text: what `octet eval
// sensitivity` shows and `octet quantize --auto` goes by.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "cli/open_model.h"
#include "eval/reference.h"
#include "eval/sensitivity.h"

namespace octet::cli {

// Windows of a text, drawn by a seed.
struct DrawnText {
  std::string file;
  int64_t windows = 8, window = 512, seed = 1;
};
void add_drawn_text_rows(OptionTable& table, DrawnText& text, bool required);
// Error if the text does not fill one window.
std::vector<eval::Piece> draw_windows(const DrawnText& text, const OpenModel& open);

// Of verbs that keep figures over such windows in a file, so that a run that was ended goes on.
void add_resume_row(OptionTable& table, std::string* file);
// What a figure was asked of, for eval::ItemKey: the windows' tokens, and `how`.
std::string hash_of(std::span<const eval::Piece> pieces, std::string_view how);

struct SensitivityOptions {
  std::string model, scheme = "fp8_channel", kv_cache_dtype = "fp8_e4m3", compute = "fp32";
  std::string by = "linear", operand = "both";
  DrawnText text;
  bool leave_one_out = false, high_roles = false;
  BackendOptions device;
  std::string resume;
};

struct MeasuredPart {
  eval::Part part;
  eval::Fidelity fidelity;  // of this part alone in FP8, or of all but it
};

struct Sensitivity {
  SensitivityOptions options;
  std::string model_hash;
  double perplexity = 0;            // of the model as it is stored
  int64_t tokens = 0;               // scored
  eval::Fidelity everything;        // all linears and the cache in FP8
  std::vector<MeasuredPart> parts;  // what costs most is first

  // What FP8 costs this part: its KL, or with leave_one_out what is saved without it.
  double cost(const MeasuredPart& part) const;
};

// Throws Error for a model that is quantized already, or does not fit beside its logits.
Sensitivity measure_sensitivity(const SensitivityOptions& options);

// By how much a perplexity is above another: "+0.59 %".
std::string increase_of(double perplexity, double base);
// The standard error of a KL with `digits` after the point; "unknown" of a single window.
std::string error_of(const eval::Fidelity& fidelity, int digits);

// As a file has it, and with the increase above a `base` perplexity.
OrderedJson json_of(const eval::Fidelity& fidelity);
OrderedJson json_of(const eval::Fidelity& fidelity, double base);
// Throws Error for what no measurement gives: a KL or an error below 0, a perplexity below 1, a
// share outside 0 to 1.
eval::Fidelity read_fidelity(const JsonView& view);

OrderedJson json_of(const Sensitivity& sensitivity);
// What json_of() wrote. Throws Error that names the file, the place in it and the value.
Sensitivity read_sensitivity(const std::string& path);

}  // namespace octet::cli
