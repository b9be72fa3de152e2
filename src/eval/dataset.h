// Reads the published files of data sets: JSON lines, plain or gzipped, JSON arrays, and CSV. A
// line that is broken costs that line alone: it is counted and named, the rest is used.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "base/json.h"

namespace octet::eval {

struct ReadRows {
  int64_t used = 0, broken = 0;
  std::vector<std::string> faults;  // of the first few broken rows: where and what
};

// Calls `take` for each object: of the lines of X.jsonl or X.jsonl.gz, or of the array that X.json
// is. A row that is no object, or for which `take` throws Error, is broken. Throws Error if the
// file cannot be read, or has no row that is right.
ReadRows read_json_rows(const std::filesystem::path& path,
                        FunctionRef<void(const JsonView& row)> take);

// Calls `take` for each record of a CSV file (RFC 4180: quoted fields may hold commas, line breaks
// and doubled quotes). Errors and broken rows as above.
ReadRows read_csv_rows(const std::filesystem::path& path,
                       FunctionRef<void(const std::vector<std::string>& fields)> take);

struct CsvRecord {
  int64_t line = 0;  // where it begins, from 1
  std::vector<std::string> fields;
  std::string fault;  // what is wrong with its quotes; then it has no fields
};
// The records of a text in CSV; empty lines are none. A quoted field ends before a comma or a line
// break; where it does not, the record's first line is broken alone, and the next line is read as
// a record of its own: one quote too many must not swallow the rows below it.
std::vector<CsvRecord> parse_csv(std::string_view text);

// The file as text, unpacked if it begins as gzip does. Throws Error if it cannot be read, is
// damaged, or holds more than 1 GiB.
std::string read_maybe_gzip(const std::filesystem::path& path);

// `count` of `total` places, drawn without repetition by `seed`, ascending; all for count 0 or more
// than there are.
std::vector<size_t> choose(size_t total, size_t count, uint64_t seed);

}  // namespace octet::eval
