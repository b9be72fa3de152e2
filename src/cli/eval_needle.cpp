// octet eval needle: facts found again in long prompts, by length and depth.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/mapped_file.h"
#include "cli/eval_tasks.h"
#include "cli/output.h"
#include "cli/paired.h"
#include "eval/recall.h"
#include "page/page.h"

namespace octet::cli {
namespace {

struct NeedleOptions {
  PairedOptions paired;
  std::string text, kind = "needle", lengths = "1024,2048,4096,8192";
  int64_t count = 25, seed = 1;
};

OptionTable table_of(NeedleOptions& o) {
  OptionTable table("octet eval needle", "Is a fact found again, from any depth of a long text?");
  add_paired_model(table, o.paired);
  table.group("Cases");
  table.add(
      "--kind", &o.kind,
      "needle: one fact in a text; multi_key: eight, one asked for; multi_value: four numbers "
      "of one name, all asked for; code: a constant of a long module; dialogue: what was said "
      "in one of fifty turns",
      {.choices = {"needle", "multi_key", "multi_value", "code", "dialogue"}});
  table.add("--text", &o.text, "what facts are hidden in; code and dialogue need none",
            {.metavar = "FILE"});
  table.add("--lengths", &o.lengths, "tokens of a prompt, separated by commas");
  table.add("--count", &o.count, "cases of each length", {.least = 1});
  table.add("--seed", &o.seed, "of names, codes and pieces", {.least = 0});
  table.add("--max-num-seqs", &o.paired.sequences, "answers at a time", {.least = 1, .most = 1024});
  add_gate_rows(table, o.paired);
  add_paired_rows(table, o.paired);
  return table;
}

std::vector<int64_t> parse_lengths(const std::string& text, int64_t limit) {
  std::vector<int64_t> lengths;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    char* end = nullptr;
    const int64_t length = std::strtoll(part.c_str(), &end, 10);
    if (part.empty() || *end != '\0' || length < 1 || length > limit) {
      throw Error({.what = "a length is a number of tokens",
                   .where = "--lengths",
                   .value = part,
                   .accepted = fmt::format("1 to {}, separated by commas", limit)});
    }
    lengths.push_back(length);
  }
  if (lengths.empty())
    throw Error({.what = "no lengths are given",
                 .where = "--lengths",
                 .accepted = "one length or more, in tokens"});
  return lengths;
}

struct PlacedCase {
  int64_t length = 0, number = 0;
  eval::RecallCase one;
};

// In the tokens of one model; the seed makes them those of the other, too.
std::vector<PlacedCase> cases_of(const NeedleOptions& o, const OpenModel& open,
                                 const std::string& haystack) {
  std::vector<PlacedCase> cases;
  for (const int64_t length : parse_lengths(o.lengths, open.max_model_len())) {
    auto made = eval::recall_cases(eval::parse_recall_kind(o.kind), open.tokenizer(), haystack,
                                   length, o.count, static_cast<uint64_t>(o.seed));
    for (size_t i = 0; i < made.size(); ++i) {
      cases.push_back({length, static_cast<int64_t>(i), std::move(made[i])});
    }
  }
  return cases;
}

eval::TaskRun run_side(Side& side, const NeedleOptions& o, const std::string& haystack) {
  const std::vector<PlacedCase> cases = cases_of(o, side.open(), haystack);
  std::vector<AskedJob> asked;
  for (const PlacedCase& placed : cases) {
    asked.push_back({.item = fmt::format("{} tokens, case {}", placed.length, placed.number),
                     .job = {.prompt = placed.one.prompt, .max_tokens = placed.one.max_tokens}});
  }
  const std::vector<eval::Answer> answers = side.generate(asked);
  eval::TaskRun run;
  for (size_t i = 0; i < cases.size(); ++i) {
    const eval::RecallCase& one = cases[i].one;
    run.items.push_back({.item = asked[i].item,
                         .group = fmt::format("{:>6} tokens", cases[i].length),
                         .scores = {eval::recall_score(one, answers[i].text)},
                         .detail = {{"depth", one.depth},
                                    {"length", cases[i].length},
                                    {"wanted", one.answers},
                                    {"said", answers[i].text}}});
  }
  return run;
}

constexpr int kDepths = 10;

// Rows are tenths of the depth, columns lengths.
std::string heat_map_of(const eval::TaskRun& run, const std::string& title) {
  std::map<int64_t, std::vector<std::pair<double, int>>> by_length;  // sum and count by depth
  for (const eval::ItemScore& item : run.items) {
    auto& cells = by_length[item.detail["length"].get<int64_t>()];
    cells.resize(kDepths);
    const double depth = item.detail["depth"].get<double>();
    auto& [sum, count] = cells[std::min(static_cast<size_t>(depth * kDepths), size_t{kDepths - 1})];
    sum += item.scores[0];
    ++count;
  }
  page::HeatMap map{.title = title, .corner = "depth \\ tokens"};
  for (int row = 0; row < kDepths; ++row) {
    map.rows.push_back(fmt::format("{} to {} %", 10 * row, 10 * (row + 1)));
    auto& shares = map.shares.emplace_back();
    for (const auto& [length, cells] : by_length) {
      const auto& [sum, count] = cells[static_cast<size_t>(row)];
      shares.push_back(count > 0 ? std::optional(sum / count) : std::nullopt);
    }
  }
  for (const auto& [length, cells] : by_length) map.columns.push_back(fmt::format("{}", length));
  return page::heat_map(map);
}

std::string misses_of(const eval::TaskRun& run) {
  std::string text;
  for (const eval::ItemScore& item : run.items) {
    if (item.scores[0] == 1) continue;
    text += fmt::format("  {}, depth {:.2f}: wanted {}, got '{}'\n", item.item,
                        item.detail["depth"].get<double>(), dump_json(item.detail["wanted"]),
                        printable(item.detail["said"].get<std::string>()));
  }
  return text;
}

}  // namespace

int run_eval_needle(Args args) {
  NeedleOptions o;
  OptionTable table = table_of(o);
  if (table.parse(args) == OptionTable::Outcome::done) return print(table.output()), 0;

  const eval::RecallKind kind = eval::parse_recall_kind(o.kind);
  const bool hidden = kind != eval::RecallKind::code && kind != eval::RecallKind::dialogue;
  if (hidden && o.text.empty()) {
    throw Error({.what = "facts of this kind are hidden in a text, and none is given",
                 .where = "--text",
                 .accepted = "a file",
                 .fix = "add --text FILE, or ask for --kind code or dialogue"});
  }
  const std::string haystack = hidden ? read_text(o.text) : "";
  eval::TaskResult result{
      .task = "needle",
      .how = fmt::format("{}, {} cases of each length, greedy", o.kind, o.count),
      .metrics = {"found"}};
  run_sides(o.paired, result, [&](Side& side) { return run_side(side, o, haystack); });
  std::string maps =
      page::heading("By length and depth") + heat_map_of(result.candidate, "model, share found");
  if (result.baseline) maps += heat_map_of(*result.baseline, "baseline, share found");
  const int code = finish_task(o.paired, result, o.seed, maps);
  if (prints_text(o.paired.json)) print(misses_of(result.candidate));
  return code;
}

}  // namespace octet::cli
