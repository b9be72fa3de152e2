// The tasks of octet eval: one function and one file each, listed in eval.cpp.
#pragma once

#include "cli/verbs.h"

namespace octet::cli {

int run_eval_perplexity(Args args);
int run_eval_compare(Args args);
int run_eval_needle(Args args);
int run_eval_mmlu(Args args);
int run_eval_gsm8k(Args args);
int run_eval_humaneval(Args args);
int run_eval_regress(Args args);
int run_eval_sampling(Args args);
int run_eval_sensitivity(Args args);

}  // namespace octet::cli
