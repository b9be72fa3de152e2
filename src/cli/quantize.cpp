// octet quantize SRC --out DIR: a 16-bit checkpoint becomes an FP8 one.
#include "offline/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <optional>
#include <utility>
#include <variant>

#include "base/log.h"
#include "cli/calibration.h"
#include "cli/output.h"
#include "cli/quantize_auto.h"
#include "cli/verbs.h"
#include "cli/watched_work.h"
#include "numerics/scheme.h"
#include "offline/expert_use.h"

namespace octet::cli {
namespace {

struct QuantizeFlags {
  std::string source, out, scheme = "fp8_channel", policy, json;
  std::string rounding = "nearest", weight_scale = "max", preset, expert_policy;
  AutoOptions autos;
  CalibrationText calibration;
  int64_t calibration_tokens = 32768;
  double damping = 0.01;
  std::string calibration_file;
  std::optional<std::string> kv_scale_method, kv_scale_granularity, input_scale_method;
  std::optional<int64_t> amax_history_len;
  std::optional<std::string> amax_compute_algo;
  std::optional<int> scale_margin;
  std::optional<std::string> attention, kv_cache_dtype;
  bool any_calibration = false;
  bool overwrite = false, allow_nonfinite = false;
  double max_shard_gb = 5;
};

OptionTable table_of(QuantizeFlags& o) {
  std::vector<std::string> names;
  std::string summaries;
  for (const Scheme& scheme : schemes()) {
    names.emplace_back(scheme.name);
    summaries +=
        fmt::format("{}{}: {}", summaries.empty() ? "" : "; ", scheme.name, scheme.summary);
  }
  OptionTable table("octet quantize", "Turn a 16-bit checkpoint into an FP8 one.");
  table.positional("SRC", &o.source, "model directory in BF16, FP16 or FP32, or a .gguf file");
  table.add("--out", &o.out, "the new model directory; made whole or not at all",
            {.metavar = "DIR", .required = true});
  table.add("--scheme", &o.scheme, summaries, {.choices = names});
  table.add("--policy", &o.policy, "precisions of single roles or modules (JSON)",
            {.metavar = "FILE"});
  table.add("--preset", &o.preset,
            "first-last-bf16: the linears of the first and the last layer stay in 16 bits",
            {.choices = {"first-last-bf16"}});
  table.add("--expert-policy", &o.expert_policy,
            "hot=SHARE: that share of each layer's experts, those that --calibration's text is "
            "routed to most, stays in 16 bits. Octet runs such checkpoints; engines that fuse a "
            "layer's experts do not",
            {.metavar = "hot=SHARE"});
  table.group("Rounding");
  table.add("--rounding", &o.rounding,
            "nearest: each weight becomes the nearest code; compensated: what rounding does to the "
            "output is made good in the weights rounded after it (GPTQ), with --calibration",
            {.choices = {"nearest", "compensated"}});
  table.add("--weight-scale", &o.weight_scale,
            "max: a cell's largest value is on the largest code; mse: of sixteen scales from there "
            "to twice as large that with the least squared error",
            {.choices = {"max", "mse"}});
  table.add("--calibration", &o.calibration.source,
            "a text like what the model will see, and none that it will be judged on: a text file, "
            "or FILE.jsonl with a \"text\" or \"messages\" a line; or \"model\": the model "
            "writes it itself",
            {.metavar = "FILE"});
  table.add("--calibration-tokens", &o.calibration_tokens, "of it, about, at most", {.least = 512});
  table.add("--damping", &o.damping,
            "added to the diagonal of the inputs' moments, as a share of its mean: more trusts the "
            "text less",
            {.least = 1e-6, .most = 100});
  table.group("Scales");
  table.add("--calibration-file", &o.calibration_file,
            "of `octet calibrate`: the checkpoint gets scales of the KV cache, and of inputs where "
            "the scheme fixes them",
            {.metavar = "FILE"});
  const std::vector<std::string> methods = {"max", "p99.9", "p99.99", "mse", "delayed"};
  table.add("--kv-scale-method", &o.kv_scale_method,
            "the range of K and V: the largest value (max, the default), a percentile beyond which "
            "values saturate, the least squared error, or what the last samples had (delayed)",
            {.choices = methods});
  table.add(
      "--kv-scale-granularity", &o.kv_scale_granularity,
      "one scale for K and V of a layer each, which every engine reads (tensor, the default), "
      "one a head, or one a head and dimension; of a latent (MLA), whose scales are chosen token "
      "by token, one for 128 dimensions (group) or for each (channel)",
      {.choices = {"tensor", "head", "channel", "group"}});
  table.add("--input-scale-method", &o.input_scale_method, "the same for inputs",
            {.choices = methods});
  table.add("--amax-history-len", &o.amax_history_len,
            "of delayed: the samples whose largest values are looked at (1024)",
            {.least = 1, .most = double{offline::kAmaxHistory}});
  table.add("--amax-compute-algo", &o.amax_compute_algo,
            "of delayed: the largest of them (max, the default), or the last one's (most_recent)",
            {.choices = {"max", "most_recent"}});
  table.add("--scale-margin", &o.scale_margin,
            "of delayed: bits that are left free above that value (0)", {.least = 0, .most = 8});
  table.add("--any-calibration", &o.any_calibration, "take a calibration of another model");
  table.group("Recorded in config.json, for all who open the checkpoint without these flags");
  table.add("--attention", &o.attention,
            "the arithmetic of attention that you measured and found right",
            {.choices = {"fp8", "bf16"}});
  table.add("--kv-cache-dtype", &o.kv_cache_dtype,
            "the type of the KV cache; where it is not recorded it follows attention's arithmetic",
            {.choices = {"bf16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_per_token_head",
                         "int8_per_token_head", "int8_per_token_group"}});
  add_auto_rows(table, o.autos);
  table.group("Files");
  table.add("--overwrite", &o.overwrite, "replace the directory if it exists");
  table.add("--allow-nonfinite", &o.allow_nonfinite,
            "take a checkpoint that holds NaN (stays NaN) or infinities (in weights that are "
            "quantized they become the largest value of their scale), with a warning; without it "
            "they are an error");
  table.add("--max-shard-size", &o.max_shard_gb, "most GB of one file",
            {.least = 0.001, .most = 1e6});
  table.group("Output");
  add_json_row(table, &o.json);
  return table;
}

// The only preset; rows of --policy go above it.
void add_preset(offline::QuantizeOptions& options) {
  const int64_t last = model::read_config(options.source).layers - 1;
  for (const int64_t layer : {int64_t{0}, last}) {
    options.policy.push_back({.role = std::nullopt,
                              .name = fmt::format("*.layers.{}.*", layer),
                              .format = {},
                              .reason = "the first and the last layer stay in 16 bits",
                              .origin = "--preset first-last-bf16"});
  }
}

// The share of --expert-policy. Error unless it says one, of a model that has experts.
double parse_expert_policy(const QuantizeFlags& o, const model::ModelConfig& config) {
  constexpr std::string_view name = "hot=";
  char* end = nullptr;
  const std::string number =
      o.expert_policy.starts_with(name) ? o.expert_policy.substr(name.size()) : "";
  const double share = std::strtod(number.c_str(), &end);
  if (number.empty() || *end != '\0' || !(share > 0 && share <= 1)) {
    throw Error({.what = "unknown policy of experts",
                 .where = "--expert-policy",
                 .value = o.expert_policy,
                 .accepted = "hot=SHARE, of each layer's experts, above 0 and at most 1"});
  }
  if (std::holds_alternative<model::MoeFfn>(config.ffn)) return share;
  throw Error({.what = "the model has no experts",
               .where = "--expert-policy",
               .value = config.architecture,
               .accepted = "a mixture of experts",
               .fix = "leave the flag out"});
}

// A text is given where something is to be seen on it, and only there.
void check_calibration_text(const QuantizeFlags& o) {
  const bool given = !o.calibration.source.empty();
  const bool compensated = o.rounding == "compensated";
  if (given == (compensated || !o.expert_policy.empty())) return;
  throw Error(
      {.what = given         ? "a calibration text says nothing to this rounding"
               : compensated ? "compensated rounding needs a text to see what enters the linears"
                             : "which experts are hot is seen on a text",
       .where = given ? "--rounding" : "--calibration",
       .value = given ? o.rounding : "not given",
       .accepted = "--calibration FILE together with --rounding compensated or --expert-policy"});
}

// What is seen on the calibration text.
struct Observed {
  std::optional<offline::InputMoments> inputs;  // of compensated rounding
  OrderedJson rounded_on;                       // the same: the record of its data
  offline::ExpertUse experts;
};

// To be called before there are threads; `threads` does the work, now and later.
Observed observe(QuantizeFlags& o, std::optional<ThreadPool>& threads) {
  o.calibration.samples = o.calibration_tokens / o.calibration.window;
  CalibrationRun run({.path = o.source}, o.calibration);
  threads.emplace(default_thread_count());
  Observed seen;
  const auto count = [&](std::span<const ops::Linear* const> ws, const Tensor& x) {
    seen.experts.add(ws, x);
  };
  if (o.rounding == "compensated") {
    seen.inputs.emplace(observe_inputs(run, *threads, count));
    seen.rounded_on = offline::record_of(run.summary(), {"rounding"});
  } else {
    run.load(threads->size());
    run.run({.input = count});
  }
  return seen;
}

// Adds the rows of --expert-policy under those that are there.
void keep_hot_experts(const QuantizeFlags& o, const offline::ExpertUse& use,
                      offline::QuantizeOptions& options) {
  const model::ModelConfig config = model::read_config(o.source);
  const double share = parse_expert_policy(o, config);
  const int64_t experts = std::get<model::MoeFfn>(config.ffn).router.experts;
  const std::vector<PolicyRow> rows = offline::keep_hot_experts(use.counts(), experts, share);
  options.policy.insert(options.policy.end(), rows.begin(), rows.end());
  log::info("{} experts of {} layers stay in 16 bits: {:.1f} % of what was routed went to them",
            rows.size(), use.counts().size(),
            100 * offline::hot_share_of_tokens(use.counts(), experts, share));
}

offline::KvGranularity granularity_of(const std::optional<std::string>& name) {
  using enum offline::KvGranularity;
  return name == "head" ? head : name == "channel" ? channel : name == "group" ? group : tensor;
}

// What chooses scales says nothing without what they are chosen from.
void check_scale_flags(const QuantizeFlags& o) {
  const std::pair<const char*, bool> delayed_flags[] = {
      {"--amax-history-len", o.amax_history_len.has_value()},
      {"--amax-compute-algo", o.amax_compute_algo.has_value()},
      {"--scale-margin", o.scale_margin.has_value()}};
  const bool delayed = o.kv_scale_method == "delayed" || o.input_scale_method == "delayed";
  for (const auto& [flag, given] : delayed_flags) {
    if (!given || delayed) continue;
    throw Error({.what = "the flag says how scales are delayed, and none is",
                 .where = flag,
                 .accepted = "together with --kv-scale-method or --input-scale-method delayed",
                 .fix = "give one of these, or leave the flag out"});
  }
  if (!o.calibration_file.empty()) return;
  const std::pair<const char*, bool> flags[] = {
      {"--kv-scale-method", o.kv_scale_method.has_value()},
      {"--kv-scale-granularity", o.kv_scale_granularity.has_value()},
      {"--input-scale-method", o.input_scale_method.has_value()},
      {"--any-calibration", o.any_calibration}};
  for (const auto& [flag, given] : flags) {
    if (!given) continue;
    throw Error({.what = "the flag says how to use a calibration, and there is none",
                 .where = flag,
                 .accepted = "together with --calibration-file, a file of `octet calibrate`",
                 .fix = "give --calibration-file, or leave the flag out"});
  }
}

std::vector<offline::QuantizedTensor> worst(const offline::QuantizeReport& report, size_t count) {
  std::vector<offline::QuantizedTensor> tensors = report.quantized;
  std::ranges::stable_sort(tensors, {}, &offline::QuantizedTensor::sqnr_db);
  if (tensors.size() > count) tensors.resize(count);
  return tensors;
}

// In mean over the linears that were compensated: as they are, and with the nearest codes.
std::optional<std::pair<double, double>> mean_output_error(const offline::QuantizeReport& report) {
  double error = 0, nearest = 0;
  int64_t count = 0;
  for (const offline::QuantizedTensor& t : report.quantized) {
    if (!t.output_error) continue;
    error += *t.output_error;
    nearest += *t.output_error_nearest;
    ++count;
  }
  if (count == 0) return std::nullopt;
  const auto n = static_cast<double>(count);
  return std::pair(error / n, nearest / n);
}

void print_report(const offline::QuantizeReport& r, const QuantizeFlags& o) {
  std::string text = fmt::format(
      "{} -> {}  ({})\n"
      "  {} of {} tensors are FP8 now; {} -> {} ({:.2f}x smaller)\n"
      "  of {} quantized values: {} saturated, {} small ones became zero, {} not finite\n",
      o.source, o.out, o.scheme, r.quantized.size(), r.tensors,
      show_bytes(static_cast<double>(r.bytes_before)),
      show_bytes(static_cast<double>(r.bytes_after)),
      static_cast<double>(r.bytes_before) / static_cast<double>(r.bytes_after), r.stats.elements,
      r.stats.saturated, r.stats.flushed, r.stats.nonfinite());
  if (const auto error = mean_output_error(r)) {
    text += fmt::format(
        "  error of the linears' outputs on the calibration text, as a share of their energy: "
        "{:.2e}, "
        "with the nearest codes {:.2e}\n",
        error->first, error->second);
  }
  text += "  least signal to noise:\n";
  for (const offline::QuantizedTensor& tensor : worst(r, 5)) {
    text += fmt::format("    {:6.2f} dB  {}\n", tensor.sqnr_db, tensor.module);
  }
  print(text);
}

OrderedJson json_of(const offline::QuantizeReport& r, const QuantizeFlags& o) {
  OrderedJson tensors = OrderedJson::array();
  for (const offline::QuantizedTensor& t : worst(r, r.quantized.size())) {
    tensors.push_back({{"module", t.module},
                       {"format", to_string(t.format)},
                       {"sqnr_db", t.sqnr_db},
                       {"saturated", t.stats.saturated},
                       {"flushed", t.stats.flushed},
                       {"nonfinite", t.stats.nonfinite()}});
    if (!t.output_error) continue;
    tensors.back()["output_error"] = *t.output_error;
    tensors.back()["output_error_nearest"] = *t.output_error_nearest;
  }
  OrderedJson broken = OrderedJson::array();
  for (const offline::BrokenTensor& t : r.broken) {
    broken.push_back(
        {{"tensor", t.name}, {"nan", t.nan}, {"inf", t.inf}, {"quantized", t.quantized}});
  }
  return {{"out", o.out},
          {"scheme", o.scheme},
          {"bytes_before", r.bytes_before},
          {"bytes_after", r.bytes_after},
          {"tensors", r.tensors},
          {"quantized", r.quantized.size()},
          {"elements", r.stats.elements},
          {"saturated", r.stats.saturated},
          {"flushed", r.stats.flushed},
          {"nonfinite", r.stats.nonfinite()},
          {"broken", std::move(broken)},
          {"notices", r.notices},
          {"worst_first", std::move(tensors)}};
}

void warn_of_broken(const offline::QuantizeReport& report) {
  constexpr size_t most = 10;  // --json has them all
  const size_t shown = std::min(report.broken.size(), most);
  for (const offline::BrokenTensor& t : std::span(report.broken).first(shown)) {
    log::warning("tensor '{}' holds {} NaN and {} infinite values; {}", printable(t.name), t.nan,
                 t.inf,
                 t.quantized ? "an infinity became the largest value of its scale"
                             : "it stays in high precision, and they were copied");
  }
  if (report.broken.size() > shown) {
    log::warning("{} more tensors hold NaN or infinite values", report.broken.size() - shown);
  }
}

}  // namespace

int run_quantize(Args args) {
  QuantizeFlags o;
  OptionTable table = table_of(o);
  if (table.parse(args) == OptionTable::Outcome::done) {
    print(table.output());
    return 0;
  }
  offline::QuantizeOptions options{.source = o.source,
                                   .out = o.out,
                                   .scheme = scheme_named(o.scheme).format,
                                   .overwrite = o.overwrite,
                                   .allow_nonfinite = o.allow_nonfinite,
                                   .shard_bytes = static_cast<int64_t>(o.max_shard_gb * 1e9),
                                   .search_scales = o.weight_scale == "mse"};
  options.recorded = {.attention = o.attention.value_or(""),
                      .kv_cache_dtype = o.kv_cache_dtype.value_or("")};
  if (!o.policy.empty()) options.policy = read_policy_file(o.policy);
  if (!o.preset.empty()) add_preset(options);
  check_auto(o.autos, table);
  check_calibration_text(o);
  if (!o.expert_policy.empty()) parse_expert_policy(o, model::read_config(o.source));
  check_scale_flags(o);
  std::optional<offline::Calibration> calibration;
  if (!o.calibration_file.empty()) {
    calibration = offline::read_calibration(o.calibration_file);
    options.calibration = &*calibration;
    options.scales = {
        .kv = offline::parse_range_method(o.kv_scale_method.value_or("max"), "--kv-scale-method"),
        .input = offline::parse_range_method(o.input_scale_method.value_or("max"),
                                             "--input-scale-method"),
        .delayed = {.history = o.amax_history_len.value_or(offline::kAmaxHistory),
                    .algorithm = offline::parse_amax_algorithm(o.amax_compute_algo.value_or("max"),
                                                               "--amax-compute-algo"),
                    .margin = o.scale_margin.value_or(0)},
        .granularity = granularity_of(o.kv_scale_granularity),
        .any_model = o.any_calibration};
  }
  offline::check_quantize(options);
  if (o.autos.on) check_auto_work(options, o.autos);
  const HeldSignals held;  // before there are threads: they must not take them
  std::optional<ThreadPool> threads;
  const Observed seen = o.calibration.source.empty() ? Observed() : observe(o, threads);
  if (seen.inputs) {
    options.inputs = &*seen.inputs;
    options.rounded_on = seen.rounded_on;
    options.damping = o.damping;
    options.threads = &*threads;
  }
  if (!o.expert_policy.empty()) keep_hot_experts(o, seen.experts, options);
  std::optional<AutoResult> chosen;
  offline::QuantizeReport report;
  if (o.autos.on) {
    chosen = quantize_auto(options, o.scheme, o.autos);
    report = chosen->report;
  } else {
    WatchedWork work("quantize");
    report = offline::quantize_checkpoint(options, std::ref(work));
  }
  for (const std::string& notice : report.notices) log::info("{}", notice);
  warn_of_broken(report);
  OrderedJson json = json_of(report, o);
  if (chosen) json["auto"] = json_of(*chosen);
  if (prints_text(o.json)) {
    print_report(report, o);
    if (chosen) print(text_of(*chosen));
  }
  write_json(o.json, json);
  return 0;
}

}  // namespace octet::cli
