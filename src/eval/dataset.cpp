#include "eval/dataset.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/philox.h"

namespace octet::eval {
namespace {

constexpr size_t kMostBytes = size_t{1} << 30;
constexpr size_t kShownFaults = 5;

// Runs `row`; an Error of its is a broken row.
void count(ReadRows& read, FunctionRef<void()> row) {
  try {
    row();
    ++read.used;
  } catch (const Error& error) {
    ++read.broken;
    if (read.faults.size() < kShownFaults) read.faults.emplace_back(error.what());
  }
}

ReadRows require_rows(ReadRows read, const std::filesystem::path& path) {
  if (read.used > 0) return read;
  throw Error({.what = "the file has no row that can be used",
               .where = path.string(),
               .value = read.broken == 0 ? "no rows"
                                         : fmt::format("{} broken rows; the first: {}", read.broken,
                                                       read.faults.front()),
               .accepted = "one row or more"});
}

std::string inflated(std::string_view packed, const std::string& name) {
  z_stream stream{};
  // 16 beside the window's bits: a gzip header is expected.
  if (inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK) throw Fault("zlib does not start");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  std::string text, part(1 << 16, '\0');
  int status = Z_OK;
  while (status == Z_OK && text.size() <= kMostBytes) {
    stream.next_out = reinterpret_cast<Bytef*>(part.data());
    stream.avail_out = static_cast<uInt>(part.size());
    status = inflate(&stream, Z_NO_FLUSH);
    text.append(part, 0, part.size() - stream.avail_out);
    // Another member may follow.
    if (status == Z_STREAM_END && stream.avail_in > 0) status = inflateReset(&stream);
  }
  inflateEnd(&stream);
  if (status == Z_STREAM_END && text.size() <= kMostBytes) return text;
  throw Error({.what = text.size() > kMostBytes ? "the unpacked file is too large"
                                                : "the gzip file is damaged",
               .where = name,
               .accepted = "a whole gzip file of at most 1 GiB, unpacked"});
}

// Reads the record that begins at `at`, and gives where the next one does.
size_t read_csv_record(std::string_view text, size_t at, CsvRecord& record) {
  const auto broken = [&](const char* fault) {
    record.fields.clear();
    record.fault = fault;
    return std::min(text.find('\n', at), text.size() - 1) + 1;
  };
  size_t i = at;
  while (true) {
    std::string& field = record.fields.emplace_back();
    if (i < text.size() && text[i] == '"') {
      for (++i; i < text.size() && (text[i] != '"' || text.substr(i, 2) == "\"\""); ++i) {
        if (text[i] == '"') ++i;
        field += text[i];
      }
      if (i == text.size()) return broken("a quote is not closed");
      ++i;
      if (i < text.size() && text[i] == '\r') ++i;
      if (i < text.size() && text[i] != ',' && text[i] != '\n') {
        return broken("text follows a quote that ends a field: one quote too many, or too few");
      }
    } else {
      for (; i < text.size() && text[i] != ',' && text[i] != '\n'; ++i) {
        if (text[i] != '\r') field += text[i];
      }
    }
    if (i >= text.size() || text[i] == '\n') return std::min(i + 1, text.size());
    ++i;  // the comma
  }
}

}  // namespace

std::string read_maybe_gzip(const std::filesystem::path& path) {
  std::string text = read_text(path, kMostBytes);
  return text.starts_with("\x1f\x8b") ? inflated(text, path.string()) : text;
}

ReadRows read_json_rows(const std::filesystem::path& path,
                        FunctionRef<void(const JsonView& row)> take) {
  const std::string text = read_maybe_gzip(path);
  ReadRows read;
  if (const size_t first = text.find_first_not_of(" \t\r\n");
      first != text.npos && text[first] == '[') {
    const Json array = parse_json(text, path.string());
    for (size_t i = 0; i < array.size(); ++i) {
      count(read, [&] { take(JsonView(array[i], fmt::format("{}[{}]", path.string(), i))); });
    }
    return require_rows(std::move(read), path);
  }
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    count(read, [&] {
      const std::string name = fmt::format("{}:{}", path.string(), number);
      const Json json = parse_json(line, name);
      take(JsonView(json, name));
    });
  }
  return require_rows(std::move(read), path);
}

std::vector<CsvRecord> parse_csv(std::string_view text) {
  std::vector<CsvRecord> records;
  int64_t line = 1;
  for (size_t at = 0; at < text.size();) {
    CsvRecord record{.line = line};
    const size_t end = read_csv_record(text, at, record);
    line += std::count(text.begin() + static_cast<std::ptrdiff_t>(at),
                       text.begin() + static_cast<std::ptrdiff_t>(end), '\n');
    at = end;
    const bool empty = record.fields.size() == 1 && record.fields[0].empty();
    if (!empty) records.push_back(std::move(record));
  }
  return records;
}

ReadRows read_csv_rows(const std::filesystem::path& path,
                       FunctionRef<void(const std::vector<std::string>& fields)> take) {
  ReadRows read;
  for (const CsvRecord& record : parse_csv(read_maybe_gzip(path))) {
    count(read, [&] {
      if (!record.fault.empty()) {
        throw Error(
            {.what = record.fault, .where = fmt::format("{}:{}", path.string(), record.line)});
      }
      take(record.fields);
    });
  }
  return require_rows(std::move(read), path);
}

std::vector<size_t> choose(size_t total, size_t count, uint64_t seed) {
  std::vector<size_t> places(total);
  std::iota(places.begin(), places.end(), size_t{0});
  if (count == 0 || count >= total) return places;
  Philox random(seed);
  for (size_t i = 0; i < count; ++i) {
    std::swap(places[i], places[i + random.bits() % (total - i)]);
  }
  places.resize(count);
  std::ranges::sort(places);
  return places;
}

}  // namespace octet::eval
