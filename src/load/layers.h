// The three layers of a load test: what a server does alone, where it saturates, and how it does
// under a mix of lengths.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "load/arrivals.h"
#include "load/driver.h"
#include "load/statistics.h"

namespace octet::load {

// One run of a layer.
struct Step {
  std::string name;  // "concurrency 8", "4.00 req/s"
  double rate = ArrivalOptions::kInfinite;
  int64_t concurrency = 0;  // 0: no limit
  RunResult run;
  Statistics statistics;
};

// Where a server saturates.
struct Knee {
  std::string rule;                    // what the two figures mean, in words
  std::optional<int64_t> concurrency;  // none: not reached, or not looked for
  std::optional<double> rate;          // the highest that held; none: not even the lowest did
  std::string concurrency_text, rate_text;
};

struct Layer {
  std::string name;  // "baseline", "stress", "mixed", "custom"
  std::vector<Step> steps;
  std::optional<Knee> knee;
};

// The requests of one run: `count` of them, other ones for each `seed`.
using MakeRequests = std::function<std::vector<LoadRequest>(int64_t count, uint64_t seed)>;

struct LayerOptions {
  int64_t warm_ups = 1;  // requests that are sent before each layer and not counted
  uint64_t seed = 0;
  Goodput goodput;
  bool quiet = false;
};

// One request after the other.
Layer run_baseline(Driver& driver, const MakeRequests& make, int64_t count,
                   const LayerOptions& options);

struct StressOptions {
  int64_t most = 64;              // of the concurrency sweep: 1, 2, 4, ... most
  int64_t requests_per_slot = 4;  // of each of its steps, but at least `least_requests`
  int64_t least_requests = 16;
  std::vector<double> shares = {0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25};  // of the capacity
  std::vector<double> rates;  // instead of shares of the capacity
  double step_seconds = 10;   // how long requests arrive at each rate
  double burstiness = 1;
  double knee_share = 0.9;  // of the concurrency's knee
  double ttft_factor = 5;   // of the rate's knee
  double good_share = 0.9;  // the same, with --goodput
};
// First a closed loop: 1, 2, 4, ... requests at a time. The capacity is the most requests a second
// of these. Then an open loop: requests arrive at rising rates, whatever the server does. It ends
// after the first rate that does not hold.
Layer run_stress(Driver& driver, const MakeRequests& make, const StressOptions& stress,
                 const LayerOptions& options);

// The knees of steps that were run. The concurrency's: the smallest that gives `knee_share` of the
// most output tokens a second that any gave; if that is the largest, it was not reached. The
// rate's: the highest before the first rate that does not hold; one holds if no request failed, P99
// TTFT is at most `ttft_factor` times that at concurrency 1, and, where `goodput` is set,
// `good_share` of the requests are good.
Knee find_knee(const std::vector<Step>& steps, const StressOptions& stress, const Goodput& goodput);
bool holds(const Step& step, const Step& unloaded, const StressOptions& stress,
           const Goodput& goodput);

// One run of any requests: the mixed layer, or a plain load test.
struct PlainOptions {
  std::string name = "mixed";
  ArrivalOptions arrivals;
  int64_t max_concurrency = 0;
};
Layer run_plain(Driver& driver, std::vector<LoadRequest> requests, const PlainOptions& plain,
                const LayerOptions& options);

// Statistics of each group of requests ("short", "medium", "long"), in the order of first sight;
// the duration is that of the whole run.
std::vector<std::pair<std::string, Statistics>> statistics_by_group(const RunResult& run,
                                                                    const Goodput& goodput);

}  // namespace octet::load
