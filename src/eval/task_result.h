// What a task found out about a model, alone or beside a baseline that answered the same questions.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "eval/paired.h"

namespace octet::eval {

struct ItemScore {
  std::string item, group;     // "anatomy/12" of "anatomy"
  std::vector<double> scores;  // from 0 to 1, one for each metric
  OrderedJson detail;          // what was answered, for the JSON
};

struct TaskRun {
  std::string model, arithmetic;
  std::vector<ItemScore> items;

  std::vector<double> scores(size_t metric) const;
  double mean(size_t metric) const;
};

struct TaskResult {
  std::string task, how;             // how: the form of the prompts, in words
  std::vector<std::string> metrics;  // gates look at the first
  TaskRun candidate;
  std::optional<TaskRun> baseline;  // the same items in the same order

  // Of candidate - baseline. Only with a baseline.
  PairedDifference difference(size_t metric) const;
};

// For people: means with their 95 % intervals, differences with theirs, and the groups, if there
// are more than one.
std::string text_of(const TaskResult& result);

// All of it, items included.
OrderedJson json_of(const TaskResult& result);

// One self-contained page; `extra` is put behind the tables.
std::string html_of(const TaskResult& result,
                    const std::vector<std::pair<std::string, std::string>>& facts,
                    const std::string& extra = {});

}  // namespace octet::eval
