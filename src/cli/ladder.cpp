// octet ladder MODEL --text FILE: from BF16 to all of FP8, one switch at a time: what each is worth
// in speed and bytes, and what it costs in quality.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/progress.h"
#include "cli/bench_common.h"
#include "cli/fingerprint.h"
#include "cli/output.h"
#include "cli/paired.h"
#include "cli/sensitivity.h"
#include "cli/verbs.h"
#include "engine/capacity.h"
#include "eval/item_log.h"
#include "numerics/scheme.h"
#include "page/page.h"
#include "page/plot.h"

namespace octet::cli {
namespace {

struct LadderOptions {
  std::string model, scheme = "fp8_channel", kv_cache_dtype = "fp8_e4m3";
  DrawnText text;
  BackendOptions device;
  int64_t prompt_len = 512, output_len = 64, repeats = 3, chunk = 512;
  std::string resume, json, html;
};

// A rung is the one before it with one switch more.
struct Rung {
  std::string name;
  LinearFormat linear;  // of the linears of the FP8 data path
  model::KvType cache = model::KvType::bf16;
  bool fp8_attention = false, graphs = false;
};

struct Climbed {
  std::string name;
  eval::Fidelity fidelity;  // against the first rung
  Spread decode, prefill, ttft_ms;
  int64_t weight_bytes = 0;
  int64_t cache_bytes = 0;  // of one token
};

std::vector<Rung> rungs_of(const LadderOptions& o) {
  const LinearFormat full = scheme_named(o.scheme).format;
  const char* const codes = is_fp8(full.weight->code) ? "FP8" : "INT8";
  Rung rung{.name = "BF16"};
  std::vector<Rung> rungs{rung};
  const auto add = [&](std::string name) {
    rung.name = std::move(name);
    rungs.push_back(rung);
  };
  rung.cache = model::parse_kv_type(o.kv_cache_dtype);
  add("+ FP8 KV cache");
  rung.linear.weight = full.weight;
  add(fmt::format("+ {} weights", codes));
  if (full.input) {
    rung.linear = full;
    add(fmt::format("+ {} activations", codes));
    rung.fp8_attention = true;
    add("+ FP8 attention");
  }
  if (!o.device.on_cpu() && !o.device.enforce_eager) {
    rung.graphs = true;
    add("+ CUDA graphs");
  }
  return rungs;
}

model::LoadOptions load_options_of(const Rung& rung, int64_t max_positions) {
  model::LoadOptions load;
  load.compute = rung.fp8_attention ? model::Compute::fp8 : model::Compute::bf16;
  load.fp8_attention = rung.fp8_attention;
  load.max_positions = max_positions;
  // The default policy in both arithmetics, whose rows for FP8 need not be asked for.
  load.online = rung.linear;
  if (rung.linear.weight) load.policy = default_policy(rung.linear).rows;
  return load;
}

// As they lie in memory: codes with their scales, or 16 bits; the embedding once.
int64_t weight_bytes(const model::Model& model) {
  int64_t bytes = 0;
  for (const model::LinearUse& use : model.linears()) {
    const ops::Linear& linear = *use.linear;
    bytes += linear.quant ? linear.quant.codes.bytes() + linear.quant.scales.bytes()
                          : linear.plain.bytes();
  }
  const model::ModelConfig& config = model.config();
  return bytes + (config.tied_embeddings ? 0 : config.vocab * config.hidden * 2);
}

OrderedJson json_of(const Climbed& rung) {
  OrderedJson json = {{"decode_tokens_per_s", json_of(rung.decode)},
                      {"prefill_tokens_per_s", json_of(rung.prefill)},
                      {"ttft_ms", json_of(rung.ttft_ms)},
                      {"weight_bytes", rung.weight_bytes},
                      {"cache_bytes_per_token", rung.cache_bytes}};
  json.update(cli::json_of(rung.fidelity));
  return json;
}

Spread read_spread(const JsonView& view) {
  return {view.get<double>("median"), view.get<double>("min"), view.get<double>("max")};
}

Climbed read_climbed(std::string name, const JsonView& view) {
  constexpr int64_t most = int64_t{1} << 50;
  return {.name = std::move(name),
          .fidelity = read_fidelity(view),
          .decode = read_spread(view.at("decode_tokens_per_s")),
          .prefill = read_spread(view.at("prefill_tokens_per_s")),
          .ttft_ms = read_spread(view.at("ttft_ms")),
          .weight_bytes = view.integer("weight_bytes", 0, most),
          .cache_bytes = view.integer("cache_bytes_per_token", 0, most)};
}

// Nothing here is half done that a signal must not leave: one ends the process at once, and what
// was measured is in the file of --resume.
class Ladder {
 public:
  Ladder(const LadderOptions& o, OpenModel& open)
      : o_(o),
        open_(open),
        pieces_(draw_windows(o.text, open)),
        threads_(default_thread_count()),
        rungs_(rungs_of(o)),
        progress_("ladder", eval::total_tokens(pieces_) * static_cast<int64_t>(rungs_.size() + 1),
                  Progress::Unit::tokens) {
    if (!o.resume.empty()) log_ = eval::ItemLog(o.resume);
    fingerprint_ = fingerprint_of({.path = o.model}, o.device);
    input_ = hash_of(pieces_, fmt::format("{};{};{};{};{};{}", o.scheme, o.kv_cache_dtype,
                                          o.prompt_len, o.output_len, o.repeats, o.chunk));
  }

