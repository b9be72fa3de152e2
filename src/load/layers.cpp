#include "load/layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace octet::load {
namespace {

Step run_step(Driver& driver, const std::string& layer, Step step,
              const std::vector<LoadRequest>& requests, const ArrivalOptions& arrivals,
              const LayerOptions& options) {
  Live live(layer + " " + step.name, static_cast<int64_t>(requests.size()), options.quiet);
  step.run = driver.run({.requests = requests,
                         .arrivals = arrival_times(arrivals, requests.size()),
                         .max_concurrency = step.concurrency},
                        live);
  step.statistics = statistics_of(step.run, options.goodput);
  return step;
}

// Requests that nobody counts. A server that cannot answer the first is no server to measure.
void warm_up(Driver& driver, const std::vector<LoadRequest>& requests,
             const LayerOptions& options) {
  if (requests.empty() || options.warm_ups == 0) return;
  const Outcome first = driver.run_one(requests.front());
  if (!first.ok()) {
    std::string why = first.message;  // of several lines, if it is one of ours
    std::ranges::replace(why, '\n', ' ');
    throw Error({.what = "the server does not answer a first request",
                 .where = driver.target().base.origin() +
                          target_path(driver.target().base, driver.target().endpoint),
                 .value = fmt::format("{}: {}", name_of(first.failure), why),
                 .fix = "try the same request with curl; --model, --endpoint, --api-key and the "
                        "lengths must suit the server"});
  }
  std::vector<LoadRequest> more;
  for (int64_t i = 1; i < options.warm_ups; ++i) {
    more.push_back(requests[static_cast<size_t>(i) % requests.size()]);
  }
  if (more.empty()) return;
  Live silent;
  driver.run({.requests = more, .arrivals = {}, .max_concurrency = 16}, silent);
}

Step closed_step(Driver& driver, const std::string& layer, int64_t concurrency,
                 const std::vector<LoadRequest>& requests, const LayerOptions& options) {
  Step step;
  step.name = fmt::format("concurrency {}", concurrency);
  step.concurrency = concurrency;
  return run_step(driver, layer, std::move(step), requests, {}, options);
}

double capacity_of(const std::vector<Step>& steps) {
  double most = 0;
  for (const Step& step : steps) most = std::max(most, step.statistics.request_throughput());
  return most;
}

}  // namespace

Layer run_baseline(Driver& driver, const MakeRequests& make, int64_t count,
                   const LayerOptions& options) {
  const std::vector<LoadRequest> requests = make(count, options.seed);
  warm_up(driver, make(std::max<int64_t>(options.warm_ups, 1), options.seed + 1), options);
  return {"baseline", {closed_step(driver, "baseline", 1, requests, options)}, std::nullopt};
}

Layer run_stress(Driver& driver, const MakeRequests& make, const StressOptions& stress,
                 const LayerOptions& options) {
  Layer layer{"stress", {}, std::nullopt};
  uint64_t seed = options.seed + 100;
  warm_up(driver, make(std::max<int64_t>(options.warm_ups, 1), seed++), options);
  for (int64_t concurrency = 1; concurrency <= stress.most; concurrency *= 2) {
    const int64_t count = std::max(stress.least_requests, concurrency * stress.requests_per_slot);
    layer.steps.push_back(
        closed_step(driver, layer.name, concurrency, make(count, seed++), options));
    if (driver.stopped()) break;
  }
  std::vector<double> rates = stress.rates;
  if (rates.empty()) {
    for (const double share : stress.shares) rates.push_back(share * capacity_of(layer.steps));
  }
  const Step unloaded = layer.steps.front();
  for (const double rate : rates) {
    if (!(rate > 0) || driver.stopped()) break;  // nothing was answered, or all that will be
    const auto count = std::max<int64_t>(
        stress.least_requests, static_cast<int64_t>(std::ceil(rate * stress.step_seconds)));
    Step step;
    step.name = fmt::format("{:.2f} req/s", rate);
    step.rate = rate;
    const ArrivalOptions arrivals{.rate = rate, .burstiness = stress.burstiness, .seed = seed};
    layer.steps.push_back(
        run_step(driver, layer.name, std::move(step), make(count, seed++), arrivals, options));
    if (!holds(layer.steps.back(), unloaded, stress, options.goodput)) break;
  }
  layer.knee = find_knee(layer.steps, stress, options.goodput);
  return layer;
}

