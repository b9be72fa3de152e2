// octet bench latency MODEL: speed of prefill and decode, and what share of this machine it is. The
// machine's own rates are probed in the same run, in turns with what they judge, since both change
// with whatever else runs.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <numeric>

#include "backends/cpu/probe.h"
#include "backends/cpu/select.h"
#include "base/hash.h"
#include "base/philox.h"
#include "cli/open_model.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "engine/session.h"
#include "offline/evaluate.h"

namespace octet::cli {
namespace {

struct LatencyOptions {
  ModelOptions model;
  BackendOptions backend;
  int64_t prompt_len = 512, output_len = 64, batch = 1;
  int64_t repeats = 3, slice = 8, probe_mib = 512, chunk = 512;
  std::string json;
};

// Middle, least and most of repeated measurements.
struct Spread {
  double median = 0, least = 0, most = 0;
};

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  const double median = values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
  return {median, values.front(), values.back()};
}

double seconds_of(FunctionRef<void()> work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// A field of /proc/self/status in bytes; 0 where there is none.
int64_t memory_of(std::string_view field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field)) return std::atoll(line.c_str() + field.size() + 1) * 1024;
  }
  return 0;
}

// Weight bytes that one decode step of `batch` tokens reads. Tokens share what they read; which
// experts they want is taken as independent, so of e experts with a share s each 1 - (1 - s)^batch
// is read.
double step_bytes(const model::Model& model, int64_t batch) {
  double bytes = 0;
  for (const model::LinearUse& use : model.linears()) {
    const double read = 1.0 - std::pow(1.0 - use.per_token, static_cast<double>(batch));
    bytes += read * static_cast<double>(use.linear->bytes());
  }
  return bytes;
}

// FLOP of the linears that one prompt token passes, without the head, which only the last one
// needs, and without attention.
double prompt_flop(const model::Model& model) {
  double flop = 0;
  for (const model::LinearUse& use : model.linears()) {
    if (use.layer < 0) continue;
    flop += 2.0 * use.per_token * static_cast<double>(use.linear->out * use.linear->in);
  }
  return flop;
}

struct Result {
  Spread prefill, decode, ttft_ms;  // tokens/s, tokens/s, ms
  Spread read_gb_s, bf16_gflops, fma_gflops;
  Spread read_share, bf16_share;  // of each slice against the probes beside it
  uint64_t logits_hash = 0;
};

class Latency {
 public:
  Latency(const LatencyOptions& o, const model::Model& model, ops::Backend& backend,
          const OpenModel& open, int threads)
      : o_(o),
        model_(model),
        threads_(threads),
        caps_(cpu::detect_caps()),
        probe_(threads_, static_cast<size_t>(o.probe_mib) << 20),
        session_(model, backend,
                 {.sequences = o.batch,
                  .max_tokens = o.prompt_len + o.output_len,
                  .chunk = o.chunk,
                  .logits_rows = 1,
                  .kv_type = open.kv_type(),
                  .unit_kv_scale = open.unit_kv_scale()}) {
    caps_.threads = threads_.size();
    Philox random(0, 7);
    for (int64_t i = 0; i < o.prompt_len; ++i) {
      prompt_.push_back(
          static_cast<int32_t>(random.bits() % static_cast<uint32_t>(model.config().vocab)));
    }
  }

  Result run() {
    prefill();
    decode();
    return result();
  }

 private:
  double read_rate() {
    read_.push_back(probe_.measure(threads_));
    return read_.back();
  }
  double bf16_rate() {
    bf16_.push_back(cpu::bf16_dot_peak(threads_, caps_));
    fma_.push_back(cpu::fp32_fma_peak(threads_, caps_));
    // A processor without BF16 dot products is held to its FMA peak.
    return bf16_.back() > 0 ? bf16_.back() : fma_.back();
  }

  void keep(const Tensor& logits) {
    for (int64_t row = 0; row < logits.rows(); ++row) {
      const std::span<const float> values(logits.as<float>() + row * logits.cols(),
                                          static_cast<size_t>(logits.cols()));
      next_.push_back(static_cast<int32_t>(std::ranges::max_element(values) - values.begin()));
      hash_.add(std::as_bytes(values));
    }
  }

