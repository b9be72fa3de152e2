// The options of `octet bench serve`: names of vLLM's `bench serve` where the meaning is the same.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/options.h"
#include "cli/target_server.h"
#include "load/layers.h"
#include "load/statistics.h"

namespace octet::cli {

struct BenchServeOptions {
  ServerOptions server;
  std::string layer = "plain";
  std::string backend = "openai";  // accepted for vLLM's sake: "openai-chat" asks the chat API
  // The requests.
  std::string dataset = "random", dataset_path;
  int64_t num_prompts = 1000;
  int64_t input_len = 1024, prefix_len = 0;
  std::optional<int64_t> output_len;
  double range_ratio = 0;
  load::SharedPrefixOptions shared_prefix;
  std::string brief = "64:32", medium = "512:128", lengthy = "2048:256";
  bool ignore_eos = false;
  double temperature = 0;
  std::optional<double> top_p, min_p;
  std::optional<int64_t> top_k;
  std::string extra_body;
  // The load.
  std::string request_rate = "inf", burstiness = "1", ramp_up = "none";
  double ramp_start = 1, ramp_end = 10;
  int64_t max_concurrency = 0, num_warmups = 1, seed = 0;
  int64_t sweep_most = 64;
  double step_seconds = 10, knee_factor = 5;
  std::vector<std::string> stress_rates, goodput;
  // The result.
  std::string metrics = "ttft,tpot,itl,e2el", percentiles = "50,95,99";
  std::string json, html, result_dir, result_filename, label;
  std::vector<std::string> metadata;
  bool save_result = false, save_detailed = false, append_result = false;
  bool disable_progress = false;
};

OptionTable table_of(BenchServeOptions& options);

// What the texts of the options mean. Each throws Error naming its flag.
load::BodyOptions body_of(const BenchServeOptions& options);
load::ArrivalOptions arrivals_of(const BenchServeOptions& options);
load::ReportOptions report_of(const BenchServeOptions& options);
load::StressOptions stress_of(const BenchServeOptions& options);
load::MixedOptions mixed_of(const BenchServeOptions& options);
std::vector<std::pair<std::string, std::string>> metadata_of(const BenchServeOptions& options);

// The requests of the data set; `seed` is added to --seed.
std::vector<load::LoadRequest> requests_of(const BenchServeOptions& options,
                                           const load::Tokens& tokens, int64_t count,
                                           uint64_t seed);

}  // namespace octet::cli
