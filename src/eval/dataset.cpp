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

std::vector<std::vector<std::string>> parse_csv(std::string_view text) {
  std::vector<std::vector<std::string>> records;
  std::vector<std::string> record(1);
  bool quoted = false;
  const auto end_record = [&] {
    if (record.size() > 1 || !record[0].empty()) records.push_back(record);
    record.assign(1, "");
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c != '"') {
        record.back() += c;
      } else if (i + 1 < text.size() && text[i + 1] == '"') {
        record.back() += text[++i];
      } else {
        quoted = false;
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == ',') {
      record.emplace_back();
    } else if (c == '\n') {
      end_record();
    } else if (c != '\r') {
      record.back() += c;
    }
  }
  end_record();
  return records;
}

ReadRows read_csv_rows(const std::filesystem::path& path,
                       FunctionRef<void(const std::vector<std::string>& fields)> take) {
  ReadRows read;
  for (const std::vector<std::string>& record : parse_csv(read_maybe_gzip(path))) {
    count(read, [&] { take(record); });
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
