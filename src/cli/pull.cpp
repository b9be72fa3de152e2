// octet pull ORG/NAME|URL --out DIR: downloads a model.
#include "hub/pull.h"

#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/progress.h"
#include "cli/output.h"
#include "cli/verbs.h"

namespace octet::cli {
namespace {

// The first line, without what editors leave around it.
std::string read_token(const std::string& path) {
  std::string token = read_text(path, 4096);
  token = token.substr(0, token.find_first_of("\r\n"));
  const bool plain = !token.empty() && token.find_first_of(" \t") == token.npos;
  if (plain) return token;
  throw Error({.what = "the file holds no token",
               .where = "--token-file",
               .value = path,
               .accepted = "the token alone, on the first line"});
}

}  // namespace

int run_pull(Args args) {
  hub::PullOptions o;
  std::string token_file, json;
  double wait = 1, idle = 30;
  OptionTable table(
      "octet pull",
      "Download a model. What was cut off or killed is continued by the same command.");
  table.positional("MODEL", &o.source,
                   "ORG/NAME, the address of a model's page, or that of a single file");
  table.add("--out", &o.out, "the new model directory; there when all files are, or not at all",
            {.metavar = "DIR", .required = true});
  table.add("--endpoint", &o.endpoint, "the hub", {.metavar = "URL"});
  table.add("--revision", &o.revision, "branch, tag or commit; main where none is named");
  table.add("--include", &o.include, "only files that match, such as '*.json' (repeatable)",
            {.metavar = "GLOB"});
  table.add("--exclude", &o.exclude, "leave out files that match (repeatable)",
            {.metavar = "GLOB"});
  table.group("Network");
  table.add("--token-file", &token_file, "a file with an access token", {.metavar = "FILE"});
  table.add("--ca-file", &o.transfer.http.ca_file,
            "certificates to trust instead of the system's (PEM)", {.metavar = "FILE"});
  table.add("--retries", &o.transfer.retries, "attempts in a row without progress",
            {.least = 0, .most = 1000});
  table.add("--retry-wait", &wait, "seconds before the second attempt; doubles up to 30",
            {.least = 0, .most = 30});
  table.add("--idle-timeout", &idle, "seconds without a byte until a connection counts as lost",
            {.least = 1, .most = 3600});
  table.group("Output");
  add_json_row(table, &json);
  if (table.parse(args) == OptionTable::Outcome::done) {
    print(table.output());
    return 0;
  }
  if (!token_file.empty()) o.transfer.token = read_token(token_file);
  o.transfer.wait = std::chrono::milliseconds(static_cast<int64_t>(1000 * wait));
  o.transfer.http.idle = std::chrono::seconds(static_cast<int64_t>(idle));

  std::optional<Progress> bar;
  const hub::PullReport report = hub::pull(
      o,
      [&](size_t files, int64_t bytes) {
        log::info("{} files{}", files,
                  bytes > 0 ? ", " + show_bytes(static_cast<double>(bytes)) : "");
        bar.emplace("pull", bytes, Progress::Unit::bytes);
      },
      [&](int64_t bytes) { bar->advance(bytes); });
  bar.reset();
  if (prints_text(json)) {
    print(fmt::format("{} -> {}\n  {} files, {}\n", o.source, o.out, report.files.size(),
                      show_bytes(static_cast<double>(report.bytes))));
  }
  write_json(json, {{"out", o.out},
                    {"revision", report.revision},
                    {"files", report.files},
                    {"bytes", report.bytes}});
  return 0;
}

}  // namespace octet::cli
