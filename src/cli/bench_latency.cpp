// octet bench latency MODEL: speed of prefill and decode of one batch, and what share of this
// machine it is. The machine's own rates are probed in the same run, in turns with what they judge,
// since both change with whatever else runs.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "cli/bench.h"
#include "cli/bench_common.h"
#include "cli/cuda_device.h"
#include "engine/session.h"

namespace octet::cli {
namespace {

struct LatencyOptions {
  ModelOptions model;
  BackendOptions backend;
  int64_t prompt_len = 512, output_len = 64, batch = 1;
  int64_t repeats = 3, slice = 0, probe_mib = 512, chunk = 512;
  std::string json;
};

// A field of /proc/self/status in bytes; 0 where there is none.
int64_t memory_of(std::string_view field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field)) return std::atoll(line.c_str() + field.size() + 1) * 1024;
  }
  return 0;
}

struct Result {
  Spread prefill, decode, ttft_ms, step_us, gap_us;  // tokens/s, tokens/s, ms, us, us
  Spread read_gb_s, reread_gb_s, compute_gflops;
  // Of each slice against the probes beside it.
  Spread read_share, reread_share, compute_share;
  uint64_t logits_hash = 0;
};

class Latency {
 public:
  Latency(const LatencyOptions& o, const model::Model& model, BatchRun& run, DeviceProbe& probe)
      : o_(o),
        model_(model),
        run_(run),
        probe_(probe),
        prompt_(random_prompt(model.config(), o.prompt_len)) {}

  Result measure() {
    prefill();
    decode();
    return {.prefill = spread_of(prefill_),
            .decode = spread_of(decode_),
            .ttft_ms = spread_of(ttft_),
            .step_us = spread_of(step_us_),
            .gap_us = spread_of(gap_us_),
            .read_gb_s = spread_of(read_),
            .reread_gb_s = spread_of(reread_),
            .compute_gflops = spread_of(compute_),
            .read_share = spread_of(read_share_),
            .reread_share = spread_of(reread_share_),
            .compute_share = spread_of(compute_share_)};
  }

 private:
  double read_rate() {
    read_.push_back(probe_.read_gb_s());
    return read_.back();
  }
  // Of as many bytes as the weights of a step: the rate of the cache where they live, if one holds
  // them.
  double reread_rate(double bytes) {
    const double rate = probe_.reread_gb_s(static_cast<size_t>(bytes));
    if (rate > 0) reread_.push_back(rate);
    return rate;
  }
  double compute_rate() {
    compute_.push_back(probe_.compute_gflops());
    return compute_.back();
  }

  // All sequences have the same prompt. The first pass is not counted: it maps the weights.
  void prefill() {
    const double flop = prompt_flop(model_);
    for (int64_t pass = 0; pass <= o_.repeats; ++pass) {
      run_.reset();
      double before = compute_rate();
      for (int64_t sequence = 0; sequence < o_.batch; ++sequence) {
        const double seconds = seconds_of([&] { run_.prefill(sequence, 1, prompt_); });
        const double after = compute_rate();
        if (pass > 0) {
          const double rate = static_cast<double>(o_.prompt_len) / seconds;
          prefill_.push_back(rate);
          compute_share_.push_back(rate * flop * 1e-9 / ((before + after) / 2));
          if (sequence == 0) ttft_.push_back(seconds * 1e3);
        }
        before = after;
      }
    }
  }

  // Slices of a few steps with a probe between them.
  void decode() {
    const double bytes = step_bytes(model_, o_.batch);
    std::vector<double> ignored;
    run_.decode(warm_up_steps(o_.backend), ignored);
    probe_.time_steps();
    double before = read_rate(), reread_before = reread_rate(bytes);
    for (int64_t done = 0; done < o_.output_len;) {
      const int64_t steps = std::min(o_.slice, o_.output_len - done);
      probe_.step_gaps_us();  // those around the probe are nothing to us
      const double seconds = seconds_of([&] { run_.decode(steps, step_us_); });
      for (const double gap : probe_.step_gaps_us()) gap_us_.push_back(gap);
      const double after = read_rate(), reread_after = reread_rate(bytes);
      const double rate = static_cast<double>(steps) / seconds;
      decode_.push_back(rate * static_cast<double>(o_.batch));
      read_share_.push_back(rate * bytes * 1e-9 / ((before + after) / 2));
      if (reread_after > 0) {
        reread_share_.push_back(rate * bytes * 1e-9 / ((reread_before + reread_after) / 2));
      }
      before = after, reread_before = reread_after;
      done += steps;
    }
  }

