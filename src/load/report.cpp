#include "load/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "page/page.h"
#include "page/plot.h"

namespace octet::load {
namespace {

using page::escaped;
using page::Plot;
using page::Series;

std::string ms(double seconds) {
  const double value = seconds * 1e3;
  return figure(value, value < 10 ? 2 : value < 100 ? 1 : 0);
}

std::string row_of(const std::string& name, const Statistics& s, bool good) {
  std::string row = fmt::format("<tr><td>{}</td><td>{}</td><td{}>{}</td><td>{:.2f}</td>",
                                escaped(name), s.completed, s.failed > 0 ? " class=\"bad\"" : "",
                                s.failed, s.request_throughput());
  if (good) row += fmt::format("<td>{:.2f}</td>", s.request_goodput());
  row += fmt::format("<td>{:.1f}</td>", s.output_throughput());
  for (const Distribution* values : {&s.ttft, &s.tpot, &s.e2el}) {
    for (const double p : {50.0, 95.0, 99.0}) row += fmt::format("<td>{}</td>", ms(values->at(p)));
  }
  return row + "</tr>\n";
}

using Row = std::pair<std::string, const Statistics*>;

std::string table_of(const std::vector<Row>& rows, const char* first, bool good) {
  std::string html = fmt::format(
      "<div class=\"scroll\"><table><thead><tr><th>{}</th><th>done</th><th>failed</th>"
      "<th>req/s</th>{}<th>out tok/s</th>",
      first, good ? "<th>good req/s</th>" : "");
  for (const char* metric : {"TTFT", "TPOT", "E2E"}) {
    for (const char* percent : {"P50", "P95", "P99"}) {
      html += fmt::format("<th>{} {} ms</th>", metric, percent);
    }
  }
  html += "</tr></thead><tbody>\n";
  for (const auto& [name, statistics] : rows) html += row_of(name, *statistics, good);
  return html + "</tbody></table></div>\n";
}

std::string failures_of(const Layer& layer) {
  std::map<std::string, int64_t> kinds;
  std::string first;
  for (const Step& step : layer.steps) {
    for (const Outcome& outcome : step.run.outcomes) {
      if (outcome.ok()) continue;
      ++kinds[std::string(name_of(outcome.failure))];
      if (first.empty()) first = outcome.message;
    }
  }
  if (kinds.empty()) return "";
  std::string html = "<p class=\"bad\">Failed requests:";
  for (const auto& [kind, count] : kinds) html += fmt::format(" {} {};", count, escaped(kind));
  return html + fmt::format(" the first: {}</p>\n", escaped(first));
}

// Over time, in a hundred parts or tenths of a second: chunks a second, and requests under way.
Plot timeline(const RunResult& run) {
  const double width = std::max(0.1, run.seconds / 100);
  const auto parts = static_cast<size_t>(run.seconds / width) + 1;
  std::vector<double> tokens(parts), flight(parts);
  const auto part_of = [&](double time) {
    return std::min(static_cast<size_t>(time / width), parts - 1);
  };
  for (const Outcome& outcome : run.outcomes) {
    if (!outcome.ok()) continue;
    double time = outcome.start + outcome.ttft;
    tokens[part_of(time)] += 1 / width;
    for (const double itl : outcome.itls) tokens[part_of(time += itl)] += 1 / width;
    const size_t last = part_of(outcome.start + outcome.latency);
    for (size_t part = part_of(outcome.start); part <= last; ++part) flight[part] += 1;
  }
  Series chunks{"tokens a second", {}, false}, running{"requests in flight", {}, false};
  for (size_t part = 0; part < parts; ++part) {
    const double time = (static_cast<double>(part) + 0.5) * width;
    chunks.points.emplace_back(time, tokens[part]);
    running.points.emplace_back(time, flight[part]);
  }
  return {.title = "Over time", .x_label = "seconds", .series = {chunks, running}};
}

Plot distribution(const char* title, const Distribution& values) {
  return {.title = title,
          .x_label = "milliseconds",
          .y_label = "% of requests",
          .series = {page::cumulative(title, values.sorted, 1e3)}};
}

std::string plots_of_run(const Step& step) {
  return "<div class=\"plots\">" +
         page::svg_of(distribution("Time to first token", step.statistics.ttft)) +
         page::svg_of(distribution("Time per output token", step.statistics.tpot)) +
         page::svg_of(distribution("End to end", step.statistics.e2el)) +
         page::svg_of(timeline(step.run)) + "</div>\n";
}

// A plot over the steps of a sweep; `place` is what is swept.
Plot sweep(
    const Layer& layer, bool closed, const char* title, const char* y_label,
    const std::vector<std::pair<std::string, std::function<double(const Statistics&)>>>& what) {
  Plot plot{.title = title,
            .x_label = closed ? "requests at a time" : "requests a second, offered",
            .y_label = y_label};
  plot.log_x = closed;
  for (const auto& [name, value] : what) {
    Series series{name, {}, true};
    for (const Step& step : layer.steps) {
      if ((step.concurrency > 0) != closed) continue;
      series.points.emplace_back(closed ? static_cast<double>(step.concurrency) : step.rate,
                                 value(step.statistics));
    }
    plot.series.push_back(series);
  }
  if (layer.knee && closed && layer.knee->concurrency) {
    plot.mark_x = static_cast<double>(*layer.knee->concurrency);
    plot.mark_label = "knee";
  }
  if (layer.knee && !closed && layer.knee->rate) {
    plot.mark_x = *layer.knee->rate;
    plot.mark_label = "knee";
  }
  return plot;
}

std::string plots_of_sweep(const Layer& layer, bool good) {
  const auto ttft = [](double p) {
    return [p](const Statistics& s) { return s.ttft.at(p) * 1e3; };
  };
  const auto tpot = [](const Statistics& s) { return s.tpot.at(99) * 1e3; };
  std::string html = "<div class=\"plots\">";
  for (const bool closed : {true, false}) {
    std::vector<std::pair<std::string, std::function<double(const Statistics&)>>> rates = {
        {"answered", [](const Statistics& s) { return s.request_throughput(); }}};
    if (good) {
      rates.emplace_back("good", [](const Statistics& s) { return s.request_goodput(); });
    }
    html += page::svg_of(
        sweep(layer, closed, "Output tokens", "tokens a second",
              {{"tokens", [](const Statistics& s) { return s.output_throughput(); }}}));
    html += page::svg_of(sweep(layer, closed, "Requests", "requests a second", rates));
    html += page::svg_of(sweep(layer, closed, "Time to first token", "milliseconds",
                               {{"P50", ttft(50)}, {"P99", ttft(99)}}));
    html += page::svg_of(
        sweep(layer, closed, "Time per output token, P99", "milliseconds", {{"P99", tpot}}));
  }
  return html + "</div>\n";
}

std::string section(const Layer& layer, const Goodput& goodput) {
  std::string html = fmt::format("<h2>{}</h2>\n", escaped(layer.name));
  if (layer.knee) {
    html += page::tiles({{layer.knee->concurrency_text, "knee: concurrency"},
                         {layer.knee->rate_text, "knee: rate"}});
    html += fmt::format("<p>The rule: {}.</p>\n", escaped(layer.knee->rule));
  }
  if (!layer.knee && !layer.steps.empty()) {
    const Statistics& s = layer.steps.back().statistics;
    html += page::tiles({{fmt::format("{:.2f}", s.request_throughput()), "req/s"},
                         {fmt::format("{:.1f}", s.output_throughput()), "output tok/s"},
                         {ms(s.ttft.median()), "P50 TTFT, ms"},
                         {ms(s.ttft.at(99)), "P99 TTFT, ms"},
                         {ms(s.tpot.median()), "P50 TPOT, ms"},
                         {ms(s.e2el.at(99)), "P99 E2E, ms"}});
  }
  html += failures_of(layer);
  std::vector<Row> rows;
  for (const Step& step : layer.steps) rows.emplace_back(step.name, &step.statistics);
  html += table_of(rows, "run", goodput.any());
  if (layer.knee) return html + plots_of_sweep(layer, goodput.any());
  for (const Step& step : layer.steps) {
    const auto groups = statistics_by_group(step.run, goodput);
    if (groups.size() > 1 && groups.size() <= 8) {
      std::vector<Row> parts;
      for (const auto& [name, statistics] : groups) parts.emplace_back(name, &statistics);
      html += table_of(parts, "kind", goodput.any());
    }
    html += plots_of_run(step);
  }
  return html;
}

}  // namespace

std::string html_of(const Report& report) {
  std::string body;
  for (const Layer& layer : report.layers) body += section(layer, report.goodput);
  body += page::paragraph(
      "TTFT: from sending a request to its first token. TPOT: (end - first token) / (tokens - 1). "
      "E2E: to the last token. Percentiles are interpolated linearly.");
  return page::document(report.title, report.facts, body);
}

}  // namespace octet::load
