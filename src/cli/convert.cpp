// octet convert X.gguf --out DIR: a GGUF file becomes a directory in Hugging Face layout.
#include "offline/convert.h"

#include <fmt/format.h>

#include <functional>

#include "cli/output.h"
#include "cli/verbs.h"
#include "cli/watched_work.h"

namespace octet::cli {

int run_convert(Args args) {
  offline::ConvertOptions o;
  std::string json;
  double max_shard_gb = 5;
  OptionTable table(
      "octet convert",
      "Turn a GGUF file into a model directory in Hugging Face layout: 16-bit weights "
      "in safetensors, config.json, tokenizer.json.");
  table.positional("SRC", &o.source, "a .gguf file");
  table.add("--out", &o.out, "the new model directory; made whole or not at all",
            {.metavar = "DIR", .required = true});
  table.add("--overwrite", &o.overwrite, "replace the directory if it exists");
  table.add("--max-shard-size", &max_shard_gb, "most GB of one file",
            {.least = 0.001, .most = 1e6});
  table.group("Output");
  add_json_row(table, &json);
  if (table.parse(args) == OptionTable::Outcome::done) {
    print(table.output());
    return 0;
  }
  o.shard_bytes = static_cast<int64_t>(max_shard_gb * 1e9);
  WatchedWork work("convert");
  const offline::ConvertReport report = offline::convert_checkpoint(o, std::ref(work));
  work.end();
  if (prints_text(json)) {
    print(fmt::format("{} -> {}\n  {} tensors; {} -> {}\n", o.source, o.out, report.tensors,
                      show_bytes(static_cast<double>(report.bytes_before)),
                      show_bytes(static_cast<double>(report.bytes_after))));
  }
  write_json(json, {{"out", o.out},
                    {"tensors", report.tensors},
                    {"bytes_before", report.bytes_before},
                    {"bytes_after", report.bytes_after}});
  return 0;
}

}  // namespace octet::cli
