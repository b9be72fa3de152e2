// What was answered already, so that a run that was cut short goes on where it was: one JSON object
// a line, appended as answers come.
//
//   {"model": "1f3c...", "task": "mmlu", "item": "anatomy/3", "input": "9a0b...", "answer": {...}}
//
// An answer counts for the same model (its fingerprint, arithmetic included), task, item and input
// (a hash of all that the model is asked and how), and for nothing else.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "base/json.h"

namespace octet::eval {

struct ItemKey {
  std::string model, task, item, input;
  auto operator<=>(const ItemKey&) const = default;
};

class ItemLog {
 public:
  // Keeps nothing: every find() fails.
  ItemLog() = default;
  // Reads what is there and appends to it; creates the file if there is none. Lines that are broken
  // (the last one of a run that was killed) are left out and counted. Throws Error if it cannot be
  // read or written, or holds no line of this form but others.
  explicit ItemLog(const std::filesystem::path& path);

  // Null if it was not answered.
  const Json* find(const ItemKey& key) const;
  // Throws Error when the disk is full.
  void add(const ItemKey& key, const Json& answer);

  int64_t broken() const { return broken_; }
  int64_t size() const { return static_cast<int64_t>(answers_.size()); }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::map<ItemKey, Json> answers_;
  int64_t broken_ = 0;
};

}  // namespace octet::eval
