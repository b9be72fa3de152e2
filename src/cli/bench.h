// The tasks of `octet bench`, one file each.
#pragma once

#include "cli/verbs.h"

namespace octet::cli {

int run_bench_latency(Args args);
int run_bench_throughput(Args args);
int run_bench_serve(Args args);
int run_bench_slices(Args args);

}  // namespace octet::cli
