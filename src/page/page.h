// A report as one HTML page: no script, nothing from outside, dark or light as the reader's system
// is, and readable on a phone. Pure functions; all text is escaped.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octet::page {

// The whole page: title, a list of facts (name, value), and what the functions below gave.
std::string document(std::string_view title,
                     const std::vector<std::pair<std::string, std::string>>& facts,
                     std::string_view body);

std::string heading(std::string_view text);
std::string paragraph(std::string_view text);

// Figures in large type: value, name.
std::string tiles(const std::vector<std::pair<std::string, std::string>>& values);

// A table that scrolls where it is too wide; the first column is text, the others are figures.
std::string table(const std::vector<std::string>& header,
                  const std::vector<std::vector<std::string>>& rows);

// A table of shares from 0 to 1, darker where they are higher; nothing where there is no value.
struct HeatMap {
  std::string title, corner;                               // corner: what rows and columns are
  std::vector<std::string> columns, rows;                  // their names
  std::vector<std::vector<std::optional<double>>> shares;  // [row][column]
};
std::string heat_map(const HeatMap& map);

// Plots side by side, as many as fit.
std::string plots(const std::vector<std::string>& svgs);

// Texts in columns, line breaks kept.
std::string texts(const std::vector<std::string>& header,
                  const std::vector<std::vector<std::string>>& rows);

}  // namespace octet::page
