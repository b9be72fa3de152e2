// The verbs of the command line: one function and one file each, listed in main.cpp.
#pragma once

#include <span>
#include <string>

namespace octet::cli {

// What follows the verb. Returns the exit code: 0 done, 1 a gate failed. Throws Error (exit 2) for
// bad usage and bad input, Fault (exit 1) for what is our own failure.
using Args = std::span<const std::string>;

int run_serve(Args args);
int run_generate(Args args);
int run_chat(Args args);
int run_quantize(Args args);
int run_calibrate(Args args);
int run_convert(Args args);
int run_pull(Args args);
int run_eval(Args args);
int run_ladder(Args args);
int run_inspect(Args args);
int run_kernels(Args args);
int run_bench(Args args);
int run_versus(Args args);
int run_replay(Args args);
int run_doctor(Args args);

}  // namespace octet::cli