  const LatencyOptions& o_;
  const model::Model& model_;
  BatchRun& run_;
  DeviceProbe& probe_;
  std::vector<int32_t> prompt_;
  std::vector<double> prefill_, decode_, ttft_, step_us_, gap_us_;
  std::vector<double> read_, reread_, compute_, read_share_, reread_share_, compute_share_;
};

// Of the logits of a short prompt and of the token after it: changes when any bit does.
uint64_t logits_hash(const model::Model& model, ops::Backend& backend, const OpenModel& open,
                     int64_t prompt_len) {
  const std::vector<int32_t> prompt =
      random_prompt(model.config(), std::min<int64_t>(prompt_len, 64));
  engine::Session session(model, backend,
                          {.max_tokens = static_cast<int64_t>(prompt.size()) + 1,
                           .chunk = static_cast<int64_t>(prompt.size()),
                           .logits_rows = 1,
                           .kv_type = open.kv_type(),
                           .unit_kv_scale = open.unit_kv_scale()});
  Hash64 hash;
  int32_t next = 0;
  const auto take = [&](const Tensor& logits) {
    const std::span<const float> values(logits.as<float>(), static_cast<size_t>(logits.cols()));
    next = static_cast<int32_t>(std::ranges::max_element(values) - values.begin());
    hash.add(std::as_bytes(values));
  };
  session.extend(0, prompt, engine::Wanted::last,
                 [&](int64_t, const Tensor& logits) { take(logits); });
  take(session.decode({&next, 1}));
  return hash.value();
}

std::string hex(uint64_t value) {
  return fmt::format("{:016x}", value);
}

void print_result(const Result& r, const LatencyOptions& o, const model::Model& model,
                  const ops::Backend& backend, const DeviceProbe& probe) {
  std::string text =
      fmt::format("{}; {}, batch {}, {} + {} tokens\n", o.model.path, backend.info().name, o.batch,
                  o.prompt_len, o.output_len) +
      line_of("prefill", r.prefill, "tokens/s") + line_of("time to first token", r.ttft_ms, "ms") +
      line_of("decode", r.decode, "tokens/s") + line_of("decode step", r.step_us, "us");
  if (r.gap_us.most > 0) text += line_of("device idle between steps", r.gap_us, "us");
  text += line_of("probe: memory read", r.read_gb_s, "GB/s");
  if (r.reread_gb_s.most > 0) {
    text += line_of("probe: as many bytes again", r.reread_gb_s, "GB/s");
  }
  text += line_of("probe: " + probe.compute_name(), r.compute_gflops, "GFLOP/s") +
          fmt::format(
              "  decode reads {} of weights a token: {:.0f} % of the probe ({:.0f} to "
              "{:.0f})\n",
              show_bytes(model.bytes_per_token()), 100 * r.read_share.median,
              100 * r.read_share.least, 100 * r.read_share.most);
  if (r.reread_gb_s.most > 0) {
    text += fmt::format(
        "  {:.0f} % of as many bytes again ({:.0f} to {:.0f}), where a cache has "
        "room for them\n",
        100 * r.reread_share.median, 100 * r.reread_share.least, 100 * r.reread_share.most);
  }
  text += fmt::format(
      "  prefill computes {:.0f} % of the probe ({:.0f} to {:.0f})\n"
      "  logits {}\n",
      100 * r.compute_share.median, 100 * r.compute_share.least, 100 * r.compute_share.most,
      hex(r.logits_hash));
  print(text);
}

