#include "eval/task_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "page/page.h"

namespace octet::eval {
namespace {

std::string percent(double share) {
  return fmt::format("{:.2f} %", 100 * share);
}

std::string points(double difference) {
  return fmt::format("{:+.2f}", 100 * difference);
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Group -> places of its items, by name.
std::map<std::string, std::vector<size_t>> groups_of(const TaskRun& run) {
  std::map<std::string, std::vector<size_t>> groups;
  for (size_t i = 0; i < run.items.size(); ++i) groups[run.items[i].group].push_back(i);
  return groups;
}

double mean_of_group(const TaskRun& run, const std::vector<size_t>& places, size_t metric) {
  double sum = 0;
  for (const size_t place : places) sum += run.items[place].scores[metric];
  return sum / static_cast<double>(places.size());
}

std::string line_of(const TaskResult& result, size_t metric) {
  const TaskRun& run = result.candidate;
  const auto count = static_cast<int64_t>(run.items.size());
  const double mean = run.mean(metric);
  const Interval interval = wilson(mean, count);
  std::string line = fmt::format("{:<18}{}  (95 %: {:.1f} to {:.1f} %)", result.metrics[metric],
                                 percent(mean), 100 * interval.low, 100 * interval.high);
  if (!result.baseline) return line + "\n";
  const PairedDifference d = result.difference(metric);
  return line + fmt::format(
                    "  baseline {}  difference {} points (95 %: {} to {}), {} lost and {} won, "
                    "McNemar p {:.3f}\n",
                    percent(result.baseline->mean(metric)), points(d.mean), points(d.interval.low),
                    points(d.interval.high), d.lost, d.won, d.p);
}

// A row of figures for each group.
std::vector<std::vector<std::string>> group_rows(const TaskResult& result) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, places] : groups_of(result.candidate)) {
    std::vector<std::string> row = {name, fmt::format("{}", places.size())};
    for (size_t metric = 0; metric < result.metrics.size(); ++metric) {
      const double mean = mean_of_group(result.candidate, places, metric);
      row.push_back(percent(mean));
      if (!result.baseline) continue;
      const double base = mean_of_group(*result.baseline, places, metric);
      row.push_back(percent(base));
      row.push_back(points(mean - base));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<std::string> group_header(const TaskResult& result) {
  std::vector<std::string> header = {"group", "items"};
  for (const std::string& metric : result.metrics) {
    header.push_back(metric);
    if (!result.baseline) continue;
    header.push_back(metric + ", baseline");
    header.push_back("difference");
  }
  return header;
}

OrderedJson json_of_metric(const TaskResult& result, size_t metric) {
  const double mean = result.candidate.mean(metric);
  const Interval interval = wilson(mean, static_cast<int64_t>(result.candidate.items.size()));
  OrderedJson json = {{"value", mean}, {"interval", {interval.low, interval.high}}};
  if (!result.baseline) return json;
  const PairedDifference d = result.difference(metric);
  json["baseline"] = result.baseline->mean(metric);
  json["difference"] = d.mean;
  json["difference_interval"] = {d.interval.low, d.interval.high};
  json["lost"] = d.lost;
  json["won"] = d.won;
  json["mcnemar_p"] = d.p;
  return json;
}

OrderedJson scores_json(const TaskResult& result, const ItemScore& item) {
  OrderedJson scores = OrderedJson::object();
  for (size_t metric = 0; metric < result.metrics.size(); ++metric) {
    scores[result.metrics[metric]] = item.scores[metric];
  }
  return scores;
}

}  // namespace

std::vector<double> TaskRun::scores(size_t metric) const {
  std::vector<double> values;
  values.reserve(items.size());
  for (const ItemScore& item : items) values.push_back(item.scores[metric]);
  return values;
}

double TaskRun::mean(size_t metric) const {
  return mean_of(scores(metric));
}

PairedDifference TaskResult::difference(size_t metric) const {
  invariant(baseline.has_value(), "a difference needs a baseline");
  return paired_difference(candidate.scores(metric), baseline->scores(metric));
}

std::string text_of(const TaskResult& result) {
  std::string text =
      fmt::format("{}: {} items; {}\nmodel       {}\n", result.task, result.candidate.items.size(),
                  result.how, result.candidate.arithmetic);
  if (result.baseline) text += fmt::format("baseline    {}\n", result.baseline->arithmetic);
  for (size_t metric = 0; metric < result.metrics.size(); ++metric) text += line_of(result, metric);
  const std::vector<std::vector<std::string>> rows = group_rows(result);
  if (rows.size() < 2) return text;
  for (const std::vector<std::string>& row : rows) {
    text += fmt::format("  {:<34}{:>5}  {}\n", row[0], row[1],
                        fmt::join(row.begin() + 2, row.end(), "  "));
  }
  return text;
}

OrderedJson json_of(const TaskResult& result) {
  OrderedJson metrics = OrderedJson::object(), items = OrderedJson::array();
  for (size_t metric = 0; metric < result.metrics.size(); ++metric) {
    metrics[result.metrics[metric]] = json_of_metric(result, metric);
  }
  OrderedJson groups = OrderedJson::object();
  for (const auto& [name, places] : groups_of(result.candidate)) {
    OrderedJson one = {{"items", places.size()}};
    for (size_t metric = 0; metric < result.metrics.size(); ++metric) {
      one[result.metrics[metric]] = mean_of_group(result.candidate, places, metric);
      if (!result.baseline) continue;
      one[result.metrics[metric] + "_baseline"] = mean_of_group(*result.baseline, places, metric);
    }
    groups[name] = std::move(one);
  }
  for (size_t i = 0; i < result.candidate.items.size(); ++i) {
    const ItemScore& item = result.candidate.items[i];
    OrderedJson one = {{"item", item.item},
                       {"group", item.group},
                       {"scores", scores_json(result, item)},
                       {"answer", item.detail}};
    if (result.baseline) {
      const ItemScore& base = result.baseline->items[i];
      one["scores_baseline"] = scores_json(result, base);
      one["answer_baseline"] = base.detail;
    }
    items.push_back(std::move(one));
  }
  OrderedJson json = {{"task", result.task},
                      {"how", result.how},
                      {"model", result.candidate.model},
                      {"arithmetic", result.candidate.arithmetic}};
  if (result.baseline) {
    json["baseline"] = result.baseline->model;
    json["arithmetic_baseline"] = result.baseline->arithmetic;
  }
  json["count"] = result.candidate.items.size();
  json["metrics"] = std::move(metrics);
  json["groups"] = std::move(groups);
  json["items"] = std::move(items);
  return json;
}

std::string html_of(const TaskResult& result,
                    const std::vector<std::pair<std::string, std::string>>& facts,
                    const std::string& extra) {
  std::vector<std::pair<std::string, std::string>> all = {
      {"model", result.candidate.model}, {"arithmetic", result.candidate.arithmetic}};
  if (result.baseline) {
    all.emplace_back("baseline", result.baseline->model);
    all.emplace_back("its arithmetic", result.baseline->arithmetic);
  }
  all.emplace_back("questions", fmt::format("{}; {}", result.candidate.items.size(), result.how));
  all.insert(all.end(), facts.begin(), facts.end());
  std::vector<std::pair<std::string, std::string>> tiles;
  std::string lines;
  for (size_t metric = 0; metric < result.metrics.size(); ++metric) {
    tiles.emplace_back(percent(result.candidate.mean(metric)), result.metrics[metric]);
    if (result.baseline) {
      tiles.emplace_back(points(result.difference(metric).mean) + " points",
                         result.metrics[metric] + " against the baseline");
    }
    lines += page::paragraph(line_of(result, metric));
  }
  std::string body = page::tiles(tiles) + lines;
  body += page::paragraph(
      "Intervals of a share are Wilson's; those of a difference come from a paired bootstrap of "
      "10,000 samples of the questions; p is McNemar's exact test.");
  body += page::heading("By group") + page::table(group_header(result), group_rows(result));
  return page::document("octet eval " + result.task, all, body + extra);
}

}  // namespace octet::eval
