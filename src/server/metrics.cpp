#include "server/metrics.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>

#include "server/prometheus.h"

namespace octet::server {
namespace {

using OneLabel = std::pair<std::string_view, std::string>;

constexpr double kHttpSeconds[] = {.001, .005, .01, .025, .05, .1,  .25, .5, 1,
                                   2.5,  5,    10,  30,   60,  120, 300, 600};

struct ProcessNumbers {
  double cpu_s = 0, resident_bytes = 0, threads = 0, files = 0;
};

// Of /proc/self; zeros where there is none.
ProcessNumbers process_numbers() {
  ProcessNumbers numbers;
  if (std::FILE* file = std::fopen("/proc/self/stat", "r")) {
    char text[1024] = {};
    const size_t size = std::fread(text, 1, sizeof text - 1, file);
    std::fclose(file);
    // Behind the name, which may hold anything, in brackets: state .. utime stime .. threads .. rss
    const std::string_view all(text, size);
    const size_t name_end = all.rfind(')');
    unsigned long long user = 0, system = 0;
    long threads = 0, pages = 0;
    if (name_end != all.npos &&
        std::sscanf(text + name_end + 1,
                    " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %ld "
                    "%*d %*u %*u %ld",
                    &user, &system, &threads, &pages) == 4) {
      numbers.cpu_s =
          static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
      numbers.threads = static_cast<double>(threads);
      numbers.resident_bytes =
          static_cast<double>(pages) * static_cast<double>(sysconf(_SC_PAGESIZE));
    }
  }
  std::error_code none;
  for (auto it = std::filesystem::directory_iterator("/proc/self/fd", none);
       !none && it != std::filesystem::directory_iterator(); it.increment(none)) {
    ++numbers.files;
  }
  return numbers;
}

// Writes a number by Octet's name, and by vLLM's where it has one.
class Page {
 public:
  Page(PrometheusText& out, const std::string& model_name, bool vllm_names)
      : out_(out),
        model_{{{"model_name", model_name}}},
        vllm_{{{"model_name", model_name}, {"engine", "0"}}},
        vllm_names_(vllm_names) {}

  // A sample of each family; `vllm` "" = vLLM has no such number.
  void one(std::string_view name, std::string_view vllm, std::string_view type,
           std::string_view help, double value) {
    both(name, vllm, type, help, [&](Labels labels) { out_.sample(value, labels); });
  }
  void one(std::string_view name, std::string_view vllm, std::string_view help,
           const engine::Histogram& histogram) {
    const engine::Histogram::View view = histogram.view();
    both(name, vllm, "histogram", help, [&](Labels labels) { out_.histogram(view, labels); });
  }
  template <class Write>
  void both(std::string_view name, std::string_view vllm, std::string_view type,
            std::string_view help, Write write) {
    out_.family(name, type, help);
    write(Labels(model_));
    if (vllm.empty() || !vllm_names_) return;
    out_.family(vllm, type, fmt::format("{} (vLLM's name of {})", help, name));
    write(Labels(vllm_));
  }