  // All sequences have the same prompt. The first pass is not counted: it maps the weights.
  void prefill() {
    const double flop = prompt_flop(model_);
    for (int64_t pass = 0; pass <= o_.repeats; ++pass) {
      session_.reset();
      next_.clear();
      hash_ = {};
      double before = bf16_rate();
      for (int64_t sequence = 0; sequence < o_.batch; ++sequence) {
        const double seconds = seconds_of([&] {
          session_.extend(sequence, prompt_, engine::Wanted::last,
                          [&](int64_t, const Tensor& logits) { keep(logits); });
        });
        const double after = bf16_rate();
        if (pass > 0) {
          const double rate = static_cast<double>(o_.prompt_len) / seconds;
          prefill_.push_back(rate);
          bf16_share_.push_back(rate * flop * 1e-9 / ((before + after) / 2));
          if (sequence == 0) ttft_.push_back(seconds * 1e3);
        }
        before = after;
      }
    }
  }

  // Slices of a few steps with a probe between them.
  void decode() {
    const double bytes = step_bytes(model_, o_.batch);
    double before = read_rate();
    for (int64_t done = 0; done < o_.output_len;) {
      const int64_t steps = std::min(o_.slice, o_.output_len - done);
      hash_ = {};
      const double seconds = seconds_of([&] {
        for (int64_t i = 0; i < steps; ++i) {
          const std::vector<int32_t> tokens = std::move(next_);
          next_.clear();
          hash_ = {};
          keep(session_.decode(tokens));
        }
      });
      const double after = read_rate();
      const double rate = static_cast<double>(steps) / seconds;
      decode_.push_back(rate * static_cast<double>(o_.batch));
      read_share_.push_back(rate * bytes * 1e-9 / ((before + after) / 2));
      before = after;
      done += steps;
    }
  }

  Result result() const {
    return {.prefill = spread_of(prefill_),
            .decode = spread_of(decode_),
            .ttft_ms = spread_of(ttft_),
            .read_gb_s = spread_of(read_),
            .bf16_gflops = spread_of(bf16_),
            .fma_gflops = spread_of(fma_),
            .read_share = spread_of(read_share_),
            .bf16_share = spread_of(bf16_share_),
            .logits_hash = hash_.value()};
  }

  const LatencyOptions& o_;
  const model::Model& model_;
  ThreadPool threads_;
  cpu::CpuCaps caps_;
  cpu::ReadProbe probe_;
  engine::Session session_;
  std::vector<int32_t> prompt_, next_;
  Hash64 hash_;
  std::vector<double> prefill_, decode_, ttft_, read_, bf16_, fma_, read_share_, bf16_share_;
};

OrderedJson json_of(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.least}, {"max", spread.most}};
}

std::string hex(uint64_t value) {
  return fmt::format("{:016x}", value);
}

void print_result(const Result& r, const LatencyOptions& o, const model::Model& model,
                  const ops::Backend& backend) {
  const auto line = [](std::string_view name, const Spread& s, std::string_view unit) {
    return fmt::format("  {:<26}{:>10.1f} {:<10} ({:.1f} to {:.1f})\n", name, s.median, unit,
                       s.least, s.most);
  };
  print(
      fmt::format("{}; {}, batch {}, {} + {} tokens\n", o.model.path, backend.info().name, o.batch,
                  o.prompt_len, o.output_len) +
      line("prefill", r.prefill, "tokens/s") + line("time to first token", r.ttft_ms, "ms") +
      line("decode", r.decode, "tokens/s") + line("probe: memory read", r.read_gb_s, "GB/s") +
      line("probe: BF16 dot products", r.bf16_gflops, "GFLOP/s") +
      fmt::format("  decode reads {} of weights a token: {:.0f} % of the probe ({:.0f} to {:.0f})\n"
                  "  prefill computes {:.0f} % of the probe ({:.0f} to {:.0f})\n"
                  "  logits {}\n",
                  show_bytes(model.bytes_per_token()), 100 * r.read_share.median,
                  100 * r.read_share.least, 100 * r.read_share.most, 100 * r.bf16_share.median,
                  100 * r.bf16_share.least, 100 * r.bf16_share.most, hex(r.logits_hash)));
}