OptionTable table_of(LatencyOptions& o) {
  OptionTable table("octet bench latency", "Speed of one batch, and its share of the machine.");
  table.positional("MODEL", &o.model.path,
                   "model directory, a .gguf file, or a config with --random-weights");
  table.group("Run");
  table.add("--prompt-len", &o.prompt_len, "tokens of each prompt", {.least = 1});
  table.add("--output-len", &o.output_len, "tokens to decode", {.least = 1});
  table.add("--batch", &o.batch, "sequences", {.least = 1});
  table.add("--repeats", &o.repeats, "measured passes of prefill", {.least = 1});
  table.add("--slice", &o.slice, "decode steps between two probes; 0 is 8 on a CPU, 32 on a GPU",
            {.least = 0});
  table.add("--probe-mib", &o.probe_mib, "memory that the read probe reads, on a CPU",
            {.least = 64});
  table.add("--chunk", &o.chunk, "most prompt tokens of one step", {.least = 1});
  add_model_rows(table, o.model);
  add_backend_rows(table, o.backend);
  table.group("Output");
  add_json_row(table, &o.json);
  return table;
}

}  // namespace

int run_bench_latency(Args args) {
  LatencyOptions o;
  OptionTable table = table_of(o);
  if (table.parse(args) == OptionTable::Outcome::done) return print(table.output()), 0;

  if (o.slice == 0) o.slice = o.backend.on_cpu() ? 8 : 32;
  o.model.shape_alone = !o.backend.on_cpu();  // a GPU copies its weights, wherever they lie
  OpenModel open(o.model);
  const int64_t length = o.prompt_len + o.output_len, warm_up = warm_up_steps(o.backend);
  check_length(open, length, warm_up);
  const auto backend = open_backend(o.backend);
  const model::Model& model = open.load(*backend, length + warm_up);
  const int64_t resident_before = memory_of("VmRSS:");
  Result r;
  OrderedJson memory;
  std::string probe_name;
  {
    BatchRun run(model, *backend,
                 {.sequences = o.batch,
                  .max_tokens = length + warm_up,
                  .chunk = o.chunk,
                  .kv_type = open.kv_type(),
                  .unit_kv_scale = open.unit_kv_scale()});
    memory = memory_json(run.ledger(), o.backend.on_cpu() ? 0 : cuda_used_bytes(*backend));
    const auto probe = make_probe(o.backend, *backend, o.probe_mib);
    r = Latency(o, model, run, *probe).measure();
    probe_name = probe->compute_name();
    r.logits_hash = logits_hash(model, *backend, open, o.prompt_len);
    if (prints_text(o.json)) print_result(r, o, model, *backend, *probe);
  }
  write_json(o.json, {{"model", o.model.path},
                      {"backend", backend->info().name},
                      {"compute", name_of(open.load_options().compute)},
                      {"batch", o.batch},
                      {"prompt_len", o.prompt_len},
                      {"output_len", o.output_len},
                      {"decode_tokens_per_s", r.decode.median},
                      {"step_us", r.step_us.median},
                      {"gap_us", r.gap_us.median},
                      {"prefill_tokens_per_s", r.prefill.median},
                      {"ttft_ms", r.ttft_ms.median},
                      {"weight_bytes_per_token", model.bytes_per_token()},
                      {"weight_bytes_per_step", step_bytes(model, o.batch)},
                      {"probe_read_gb_s", r.read_gb_s.median},
                      {"share_of_read_bandwidth", r.read_share.median},
                      {"probe_reread_gb_s", r.reread_gb_s.median},
                      {"share_of_reread", r.reread_share.median},
                      {"compute_probe", probe_name},
                      {"probe_compute_gflops", r.compute_gflops.median},
                      {"share_of_compute_peak", r.compute_share.median},
                      {"logits_hash", hex(r.logits_hash)},
                      {"resident_bytes_loaded", resident_before},
                      {"resident_bytes_peak", memory_of("VmHWM:")},
                      {"memory", memory},
                      {"spread",
                       {{"decode_tokens_per_s", json_of(r.decode)},
                        {"step_us", json_of(r.step_us)},
                        {"gap_us", json_of(r.gap_us)},
                        {"prefill_tokens_per_s", json_of(r.prefill)},
                        {"ttft_ms", json_of(r.ttft_ms)},
                        {"probe_read_gb_s", json_of(r.read_gb_s)},
                        {"share_of_read_bandwidth", json_of(r.read_share)},
                        {"probe_reread_gb_s", json_of(r.reread_gb_s)},
                        {"share_of_reread", json_of(r.reread_share)},
                        {"probe_compute_gflops", json_of(r.compute_gflops)},
                        {"share_of_compute_peak", json_of(r.compute_share)}}}});
  return 0;
}

}  // namespace octet::cli