 private:
  PrometheusText& out_;
  std::array<OneLabel, 1> model_;
  std::array<OneLabel, 2> vllm_;
  bool vllm_names_;
};

// `labels` and one more.
std::vector<OneLabel> with(Labels labels, std::string_view name, std::string value) {
  std::vector<OneLabel> all(labels.begin(), labels.end());
  all.emplace_back(name, std::move(value));
  return all;
}

void write_requests(Page& page, PrometheusText& out, const engine::RequestMetrics& metrics) {
  page.one("octet_time_to_first_token_seconds", "vllm:time_to_first_token_seconds",
           "From the arrival of a request, tokenizing included, to its first token.",
           metrics.time_to_first_token);
  page.one("octet_inter_token_latency_seconds", "vllm:inter_token_latency_seconds",
           "Between two tokens of one request.", metrics.inter_token);
  page.one("octet_request_seconds", "vllm:e2e_request_latency_seconds",
           "From the arrival of a request to its end, however it ends.", metrics.whole_request);
  page.one("octet_request_queue_seconds", "vllm:request_queue_time_seconds",
           "From the submission of a request to its first step; of those with a token.",
           metrics.queue);
  page.one("octet_request_prefill_seconds", "vllm:request_prefill_time_seconds",
           "From the first step of a request to its first token.", metrics.prefill);
  page.one("octet_request_decode_seconds", "vllm:request_decode_time_seconds",
           "From the first token of a request to its last.", metrics.decode);
  page.one("octet_request_inference_seconds", "vllm:request_inference_time_seconds",
           "Prefill and decode of a request together.", metrics.inference);
  page.one("octet_request_prompt_tokens", "vllm:request_prompt_tokens",
           "Prompt tokens of a request that got a token.", metrics.prompt_tokens);
  page.one("octet_request_generation_tokens", "vllm:request_generation_tokens",
           "Output tokens of a request that got one.", metrics.generation_tokens);
  page.one("octet_request_choices", "vllm:request_params_n",
           "n: choices that were asked for of a prompt.", metrics.asked_choices);
  page.one("octet_request_max_tokens", "vllm:request_params_max_tokens",
           "max_tokens of a prompt's choices, or what was left for them.", metrics.asked_tokens);
  page.one("octet_request_longest_choice_tokens", "vllm:request_max_num_generation_tokens",
           "Output tokens of the longest of a prompt's choices.", metrics.longest_choice);
  page.one("octet_prompt_tokens_total", "vllm:prompt_tokens_total", "counter",
           "Prompt tokens of requests that got a token.",
           static_cast<double>(metrics.prompt_tokens_total));
  page.one("octet_generation_tokens_total", "vllm:generation_tokens_total", "counter",
           "Tokens that were generated.", static_cast<double>(metrics.generated_tokens_total));
  page.both("octet_requests_ended_total", "vllm:request_success_total", "counter",
            "Requests that ended, by how: each in exactly one way.", [&](Labels labels) {
              for (size_t i = 0; i < std::size(engine::kEndings); ++i) {
                out.sample(static_cast<double>(metrics.ended[i]),
                           with(labels, "finished_reason", std::string(engine::kEndings[i])));
              }
            });
  page.one("octet_structured_output_tokens_total", "", "counter",
           "Output tokens of ended requests that asked for a form.",
           static_cast<double>(metrics.constrained_tokens_total));
  page.one("octet_structured_output_seconds_total", "", "counter",
           "Processor time that their grammars took on the engine's thread.",
           metrics.constraint_seconds_total);
  page.one("octet_repeated_tokens_total", "", "counter",
           "Tokens that end a sequence of four which stands earlier in the same output (looked up "
           "among the last few thousand). Divide by octet_generation_tokens_total.",
           static_cast<double>(metrics.repeated_tokens_total));
  page.one("octet_request_repetition_share", "",
           "The share of such tokens in one output of 16 tokens or more.", metrics.repetition);
}

void write_engine(Page& page, const engine::Engine& engine) {
  const engine::EngineStats stats = engine.stats();
  const sched::Stats& s = stats.scheduler;
  // What is pending is of now, what runs is of the last step; none of the two outlives the request.
  const int32_t pending = engine.pending();
  const int32_t running = std::min(s.running, pending);
  page.one("octet_requests_running", "vllm:num_requests_running", "gauge",
           "Requests that are in the batch.", running);
  page.one("octet_requests_waiting", "vllm:num_requests_waiting", "gauge",
           "Requests that wait, preempted ones included.", pending - running);
  page.one("octet_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc", "gauge",
           "The share of the KV cache's blocks that running requests hold.",
           s.blocks_total > 0 ? static_cast<double>(s.blocks_held) / s.blocks_total : 0);
  page.one("octet_kv_cache_cached_ratio", "", "gauge",
           "The share of the blocks that hold prefixes for later requests and nobody uses now.",
           s.blocks_total > 0 ? static_cast<double>(s.blocks_cached) / s.blocks_total : 0);
  page.one("octet_prefix_cache_queries_total", "vllm:prefix_cache_queries_total", "counter",
           "Tokens that were looked up in the prefix cache.",
           static_cast<double>(s.prefix_query_tokens));
  page.one("octet_prefix_cache_hits_total", "vllm:prefix_cache_hits_total", "counter",
           "Tokens that were found there.", static_cast<double>(s.prefix_hit_tokens));
  page.one("octet_preemptions_total", "vllm:num_preemptions_total", "counter",
           "Requests that lost their blocks and are computed again.",
           static_cast<double>(s.preemptions));
  page.one("octet_steps_total", "", "counter", "Steps of the engine.",
           static_cast<double>(s.steps));
  page.one("octet_computed_tokens_total", "", "counter",
           "Tokens that steps computed, prompts and what was computed again included.",
           static_cast<double>(s.computed_tokens));
  page.one("octet_step_tokens", "vllm:iteration_tokens_total",
           "Tokens that a step computed, prompts and what was computed again included.",
           engine.step_tokens());
  page.one("octet_engine_busy_seconds_total", "", "counter",
           "Of the engine's thread, while there was work.", stats.busy_seconds);
  page.one("octet_engine_step_seconds_total", "", "counter",
           "Of these, those in which it computed or waited for the device that did.",
           stats.step_seconds);
  page.one("octet_seconds_since_step", "", "gauge",
           "Age of the last finished step while work is pending; else 0.",
           stats.seconds_since_step);
  page.one("octet_engine_up", "", "gauge", "0 once the engine has failed.", stats.fault.empty());
}

void write_kv(Page& page, PrometheusText& out, const engine::Engine& engine) {
  const std::vector<engine::KvNumbers> groups = engine.kv_numbers();
  const std::string sampled =
      fmt::format(" Sampled: one full block of one layer each {} steps, layers in turn.",
                  engine::KvProbe::kSteps);
  const auto family = [&](std::string_view name, std::string_view type, const std::string& help,
                          auto value) {
    page.both(name, "", type, help + sampled, [&](Labels labels) {
      for (const engine::KvNumbers& group : groups) {
        auto named =
            with(labels, "layers", fmt::format("{}-{}", group.first_layer, group.last_layer));
        named.emplace_back("part", group.part);
        out.sample(static_cast<double>(value(group)), named);
      }
    });
  };
  using engine::KvNumbers;
  family("octet_kv_scale", "gauge",
         "The largest FP8 scale in force in these layers' part of the KV cache.",
         [](const KvNumbers& g) { return g.scale; });
  family("octet_kv_range_used_ratio", "gauge",
         "The largest value over the largest that its scale can hold; 1 is saturation.",
         [](const KvNumbers& g) { return g.range_used; });
  family("octet_kv_sampled_values_total", "counter", "Values that were looked at.",
         [](const KvNumbers& g) { return g.values; });
  family(
      "octet_kv_saturated_values_total", "counter",
      "Of these, those at the end of FP8's range, where larger ones end as well. Of MLA's latent "
      "the largest of each 128 is there by construction, as is that of each token and head where "
      "these have scales of their own.",
      [](const KvNumbers& g) { return g.saturated; });
  family("octet_kv_zero_values_total", "counter",
         "Of these, zeros: what was one and what was flushed to one.",
         [](const KvNumbers& g) { return g.zeros; });
  family("octet_kv_not_finite_values_total", "counter", "Of these, NaN and infinite ones.",
         [](const KvNumbers& g) { return g.not_finite; });
}

}  // namespace

Metrics::Metrics(const engine::Engine& engine, MetricsOptions options)
    : engine_(engine), options_(std::move(options)) {}

void Metrics::count_http(const std::string& handler, const std::string& method, int status,
                         double seconds) {
  const std::string kind = status > 0 ? fmt::format("{}xx", status / 100) : "gone";
  ++http_requests_[{handler, method, kind}];
  auto& histogram = http_seconds_[handler];
  if (!histogram) histogram = std::make_unique<engine::Histogram>(kHttpSeconds);
  histogram->add(seconds);
}

std::string Metrics::text() const {
  PrometheusText out;
  Page page(out, options_.model_name, options_.vllm_names);
  write_requests(page, out, requests);
  write_engine(page, engine_);
  write_kv(page, out, engine_);

  out.family("http_requests_total", "counter",
             "Answers by path, method and kind of status; \"gone\": the client left before one.");
  for (const auto& [key, count] : http_requests_) {
    const auto& [handler, method, status] = key;
    const std::array<OneLabel, 3> labels{
        {{"handler", handler}, {"method", method}, {"status", status}}};
    out.sample(static_cast<double>(count), labels);
  }
  out.family("http_request_duration_seconds", "histogram",
             "From a request's last byte to the end of its answer.");
  for (const auto& [handler, histogram] : http_seconds_) {
    const std::array<OneLabel, 1> labels{{{"handler", handler}}};
    out.histogram(histogram->view(), labels);
  }

  const ProcessNumbers process = process_numbers();
  out.family("process_cpu_seconds_total", "counter", "Processor time of this process.");
  out.sample(process.cpu_s);
  out.family("process_resident_memory_bytes", "gauge", "Memory of this process, mapped files too.");
  out.sample(process.resident_bytes);
  out.family("process_threads", "gauge", "Threads of this process.");
  out.sample(process.threads);
  out.family("process_open_fds", "gauge", "Open files and connections of this process.");
  out.sample(process.files);

  page.both("octet_config_info", "", "gauge",
            "What runs, and what was asked for and is off, in its labels.", [&](Labels labels) {
              std::vector<OneLabel> facts(labels.begin(), labels.end());
              facts.emplace_back("version", "0.1.0");
              for (const auto& [name, value] : options_.facts) facts.emplace_back(name, value);
              out.sample(1, facts);
            });
  if (options_.vllm_names) {
    const sched::Config& config = engine_.scheduling();
    const std::array<OneLabel, 5> labels{
        {{"engine", "0"},
         {"block_size", std::to_string(config.block_tokens)},
         {"num_gpu_blocks", std::to_string(config.num_blocks)},
         {"enable_prefix_caching", config.enable_prefix_caching ? "True" : "False"},
         {"cache_dtype", std::string(name_of(engine_.kv_type()))}}};
    out.family("vllm:cache_config_info", "gauge", "The KV cache, in its labels.");
    out.sample(1, labels);
  }
  return out.take();
}

}  // namespace octet::server