int run_latency(Args args) {
  LatencyOptions o;
  OptionTable table("octet bench latency", "Speed of one batch, and its share of the machine.");
  table.positional("MODEL", &o.model.path, "model directory, or a config with --random-weights");
  table.group("Run");
  table.add("--prompt-len", &o.prompt_len, "tokens of each prompt", {.least = 1});
  table.add("--output-len", &o.output_len, "tokens to decode", {.least = 1});
  table.add("--batch", &o.batch, "sequences", {.least = 1});
  table.add("--repeats", &o.repeats, "measured passes of prefill", {.least = 1});
  table.add("--slice", &o.slice, "decode steps between two probes", {.least = 1});
  table.add("--probe-mib", &o.probe_mib, "memory that the read probe reads", {.least = 64});
  table.add("--chunk", &o.chunk, "most prompt tokens of one step", {.least = 1});
  add_model_rows(table, o.model);
  add_backend_rows(table, o.backend);
  table.group("Output");
  add_json_row(table, &o.json);
  if (table.parse(args) == OptionTable::Outcome::done) return print(table.output()), 0;

  OpenModel open(o.model);
  const int64_t length = o.prompt_len + o.output_len;
  if (length > open.max_model_len()) {
    throw Error({.what = "the model was not made for such long sequences",
                 .where = "--prompt-len, --output-len",
                 .value = fmt::format("{}", length),
                 .accepted = fmt::format("together at most {}", open.max_model_len())});
  }
  const auto backend = open_backend(o.backend);
  const model::Model& model = open.load(*backend, length);
  const int threads = o.backend.threads > 0 ? o.backend.threads : default_thread_count();
  const int64_t resident_before = memory_of("VmRSS:");
  Latency latency(o, model, *backend, open, threads);
  const Result r = latency.run();
  if (prints_text(o.json)) print_result(r, o, model, *backend);
  write_json(o.json, {{"model", o.model.path},
                      {"backend", backend->info().name},
                      {"compute", name_of(open.load_options().compute)},
                      {"batch", o.batch},
                      {"prompt_len", o.prompt_len},
                      {"output_len", o.output_len},
                      {"decode_tokens_per_s", r.decode.median},
                      {"prefill_tokens_per_s", r.prefill.median},
                      {"ttft_ms", r.ttft_ms.median},
                      {"weight_bytes_per_token", model.bytes_per_token()},
                      {"weight_bytes_per_step", step_bytes(model, o.batch)},
                      {"probe_read_gb_s", r.read_gb_s.median},
                      {"share_of_read_bandwidth", r.read_share.median},
                      {"probe_bf16_gflops", r.bf16_gflops.median},
                      {"probe_fma_gflops", r.fma_gflops.median},
                      {"share_of_bf16_peak", r.bf16_share.median},
                      {"logits_hash", hex(r.logits_hash)},
                      {"resident_bytes_loaded", resident_before},
                      {"resident_bytes_peak", memory_of("VmHWM:")},
                      {"spread",
                       {{"decode_tokens_per_s", json_of(r.decode)},
                        {"prefill_tokens_per_s", json_of(r.prefill)},
                        {"ttft_ms", json_of(r.ttft_ms)},
                        {"probe_read_gb_s", json_of(r.read_gb_s)},
                        {"share_of_read_bandwidth", json_of(r.read_share)},
                        {"probe_bf16_gflops", json_of(r.bf16_gflops)},
                        {"share_of_bf16_peak", json_of(r.bf16_share)}}}});
  return 0;
}

}  // namespace

int run_bench(Args args) {
  const std::string_view task = args.empty() ? std::string_view() : std::string_view(args[0]);
  if (task == "latency") return run_latency(args.subspan(1));
  if (task == "--help" || task == "-h") {
    print(
        "octet bench TASK MODEL ...: figures with their share of the machine.\n\nTasks:\n"
        "  latency   speed of prefill and decode of one batch\n\n"
        "`octet bench TASK --help` lists a task's options.\n");
    return 0;
  }
  throw Error({.what = args.empty() ? "TASK is missing" : "unknown task",
               .value = std::string(task),
               .accepted = "latency",
               .fix = "see octet bench --help"});
}

}  // namespace octet::cli
