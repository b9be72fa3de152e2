#include "server/prometheus.h"

#include <fmt/format.h>

#include <cmath>

namespace octet::server {
namespace {

// Of a label's value, and of a help text, which has quotes as they are.
std::string escaped(std::string_view text, bool quotes) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '\\' || (quotes && c == '"')) out += '\\';
    out += c;
  }
  return out;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

}  // namespace

void PrometheusText::family(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, escaped(help, false), name, type);
}

void PrometheusText::line(std::string_view suffix, Labels labels,
                          std::pair<std::string_view, std::string> more, double value) {
  text_ += name_;
  text_ += suffix;
  bool open = false;
  const auto label = [&](std::string_view name, std::string_view text) {
    text_ += fmt::format("{}{}=\"{}\"", open ? "," : "{", name, escaped(text, true));
    open = true;
  };
  for (const auto& [name, text] : labels) label(name, text);
  if (!more.first.empty()) label(more.first, more.second);
  text_ += fmt::format("{} {}\n", open ? "}" : "", number(value));
}

void PrometheusText::sample(double value, Labels labels) {
  line("", labels, {}, value);
}

void PrometheusText::histogram(const engine::Histogram::View& view, Labels labels) {
  for (size_t i = 0; i < view.at_most.size(); ++i) {
    const double bound = i < view.bounds.size() ? view.bounds[i] : INFINITY;
    line("_bucket", labels, {"le", number(bound)}, static_cast<double>(view.at_most[i]));
  }
  line("_sum", labels, {}, view.sum);
  line("_count", labels, {}, static_cast<double>(view.at_most.back()));
}

}  // namespace octet::server
