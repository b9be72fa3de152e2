// octet quantize --auto: which linears stay in 16 bits is chosen by what their FP8 costs.
#pragma once

#include <string>
#include <vector>

#include "cli/sensitivity.h"
#include "offline/choose_precision.h"
#include "offline/quantize.h"

namespace octet::cli {

struct AutoOptions {
  bool on = false;
  std::string budget;       // "kl=0.01" or "bytes=25e6"
  std::string sensitivity;  // a file of `octet eval sensitivity`; "" = it is measured first
  DrawnText text;
  double min_fp8_share = 0.8;
  double min_fp8_input_share = 1;  // of the linears' bytes: those whose inputs become FP8
};

void add_auto_rows(OptionTable& table, AutoOptions& options);
// Error if they say nothing together. `table` has been parsed: it knows which flags were given.
void check_auto(const AutoOptions& options, const OptionTable& table);
// Before any work: Error for a text that does not fill a window, sensitivities that cannot be read
// or are of another model, and a budget of bytes that not even all in FP8 meets.
void check_auto_work(const offline::QuantizeOptions& options, const AutoOptions& autos);

struct AutoResult {
  offline::QuantizeReport report;
  std::vector<offline::Candidate> candidates;
  std::vector<size_t> weight_only;  // places of candidates whose inputs stay in 16 bits
  offline::Choice choice;
  eval::Fidelity before, after;  // all in FP8, and as it was written
  double perplexity = 0;         // of the source, in FP32
  // Of the candidates, as they are in 16 bits; of those that are not kept, and yet have such
  // inputs.
  int64_t linear_bytes = 0, kept_bytes = 0, weight_only_bytes = 0;
};

// Sensitivities that are measured here are kept in OUT.sensitivity.jsonl as they come, so that a
// run that was ended, or whose budget could not be met, need not measure them again.
//
// Quantizes all that the scheme and the policy say, keeps what the budget asks for, judges by the
// very tensors that are written, and writes them to options.out.
AutoResult quantize_auto(const offline::QuantizeOptions& options, const std::string& scheme,
                         const AutoOptions& autos);

std::string text_of(const AutoResult& result);
OrderedJson json_of(const AutoResult& result);

}  // namespace octet::cli
