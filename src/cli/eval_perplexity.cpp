// octet eval perplexity: the perplexity of a text.
#include <fmt/format.h>

#include "base/progress.h"
#include "cli/eval_common.h"
#include "cli/eval_tasks.h"
#include "cli/output.h"

namespace octet::cli {

int run_eval_perplexity(Args args) {
  ModelOptions model;
  BackendOptions device;
  TextOptions text;
  std::string json;
  OptionTable table("octet eval perplexity", "The perplexity of a text.");
  table.positional("MODEL", &model.path, "model directory, or a .gguf file");
  add_text_rows(table, text);
  add_model_rows(table, model);
  add_backend_rows(table, device);
  table.group("Output");
  add_json_row(table, &json);
  if (table.parse(args) == OptionTable::Outcome::done) return print(table.output()), 0;

  OpenModel open(model);
  const Cut cut = cut_text(text, open);
  const auto backend = open_backend(device);
  open.load(*backend, eval::longest(cut.pieces));
  Progress progress("perplexity", eval::total_tokens(cut.pieces), Progress::Unit::tokens);
  const eval::Perplexity result = eval::perplexity(
      subject_of(open, *backend), cut.pieces, [&](int64_t tokens) { progress.advance(tokens); });
  if (prints_text(json)) {
    print(fmt::format("perplexity {:.4f}  ({:.5f} nats a token, {} tokens)\n{}\n{}\n",
                      result.value(), result.nll / static_cast<double>(result.tokens),
                      result.tokens, cut.convention, arithmetic_of(open)));
  }
  write_json(json, {{"perplexity", result.value()},
                    {"nll", result.nll},
                    {"tokens", result.tokens},
                    {"convention", cut.convention},
                    {"arithmetic", arithmetic_of(open)}});
  return 0;
}

}  // namespace octet::cli
