// Figures of a run, defined as `vllm bench serve` defines them, so that both tools' results can be
// laid side by side.
#pragma once

#include <array>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "load/request.h"

namespace octet::load {

// The value below which `percent` of the sorted `values` lie, interpolated linearly between the two
// nearest ranks: at place percent / 100 * (n - 1). NaN, which JSON writes as null, without values.
double percentile(std::span<const double> sorted, double percent);

inline constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();
// A figure for people: "12.34", and "-" for that of no values.
std::string figure(double value, int decimals);

struct Distribution {
  std::vector<double> sorted;
  double mean = kNothing, std = kNothing;  // of the population: divided by n

  Distribution() = default;
  explicit Distribution(std::vector<double> values);
  double at(double percent) const { return percentile(sorted, percent); }
  double median() const { return at(50); }
};

// Upper limits in milliseconds; a request is good if it keeps all that are set.
struct Goodput {
  std::optional<double> ttft, tpot, e2el;

  bool any() const { return ttft || tpot || e2el; }
  bool good(const Outcome& outcome) const;
};
// "ttft:200", "tpot:50", "e2el:1000". Error, naming --goodput, for anything else.
Goodput parse_goodput(const std::vector<std::string>& limits);

// Of the requests that have a result, unless said otherwise. Seconds.
struct Statistics {
  double duration = 0;
  int64_t completed = 0, failed = 0;
  int64_t input_tokens = 0, output_tokens = 0;
  int64_t good = 0;
  Distribution ttft, itl, e2el, queue;
  Distribution tpot;  // of those with two tokens or more
  // Chunks in the fullest second, counted from the first start; vLLM's name says tokens, and a
  // chunk is one unless the server sends several together.
  double max_output_tokens_per_s = 0;
  int64_t max_concurrent_requests = 0;
  std::array<int64_t, kFailures> failures{};

  double per_second(int64_t count) const {
    return duration > 0 ? static_cast<double>(count) / duration : 0;
  }
  double request_throughput() const { return per_second(completed); }
  double request_goodput() const { return per_second(good); }
  double output_throughput() const { return per_second(output_tokens); }
};
Statistics statistics_of(const RunResult& run, const Goodput& goodput = {});

// What is reported of a run.
struct ReportOptions {
  std::vector<std::string> metrics = {"ttft", "tpot", "itl", "e2el"};
  std::vector<double> percentiles = {99};
  Goodput goodput;
  double request_rate = 0;      // of the open loop; infinite: all at once
  int64_t max_concurrency = 0;  // 0: no limit
};

// vLLM's fields: duration ... max_concurrent_requests, and mean_, median_, std_ and pNN_ of each
// metric in milliseconds; `failures` counts by kind. `detailed` adds the arrays, one entry a
// request.
OrderedJson result_json(const Statistics& statistics, const RunResult& run,
                        const ReportOptions& options, bool detailed);

// vLLM's block for people, "Serving Benchmark Result".
std::string result_text(const Statistics& statistics, const ReportOptions& options);

// "3 of 100 failed: 2 timeout, 1 connect (the first: ...)"; empty where none did.
std::string failure_text(const RunResult& run);

// "99" or "99.9", as it is written in names of fields.
std::string percent_name(double percent);

}  // namespace octet::load