  std::vector<Climbed> climb() {
    std::vector<Climbed> climbed;
    for (const Rung& rung : rungs_) {
      const eval::ItemKey key{fingerprint_, "ladder", rung.name, input_};
      if (const Json* kept = log_.find(key)) {
        climbed.push_back(read_climbed(rung.name, JsonView(*kept, o_.resume)));
        progress_.advance(eval::total_tokens(pieces_));
        continue;
      }
      climbed.push_back(step(rung));
      log_.add(key, json_of(climbed.back()));
    }
    return climbed;
  }
  int64_t tokens() const { return eval::scored_tokens(pieces_); }

 private:
  // A rung's model, ready to run.
  struct Standing {
    std::unique_ptr<ops::Backend> backend;
    std::unique_ptr<model::Model> model;
    int64_t length = 0;  // of the sequence that speed is measured on
  };
  Standing stand_on(const Rung& rung) {
    BackendOptions device = o_.device;
    device.enforce_eager = !rung.graphs;
    Standing standing{.backend = open_backend(device),
                      .length = o_.prompt_len + o_.output_len + warm_up_steps(device)};
    standing.model =
        model::load_model(open_.config(), open_.shared_source(), *standing.backend,
                          load_options_of(rung, std::max(standing.length, eval::longest(pieces_))));
    return standing;
  }

  // The logits of the first rung, computed when they are first needed.
  const eval::Reference& reference() {
    if (!reference_) {
      const Standing first = stand_on(rungs_.front());
      reference_.emplace(eval::Subject{*first.model, *first.backend, rungs_.front().cache}, pieces_,
                         threads_, advance());
    }
    return *reference_;
  }

  Climbed step(const Rung& rung) {
    reference();
    const Standing on = stand_on(rung);
    Climbed climbed{.name = rung.name, .weight_bytes = weight_bytes(*on.model)};
    climbed.cache_bytes = engine::kv_layout_of(*on.model, rung.cache, 16).bytes_per_token();
    climbed.fidelity = reference().measure({*on.model, *on.backend, rung.cache}, advance());
    measure_speed(*on.model, *on.backend, rung, on.length, climbed);
    return climbed;
  }

