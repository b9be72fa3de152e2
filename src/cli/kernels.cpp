// octet kernels MODEL: which kernel runs each shape of a model, and why not another; with --step,
// the ops of a decode step in their order and the bytes that each moves.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <tuple>

#include "cli/kernel_report.h"
#include "cli/linear_speed.h"
#include "cli/name_patterns.h"
#include "cli/open_model.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "engine/capacity.h"
#include "ops/kernel_table.h"
#include "ops/op_log.h"

namespace octet::cli {
namespace {

struct KernelsOptions {
  ModelOptions model;
  BackendOptions backend;
  std::string batches = "1,512", json;
  bool measure = false;
  int64_t step = 0, context = 1024;  // rows of a step to list; tokens of each sequence
};

// --- the step ----------------------------------------------------------------------------

// Ops of the step that differ in their layer alone: op, kernel, modules.
using StepKey = std::tuple<std::string, std::string, std::string>;
struct StepLine {
  int64_t count = 0, weight_bytes = 0, cache_bytes = 0, activation_bytes = 0;  // of all
  int64_t bytes() const { return weight_bytes + cache_bytes + activation_bytes; }
};

// What the model asks of its backend for one token of each of `rows` sequences, the sampling of
// their next ones not included.
std::vector<ops::LoggedOp> decode_step(const OpenModel& open, Device device, int64_t rows,
                                       int64_t context) {
  ops::OpLog log(device, context);
  const model::Model& model = open.model();
  const int64_t block_tokens = ops::KvLayout().block_tokens;
  const ops::KvLayout layout =
      engine::kv_layout_of(model, open.kv_type(), block_tokens, open.unit_kv_scale());
  const model::KvStore kv(log, layout, 1, model.kv_scales());
  ops::Batch batch;
  batch.rows = rows;
  for (int64_t i = 0; i < rows; ++i) batch.sequences.push_back({i, 1, context - 1});
  batch.tokens = batch.positions = batch.logits_rows = batch.row_sequence =
      ops::nowhere(DType::i32, {rows});
  batch.spans = ops::nowhere(DType::i32, {rows, 3});
  batch.block_table = ops::nowhere(DType::i32, {rows, (context + block_tokens - 1) / block_tokens});
  batch.max_context = context;
  Arena arena;
  model.forward({log, arena, kv, batch});
  return log.ops();
}

// "thin" or, where the linears of an op differ, "thin, cublaslt"; an op without a table is its own.
std::string kernels_of(const ops::LoggedOp& op, const ops::Backend& backend) {
  std::vector<std::string> names;
  for (const ops::OpDesc& desc : op.linears) {
    const std::string name = backend.choose(desc).kernel;
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names.empty() ? "-" : fmt::format("{}", fmt::join(names, ", "));
}

// The common beginning of folded module names once: "model.layers.*.self_attn.{q_proj, k_proj}".
std::string joined_modules(const std::vector<std::string>& modules) {
  if (modules.empty()) return "";
  const std::string first = folded(modules[0]);
  const size_t dot = first.rfind('.') + 1;
  if (modules.size() == 1) return first;
  std::string ends;
  for (const std::string& module : modules) {
    const std::string name = folded(module);
    ends += fmt::format("{}{}", ends.empty() ? "" : ", ", name.substr(std::min(dot, name.size())));
  }
  return fmt::format("{}{{{}}}", first.substr(0, dot), ends);
}

// The listing, and its lines for --json.
std::string list_step(const OpenModel& open, const ops::Backend& backend, int64_t rows,
                      int64_t context, OrderedJson& lines) {
  OrderedGroups<StepKey, StepLine> groups;
  StepLine all;
  for (const ops::LoggedOp& op : decode_step(open, backend.info().device, rows, context)) {
    const StepKey key{op.op, kernels_of(op, backend), joined_modules(op.modules)};
    for (StepLine* line : {&groups[key], &all}) {
      ++line->count;
      line->weight_bytes += op.weight_bytes;
      line->cache_bytes += op.cache_bytes;
      line->activation_bytes += op.activation_bytes;
    }
  }
  std::string text = fmt::format(
      "\nA decode step, {} {} of {} tokens: {} ops, in the order of their first use\n"
      "  {:>5}  {:>10}  {:>10}  {:>10}  {:>10}  {:<14} {:<20} {}\n",
      rows, rows == 1 ? "sequence" : "sequences", context, all.count, "times", "weights", "cache",
      "other", "each", "op", "kernel", "modules");
  const auto show = [](int64_t bytes) { return show_bytes(static_cast<double>(bytes)); };
  const auto line_of = [&](const StepKey& key, const StepLine& line) {
    const auto& [op, kernel, modules] = key;
    text +=
        fmt::format("  {:>5}  {:>10}  {:>10}  {:>10}  {:>10}  {:<14} {:<20} {}\n", line.count,
                    show(line.weight_bytes), show(line.cache_bytes), show(line.activation_bytes),
                    show(line.bytes() / line.count), op, kernel, modules);
    lines.push_back({{"op", op},
                     {"kernel", kernel},
                     {"modules", modules},
                     {"times", line.count},
                     {"weight_bytes", line.weight_bytes},
                     {"cache_bytes", line.cache_bytes},
                     {"activation_bytes", line.activation_bytes}});
  };
  for (const auto& [key, line] : groups.entries()) line_of(key, line);
  line_of({"all", "", ""}, all);
  return text;
}

std::vector<int64_t> parse_batches(const std::string& text) {
  constexpr int64_t most = 1 << 20;
  std::vector<int64_t> batches;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, comma - at);
    const char* end = part.data() + part.size();
    int64_t batch = 0;
    const auto [rest, fault] = std::from_chars(part.data(), end, batch);
    if (fault != std::errc() || rest != end || batch < 1 || batch > most) {
      throw Error({.what = "a batch is a number of rows",
                   .where = "--batches",
                   .value = part,
                   .accepted = fmt::format("1 to {}, separated by commas", most)});
    }
    batches.push_back(batch);
    at = comma + 1;
  }
  return batches;
}

}  // namespace

