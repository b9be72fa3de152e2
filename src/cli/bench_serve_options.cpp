#include "cli/bench_serve_options.h"

#include <cmath>
#include <cstdlib>
#include <sstream>

#include "base/error.h"

namespace octet::cli {
namespace {

// A number above 0, or "inf".
double parse_positive(const std::string& text, const std::string& where) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (!text.empty() && *end == '\0' && value > 0) return value;
  throw Error({.what = "not a number above 0",
               .where = where,
               .value = text,
               .accepted = "a number, or inf"});
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

void add_data_rows(OptionTable& table, BenchServeOptions& o) {
  table.group("Requests");
  table.add("--dataset-name", &o.dataset,
            "random, generated-shared-prefix, custom (a JSON object a line) or sharegpt",
            {.choices = {"random", "generated-shared-prefix", "custom", "sharegpt"}});
  table.add("--dataset-path", &o.dataset_path, "the file of custom or sharegpt",
            {.metavar = "FILE"});
  table.add("--num-prompts", &o.num_prompts, "requests", {.least = 1, .most = 1 << 24});
  table.add("--input-len", &o.input_len, "tokens of a random prompt",
            {.least = 1, .most = 1 << 24});
  table.add("--random-input-len", &o.input_len, "the same", {.least = 1, .most = 1 << 24});
  table.add("--output-len", &o.output_len,
            "tokens to generate; 128 for random, else what the file says",
            {.least = 1, .most = 1 << 24});
  table.add("--random-output-len", &o.output_len, "the same", {.least = 1, .most = 1 << 24});
  table.add("--random-range-ratio", &o.range_ratio,
            "lengths vary by this share to both sides, evenly", {.least = 0, .most = 0.999});
  table.add("--random-prefix-len", &o.prefix_len, "tokens more, with which all prompts begin",
            {.least = 0, .most = 1 << 24});
  load::SharedPrefixOptions& gsp = o.shared_prefix;
  table.add("--gsp-num-groups", &gsp.groups, "groups of prompts that begin alike",
            {.least = 1, .most = 1 << 20});
  table.add("--gsp-prompts-per-group", &gsp.prompts_per_group, "prompts of each",
            {.least = 1, .most = 1 << 20});
  table.add("--gsp-system-prompt-len", &gsp.prefix, "tokens that a group shares",
            {.least = 0, .most = 1 << 24});
  table.add("--gsp-question-len", &gsp.question, "tokens of its own of each prompt",
            {.least = 1, .most = 1 << 24});
  table.add("--gsp-output-len", &gsp.output, "tokens to generate", {.least = 1, .most = 1 << 24});
  table.add("--short", &o.brief, "mixed layer: PROMPT:OUTPUT tokens of 70 % of the requests");
  table.add("--medium", &o.medium, "of 20 %");
  table.add("--long", &o.lengthy, "of 10 %");
  table.add("--seed", &o.seed, "of prompts, lengths and arrivals", {.least = 0});
  table.add("--ignore-eos", &o.ignore_eos,
            "generate the whole length (vLLM and Octet know the field; OpenAI does not)");
  table.add("--temperature", &o.temperature, "of the sampling", {.least = 0});
  table.add("--top-p", &o.top_p, "sent if given", {.above = 0});
  table.add("--top-k", &o.top_k, "sent if given");
  table.add("--min-p", &o.min_p, "sent if given", {.least = 0});
  table.add("--extra-body", &o.extra_body, "a JSON object of further fields of each request",
            {.metavar = "JSON"});
}

void add_load_rows(OptionTable& table, BenchServeOptions& o) {
  table.group("Load");
  table.add("--layer", &o.layer,
            "plain: one run of the requests below; baseline: one at a time; stress: rising load "
            "until the knee; mixed: short, medium and long ones; all: the last three",
            {.choices = {"plain", "baseline", "stress", "mixed", "all"}});
  table.add("--request-rate", &o.request_rate, "requests a second; inf: all at once",
            {.metavar = "RATE"});
  table.add("--burstiness", &o.burstiness,
            "of the arrivals: 1 is a Poisson process, less is burstier, inf is a fixed gap",
            {.metavar = "SHAPE"});
  table.add("--ramp-up-strategy", &o.ramp_up, "the rate rises over the run",
            {.choices = {"none", "linear", "exponential"}});
  table.add("--ramp-up-start-rps", &o.ramp_start, "from this rate", {.above = 0});
  table.add("--ramp-up-end-rps", &o.ramp_end, "to this rate", {.above = 0});
  table.add("--max-concurrency", &o.max_concurrency,
            "requests under way at most; later ones wait here; 0: no limit",
            {.least = 0, .most = 1 << 20});
  table.add("--num-warmups", &o.num_warmups, "requests before, which are not counted",
            {.least = 0, .most = 1 << 20});
  table.add("--stress-concurrency", &o.sweep_most, "the sweep is 1, 2, 4, ... up to this",
            {.least = 1, .most = 1 << 16});
  table.add("--stress-rate", &o.stress_rates,
            "a rate to try (repeatable); shares of the capacity if not given");
  table.add("--stress-seconds", &o.step_seconds, "how long requests arrive at each rate",
            {.above = 0});
  table.add("--knee-factor", &o.knee_factor,
            "a rate holds while P99 TTFT is at most this many times that of one request alone",
            {.above = 1});
  table.add("--goodput", &o.goodput,
            "limit of a good request: ttft:MS, tpot:MS or e2el:MS (repeatable)");
}

}  // namespace

OptionTable table_of(BenchServeOptions& o) {
  OptionTable table("octet bench serve", "A load test of any OpenAI-compatible server.");
  add_load_rows(table, o);
  add_server_rows(table, o.server);
  table.add("--backend", &o.backend, "as vLLM names the API; openai-chat asks the chat API",
            {.choices = {"openai", "openai-chat", "vllm", "octet"}});
  add_data_rows(table, o);
  table.group("Output");
  table.add("--html", &o.html,
            "write a report with plots to this file; one page, nothing outside it",
            {.metavar = "FILE", .written = true});
  table.add("--percentile-metrics", &o.metrics, "of ttft, tpot, itl, e2el");
  table.add("--metric-percentiles", &o.percentiles, "percentiles to report");
  table.add("--save-detailed", &o.save_detailed, "with every request's times and text in the JSON");
  table.add("--save-result", &o.save_result, "write the JSON to a file named by vLLM's rule");
  table.add("--append-result", &o.append_result, "add it to that file, a line a result");
  table.add("--result-dir", &o.result_dir, "where that file is made", {.metavar = "DIR"});
  table.add("--result-filename", &o.result_filename, "its name");
  table.add("--label", &o.label, "begins its name instead of the backend's");
  table.add("--metadata", &o.metadata, "KEY=VALUE to put into the JSON (repeatable)");
  table.add("--disable-tqdm", &o.disable_progress, "no live line on the terminal");
  table.add("--json", &o.json, "write the result as JSON to this file; - is stdout",
            {.metavar = "FILE", .written = true});
  return table;
}

load::BodyOptions body_of(const BenchServeOptions& o) {
  load::BodyOptions body;
  body.ignore_eos = o.ignore_eos;
  body.sampling["temperature"] = o.temperature;
  if (o.top_p) body.sampling["top_p"] = *o.top_p;
  if (o.top_k) body.sampling["top_k"] = *o.top_k;
  if (o.min_p) body.sampling["min_p"] = *o.min_p;
  if (!o.extra_body.empty()) {
    body.extra = parse_json<OrderedJson>(o.extra_body, "--extra-body");
    if (!body.extra.is_object()) {
      throw Error({.what = "not an object",
                   .where = "--extra-body",
                   .value = o.extra_body,
                   .accepted = R"(JSON such as {"min_tokens": 8})"});
    }
  }
  return body;
}

load::ArrivalOptions arrivals_of(const BenchServeOptions& o) {
  load::ArrivalOptions arrivals;
  arrivals.rate = parse_positive(o.request_rate, "--request-rate");
  arrivals.burstiness = parse_positive(o.burstiness, "--burstiness");
  arrivals.ramp_up = o.ramp_up == "linear"        ? load::RampUp::linear
                     : o.ramp_up == "exponential" ? load::RampUp::exponential
                                                  : load::RampUp::none;
  arrivals.start_rate = o.ramp_start;
  arrivals.end_rate = o.ramp_end;
  arrivals.seed = static_cast<uint64_t>(o.seed);
  if (arrivals.ramp_up != load::RampUp::none && !std::isinf(arrivals.rate)) {
    throw Error({.what = "a rate that rises is not one rate",
                 .where = "--request-rate, --ramp-up-strategy",
                 .value = o.request_rate,
                 .fix = "leave --request-rate out, or the ramp"});
  }
  return arrivals;
}

load::ReportOptions report_of(const BenchServeOptions& o) {
  load::ReportOptions report;
  report.metrics = split(o.metrics);
  for (const std::string& metric : report.metrics) {
    if (metric == "ttft" || metric == "tpot" || metric == "itl" || metric == "e2el") continue;
    throw Error({.what = "not a metric",
                 .where = "--percentile-metrics",
                 .value = metric,
                 .accepted = "ttft, tpot, itl, e2el, with commas between them"});
  }
  report.percentiles.clear();
  for (const std::string& text : split(o.percentiles)) {
    const double value = parse_positive(text, "--metric-percentiles");
    if (value > 100) {
      throw Error({.what = "not a percentile",
                   .where = "--metric-percentiles",
                   .value = text,
                   .accepted = "numbers up to 100, with commas between them"});
    }
    report.percentiles.push_back(value);
  }
  report.goodput = load::parse_goodput(o.goodput);
  return report;
}

load::StressOptions stress_of(const BenchServeOptions& o) {
  load::StressOptions stress;
  stress.most = o.sweep_most;
  stress.step_seconds = o.step_seconds;
  stress.ttft_factor = o.knee_factor;
  stress.burstiness = parse_positive(o.burstiness, "--burstiness");
  for (const std::string& rate : o.stress_rates) {
    const double value = parse_positive(rate, "--stress-rate");
    if (std::isinf(value) || (!stress.rates.empty() && value <= stress.rates.back())) {
      throw Error({.what = "rates of a stress test must rise",
                   .where = "--stress-rate",
                   .value = rate,
                   .accepted = "finite numbers, each above the one before"});
    }
    stress.rates.push_back(value);
  }
  return stress;
}

load::MixedOptions mixed_of(const BenchServeOptions& o) {
  return {.count = o.num_prompts,
          .brief = load::parse_length(o.brief, "--short"),
          .medium = load::parse_length(o.medium, "--medium"),
          .lengthy = load::parse_length(o.lengthy, "--long"),
          .seed = static_cast<uint64_t>(o.seed)};
}

std::vector<std::pair<std::string, std::string>> metadata_of(const BenchServeOptions& o) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string& text : o.metadata) {
    const size_t equals = text.find('=');
    if (equals == text.npos || equals == 0) {
      throw Error(
          {.what = "not a pair", .where = "--metadata", .value = text, .accepted = "KEY=VALUE"});
    }
    pairs.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return pairs;
}

