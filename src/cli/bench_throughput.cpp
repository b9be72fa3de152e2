// octet bench throughput MODEL: tokens a second of a batch, prompts packed into full steps.
#include <fmt/format.h>

#include "cli/bench.h"
#include "cli/bench_common.h"
#include "cli/cuda_device.h"

namespace octet::cli {
namespace {

struct ThroughputOptions {
  ModelOptions model;
  BackendOptions backend;
  int64_t prompt_len = 512, output_len = 64, batch = 64, repeats = 3, chunk = 2048;
  std::string json;
};

OptionTable table_of(ThroughputOptions& o) {
  OptionTable table("octet bench throughput", "Tokens a second of a batch.");
  table.positional("MODEL", &o.model.path,
                   "model directory, a .gguf file, or a config with --random-weights");
  table.group("Run");
  table.add("--batch", &o.batch, "sequences", {.least = 1, .most = 4096});
  table.add("--prompt-len", &o.prompt_len, "tokens of each prompt", {.least = 1});
  table.add("--output-len", &o.output_len, "tokens to decode in each sequence", {.least = 1});
  table.add("--repeats", &o.repeats, "measured passes", {.least = 1});
  table.add("--chunk", &o.chunk, "most prompt tokens of one step", {.least = 1});
  add_model_rows(table, o.model);
  add_backend_rows(table, o.backend);
  table.group("Output");
  add_json_row(table, &o.json);
  return table;
}

}  // namespace

int run_bench_throughput(Args args) {
  ThroughputOptions o;
  OptionTable table = table_of(o);
  if (table.parse(args) == OptionTable::Outcome::done) return print(table.output()), 0;

  o.model.shape_alone = !o.backend.on_cpu();
  OpenModel open(o.model);
  const int64_t length = o.prompt_len + o.output_len, warm_up = warm_up_steps(o.backend);
  check_length(open, length, warm_up);
  const auto backend = open_backend(o.backend);
  const model::Model& model = open.load(*backend, length + warm_up);
  BatchRun run(model, *backend,
               {.sequences = o.batch,
                .max_tokens = length + warm_up,
                .chunk = o.chunk,
                .kv_type = open.kv_type(),
                .unit_kv_scale = open.unit_kv_scale()});
  const std::vector<int32_t> prompt = random_prompt(model.config(), o.prompt_len);
  const double batch = static_cast<double>(o.batch);

  // The first pass is not counted: it maps the weights, and a GPU loads its kernels.
  std::vector<double> prefill, decode, step_us;
  double kv_bytes = 0;
  for (int64_t pass = 0; pass <= o.repeats; ++pass) {
    std::vector<double> ignored, steps;
    run.reset();
    const double prefill_s = seconds_of([&] { run.prefill(0, o.batch, prompt); });
    run.decode(warm_up, ignored);
    const double decode_s = seconds_of([&] { run.decode(o.output_len, steps); });
    if (pass == 0) continue;
    prefill.push_back(batch * static_cast<double>(o.prompt_len) / prefill_s);
    decode.push_back(batch * static_cast<double>(o.output_len) / decode_s);
    step_us.insert(step_us.end(), steps.begin(), steps.end());
    kv_bytes = run.kv_step_bytes();
  }
  const int64_t used = o.backend.on_cpu() ? 0 : cuda_used_bytes(*backend);
  const Spread prefill_rate = spread_of(prefill), decode_rate = spread_of(decode);
  const Spread step = spread_of(step_us);
  const double bytes = step_bytes(model, o.batch) + kv_bytes;
  const double read_gb_s = step.median > 0 ? bytes * 1e-3 / step.median : 0;
  if (prints_text(o.json)) {
    print(fmt::format("{}; {}, batch {}, {} + {} tokens\n", o.model.path, backend->info().name,
                      o.batch, o.prompt_len, o.output_len) +
          line_of("prefill", prefill_rate, "tokens/s") +
          line_of("decode", decode_rate, "tokens/s") + line_of("decode step", step, "us") +
          fmt::format("  the last step reads {} of weights and {} of KV cache: {:.1f} GB/s\n"
                      "  prefill computes {:.1f} GFLOP/s in the linears of the layers\n",
                      show_bytes(step_bytes(model, o.batch)), show_bytes(kv_bytes), read_gb_s,
                      prefill_rate.median * prompt_flop(model) * 1e-9));
  }
  write_json(o.json, {{"model", o.model.path},
                      {"backend", backend->info().name},
                      {"compute", name_of(open.load_options().compute)},
                      {"batch", o.batch},
                      {"prompt_len", o.prompt_len},
                      {"output_len", o.output_len},
                      {"prefill_tokens_per_s", prefill_rate.median},
                      {"prefill_gflops", prefill_rate.median * prompt_flop(model) * 1e-9},
                      {"decode_tokens_per_s", decode_rate.median},
                      {"step_us", step.median},
                      {"weight_bytes_per_step", step_bytes(model, o.batch)},
                      {"kv_bytes_per_step", kv_bytes},
                      {"tokens_hash", fmt::format("{:016x}", run.hash())},
                      {"memory", memory_json(run.ledger(), used)},
                      {"spread",
                       {{"prefill_tokens_per_s", json_of(prefill_rate)},
                        {"decode_tokens_per_s", json_of(decode_rate)},
                        {"step_us", json_of(step)}}}});
  return 0;
}

}  // namespace octet::cli