int run_kernels(Args args) {
  KernelsOptions o;
  OptionTable table("octet kernels", "Which kernel runs each shape of a model, and why.");
  table.positional("MODEL", &o.model.path,
                   "model directory, a .gguf file, or a config with --random-weights");
  table.add("--batches", &o.batches, "rows of a step, separated by commas");
  table.add("--step", &o.step, "list a decode step of so many sequences instead; 0: do not",
            {.least = 0, .most = 4096});
  table.add("--context", &o.context, "tokens of each of its sequences",
            {.least = 1, .most = 1 << 24});
  table.add("--measure", &o.measure,
            "also time each quantized linear, and the same in BF16: which shapes FP8 makes slower");
  add_model_rows(table, o.model);
  add_backend_rows(table, o.backend);
  table.group("Output");
  add_json_row(table, &o.json);
  if (table.parse(args) == OptionTable::Outcome::done) {
    print(table.output());
    return 0;
  }
  const std::vector<int64_t> batches = parse_batches(o.batches);
  o.model.shape_alone = true;
  OpenModel open(o.model);
  const auto backend = open_backend(o.backend);
  open.load(*backend, 1);
  OrderedJson rows = OrderedJson::array();
  std::string text = backend->info().name + "\n";
  if (o.step > 0) {
    text += list_step(open, *backend, o.step, o.context, rows);
    if (prints_text(o.json)) print(text);
    write_json(o.json, {{"backend", backend->info().name}, {"step", std::move(rows)}});
    return 0;
  }
  KernelReport report = report_kernels(open, *backend, batches);
  if (o.measure) {
    LinearSpeeds speeds = measure_linears(open, *backend, batches);
    report.text += speeds.text;
    report.json["measured"] = std::move(speeds.json);
  }
  if (prints_text(o.json)) print(text + report.text);
  write_json(o.json, report.json);
  return 0;
}

}  // namespace octet::cli
