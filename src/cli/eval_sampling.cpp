// octet eval sampling: from which temperature on does the quantization of a model show?
#include <fmt/format.h>

#include <sstream>

#include "base/error.h"
#include "cli/chat_model.h"
#include "cli/eval_tasks.h"
#include "cli/output.h"
#include "cli/paired.h"
#include "eval/prompts.h"
#include "eval/repetition.h"
#include "page/page.h"
#include "page/plot.h"

namespace octet::cli {
namespace {

struct SamplingOptions {
  PairedOptions paired;
  std::string prompts, temperatures = "0,0.3,0.7,1", top_ps = "1,0.9";
  int samples = 1, max_tokens = 64;
  int64_t limit = 0, seed = 1;
  bool chat = false;
};

OptionTable table_of(SamplingOptions& o) {
  OptionTable table("octet eval sampling",
                    "A sweep over temperature and top_p: how far the answers of a model and a "
                    "baseline, drawn with the same random numbers, agree, how much they repeat "
                    "themselves, and how different they are from one another.");
  add_paired_model(table, o.paired);
  table.group("Prompts");
  table.add("--prompts", &o.prompts, "JSONL of {\"prompt\": ..., \"id\": ...}; ids may be left out",
            {.metavar = "FILE", .required = true});
  table.add("--chat", &o.chat, "ask each as a user's message, in the model's chat template");
  add_chat_row(table, &o.paired.chat_template);
  table.add("--limit", &o.limit, "ask N prompts, drawn by --seed; 0 asks all", {.least = 0});
  table.group("Sweep");
  table.add("--temperatures", &o.temperatures, "separated by commas; 0 is greedy");
  table.add("--top-ps", &o.top_ps, "separated by commas; at temperature 0 one is enough");
  table.add("--samples", &o.samples, "answers to each prompt at each place of the sweep",
            {.least = 1, .most = 1000});
  table.add("--max-tokens", &o.max_tokens, "most tokens of an answer", {.least = 1});
  table.add("--seed", &o.seed, "of the prompts that are drawn, and of sampling", {.least = 0});
  table.add("--max-num-seqs", &o.paired.sequences, "answers at a time", {.least = 1, .most = 1024});
  add_paired_rows(table, o.paired);
  return table;
}

std::vector<double> numbers_of(const std::string& text, const char* flag, double least,
                               double most) {
  std::vector<double> numbers;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    char* end = nullptr;
    const double value = std::strtod(part.c_str(), &end);
    if (part.empty() || *end != '\0' || !(value >= least) || !(value <= most)) {
      throw Error({.what = "not a number of the sweep",
                   .where = flag,
                   .value = part,
                   .accepted = fmt::format("{} to {}, separated by commas", least, most)});
    }
    numbers.push_back(value);
  }
  if (numbers.empty()) {
    throw Error({.what = "the sweep is empty", .where = flag, .accepted = "one number or more"});
  }
  return numbers;
}

// A place of the sweep, and what was found there.
struct Cell {
  double temperature = 0, top_p = 1;
  double same = 0, common = 0;  // share of equal answers, mean share before the first difference
  double chance = 0;            // the latter between two runs of the baseline with other seeds
  eval::Repetition model, baseline;
  double diversity = 0, diversity_baseline = 0;  // distinct-2 of all answers together
};

std::vector<Cell> cells_of(const SamplingOptions& o) {
  std::vector<Cell> cells;
  const auto top_ps = numbers_of(o.top_ps, "--top-ps", 1e-6, 1);
  for (const double temperature : numbers_of(o.temperatures, "--temperatures", 0, 100)) {
    for (const double top_p : top_ps) {
      cells.push_back({.temperature = temperature, .top_p = top_p});
      if (temperature == 0) break;  // the most likely token, whatever top_p is
    }
  }
  return cells;
}

// All answers of one place in a row, place by place.
std::vector<eval::Answer> answers_of(Side& side, const std::vector<eval::UserPrompt>& prompts,
                                     const std::vector<Cell>& cells, const SamplingOptions& o,
                                     int64_t seed) {
  const std::vector<std::vector<int32_t>> ids =
      side.encode(prompts, o.chat || !o.paired.chat_template.empty());
  std::vector<AskedJob> asked;
  for (const Cell& cell : cells) {
    for (size_t i = 0; i < prompts.size(); ++i) {
      for (int sample = 0; sample < o.samples; ++sample) {
        AskedJob one{.item = fmt::format("prompt {}, temperature {}, top_p {}, sample {}",
                                         prompts[i].id, cell.temperature, cell.top_p, sample),
                     .job = {.prompt = ids[i], .max_tokens = o.max_tokens}};
        one.job.sampling = {.temperature = static_cast<float>(cell.temperature),
                            .top_p = static_cast<float>(cell.top_p),
                            .seed = static_cast<uint64_t>(seed) * 1000003 + i * 1009 +
                                    static_cast<uint64_t>(sample)};
        asked.push_back(std::move(one));
      }
    }
  }
  return side.generate(asked);
}

std::vector<std::vector<int32_t>> tokens_of(std::span<const eval::Answer> answers) {
  std::vector<std::vector<int32_t>> tokens;
  for (const eval::Answer& answer : answers) tokens.push_back(answer.tokens);
  return tokens;
}

double mean_common(const std::vector<std::vector<int32_t>>& a,
                   const std::vector<std::vector<int32_t>>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += eval::common_beginning(a[i], b[i]);
  return sum / static_cast<double>(a.size());
}

void measure(Cell& cell, std::span<const eval::Answer> model,
             std::span<const eval::Answer> baseline, std::span<const eval::Answer> other) {
  const auto ours = tokens_of(model), theirs = tokens_of(baseline);
  for (size_t i = 0; i < ours.size(); ++i) cell.same += ours[i] == theirs[i] ? 1 : 0;
  cell.same /= static_cast<double>(ours.size());
  cell.common = mean_common(ours, theirs);
  cell.chance = mean_common(theirs, tokens_of(other));
  cell.model = eval::repetition(ours);
  cell.baseline = eval::repetition(theirs);
  cell.diversity = eval::distinct_n(ours, 2);
  cell.diversity_baseline = eval::distinct_n(theirs, 2);
}

const std::vector<std::string> kColumns = {
    "temperature", "top_p",     "same",     "common beginning", "by chance", "distinct-4",
    "baseline",    "loop rate", "baseline", "diversity",        "baseline"};

std::vector<std::string> row_of(const Cell& c) {
  const auto percent = [](double share) { return fmt::format("{:.1f} %", 100 * share); };
  const auto figure = [](double value) { return fmt::format("{:.3f}", value); };
  return {fmt::format("{}", c.temperature),
          fmt::format("{}", c.top_p),
          percent(c.same),
          percent(c.common),
          percent(c.chance),
          figure(c.model.distinct4),
          figure(c.baseline.distinct4),
          percent(c.model.loop_rate),
          percent(c.baseline.loop_rate),
          figure(c.diversity),
          figure(c.diversity_baseline)};
}

std::string text_of(const std::vector<Cell>& cells) {
  std::string text;
  for (const std::string& column : kColumns) text += fmt::format("{:>17}", column);
  text += "\n";
  for (const Cell& cell : cells) {
    for (const std::string& value : row_of(cell)) text += fmt::format("{:>17}", value);
    text += "\n";
  }
  return text;
}

OrderedJson json_of(const std::vector<Cell>& cells, const SamplingOptions& o) {
  OrderedJson rows = OrderedJson::array();
  for (const Cell& c : cells) {
    rows.push_back({{"temperature", c.temperature},
                    {"top_p", c.top_p},
                    {"same", c.same},
                    {"common_beginning", c.common},
                    {"common_beginning_by_chance", c.chance},
                    {"distinct_4", c.model.distinct4},
                    {"distinct_4_baseline", c.baseline.distinct4},
                    {"loop_rate", c.model.loop_rate},
                    {"loop_rate_baseline", c.baseline.loop_rate},
                    {"diversity", c.diversity},
                    {"diversity_baseline", c.diversity_baseline}});
  }
  return {
      {"task", "sampling"}, {"model", o.paired.model.path}, {"baseline", o.paired.baseline.path},
      {"seed", o.seed},     {"samples", o.samples},         {"cells", std::move(rows)}};
}

std::string html_of(const std::vector<Cell>& cells, const SamplingOptions& o) {
  page::Plot plot{.title = "Tokens before the first difference",
                  .x_label = "temperature",
                  .y_label = "% of the longer answer"};
  page::Series ours{"model and baseline", {}, true}, chance{"baseline and baseline", {}, true};
  std::vector<std::vector<std::string>> rows;
  for (const Cell& c : cells) {
    rows.push_back(row_of(c));
    if (c.top_p != cells.front().top_p) continue;
    ours.points.emplace_back(c.temperature, 100 * c.common);
    chance.points.emplace_back(c.temperature, 100 * c.chance);
  }
  plot.series = {ours, chance};
  const std::string body =
      page::paragraph(
          "Both models draw with the same random numbers, so that without any error all answers "
          "would be the same. By chance: two runs of the baseline with other random numbers. Where "
          "that is as low, sampling hides what quantization changed; where it is high and the "
          "agreement is lower, quantization shows.") +
      page::plots({page::svg_of(plot)}) + page::table(kColumns, rows);
  return page::document("octet eval sampling",
                        {{"model", o.paired.model.path}, {"baseline", o.paired.baseline.path}},
                        body);
}

}  // namespace

