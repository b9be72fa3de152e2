// octet serve: the OpenAI-compatible server over one model.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>

#include "base/atomic_write.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/baseline.h"
#include "cli/calibration_findings.h"
#include "cli/chat_model.h"
#include "cli/fingerprint.h"
#include "cli/kernel_report.h"
#include "cli/open_model.h"
#include "cli/output.h"
#include "cli/start_checks.h"
#include "cli/verbs.h"
#include "cli/vllm_flags.h"
#include "cli/warm_up.h"
#include "engine/engine.h"
#include "server/features.h"
#include "server/server.h"

namespace octet::cli {
namespace {

struct ServeOptions {
  ModelOptions model;
  BackendOptions backend;
  BaselineOptions baseline;
  server::ServerOptions server;
  engine::EngineOptions engine{.populate_memory = true};
  WarmUpOptions warm_up;
  std::string port_file, chat_template;
  std::string generation_config = "auto", override_generation_config;
  std::string tool_call_parser = "auto";
  std::string policy = sched::to_string(sched::Policy::fcfs);
  int64_t request_timeout_s = 30;
  int64_t max_request_bytes = 8 << 20;
  bool allow_shared_scales = false;
};

OptionTable table_of(ServeOptions& o) {
  OptionTable table("octet serve", "Serve a model over an OpenAI-compatible API.");
  table.positional("MODEL", &o.model.path, "model directory, or a config with --random-weights");
  table.group("Network");
  table.add("--host", &o.server.host, "address to listen on");
  table.add("--port", &o.server.port, "port to listen on; 0 takes any free one",
            {.least = 0, .most = 65535});
  table.add("--port-file", &o.port_file,
            "a file that receives the port number once connections are accepted",
            {.metavar = "FILE", .written = true});
  table.add("--served-model-name", &o.server.served_name,
            "name of the model in the API; its directory's name if not given");
  add_chat_row(table, &o.chat_template);
  table.add("--api-key", &o.server.api_keys,
            "a key that clients must send, but for /health, /ping and /version; repeat it for more",
            {.metavar = "KEY"});
  table.add("--allowed-origins", &o.server.allowed_origins,
            "an origin whose pages may ask from a browser (CORS), or \"*\"; repeat it for more",
            {.metavar = "ORIGIN"});
  table.add(
      "--request-timeout", &o.request_timeout_s,
      "seconds that a client may take to send a request's body or to read a part of an answer; "
      "a request's head has 75",
      {.least = 1, .most = 3600});
  table.add("--max-request-bytes", &o.max_request_bytes, "largest request body; 413 beyond",
            {.least = 1024});
  table.add("--health-timeout", &o.server.health_timeout_s,
            "seconds without a finished step, with work pending, after which /health fails",
            {.least = 1});
  table.add("--shutdown-grace", &o.server.shutdown_grace_s,
            "seconds that running requests have to end after SIGTERM, SIGINT or SIGHUP",
            {.least = 0, .most = 3600});
  table.add("--vllm-metrics", &o.server.vllm_metrics, "give /metrics by vLLM's names, too");
  table.group("Requests");
  table.add("--generation-config", &o.generation_config,
            "where defaults of sampling come from: auto, the model's generation_config.json; vllm, "
            "OpenAI's alone; or a directory with such a file");
  table.add("--override-generation-config", &o.override_generation_config,
            "more defaults, as a JSON object: {\"temperature\": 0.5}", {.metavar = "JSON"});
  table.add("--seed", &o.server.seed,
            "of the seeds of requests that bring none; random if not given");
  table.add("--max-logprobs", &o.engine.max_logprobs, "most log-probabilities of one token",
            {.least = 0, .most = 100});
  table.add("--tool-call-parser", &o.tool_call_parser,
            "how the model writes tool calls; auto: as its chat template teaches it",
            {.choices = {"auto", "none", "hermes", "llama3_json", "deepseek_v3"}});
  table.add("--enable-prompt-tokens-details", &o.server.cached_usage,
            "usage says how many tokens of the prompt were cached");
  table.add("--enable-force-include-usage", &o.server.force_usage,
            "usage ends every stream, asked for or not");
  table.add("--request-log", &o.server.request_log,
            "a file that gets what octet replay needs, with all that clients wrote",
            {.metavar = "FILE"});
  table.add("--request-log-bytes", &o.server.request_log_bytes,
            "most bytes of the request log and the one before", {.least = 4096});
  table.group("Scheduling");
  table.add(
      "--schedule-policy", &o.policy,
      "who comes first: fcfs: in order of arrival; priority: the request's own `priority`, the "
      "lowest first; prefill-first: prompts before decodes, for long inputs",
      {.choices = {"fcfs", "priority", "prefill-first"}});
  table.add("--max-num-seqs", &o.engine.max_num_seqs, "most sequences of one step",
            {.least = 1, .most = 4096});
  table.add("--max-num-batched-tokens", &o.engine.max_num_batched_tokens, "most tokens of one step",
            {.least = 1, .most = 1 << 20});
  table.add("--max-queued-requests", &o.engine.max_queued_requests,
            "requests that may wait; more are answered with 503", {.least = 1, .most = 1 << 20});
  table.add("--enable-prefix-caching", &o.engine.enable_prefix_caching,
            "share the work of equal prefixes");
  table.add("--kv-cache-memory", &o.engine.kv_cache_bytes,
            "bytes of the KV cache; 0 sizes it for --max-num-seqs full sequences", {.least = 0});
  table.add("--block-size", &o.engine.block_tokens, "tokens of one block of the KV cache",
            {.least = 1, .most = 1024});
  add_warm_up_rows(table, o.warm_up);
  add_memory_row(table, &o.engine.memory_utilization);
  table.add("--populate-memory", &o.engine.populate_memory,
            "on a CPU: make the memory of the KV cache and of activations resident right after the "
            "start, so that it does not grow under load");
  table.add(
      "--record-events", &o.engine.record_events,
      "a file that receives what the scheduler is told and decides, token ids included, to be "
      "replayed",
      {.metavar = "FILE", .written = true});
  table.add("--record-events-bytes", &o.engine.record_events_bytes,
            "size at which --record-events stops", {.least = 1});
  table.add("--allow-batch-dependent-scales", &o.allow_shared_scales,
            "serve a model whose input scales span all requests of a step");
  add_baseline_rows(table, o.baseline);
  add_model_rows(table, o.model);
  add_backend_rows(table, o.backend);
  return table;
}

// With one scale for the inputs of a whole step, what a request is answered depends on what else is
// in the batch. Error, unless that is allowed.
void refuse_shared_scales(const model::Model& model, bool allowed) {
  int64_t count = 0;
  std::string first;
  for (const model::LinearUse& use : model.linears()) {
    const ops::Linear& linear = *use.linear;
    const bool shared =
        linear.input && linear.when == InputScale::dynamic && linear.input->grid == grids::tensor;
    if (shared && count++ == 0) first = linear.name;
  }
  if (count == 0) return;
  const std::string found = fmt::format("{} linears, the first is {}", count, first);
  if (allowed) {
    log::warning(
        "inputs with one dynamic scale for all rows of a step ({}): answers depend on what "
        "else is in the batch",
        found);
    return;
  }
  throw Error({.what =
                   "inputs with one dynamic scale for all rows of a step: an answer would depend "
                   "on what else is in the batch",
               .where = "the model's quantization, or --policy",
               .value = found,
               .accepted = "input scales by token, by group of 128, or calibrated ones",
               .fix = "quantize with --scheme fp8_channel or fp8_block, or allow it with "
                      "--allow-batch-dependent-scales"});
}

// "models/octet-demo-fp8/" -> "octet-demo-fp8".
std::string directory_name(const std::string& path) {
  const std::filesystem::path absolute = std::filesystem::weakly_canonical(path);
  return absolute.filename().string();
}

// Where a client on this machine finds the console: "http://127.0.0.1:8000/".
std::string url(const std::string& host, int port) {
  std::string name = host;
  if (host == "0.0.0.0") name = "127.0.0.1";
  if (host == "::") name = "::1";
  const bool v6 = name.find(':') != name.npos;
  return fmt::format("http://{}{}{}:{}/", v6 ? "[" : "", name, v6 ? "]" : "", port);
}

// A model without a template is served all the same: it completes, and says why it does not chat.
std::optional<text::ChatTemplate> try_chat(const OpenModel& open, const std::string& model_path,
                                           const std::string& file, std::string& why_not) {
  bool has_none = false;
  try {
    text::ChatFiles files = chat_files(model_path, file);
    has_none = files.templates.empty();
    return text::ChatTemplate(std::move(files), open.tokenizer());
  } catch (const Error& error) {
    if (!file.empty()) throw;
    why_not = error.what();
    log::at(has_none ? log::Level::info : log::Level::warning, "no chat: {}", why_not);
    return std::nullopt;
  }
}

// What requests leave out: --override-generation-config, over the file that --generation-config
// names.
server::SamplingDefaults sampling_defaults(const ServeOptions& o) {
  namespace fs = std::filesystem;
  Json config = Json::object();
  std::string name = "--override-generation-config";
  if (o.generation_config != "vllm") {
    const bool given = o.generation_config != "auto";
    const fs::path folder = given ? o.generation_config : o.model.path;
    const fs::path file = folder / "generation_config.json";
    if (given || fs::exists(file)) {
      config = parse_json_file(file);
      name = file.string();
    }
  }
  if (!o.override_generation_config.empty()) {
    const std::string flag = "--override-generation-config";
    const Json more = parse_json(o.override_generation_config, flag);
    server::parse_generation_config(JsonView(more, flag));  // what is wrong in it is not the file's
    const JsonView file(config, name);
    config.update(more);
  }
  return server::parse_generation_config(JsonView(config, name));
}

std::optional<server::ToolFormat> tool_format(const ServeOptions& o,
                                              const text::ChatTemplate& chat) {
  if (o.tool_call_parser != "auto") return server::parse_tool_format(o.tool_call_parser);
  return server::tool_format_of(chat.source(true));
}

// vLLM's form of --allowed-origins is a list of JSON.
std::vector<std::string> origins_of(const std::vector<std::string>& given) {
  std::vector<std::string> origins;
  for (const std::string& one : given) {
    if (!one.starts_with('[')) {
      origins.push_back(one);
      continue;
    }
    const Json list = {{"origins", parse_json(one, "--allowed-origins")}};
    const JsonView view(list, "--allowed-origins");
    for (std::string& origin : view.get<std::vector<std::string>>("origins")) {
      origins.push_back(std::move(origin));
    }
  }
  return origins;
}

void check_keys(const std::vector<std::string>& keys) {
  if (std::ranges::find(keys, "") == keys.end()) return;
  throw Error({.what = "an API key is empty",
               .where = "--api-key",
               .fix = "leave the flag out to serve everybody"});
}

}  // namespace

int run_serve(Args args) {
  ServeOptions o;
  OptionTable table = table_of(o);
  if (table.parse(without_vllm_flags(args)) == OptionTable::Outcome::done) {
    print(table.output());
    return 0;
  }
  const auto begin = std::chrono::steady_clock::now();
  std::signal(SIGPIPE, SIG_IGN);  // a client that goes away ends its stream, not the server

  if (o.server.served_name.empty()) o.server.served_name = directory_name(o.model.path);
  o.server.root = o.model.path;
  if (!o.server.request_log.empty()) o.server.model_hash = identity_of(o.model);
  o.server.limits.read_timeout = std::chrono::seconds(o.request_timeout_s);
  o.server.limits.write_timeout = std::chrono::seconds(o.request_timeout_s);
  o.server.limits.body_bytes = static_cast<size_t>(o.max_request_bytes);
  o.server.allowed_origins = origins_of(o.server.allowed_origins);
  check_keys(o.server.api_keys);
  o.server.defaults = sampling_defaults(o);
  o.engine.policy = sched::parse_policy(o.policy);
  server::Server server(o.server);

  OpenModel open(o.model);
  std::string why_no_chat;
  const std::optional<text::ChatTemplate> chat =
      try_chat(open, o.model.path, o.chat_template, why_no_chat);
  std::optional<text::GrammarCompiler> grammars;  // before there are threads: it forks
  if (text::has_grammar_engine()) {
    grammars.emplace(open.tokenizer(), open.config().vocab, open.config().eos);
  }
  const bool warmed_up = warm_up(o.warm_up, o.model, o.backend, open);
  const std::unique_ptr<ops::Backend> backend = open_backend(o.backend);
  check_kernels(open, o.backend, *backend);
  const model::Model& model = open.load(*backend, open.max_model_len());
  for (const offline::Finding& finding : calibration_findings(o.model.path, open)) {
    log::warning("{}; {}", finding.what, finding.fix);
  }
  if (open.kv_dtype() == DType::e5m2) log::warning("{}", e5m2_warning(open, *backend));
  refuse_shared_scales(model, o.allow_shared_scales);
  o.engine.max_model_len = open.max_model_len();
  o.engine.kv_type = open.kv_type();
  o.engine.unit_kv_scale = open.unit_kv_scale();

  const std::vector<int64_t> batches = {1, o.engine.max_num_seqs, o.engine.max_num_batched_tokens};
  const std::string kernels = dump_json(report_kernels(open, *backend, batches).json);
  // Before the engine, which sizes its KV cache by what is left.
  std::optional<Baseline> baseline;
  if (!o.baseline.path.empty()) baseline.emplace(o.baseline, open, o.backend);
  engine::Engine engine(model, *backend, o.engine);
  server::ServedText text{open.tokenizer(), chat ? &*chat : nullptr, why_no_chat, kernels};
  text.kv_scales = kv_scales_from(open, warmed_up);
  log::info("{} on {}: {}, KV scales: {}; memory:\n{}", o.server.served_name, backend->info().name,
            open.run_as(), text.kv_scales, engine::to_string(engine.ledger()));
  text.run_as = open.run_as();
  if (chat) text.tools = tool_format(o, *chat);
  if (grammars) text.grammars = &*grammars;
  text.why_no_grammar = "this build was made without its engine";
  log::info("{}", server::to_string(server::features_in_force(engine, text)));
  const auto ready = [&] {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const std::string at = url(o.server.host, server.port());
    log::info("ready after {:.2f} s: {} at {}v1, console at {}", took.count(), o.server.served_name,
              at, at);
    if (!o.port_file.empty()) {
      AtomicFile file(o.port_file, Overwrite::replace);
      file.write(fmt::format("{}\n", server.port()));
      file.commit();
    }
  };
  return server.run(engine, text, ready, baseline ? &baseline->served() : nullptr);
}

}  // namespace octet::cli
