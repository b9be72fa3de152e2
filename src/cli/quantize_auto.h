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
};

void add_auto_rows(OptionTable& table, AutoOptions& options);
// Error if they say nothing together, before any work.
void check_auto(const AutoOptions& options);

struct AutoResult {
  offline::QuantizeReport report;
  std::vector<offline::Candidate> candidates;
  offline::Choice choice;
  eval::Fidelity before, after;              // all in FP8, and as it was written
  double perplexity = 0;                     // of the source, in FP32
  int64_t linear_bytes = 0, kept_bytes = 0;  // of the candidates, as they are in 16 bits
};

// Quantizes all that the scheme and the policy say, keeps what the budget asks for, judges by the
// very tensors that are written, and writes them to options.out.
AutoResult quantize_auto(const offline::QuantizeOptions& options, const std::string& scheme,
                         const AutoOptions& autos);

std::string text_of(const AutoResult& result);
OrderedJson json_of(const AutoResult& result);

}  // namespace octet::cli
