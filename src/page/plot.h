// Plots as SVG, for a page that has the colours (page.h). Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octet::page {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // ascending in x
  bool dots = true;                               // with a mark on each point
};

struct Plot {
  std::string title, x_label, y_label;
  std::vector<Series> series;
  bool log_x = false;            // for x of 1, 2, 4, ...; all x > 0 then
  std::optional<double> mark_x;  // a vertical line
  std::string mark_label;
};

// Lines over axes with ticks at round numbers, from 0 upwards. Points that are not finite are left
// out. Each dot says its values when pointed at.
std::string svg_of(const Plot& plot);

// About `count` round numbers (1, 2 or 5 times a power of ten apart) from 0 to at least `most`.
std::vector<double> ticks_to(double most, int count = 5);

// The share of values up to each: from 0 to 100 %, of at most `points` points.
Series cumulative(std::string name, const std::vector<double>& sorted, double scale,
                  size_t points = 200);

// &, <, > and quotes as entities.
std::string escaped(std::string_view text);

}  // namespace octet::page
