// octet eval regress: a user's own prompts, answered by two models, side by side.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <tuple>

#include "base/atomic_write.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/chat_model.h"
#include "cli/eval_tasks.h"
#include "cli/output.h"
#include "cli/paired.h"
#include "eval/prompts.h"
#include "eval/repetition.h"
#include "page/page.h"

namespace octet::cli {
namespace {

struct RegressOptions {
  PairedOptions paired;
  std::string prompts, verdicts;
  int max_tokens = 128;
  int64_t limit = 0, seed = 1;
  bool chat = false;
  std::optional<double> max_different;
  std::optional<int64_t> max_worse;
};

OptionTable table_of(RegressOptions& o) {
  OptionTable table("octet eval regress",
                    "Your own prompts, answered greedily by a model and a baseline: which answers "
                    "differ, and how.");
  add_paired_model(table, o.paired);
  table.group("Prompts");
  table.add("--prompts", &o.prompts, "JSONL of {\"prompt\": ..., \"id\": ...}; ids may be left out",
            {.metavar = "FILE", .required = true});
  table.add("--chat", &o.chat, "ask each as a user's message, in the model's chat template");
  add_chat_row(table, &o.paired.chat_template);
  table.add("--max-tokens", &o.max_tokens, "most tokens of an answer", {.least = 1});
  table.add("--limit", &o.limit, "ask N prompts, drawn by --seed; 0 asks all", {.least = 0});
  table.add("--seed", &o.seed, "of the prompts that are drawn", {.least = 0});
  table.add("--max-num-seqs", &o.paired.sequences, "answers at a time", {.least = 1, .most = 1024});
  table.add("--verdicts", &o.verdicts,
            "write the answers that differ to this file (JSONL), for you to fill in \"verdict\": "
            "same, better or worse; those that are filled in already are kept and counted",
            {.metavar = "FILE"});
  table.group("Gates: exit with 1 beyond them");
  table.add("--max-different", &o.max_different, "most share of answers that differ",
            {.least = 0, .most = 1});
  table.add("--max-worse", &o.max_worse, "most answers whose verdict is worse", {.least = 0});
  add_paired_rows(table, o.paired);
  return table;
}

struct Pair {
  eval::UserPrompt prompt;
  eval::Answer model, baseline;
  std::string verdict;
  bool differs() const { return model.text != baseline.text; }
};

std::vector<eval::Answer> answers_of(Side& side, const std::vector<eval::UserPrompt>& prompts,
                                     const RegressOptions& o) {
  const std::vector<std::vector<int32_t>> ids =
      side.encode(prompts, o.chat || !o.paired.chat_template.empty());
  std::vector<AskedJob> asked;
  for (size_t i = 0; i < prompts.size(); ++i) {
    asked.push_back(
        {.item = "prompt " + prompts[i].id, .job = {.prompt = ids[i], .max_tokens = o.max_tokens}});
  }
  return side.generate(asked);
}

constexpr std::string_view kVerdicts[] = {"same", "better", "worse"};

// Takes over what a user wrote about the same two answers, and returns the rows with verdicts on
// others, which are kept: they are a person's work. Throws Error for a word that is no verdict.
std::vector<Json> read_verdicts(const std::string& path, std::vector<Pair>& pairs) {
  if (path.empty() || !std::filesystem::exists(path)) return {};
  std::map<std::tuple<std::string, std::string, std::string>, Json> known;
  const eval::ReadRows rows = eval::read_json_rows(path, [&](const JsonView& row) {
    const auto verdict = row.get<std::string>("verdict", "");
    if (!verdict.empty() && std::ranges::find(kVerdicts, verdict) == std::end(kVerdicts)) {
      row.refuse("verdict", "no such verdict", "same, better, worse, or nothing yet");
    }
    known[{row.get<std::string>("id"), row.get<std::string>("model"),
           row.get<std::string>("baseline")}] = row.json();
  });
  if (rows.broken > 0) {
    throw Error({.what = "the file of verdicts has rows that cannot be read, and would lose them",
                 .where = path,
                 .value = rows.faults.front(),
                 .fix = "correct them, or name another file"});
  }
  for (Pair& pair : pairs) {
    const auto found = known.find({pair.prompt.id, pair.model.text, pair.baseline.text});
    if (found == known.end()) continue;
    pair.verdict = found->second.value("verdict", "");
    known.erase(found);
  }
  std::vector<Json> others;
  for (const auto& [key, row] : known) {
    if (!row.value("verdict", "").empty()) others.push_back(row);
  }
  return others;
}

void write_verdicts(const std::string& path, const std::vector<Pair>& pairs,
                    const std::vector<Json>& others) {
  if (path.empty()) return;
  AtomicFile file(path, Overwrite::replace);
  for (const Pair& pair : pairs) {
    if (!pair.differs()) continue;
    const OrderedJson line = {{"id", pair.prompt.id},
                              {"prompt", pair.prompt.text},
                              {"baseline", pair.baseline.text},
                              {"model", pair.model.text},
                              {"verdict", pair.verdict}};
    file.write(dump_json(line) + "\n");
  }
  for (const Json& row : others) {
    OrderedJson line;  // the same order, and whatever a person added behind it
    for (const char* key : {"id", "prompt", "baseline", "model", "verdict"}) {
      if (row.contains(key)) line[key] = row[key];
    }
    for (const auto& [key, value] : row.items()) line[key] = value;
    file.write(dump_json(line) + "\n");
  }
  if (!others.empty()) {
    log::info("{} keeps {} verdicts on answers that are not of this run", path, others.size());
  }
  file.commit();
}

struct Summary {
  int64_t count = 0, different = 0;
  double common = 0;  // mean share of tokens before the first difference
  std::map<std::string, int64_t> verdicts;
  eval::Repetition model, baseline;
};

Summary summary_of(const std::vector<Pair>& pairs) {
  Summary s{.count = static_cast<int64_t>(pairs.size())};
  std::vector<std::vector<int32_t>> ours, theirs;
  for (const Pair& pair : pairs) {
    s.common += eval::common_beginning(pair.model.tokens, pair.baseline.tokens);
    ours.push_back(pair.model.tokens);
    theirs.push_back(pair.baseline.tokens);
    if (!pair.differs()) continue;
    ++s.different;
    ++s.verdicts[pair.verdict.empty() ? "open" : pair.verdict];
  }
  s.common /= static_cast<double>(pairs.size());
  s.model = eval::repetition(ours);
  s.baseline = eval::repetition(theirs);
  return s;
}

std::string text_of(const Summary& s) {
  std::string text = fmt::format(
      "{} of {} answers differ; {:.1f} % of the tokens stand before the first difference\n"
      "             distinct-2  distinct-4  loop rate\n",
      s.different, s.count, 100 * s.common);
  for (const auto& [name, r] : {std::pair("model", s.model), std::pair("baseline", s.baseline)}) {
    text += fmt::format("  {:<10}{:>11.3f}{:>12.3f}{:>9.1f} %\n", name, r.distinct2, r.distinct4,
                        100 * r.loop_rate);
  }
  for (const auto& [verdict, count] : s.verdicts) {
    text += fmt::format("verdict {}: {}\n", verdict, count);
  }
  return text;
}

OrderedJson json_of(const eval::Repetition& r) {
  return {{"distinct_2", r.distinct2}, {"distinct_4", r.distinct4}, {"loop_rate", r.loop_rate}};
}

OrderedJson json_of(const Summary& s, const std::vector<Pair>& pairs) {
  OrderedJson items = OrderedJson::array();
  for (const Pair& pair : pairs) {
    items.push_back({{"id", pair.prompt.id},
                     {"differs", pair.differs()},
                     {"baseline", pair.baseline.text},
                     {"model", pair.model.text},
                     {"verdict", pair.verdict}});
  }
  return {{"task", "regress"},
          {"count", s.count},
          {"different", s.different},
          {"common_beginning", s.common},
          {"verdicts", s.verdicts},
          {"repetition", json_of(s.model)},
          {"repetition_baseline", json_of(s.baseline)},
          {"items", std::move(items)}};
}

std::string html_of(const Summary& s, const std::vector<Pair>& pairs, const RegressOptions& o) {
  std::vector<std::vector<std::string>> rows;
  for (const Pair& pair : pairs) {
    if (pair.differs()) {
      rows.push_back(
          {pair.prompt.id, pair.prompt.text, pair.baseline.text, pair.model.text, pair.verdict});
    }
  }
  std::string body = page::tiles({{fmt::format("{} of {}", s.different, s.count), "differ"},
                                  {fmt::format("{:.1f} %", 100 * s.common), "common beginning"}});
  body += page::table(
      {"", "distinct-2", "distinct-4", "loop rate"},
      {{"model", fmt::format("{:.3f}", s.model.distinct2), fmt::format("{:.3f}", s.model.distinct4),
        fmt::format("{:.3f}", s.model.loop_rate)},
       {"baseline", fmt::format("{:.3f}", s.baseline.distinct2),
        fmt::format("{:.3f}", s.baseline.distinct4), fmt::format("{:.3f}", s.baseline.loop_rate)}});
  body += page::heading("Answers that differ") +
          page::texts({"id", "prompt", "baseline", "model", "verdict"}, rows);
  return page::document("octet eval regress",
                        {{"model", o.paired.model.path}, {"baseline", o.paired.baseline.path}},
                        body);
}

}  // namespace

int run_eval_regress(Args args) {
  RegressOptions o;
  OptionTable table = table_of(o);
  if (table.parse(args) == OptionTable::Outcome::done) return print(table.output()), 0;
  require_baseline(o.paired);
  if (o.max_worse && o.verdicts.empty()) {
    throw Error({.what = "a gate on verdicts needs verdicts",
                 .where = "--max-worse",
                 .accepted = "together with --verdicts FILE",
                 .fix = "run once with --verdicts, fill the file in, and run again"});
  }

  const std::vector<eval::UserPrompt> prompts = draw_prompts(o.prompts, o.limit, o.seed);
  std::vector<std::vector<eval::Answer>> answers;
  for_each_side(o.paired, "regress",
                [&](Side& side) { answers.push_back(answers_of(side, prompts, o)); });
  std::vector<Pair> pairs;
  for (size_t i = 0; i < prompts.size(); ++i) {
    pairs.push_back({prompts[i], std::move(answers[0][i]), std::move(answers[1][i]), ""});
  }
  const std::vector<Json> others = read_verdicts(o.verdicts, pairs);
  write_verdicts(o.verdicts, pairs, others);
  const Summary summary = summary_of(pairs);
  if (prints_text(o.paired.json)) print(text_of(summary));
  write_json(o.paired.json, json_of(summary, pairs));
  write_html(o.paired.html, html_of(summary, pairs, o));
  int code = 0;
  const double share = static_cast<double>(summary.different) / static_cast<double>(summary.count);
  if (o.max_different && share > *o.max_different) {
    log::error("gate failed: {:.4f} of the answers differ, at most {} is accepted", share,
               *o.max_different);
    code = 1;
  }
  const auto worse = summary.verdicts.find("worse");
  if (o.max_worse && worse != summary.verdicts.end() && worse->second > *o.max_worse) {
    log::error("gate failed: {} answers are worse, at most {} are accepted", worse->second,
               *o.max_worse);
    code = 1;
  }
  return code;
}

}  // namespace octet::cli
