// octet bench serve: a load test of any OpenAI-compatible server.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/atomic_write.h"
#include "base/error.h"
#include "cli/bench.h"
#include "cli/bench_serve_options.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "load/report.h"

namespace octet::cli {
namespace {

// "20261130-034512", local time, as vLLM writes it.
std::string date_now() {
  return fmt::format(
      "{:%Y%m%d-%H%M%S}",
      fmt::localtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
}

OrderedJson rate_json(double rate) {
  return std::isinf(rate) ? OrderedJson("inf") : OrderedJson(rate);
}

std::vector<load::Layer> run_layers(const BenchServeOptions& o, load::Driver& driver,
                                    const load::Tokens& tokens) {
  const load::LayerOptions options{.warm_ups = o.num_warmups,
                                   .seed = 0,
                                   .goodput = load::parse_goodput(o.goodput),
                                   .quiet = o.disable_progress};
  const load::MakeRequests make = [&](int64_t count, uint64_t seed) {
    return requests_of(o, tokens, count, seed);
  };
  const load::ArrivalOptions arrivals = arrivals_of(o);
  if (o.layer == "plain") {
    return {load::run_plain(
        driver, make(o.num_prompts, 0),
        {.name = "plain", .arrivals = arrivals, .max_concurrency = o.max_concurrency}, options)};
  }
  std::vector<load::Layer> layers;
  const bool all = o.layer == "all";
  if (all || o.layer == "baseline") {
    layers.push_back(load::run_baseline(driver, make, o.num_prompts, options));
  }
  if (driver.stopped()) return layers;
  if (all || o.layer == "stress") {
    layers.push_back(load::run_stress(driver, make, stress_of(o), options));
  }
  if (driver.stopped()) return layers;
  if (all || o.layer == "mixed") {
    // Without a rate or a limit of its own, as many at a time as the server takes well.
    int64_t most = o.max_concurrency;
    if (most == 0 && std::isinf(arrivals.rate)) most = 16;
    layers.push_back(
        load::run_plain(driver, load::mixed_requests(mixed_of(o), tokens),
                        {.name = "mixed", .arrivals = arrivals, .max_concurrency = most}, options));
  }
  return layers;
}

load::ReportOptions report_of_step(const BenchServeOptions& o, const load::Step& step) {
  load::ReportOptions report = report_of(o);
  report.request_rate = step.rate;
  report.max_concurrency = step.concurrency;
  return report;
}

OrderedJson json_of_step(const BenchServeOptions& o, const load::Step& step) {
  OrderedJson json = {{"request_rate", rate_json(step.rate)},
                      {"burstiness", rate_json(arrivals_of(o).burstiness)},
                      {"max_concurrency", nullptr}};
  if (step.concurrency > 0) json["max_concurrency"] = step.concurrency;
  json.update(
      load::result_json(step.statistics, step.run, report_of_step(o, step), o.save_detailed));
  return json;
}

OrderedJson json_of_layer(const BenchServeOptions& o, const load::Layer& layer) {
  OrderedJson json = {{"layer", layer.name}, {"steps", OrderedJson::array()}};
  for (const load::Step& step : layer.steps) {
    OrderedJson one = {{"name", step.name}};
    one.update(json_of_step(o, step));
    if (layer.name == "mixed") {
      for (const auto& [name, part] : load::statistics_by_group(step.run, {})) {
        one["by_group"][name] = load::result_json(part, {}, report_of_step(o, step), false);
      }
    }
    json["steps"].push_back(std::move(one));
  }
  if (layer.knee) {
    json["knee"] = {
        {"rule", layer.knee->rule}, {"concurrency", nullptr}, {"request_rate", nullptr}};
    if (layer.knee->concurrency) json["knee"]["concurrency"] = *layer.knee->concurrency;
    if (layer.knee->rate) json["knee"]["request_rate"] = *layer.knee->rate;
    json["knee"]["concurrency_text"] = layer.knee->concurrency_text;
    json["knee"]["rate_text"] = layer.knee->rate_text;
  }
  return json;
}

OrderedJson json_of(const BenchServeOptions& o, const load::Driver& driver,
                    const std::vector<load::Layer>& layers, const std::string& date) {
  OrderedJson json = {{"date", date},
                      {"endpoint_type", o.backend},
                      {"backend", o.backend},
                      {"label", nullptr},
                      {"model_id", driver.target().body.model},
                      {"tokenizer_id", o.server.tokenizer},
                      {"num_prompts", o.num_prompts},
                      {"base_url", driver.target().base.text()},
                      {"endpoint", o.server.endpoint},
                      {"dataset_name", o.dataset},
                      {"seed", o.seed}};
  if (driver.stopped()) json["interrupted"] = true;
  if (!o.label.empty()) json["label"] = o.label;
  for (const auto& [key, value] : metadata_of(o)) json[key] = value;
  if (o.layer == "plain") {
    json.update(json_of_step(o, layers.front().steps.front()));
    if (o.ramp_up != "none") {
      json["ramp_up_strategy"] = o.ramp_up;
      json["ramp_up_start_rps"] = o.ramp_start;
      json["ramp_up_end_rps"] = o.ramp_end;
    }
    return json;
  }
  json["layers"] = OrderedJson::array();
  for (const load::Layer& layer : layers) json["layers"].push_back(json_of_layer(o, layer));
  return json;
}

// One line a run of a sweep.
std::string sweep_text(const load::Layer& layer) {
  std::string text =
      fmt::format("{:<20}{:>7}{:>7}{:>9}{:>10}{:>12}{:>12}{:>12}\n", "run", "done", "failed",
                  "req/s", "tok/s", "P50 TTFT ms", "P99 TTFT ms", "P99 TPOT ms");
  for (const load::Step& step : layer.steps) {
    const load::Statistics& s = step.statistics;
    text += fmt::format("{:<20}{:>7}{:>7}{:>9.2f}{:>10.1f}{:>12}{:>12}{:>12}\n", step.name,
                        s.completed, s.failed, s.request_throughput(), s.output_throughput(),
                        load::figure(s.ttft.median() * 1e3, 1),
                        load::figure(s.ttft.at(99) * 1e3, 1), load::figure(s.tpot.at(99) * 1e3, 2));
  }
  return text + fmt::format("knee: concurrency {}, rate {}\n  rule: {}\n",
                            layer.knee->concurrency_text, layer.knee->rate_text, layer.knee->rule);
}

std::string text_of(const BenchServeOptions& o, const load::Layer& layer) {
  std::string text = o.layer == "plain" ? "" : fmt::format("\nLayer {}\n", layer.name);
  if (layer.knee) {
    text += sweep_text(layer);
  } else {
    for (const load::Step& step : layer.steps) {
      text += load::result_text(step.statistics, report_of_step(o, step));
    }
  }
  if (layer.name == "mixed") {
    for (const auto& [name, s] : load::statistics_by_group(layer.steps.front().run, {})) {
      text +=
          fmt::format("{:<8}{:>6} requests  P50 TTFT {} ms  P99 TTFT {} ms  P50 TPOT {} ms\n", name,
                      s.completed + s.failed, load::figure(s.ttft.median() * 1e3, 1),
                      load::figure(s.ttft.at(99) * 1e3, 1), load::figure(s.tpot.median() * 1e3, 2));
    }
  }
  for (const load::Step& step : layer.steps) {
    const std::string failures = load::failure_text(step.run);
    if (!failures.empty()) text += printable(failures) + "\n";
  }
  return text;
}

void write_html(const BenchServeOptions& o, const load::Driver& driver,
                std::vector<load::Layer> layers, const std::string& date) {
  if (o.html.empty()) return;
  load::Report report;
  report.title = "Octet load test: " + driver.target().body.model;
  report.facts = {{"server", driver.target().base.text()},
                  {"endpoint", o.server.endpoint},
                  {"data set", o.dataset},
                  {"seed", fmt::format("{}", o.seed)},
                  {"date", date}};
  if (driver.stopped()) report.facts.emplace_back("interrupted", "of requests that had ended");
  for (const auto& pair : metadata_of(o)) report.facts.push_back(pair);
  report.layers = std::move(layers);
  report.goodput = load::parse_goodput(o.goodput);
  AtomicFile file(o.html, Overwrite::replace);
  file.write(load::html_of(report));
  file.commit();
}

// "{label}-{rate}qps[-concurrency{n}]-{model}-{date}.json", as vLLM names it.
std::filesystem::path result_path(const BenchServeOptions& o, const load::Driver& driver,
                                  const std::string& date) {
  std::string name = o.result_filename;
  if (name.empty()) {
    const std::string& model = driver.target().body.model;
    const std::string limit =
        o.max_concurrency > 0 ? fmt::format("-concurrency{}", o.max_concurrency) : "";
    name = fmt::format("{}-{}qps{}-{}-{}.json", o.label.empty() ? o.backend : o.label,
                       o.request_rate, limit, model.substr(model.rfind('/') + 1), date);
  }
  return std::filesystem::path(o.result_dir) / name;
}

void save(const BenchServeOptions& o, const std::filesystem::path& path, const OrderedJson& json) {
  if (!o.save_result && !o.append_result) return;
  if (!o.append_result) {
    AtomicFile file(path, Overwrite::replace);
    file.write(dump_json(json) + "\n");
    file.commit();
    return;
  }
  std::ofstream file(path, std::ios::app);
  file << dump_json(json) << "\n";
  file.close();
  if (!file) throw Error({.what = "cannot write the result", .where = path.string()});
}

// What can be known to be wrong is said before hours of load, not after.
void check(const BenchServeOptions& o) {
  report_of(o);
  metadata_of(o);
  arrivals_of(o);
  stress_of(o);
  mixed_of(o);
  if (!o.result_dir.empty() && !std::filesystem::is_directory(o.result_dir)) {
    throw Error({.what = "no such directory", .where = "--result-dir", .value = o.result_dir});
  }
}

// A server under stress is meant to refuse; elsewhere a request that fails is a failure.
bool passed(const std::vector<load::Layer>& layers) {
  for (const load::Layer& layer : layers) {
    const load::Statistics& first = layer.steps.front().statistics;
    if (first.failed > 0 || first.completed == 0) return false;
  }
  return true;
}

int run_test(const BenchServeOptions& o, const HeldSignals& signals) {
  load::Driver driver = open_server(o.server, body_of(o), [&] { return signals.pending(); });
  KnownTokens known;
  find_tokens(o.server, driver, known);

  const std::string date = date_now();
  const std::vector<load::Layer> layers = run_layers(o, driver, known.tokens);
  if (prints_text(o.json)) {
    for (const load::Layer& layer : layers) print(text_of(o, layer));
    if (driver.stopped()) {
      print("Interrupted: these are the figures of the requests that had ended.\n");
    }
  }
  const OrderedJson json = json_of(o, driver, layers, date);
  write_json(o.json, json);
  save(o, result_path(o, driver, date), json);
  write_html(o, driver, layers, date);
  return passed(layers) ? 0 : 1;
}

}  // namespace

int run_bench_serve(Args args) {
  BenchServeOptions o;
  OptionTable table = table_of(o);
  if (table.parse(args) == OptionTable::Outcome::done) return print(table.output()), 0;
  if (o.backend == "openai-chat") o.server.endpoint = "/v1/chat/completions";
  check(o);
  allow_many_connections();
  const HeldSignals signals;
  try {
    const int code = run_test(o, signals);
    signals.check();  // what was measured until it came has been reported
    return code;
  } catch (const Error&) {
    signals.check();  // which may be why
    throw;
  }
}

}  // namespace octet::cli
