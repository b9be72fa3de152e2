#include "load/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace octet::load {
namespace {

// Tokens of each second from `begin` on; the fullest.
double fullest_second(const RunResult& run, double begin) {
  std::vector<int64_t> seconds;
  const auto count = [&](double time) {
    const auto second = static_cast<size_t>(time - begin);
    if (second >= seconds.size()) seconds.resize(second + 1);
    ++seconds[second];
  };
  for (const Outcome& outcome : run.outcomes) {
    if (!outcome.ok()) continue;
    double time = outcome.start + outcome.ttft;
    count(time);
    for (const double itl : outcome.itls) count(time += itl);
  }
  const auto fullest = std::ranges::max_element(seconds);
  return fullest == seconds.end() ? 0 : static_cast<double>(*fullest);
}

// Requests at the same time; one that ends when another begins is no company.
int64_t peak_concurrency(const RunResult& run) {
  std::vector<std::pair<double, int>> changes;
  for (const Outcome& outcome : run.outcomes) {
    if (!outcome.ok()) continue;
    changes.emplace_back(outcome.start, 1);
    changes.emplace_back(outcome.start + outcome.latency, -1);
  }
  std::ranges::sort(changes);
  int64_t now = 0, most = 0;
  for (const auto& [time, change] : changes) most = std::max(most, now += change);
  return most;
}

struct Metric {
  std::string_view name, label, heading;
  const Distribution Statistics::*values;
};
constexpr Metric kMetrics[] = {
    {"ttft", "TTFT", "Time to First Token", &Statistics::ttft},
    {"tpot", "TPOT", "Time per Output Token (excl. 1st token)", &Statistics::tpot},
    {"itl", "ITL", "Inter-token Latency", &Statistics::itl},
    {"e2el", "E2EL", "End-to-end Latency", &Statistics::e2el},
};
constexpr Metric kQueue = {"client_queue_time", "Client Queue Time", "Client-side Queueing",
                           &Statistics::queue};

std::vector<Metric> chosen(const ReportOptions& options) {
  std::vector<Metric> metrics;
  for (const Metric& metric : kMetrics) {
    if (std::ranges::find(options.metrics, metric.name) != options.metrics.end()) {
      metrics.push_back(metric);
    }
  }
  if (options.max_concurrency > 0) metrics.push_back(kQueue);
  return metrics;
}

template <class T, class Get>
OrderedJson column(const RunResult& run, Get get) {
  OrderedJson values = OrderedJson::array();
  for (const Outcome& outcome : run.outcomes) values.push_back(T(get(outcome)));
  return values;
}

void add_details(OrderedJson& json, const RunResult& run) {
  json["input_lens"] = column<int64_t>(run, [](const Outcome& o) { return o.prompt_tokens; });
  json["output_lens"] =
      column<int64_t>(run, [](const Outcome& o) { return o.ok() ? o.output_tokens : 0; });
  json["ttfts"] = column<double>(run, [](const Outcome& o) { return o.ttft; });
  json["itls"] = column<OrderedJson>(run, [](const Outcome& o) { return OrderedJson(o.itls); });
  json["latencies"] = column<double>(run, [](const Outcome& o) { return o.latency; });
  json["start_times"] = column<double>(run, [](const Outcome& o) { return o.start; });
  json["queue_times"] = column<double>(run, [](const Outcome& o) { return o.start - o.arrival; });
  json["generated_texts"] =
      column<std::string>(run, [](const Outcome& o) -> const std::string& { return o.text; });
  json["errors"] = column<std::string>(run, [](const Outcome& o) {
    return o.ok() ? "" : fmt::format("{}: {}", name_of(o.failure), o.message);
  });
  json["groups"] = column<std::string>(run, [](const Outcome& o) { return o.group; });
}

}  // namespace

double percentile(std::span<const double> sorted, double percent) {
  if (sorted.empty()) return kNothing;
  const double place = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - static_cast<double>(below));
}

std::string figure(double value, int decimals) {
  return std::isnan(value) ? "-" : fmt::format("{:.{}f}", value, decimals);
}

Distribution::Distribution(std::vector<double> values) : sorted(std::move(values)) {
  if (sorted.empty()) return;
  std::ranges::sort(sorted);
  const auto count = static_cast<double>(sorted.size());
  mean = std::accumulate(sorted.begin(), sorted.end(), 0.0) / count;
  double squares = 0;
  for (const double value : sorted) squares += (value - mean) * (value - mean);
  std = std::sqrt(squares / count);
}

bool Goodput::good(const Outcome& outcome) const {
  return outcome.ok() && (!ttft || outcome.ttft * 1e3 <= *ttft) &&
         (!tpot || outcome.tpot() * 1e3 <= *tpot) && (!e2el || outcome.latency * 1e3 <= *e2el);
}

Goodput parse_goodput(const std::vector<std::string>& limits) {
  Goodput goodput;
  for (const std::string& limit : limits) {
    const size_t colon = limit.find(':');
    const std::string name = limit.substr(0, colon);
    std::optional<double>* field = name == "ttft"   ? &goodput.ttft
                                   : name == "tpot" ? &goodput.tpot
                                   : name == "e2el" ? &goodput.e2el
                                                    : nullptr;
    const std::string number = colon == limit.npos ? "" : limit.substr(colon + 1);
    char* end = nullptr;
    const double value = std::strtod(number.c_str(), &end);
    const bool whole = !number.empty() && *end == '\0' && std::isfinite(value) && value > 0;
    if (field == nullptr || !whole) {
      throw Error({.what = "not a limit of a good request",
                   .where = "--goodput",
                   .value = limit,
                   .accepted = "ttft:MS, tpot:MS or e2el:MS, milliseconds above 0",
                   .fix = "for example --goodput ttft:200 --goodput tpot:50"});
    }
    *field = value;
  }
  return goodput;
}

