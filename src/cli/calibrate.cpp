// octet calibrate MODEL --text FILE --out calibration.json: what the inputs of linears and the KV
// cache hold over a set of samples.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/atomic_write.h"
#include "base/hash.h"
#include "base/log.h"
#include "cli/calibration.h"
#include "cli/calibration_page.h"
#include "cli/output.h"
#include "cli/paired.h"
#include "cli/signals.h"
#include "cli/verbs.h"
#include "model/identity.h"
#include "offline/calibration.h"

namespace octet::cli {
namespace {

struct CalibrateOptions {
  std::string model, out, json, html;
  CalibrationText text{.samples = 512};
  bool overwrite = false;
  int threads = 0;
  int64_t save_every = 64;
};

OptionTable table_of(CalibrateOptions& o) {
  OptionTable table("octet calibrate",
                    "See how the inputs of linears and the KV cache of a 16-bit model are "
                    "distributed, for `octet quantize --calibration-file`.");
  table.positional("MODEL", &o.model, "model directory in BF16, FP16 or FP32, or a .gguf file");
  table.add("--text", &o.text.source,
            "a text, cut into samples; or FILE.jsonl, of whose lines each is one: {\"text\": ..} "
            "or {\"messages\": [..]}; or \"model\": the model writes them itself",
            {.metavar = "FILE", .required = true});
  table.add("--out", &o.out, "the calibration; while it grows, OUT.part",
            {.metavar = "FILE", .required = true});
  table.add("--samples", &o.text.samples, "most samples", {.least = 1, .most = 1e6});
  table.add("--window", &o.text.window, "most tokens of a sample", {.least = 2, .most = 1e9});
  table.add("--save-every", &o.save_every,
            "samples between two states of OUT.part, from which a run that was interrupted goes on",
            {.least = 1});
  table.add("--overwrite", &o.overwrite,
            "replace OUT if it exists, and what an interrupted run of another kind left of it");
  table.add("--threads", &o.threads, "of the CPU; 0 is one for each core", {.least = 0});
  table.group("Output");
  add_json_row(table, &o.json);
  table.add("--html", &o.html, "write a plot of each range over the layers as one page",
            {.metavar = "FILE", .written = true});
  return table;
}

std::string hash_of_samples(const std::vector<std::vector<int32_t>>& samples) {
  Hash64 hash;
  for (const std::vector<int32_t>& sample : samples) {
    hash.add(std::as_bytes(std::span(sample)));
    hash.add(uint8_t{255});
  }
  return hash.hex();
}

void save(const offline::Calibration& calibration, const std::string& path, Overwrite overwrite) {
  AtomicFile file(path, overwrite);
  file.write(dump_json(offline::to_json(calibration)) + "\n");
  file.commit();
}

// What an interrupted run left, if it was this one; else `fresh`. Throws Error for what another run
// left, which may be hours of work, unless that may be replaced.
offline::Calibration go_on(const offline::Calibration& fresh, const std::string& part,
                           bool overwrite) {
  if (!std::filesystem::exists(part)) return fresh;
  offline::Calibration left;
  try {
    left = offline::read_calibration(part);
  } catch (const Error& error) {
    if (overwrite) return fresh;
    ErrorParts parts = error.parts();
    parts.fix =
        "it is what an interrupted run left, and cannot be gone on with: remove it, or give "
        "--overwrite";
    throw Error(parts);
  }
  const bool same = left.engine == fresh.engine && left.model_hash == fresh.model_hash &&
                    left.data_hash == fresh.data_hash && left.window == fresh.window &&
                    left.samples_in_all == fresh.samples_in_all;
  if (!same && !overwrite) {
    throw Error({.what = "an interrupted calibration of another model, text or length lies here",
                 .where = part,
                 .value = fmt::format("{} of {} samples of {}", left.samples, left.samples_in_all,
                                      left.data),
                 .fix = "repeat its own command to go on with it, choose another --out, or give "
                        "--overwrite"});
  }
  if (!same) return fresh;
  log::info("goes on after {} of {} samples of {}", left.samples, left.samples_in_all, part);
  return left;
}

void print_report(const offline::Calibration& c, const std::string& out) {
  std::string text =
      fmt::format("{}: {} samples, {} tokens; {} inputs of linears, {} attention modules\n", out,
                  c.samples, c.tokens, c.inputs.size(), c.caches.size());
  std::vector<std::pair<double, std::string>> rows;
  for (const auto& [name, input] : c.inputs) {
    const offline::ValueHistogram& values = input.range.values;
    const double ratio = values.absmax() / std::max(values.percentile(0.999), 1e-30f);
    rows.emplace_back(ratio, fmt::format("  {:8.4g} {:8.4g} {:8.4g}  {:5} {}\n", values.absmax(),
                                         values.percentile(0.9999), values.percentile(0.999),
                                         offline::outlier_channels(input).size(), name));
  }
  std::ranges::stable_sort(rows, std::ranges::greater(), [](const auto& row) { return row.first; });
  text += "  largest, P99.99, P99.9, outlier channels; the longest tails first:\n";
  for (size_t i = 0; i < std::min<size_t>(5, rows.size()); ++i) text += rows[i].second;
  print(text);
}

}  // namespace

int run_calibrate(Args args) {
  CalibrateOptions o;
  OptionTable table = table_of(o);
  if (table.parse(args) == OptionTable::Outcome::done) {
    print(table.output());
    return 0;
  }
  const Overwrite overwrite = o.overwrite ? Overwrite::replace : Overwrite::refuse;
  check_file_target(o.out, overwrite);
  const HeldSignals held;  // before there are threads: they must not take them
  CalibrationRun run({.path = o.model}, o.text);
  run.load(o.threads);
  const std::string part = o.out + ".part";
  const offline::Calibration all = run.summary();
  offline::Calibration calibration = go_on({.engine = OCTET_VERSION,
                                            .model = o.model,
                                            .model_hash = model::identity_of(o.model),
                                            .data = o.text.source,
                                            .data_hash = hash_of_samples(run.samples()),
                                            .window = all.window,
                                            .samples_in_all = all.samples,
                                            .longest = all.longest,
                                            .positions = all.positions},
                                           part, o.overwrite);
  offline::Calibrator calibrator(calibration);
  run.run({.input = [&](auto ws, const Tensor& x) { calibrator.add_input(ws, x); },
           .cache = cache_into(calibrator),
           .before = [&](int64_t sample) { calibrator.begin_sample(sample % 10 == 9); },
           .after =
               [&](int64_t sample) {
                 calibration.samples = sample + 1;
                 calibration.tokens +=
                     static_cast<int64_t>(run.samples()[static_cast<size_t>(sample)].size());
                 if (calibration.samples % o.save_every == 0) {
                   save(calibration, part, Overwrite::replace);
                 }
               }},
          calibration.samples);
  save(calibration, o.out, overwrite);
  std::filesystem::remove(part);
  for (const std::string& warning : offline::warnings_of(calibration)) log::warning("{}", warning);
  write_html(o.html, html_of(calibration));
  if (prints_text(o.json)) print_report(calibration, o.out);
  write_json(o.json, {{"out", o.out},
                      {"samples", calibration.samples},
                      {"tokens", calibration.tokens},
                      {"inputs", calibration.inputs.size()},
                      {"caches", calibration.caches.size()},
                      {"warnings", offline::warnings_of(calibration)}});
  return 0;
}

}  // namespace octet::cli
