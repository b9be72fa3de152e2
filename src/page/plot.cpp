#include "page/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace octet::page {
namespace {

// In units of the SVG's own coordinates; the page scales it.
constexpr double kWidth = 440, kHeight = 260, kLeft = 56, kRight = 16, kTop = 34, kBottom = 46;

// "1,200", "0.25": as short as it can be told apart.
std::string shown(double value) {
  if (value == 0) return "0";
  if (std::abs(value) >= 1e6) return fmt::format("{:.3g}M", value * 1e-6);
  if (std::abs(value) >= 1e4) return fmt::format("{:.3g}k", value * 1e-3);
  return fmt::format("{:.4g}", value);
}

class Axes {
 public:
  explicit Axes(const Plot& plot) : log_x_(plot.log_x) {
    double least = INFINITY, most_x = 0, most_y = 0;
    for (const Series& series : plot.series) {
      for (const auto& [x, y] : series.points) {
        if (!usable(x, y)) continue;
        least = std::min(least, x);
        most_x = std::max(most_x, x);
        most_y = std::max(most_y, y);
      }
    }
    if (plot.mark_x) most_x = std::max(most_x, *plot.mark_x);
    y_ticks_ = ticks_to(most_y);
    if (log_x_) {
      first_ = std::isfinite(least) ? std::log2(least) : 0;
      last_ = std::max(first_ + 1, most_x > 0 ? std::log2(most_x) : 0);
      for (double power = std::ceil(first_); power <= last_; ++power) {
        x_ticks_.push_back(std::exp2(power));
      }
    } else {
      x_ticks_ = ticks_to(most_x);
      last_ = x_ticks_.back();
    }
  }

  bool usable(double x, double y) const {
    return std::isfinite(x) && std::isfinite(y) && (!log_x_ || x > 0);
  }
  double x(double value) const {
    const double place = ((log_x_ ? std::log2(value) : value) - first_) / (last_ - first_);
    return kLeft + place * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    return kHeight - kBottom - value / y_ticks_.back() * (kHeight - kTop - kBottom);
  }
  const std::vector<double>& x_ticks() const { return x_ticks_; }
  const std::vector<double>& y_ticks() const { return y_ticks_; }

 private:
  const bool log_x_;
  double first_ = 0, last_ = 1;
  std::vector<double> x_ticks_, y_ticks_;
};

std::string grid(const Plot& plot, const Axes& axes) {
  std::string svg;
  for (const double tick : axes.y_ticks()) {
    svg += fmt::format(R"(<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>)"
                       R"(<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>)",
                       kLeft, kWidth - kRight, axes.y(tick), axes.y(tick), kLeft - 6,
                       axes.y(tick) + 4, shown(tick));
  }
  for (const double tick : axes.x_ticks()) {
    svg += fmt::format(R"(<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>)",
                       axes.x(tick), kHeight - kBottom + 16, shown(tick));
  }
  svg += fmt::format(R"(<text class="label" x="{}" y="{}" text-anchor="middle">{}</text>)"
                     R"(<text class="label" x="{}" y="18">{}</text>)",
                     (kLeft + kWidth - kRight) / 2, kHeight - 10, escaped(plot.x_label), 6,
                     escaped(plot.y_label));
  return svg;
}

std::string mark(const Plot& plot, const Axes& axes) {
  if (!plot.mark_x || !axes.usable(*plot.mark_x, 0)) return "";
  const double x = axes.x(*plot.mark_x);
  const bool left = x > kWidth * 0.7;
  return fmt::format(R"(<line class="mark" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"/>)"
                     R"(<text class="tick" x="{3:.1f}" y="{4}" text-anchor="{5}">{6}</text>)",
                     x, kTop, kHeight - kBottom, left ? x - 5 : x + 5, kTop + 10,
                     left ? "end" : "start", escaped(plot.mark_label));
}

std::string line(const Series& series, size_t number, const Axes& axes) {
  std::string points, dots;
  for (const auto& [x, y] : series.points) {
    if (!axes.usable(x, y)) continue;
    points += fmt::format("{:.1f},{:.1f} ", axes.x(x), axes.y(y));
    if (!series.dots) continue;
    dots += fmt::format(
        R"(<circle class="dot s{}" cx="{:.1f}" cy="{:.1f}" r="4"><title>{}: {} at {}</title></circle>)",
        number % 4, axes.x(x), axes.y(y), escaped(series.name), shown(y), shown(x));
  }
  return fmt::format(R"(<polyline class="line s{}" points="{}"/>)", number % 4, points) + dots;
}

std::string legend(const Plot& plot) {
  if (plot.series.size() < 2) return "";
  std::string svg;
  double x = kWidth - kRight;
  for (size_t i = plot.series.size(); i-- > 0;) {
    const std::string& name = plot.series[i].name;
    x -= 7.0 * static_cast<double>(name.size()) + 26;
    svg += fmt::format(R"(<rect class="key s{}" x="{:.1f}" y="9" width="10" height="10" rx="2"/>)"
                       R"(<text class="tick" x="{:.1f}" y="18">{}</text>)",
                       i % 4, x, x + 14, escaped(name));
  }
  return svg;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::vector<double> ticks_to(double most, int count) {
  if (!(most > 0) || !std::isfinite(most)) most = 1;
  const double rough = most / count, power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  for (int i = 0; ticks.empty() || ticks.back() < most * (1 - 1e-9); ++i) ticks.push_back(i * step);
  return ticks;
}

Series cumulative(std::string name, const std::vector<double>& sorted, double scale,
                  size_t points) {
  Series series{std::move(name), {}, false};
  const size_t count = sorted.size();
  if (count == 0) return series;
  series.points.emplace_back(sorted.front() * scale, 0);
  const size_t steps = std::min(points, count);
  for (size_t i = 1; i <= steps; ++i) {
    const size_t rank = i * count / steps;
    series.points.emplace_back(sorted[rank - 1] * scale,
                               100.0 * static_cast<double>(rank) / static_cast<double>(count));
  }
  return series;
}

std::string svg_of(const Plot& plot) {
  const Axes axes(plot);
  std::string svg = fmt::format(
      R"(<figure><figcaption>{}</figcaption><svg viewBox="0 0 {} {}" role="img" aria-label="{}">)",
      escaped(plot.title), kWidth, kHeight, escaped(plot.title));
  svg += grid(plot, axes) + mark(plot, axes);
  for (size_t i = 0; i < plot.series.size(); ++i) svg += line(plot.series[i], i, axes);
  return svg + legend(plot) + "</svg></figure>\n";
}

}  // namespace octet::page