int run_eval_sampling(Args args) {
  SamplingOptions o;
  OptionTable table = table_of(o);
  if (table.parse(args) == OptionTable::Outcome::done) return print(table.output()), 0;
  require_baseline(o.paired);

  std::vector<Cell> cells = cells_of(o);
  const std::vector<eval::UserPrompt> prompts = draw_prompts(o.prompts, o.limit, o.seed);
  std::vector<std::vector<eval::Answer>> answers;  // model, baseline, baseline with another seed
  for_each_side(o.paired, "sampling", [&](Side& side) {
    const bool is_baseline = !answers.empty();
    answers.push_back(answers_of(side, prompts, cells, o, o.seed));
    if (is_baseline) answers.push_back(answers_of(side, prompts, cells, o, o.seed + 1));
  });
  const size_t of_cell = prompts.size() * static_cast<size_t>(o.samples);
  for (size_t i = 0; i < cells.size(); ++i) {
    const auto part = [&](size_t run) {
      return std::span<const eval::Answer>(answers[run]).subspan(i * of_cell, of_cell);
    };
    measure(cells[i], part(0), part(1), part(2));
  }
  if (prints_text(o.paired.json)) print(text_of(cells));
  write_json(o.paired.json, json_of(cells, o));
  write_html(o.paired.html, html_of(cells, o));
  return 0;
}

}  // namespace octet::cli
