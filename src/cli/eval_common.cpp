#include "cli/eval_common.h"

#include <fmt/format.h>

#include "base/mapped_file.h"

namespace octet::cli {

void add_text_rows(OptionTable& table, TextOptions& o) {
  table.group("Text");
  table.add("--text", &o.file, "the text to score", {.metavar = "FILE", .required = true});
  table.add("--convention", &o.convention,
            "windows: windows of --window tokens, BOS included (512); single: one pass; chunks: "
            "long windows (2048); halves: the second half of each window of 512 is scored, as "
            "llama.cpp does",
            {.choices = {"windows", "single", "chunks", "halves"}});
  table.add("--window", &o.window, "tokens of a window, BOS included", {.least = 2});
  table.add("--max-tokens", &o.max_tokens, "score the first N tokens of the text; 0 is all",
            {.least = 0});
}

Cut cut_text(const TextOptions& o, const OpenModel& open) {
  std::vector<int32_t> ids =
      open.encode(read_text(o.file), o.file, {.add_special_tokens = false, .parse_special = false});
  if (o.max_tokens > 0 && static_cast<size_t>(o.max_tokens) < ids.size()) {
    ids.resize(static_cast<size_t>(o.max_tokens));
  }
  const auto convention = eval::parse_convention(o.convention);
  const int64_t window = o.window.value_or(eval::default_window(convention));
  std::optional<int32_t> bos = open.bos();
  // llama.cpp asks whether the tokenizer puts one before every text.
  if (convention == eval::Convention::halves && !open.tokenizer().adds_bos()) bos.reset();
  return {eval::cut(ids, bos, convention, window, open.max_model_len()),
          eval::describe(convention, window, bos.has_value())};
}

eval::Subject subject_of(const OpenModel& open, ops::Backend& backend) {
  return {open.model(), backend, open.kv_type(), open.unit_kv_scale()};
}

std::string arithmetic_of(const OpenModel& open) {
  return fmt::format("{}, KV cache {}{}, attention {}", name_of(open.load_options().compute),
                     open.kv_name(), open.unit_kv_scale() ? " unscaled" : "", open.attention());
}

}  // namespace octet::cli
