// octet bench TASK ...: speed, of this machine or of a server.
#include "cli/bench.h"

#include "base/error.h"
#include "cli/output.h"

namespace octet::cli {

int run_bench(Args args) {
  const std::string_view task = args.empty() ? std::string_view() : std::string_view(args[0]);
  if (task == "latency") return run_bench_latency(args.subspan(1));
  if (task == "throughput") return run_bench_throughput(args.subspan(1));
  if (task == "serve") return run_bench_serve(args.subspan(1));
  if (task == "slices") return run_bench_slices(args.subspan(1));
  if (task == "--help" || task == "-h") {
    print(
        "octet bench TASK MODEL ...: figures with their share of the machine.\n\nTasks:\n"
        "  latency      speed of prefill and decode of one batch, step by step\n"
        "  throughput   tokens a second of a large batch\n"
        "  serve        load test of a server that speaks OpenAI's API (no MODEL)\n"
        "  slices       short slices of work on command, for a script that takes turns\n\n"
        "Every task takes, beside its own options:\n"
        "  --help         list its options\n"
        "  --config FILE  read options from a JSON file; flags override it\n"
        "  --print-config print all values, with where each came from\n");
    return 0;
  }
  throw Error({.what = args.empty() ? "TASK is missing" : "unknown task",
               .value = std::string(task),
               .accepted = "latency, throughput, serve, slices",
               .fix = "see octet bench --help"});
}

}  // namespace octet::cli