  // The first pass is not counted: it maps the weights, and a GPU loads its kernels.
  void measure_speed(const model::Model& model, ops::Backend& backend, const Rung& rung,
                     int64_t length, Climbed& climbed) {
    BatchRun run(model, backend, {.max_tokens = length, .chunk = o_.chunk, .kv_type = rung.cache});
    const std::vector<int32_t> prompt = random_prompt(model.config(), o_.prompt_len);
    std::vector<double> decode, prefill, ttft_ms, step_us;
    for (int64_t pass = 0; pass <= o_.repeats; ++pass) {
      run.reset();
      const double first = seconds_of([&] { run.prefill(0, 1, prompt); });
      run.decode(warm_up_steps(o_.device), step_us);
      const double rest = seconds_of([&] { run.decode(o_.output_len, step_us); });
      if (pass == 0) continue;
      ttft_ms.push_back(first * 1e3);
      prefill.push_back(static_cast<double>(o_.prompt_len) / first);
      decode.push_back(static_cast<double>(o_.output_len) / rest);
    }
    climbed.decode = spread_of(decode);
    climbed.prefill = spread_of(prefill);
    climbed.ttft_ms = spread_of(ttft_ms);
  }

  eval::Advance advance() {
    return [this](int64_t tokens) { progress_.advance(tokens); };
  }