bool holds(const Step& step, const Step& unloaded, const StressOptions& stress,
           const Goodput& goodput) {
  const Statistics& s = step.statistics;
  if (s.failed > 0 || s.completed == 0 || unloaded.statistics.completed == 0) return false;
  if (s.ttft.at(99) > stress.ttft_factor * unloaded.statistics.ttft.at(99)) return false;
  return !goodput.any() ||
         static_cast<double>(s.good) >= stress.good_share * static_cast<double>(s.completed);
}

Knee find_knee(const std::vector<Step>& steps, const StressOptions& stress,
               const Goodput& goodput) {
  Knee knee;
  knee.rule = fmt::format(
      "concurrency: the smallest that gives {:.0f} % of the most output tokens a second; rate: the "
      "highest before the first at which a request failed or P99 TTFT exceeded {:.1f} times that "
      "at "
      "concurrency 1{}",
      100 * stress.knee_share, stress.ttft_factor,
      goodput.any() ? fmt::format(", or fewer than {:.0f} % of the requests were good",
                                  100 * stress.good_share)
                    : "");
  double best = 0;
  int64_t most = 0;
  for (const Step& step : steps) {
    if (step.concurrency == 0) continue;
    most = std::max(most, step.concurrency);
    best = std::max(best, step.statistics.output_throughput());
  }
  const auto enough = std::ranges::find_if(steps, [&](const Step& step) {
    return step.concurrency > 0 && step.statistics.output_throughput() >= stress.knee_share * best;
  });
  if (best > 0 && enough->concurrency < most) knee.concurrency = enough->concurrency;
  knee.concurrency_text = knee.concurrency ? fmt::format("{}", *knee.concurrency)
                                           : fmt::format("not reached up to {}", most);
  bool broke = false;
  for (const Step& step : steps) {
    if (step.concurrency != 0 || broke) continue;
    broke = !holds(step, steps.front(), stress, goodput);
    if (!broke) knee.rate = step.rate;
  }
  knee.rate_text = !knee.rate ? "below the lowest rate"
                   : broke    ? fmt::format("{:.2f} req/s", *knee.rate)
                              : fmt::format("not reached up to {:.2f} req/s", *knee.rate);
  return knee;
}

Layer run_plain(Driver& driver, std::vector<LoadRequest> requests, const PlainOptions& plain,
                const LayerOptions& options) {
  warm_up(driver, requests, options);
  Step step;
  const bool ramp = plain.arrivals.ramp_up != RampUp::none;
  step.rate = ramp ? plain.arrivals.end_rate : plain.arrivals.rate;
  step.concurrency = plain.max_concurrency;
  step.name = std::isinf(step.rate) ? "all at once" : fmt::format("{:.2f} req/s", step.rate);
  if (step.concurrency > 0) step.name += fmt::format(", at most {} at a time", step.concurrency);
  Layer layer{plain.name, {}, std::nullopt};
  layer.steps.push_back(
      run_step(driver, plain.name, std::move(step), requests, plain.arrivals, options));
  return layer;
}

std::vector<std::pair<std::string, Statistics>> statistics_by_group(const RunResult& run,
                                                                    const Goodput& goodput) {
  std::vector<std::pair<std::string, RunResult>> groups;
  for (const Outcome& outcome : run.outcomes) {
    auto group = std::ranges::find(groups, outcome.group, &decltype(groups)::value_type::first);
    if (group == groups.end()) {
      group = groups.insert(groups.end(), {outcome.group, RunResult{{}, run.seconds}});
    }
    group->second.outcomes.push_back(outcome);
  }
  std::vector<std::pair<std::string, Statistics>> result;
  for (const auto& [name, part] : groups) result.emplace_back(name, statistics_of(part, goodput));
  return result;
}

}  // namespace octet::load
