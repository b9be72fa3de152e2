#include "cli/output.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/atomic_write.h"
#include "base/error.h"

namespace octet::cli {

void print(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0) {
    throw Error({.what = "cannot write the output",
                 .where = "stdout",
                 .value = strerror(errno),
                 .fix = "check the space and the reader of stdout"});
  }
}

void add_json_row(OptionTable& table, std::string* target) {
  table.add("--json", target, "write the result as JSON to this file; - is stdout",
            {.metavar = "FILE", .written = true});
}

void write_json(const std::string& target, const OrderedJson& json) {
  if (target.empty()) return;
  const std::string text = dump_json(json, 1) + "\n";
  if (target == "-") {
    print(text);
    return;
  }
  AtomicFile file(target, Overwrite::replace);
  file.write(text);
  file.commit();
}

std::string printable(std::string_view text) {
  std::string shown;
  for (const char c : text) {
    if (c >= ' ' && c <= '~') {
      shown += c;
    } else {
      shown += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
    }
  }
  return shown;
}

std::string without_controls(std::string_view text) {
  std::string shown;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    const auto next = static_cast<uint8_t>(i + 1 < text.size() ? text[i + 1] : 0);
    const bool c0 = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F;
    const bool c1 = byte == 0xC2 && next >= 0x80 && next < 0xA0;  // U+0080 to U+009F
    if (!c0 && !c1) {
      shown += text[i];
      continue;
    }
    shown += fmt::format("\\x{:02x}", byte);
    if (!c1) continue;
    shown += fmt::format("\\x{:02x}", next);
    ++i;
  }
  return shown;
}

std::string show_bytes(double bytes) {
  if (bytes >= 1e9) return fmt::format("{:.2f} GB", bytes * 1e-9);
  if (bytes >= 1e6) return fmt::format("{:.1f} MB", bytes * 1e-6);
  if (bytes >= 1e3) return fmt::format("{:.1f} kB", bytes * 1e-3);
  return fmt::format("{:.0f} B", bytes);
}

}  // namespace octet::cli