  const LadderOptions& o_;
  OpenModel& open_;
  std::vector<eval::Piece> pieces_;
  ThreadPool threads_;
  std::vector<Rung> rungs_;
  Progress progress_;
  eval::ItemLog log_;
  std::string fingerprint_, input_;
  std::optional<eval::Reference> reference_;
};

std::vector<std::vector<std::string>> rows_of(const std::vector<Climbed>& rungs) {
  std::vector<std::vector<std::string>> rows;
  for (const Climbed& rung : rungs) {
    rows.push_back({rung.name, fmt::format("{:.1f}", rung.decode.median),
                    fmt::format("{:.1f}", rung.prefill.median),
                    fmt::format("{:.1f} ms", rung.ttft_ms.median),
                    show_bytes(static_cast<double>(rung.weight_bytes)),
                    show_bytes(static_cast<double>(rung.cache_bytes)),
                    fmt::format("{:.4f}", rung.fidelity.perplexity),
                    increase_of(rung.fidelity.perplexity, rungs[0].fidelity.perplexity),
                    fmt::format("{:.5f}", rung.fidelity.kl),
                    fmt::format("{:.2f} %", 100 * rung.fidelity.top1)});
  }
  return rows;
}

const std::vector<std::string>& header() {
  static const std::vector<std::string> names = {
      "rung",           "decode tokens/s", "prefill tokens/s", "TTFT", "weights",
      "cache, a token", "perplexity",      "against BF16",     "KL",   "top-1"};
  return names;
}

std::string text_of(const std::vector<Climbed>& rungs) {
  std::vector<std::vector<std::string>> rows = rows_of(rungs);
  rows.insert(rows.begin(), header());
  std::vector<size_t> widths(header().size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    text += fmt::format("{:<{}}", row[0], widths[0]);
    for (size_t i = 1; i < row.size(); ++i) text += fmt::format("  {:>{}}", row[i], widths[i]);
    text += '\n';
  }
  return text;
}

OrderedJson json_of(const LadderOptions& o, const std::vector<Climbed>& rungs, int64_t tokens) {
  OrderedJson list = OrderedJson::array();
  for (const Climbed& rung : rungs) {
    OrderedJson one = {{"name", rung.name}};
    one.update(json_of(rung));
    one.update(cli::json_of(rung.fidelity, rungs[0].fidelity.perplexity));
    list.push_back(std::move(one));
  }
  return {{"model", o.model},
          {"scheme", o.scheme},
          {"kv_cache_dtype", o.kv_cache_dtype},
          {"device", o.device.device},
          {"text", o.text.file},
          {"tokens", tokens},
          {"prompt_len", o.prompt_len},
          {"output_len", o.output_len},
          {"rungs", std::move(list)}};
}

std::string html_of(const LadderOptions& o, const std::vector<Climbed>& rungs, int64_t tokens) {
  const Climbed &first = rungs.front(), &last = rungs.back();
  const auto plot = [&](std::string title, std::string name, auto value) {
    page::Plot plot{.title = std::move(title), .x_label = "switches"};
    page::Series series{std::move(name), {}, true};
    for (size_t i = 0; i < rungs.size(); ++i) {
      series.points.emplace_back(static_cast<double>(i), value(rungs[i]));
    }
    plot.series = {series};
    return page::svg_of(plot);
  };
  const std::string body =
      page::tiles({{fmt::format("{:.2f} x", last.decode.median / first.decode.median), "decode"},
                   {fmt::format("{:.2f} x", last.prefill.median / first.prefill.median), "prefill"},
                   {fmt::format("{:.2f} x", static_cast<double>(last.weight_bytes) /
                                                static_cast<double>(first.weight_bytes)),
                    "bytes of weights"},
                   {increase_of(last.fidelity.perplexity, first.fidelity.perplexity), "perplexity"},
                   {fmt::format("{:.5f}", last.fidelity.kl), "KL against BF16"}}) +
      page::plots(
          {plot("Decode, tokens a second", "decode",
                [](const Climbed& r) { return r.decode.median; }),
           plot("Prefill, tokens a second", "prefill",
                [](const Climbed& r) { return r.prefill.median; }),
           plot("KL divergence from BF16", "KL", [](const Climbed& r) { return r.fidelity.kl; }),
           plot("Weights, MB", "weights",
                [](const Climbed& r) { return static_cast<double>(r.weight_bytes) * 1e-6; })}) +
      page::table(header(), rows_of(rungs));
  return page::document("octet ladder",
                        {{"model", o.model},
                         {"format", fmt::format("{}, cache {}", o.scheme, o.kv_cache_dtype)},
                         {"device", o.device.device},
                         {"text", fmt::format("{}: {} tokens in {} windows, seed {}", o.text.file,
                                              tokens, o.text.windows, o.text.seed)},
                         {"speed", fmt::format("one sequence, {} + {} tokens, the median of {}",
                                               o.prompt_len, o.output_len, o.repeats)}},
                        body);
}

}  // namespace

int run_ladder(Args args) {
  LadderOptions o;
  std::vector<std::string> names;
  for (const Scheme& scheme : schemes()) {
    if (scheme.format.input && scheme.format.when == InputScale::calibrated) continue;
    names.emplace_back(scheme.name);
  }
  OptionTable table("octet ladder",
                    "From BF16 to all of FP8, one switch at a time: speed, bytes and quality.");
  table.positional("MODEL", &o.model, "model directory in BF16, FP16 or FP32, or a .gguf file");
  table.group("Text");
  add_drawn_text_rows(table, o.text, true);
  table.group("Formats");
  table.add("--scheme", &o.scheme, "of the linears", {.choices = names});
  table.add("--kv-cache-dtype", &o.kv_cache_dtype, "of the KV cache",
            {.choices = {"fp8_e4m3", "fp8_e5m2", "fp8_per_token_head"}});
  table.group("Speed");
  table.add("--prompt-len", &o.prompt_len, "tokens of the prompt", {.least = 1});
  table.add("--output-len", &o.output_len, "tokens to decode", {.least = 1});
  table.add("--repeats", &o.repeats, "measured passes", {.least = 1});
  table.add("--chunk", &o.chunk, "most prompt tokens of one step", {.least = 1});
  add_backend_rows(table, o.device);
  table.group("Output");
  add_resume_row(table, &o.resume);
  add_json_row(table, &o.json);
  table.add("--html", &o.html, "write a report as one page", {.metavar = "FILE", .written = true});
  if (table.parse(args) == OptionTable::Outcome::done) return print(table.output()), 0;

  OpenModel open({.path = o.model, .compute = "bf16"});
  if (open.config().quant) {
    throw Error({.what = "the model is quantized already: the ladder begins in BF16",
                 .where = o.model,
                 .accepted = "a model in BF16, FP16 or FP32"});
  }
  check_length(open, o.prompt_len + o.output_len, warm_up_steps(o.device));
  Ladder ladder(o, open);
  const std::vector<Climbed> rungs = ladder.climb();
  if (prints_text(o.json)) print(text_of(rungs));
  write_json(o.json, json_of(o, rungs, ladder.tokens()));
  write_html(o.html, html_of(o, rungs, ladder.tokens()));
  return 0;
}

}  // namespace octet::cli