Statistics statistics_of(const RunResult& run, const Goodput& goodput) {
  Statistics s;
  s.duration = run.seconds;
  std::vector<double> ttfts, tpots, itls, latencies, queue;
  double begin = std::numeric_limits<double>::infinity();
  for (const Outcome& outcome : run.outcomes) {
    ++s.failures[static_cast<size_t>(outcome.failure)];
    if (!outcome.ok()) {
      ++s.failed;
      continue;
    }
    ++s.completed;
    s.input_tokens += outcome.prompt_tokens;
    s.output_tokens += outcome.output_tokens;
    s.good += goodput.good(outcome);
    begin = std::min(begin, outcome.start);
    ttfts.push_back(outcome.ttft);
    if (outcome.output_tokens > 1) tpots.push_back(outcome.tpot());
    itls.insert(itls.end(), outcome.itls.begin(), outcome.itls.end());
    latencies.push_back(outcome.latency);
    queue.push_back(outcome.start - outcome.arrival);
  }
  s.ttft = Distribution(std::move(ttfts));
  s.tpot = Distribution(std::move(tpots));
  s.itl = Distribution(std::move(itls));
  s.e2el = Distribution(std::move(latencies));
  s.queue = Distribution(std::move(queue));
  s.max_output_tokens_per_s = fullest_second(run, begin);
  s.max_concurrent_requests = peak_concurrency(run);
  return s;
}

std::string percent_name(double percent) {
  return fmt::format("{}", percent);
}

OrderedJson result_json(const Statistics& s, const RunResult& run, const ReportOptions& options,
                        bool detailed) {
  OrderedJson json = {{"duration", s.duration},
                      {"completed", s.completed},
                      {"failed", s.failed},
                      {"total_input_tokens", s.input_tokens},
                      {"total_output_tokens", s.output_tokens},
                      {"request_throughput", s.request_throughput()},
                      {"request_goodput", nullptr},
                      {"output_throughput", s.output_throughput()},
                      {"total_token_throughput", s.per_second(s.input_tokens + s.output_tokens)},
                      {"max_output_tokens_per_s", s.max_output_tokens_per_s},
                      {"max_concurrent_requests", s.max_concurrent_requests}};
  if (options.goodput.any()) json["request_goodput"] = s.request_goodput();
  for (const Metric& metric : chosen(options)) {
    const Distribution& values = s.*metric.values;
    json[fmt::format("mean_{}_ms", metric.name)] = values.mean * 1e3;
    json[fmt::format("median_{}_ms", metric.name)] = values.median() * 1e3;
    json[fmt::format("std_{}_ms", metric.name)] = values.std * 1e3;
    for (const double p : options.percentiles) {
      json[fmt::format("p{}_{}_ms", percent_name(p), metric.name)] = values.at(p) * 1e3;
    }
  }
  OrderedJson failures = OrderedJson::object();
  for (size_t i = 1; i < s.failures.size(); ++i) {
    if (s.failures[i] > 0) failures[std::string(name_of(Failure(i)))] = s.failures[i];
  }
  json["failures"] = failures;
  if (detailed) add_details(json, run);
  return json;
}

std::string result_text(const Statistics& s, const ReportOptions& options) {
  std::string text = fmt::format("{:=^50}\n", " Serving Benchmark Result ");
  const auto count = [&](std::string_view label, int64_t value) {
    text += fmt::format("{:<40} {:<10}\n", label, value);
  };
  const auto number = [&](std::string_view label, double value) {
    text += fmt::format("{:<40} {:<10}\n", label, figure(value, 2));
  };
  count("Successful requests:", s.completed);
  count("Failed requests:", s.failed);
  if (options.max_concurrency > 0) count("Maximum request concurrency:", options.max_concurrency);
  if (std::isfinite(options.request_rate)) {
    number("Request rate configured (RPS):", options.request_rate);
  }
  number("Benchmark duration (s):", s.duration);
  count("Total input tokens:", s.input_tokens);
  count("Total generated tokens:", s.output_tokens);
  number("Request throughput (req/s):", s.request_throughput());
  if (options.goodput.any()) number("Request goodput (req/s):", s.request_goodput());
  number("Output token throughput (tok/s):", s.output_throughput());
  number("Peak output token throughput (tok/s):", s.max_output_tokens_per_s);
  number("Peak concurrent requests:", static_cast<double>(s.max_concurrent_requests));
  number("Total token throughput (tok/s):", s.per_second(s.input_tokens + s.output_tokens));
  for (const Metric& metric : chosen(options)) {
    const Distribution& values = s.*metric.values;
    text += fmt::format("{:-^50}\n", metric.heading);
    number(fmt::format("Mean {} (ms):", metric.label), values.mean * 1e3);
    number(fmt::format("Median {} (ms):", metric.label), values.median() * 1e3);
    for (const double p : options.percentiles) {
      number(fmt::format("P{} {} (ms):", percent_name(p), metric.label), values.at(p) * 1e3);
    }
  }
  return text + std::string(50, '=') + "\n";
}

std::string failure_text(const RunResult& run) {
  const Statistics s = statistics_of(run);
  if (s.failed == 0) return "";
  std::string kinds;
  for (size_t i = 1; i < s.failures.size(); ++i) {
    if (s.failures[i] == 0) continue;
    kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", s.failures[i], name_of(Failure(i)));
  }
  const auto first = std::ranges::find_if(run.outcomes, [](const Outcome& o) { return !o.ok(); });
  return fmt::format("{} of {} requests failed: {} (the first: {})", s.failed, run.outcomes.size(),
                     kinds, first->message);
}

}  // namespace octet::load