std::vector<load::LoadRequest> requests_of(const BenchServeOptions& o, const load::Tokens& tokens,
                                           int64_t count, uint64_t seed) {
  const uint64_t of_run = static_cast<uint64_t>(o.seed) + seed;
  if (o.dataset == "random") {
    return load::random_requests({.count = count,
                                  .length = {o.input_len, o.output_len.value_or(128)},
                                  .range_ratio = o.range_ratio,
                                  .prefix = o.prefix_len,
                                  .seed = of_run},
                                 tokens);
  }
  if (o.dataset == "generated-shared-prefix") {
    load::SharedPrefixOptions shared = o.shared_prefix;
    shared.seed = of_run;
    if (o.output_len) shared.output = *o.output_len;
    return load::shared_prefix_requests(shared, tokens);
  }
  if (o.dataset_path.empty()) {
    throw Error({.what = "the data set needs its file",
                 .where = "--dataset-name",
                 .value = o.dataset,
                 .fix = "name it with --dataset-path FILE"});
  }
  const load::FileOptions file{
      .path = o.dataset_path, .count = count, .output_len = o.output_len, .seed = of_run};
  return o.dataset == "custom" ? load::jsonl_requests(file, tokens)
                               : load::sharegpt_requests(file, tokens);
}

}  // namespace octet::cli
