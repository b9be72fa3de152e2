// Where results go: stdout for people, or one JSON document to a file or stdout.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "base/options.h"

namespace octet::cli {

// Writes to stdout, at once. Throws Error when that fails (a full disk).
void print(std::string_view text);

// The --json row that every verb has: "" = text for people, "-" = JSON on stdout, else a file, of
// which OptionTable::parse checks at once that it can be written.
void add_json_row(OptionTable& table, std::string* target);

// Writes `json` where --json says. Does nothing for "".
void write_json(const std::string& target, const OrderedJson& json);

// True where text for people goes to stdout, too: --json is absent or names a file.
inline bool prints_text(const std::string& json_target) {
  return json_target != "-";
}

// Names come from a file: what could steer a terminal is shown as \xNN.
std::string printable(std::string_view text);
// The text with control characters, but for line feeds and tabs, as \\xNN: what others wrote may
// not move the cursor of a terminal.
std::string without_controls(std::string_view text);

// "12.3 MB", in powers of 1000.
std::string show_bytes(double bytes);

}  // namespace octet::cli
