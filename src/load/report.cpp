#include "load/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "load/plot.h"

namespace octet::load {
namespace {

constexpr const char* kStyle = R"(
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#5b6570;--grid:#e3e7ec;--card:#f5f7f9;
--s0:#0b6bcb;--s1:#c2410c;--s2:#15803d;--s3:#7e22ce;--bad:#b42318}
@media (prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e7eaee;--dim:#9aa5b1;--grid:#2b3138;
--card:#1d2127;--s0:#6cb2ff;--s1:#ff9a62;--s2:#6fd48f;--s3:#c79bff;--bad:#ff8a80}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1180px;padding:1rem;background:var(--bg);color:var(--fg);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:.5rem 0}h2{font-size:1.2rem;margin:2rem 0 .5rem}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:0;color:var(--dim)}
dd{margin:0;overflow-wrap:anywhere;color:var(--fg)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.6rem;margin:.8rem 0}
.tile{background:var(--card);border-radius:8px;padding:.6rem .8rem}
.tile b{display:block;font-size:1.3rem}.tile span{color:var(--dim);font-size:.85rem}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{color:var(--dim);font-weight:600}
.plots{margin-top:1rem;display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1rem}
figure{margin:0;background:var(--card);border-radius:8px;padding:.6rem}
figcaption{font-weight:600;font-size:.95rem}svg{width:100%;height:auto;display:block}
svg text{fill:var(--dim);font:12px system-ui,sans-serif}
.grid{stroke:var(--grid)}.mark{stroke:var(--fg);stroke-dasharray:4 3}
.line{fill:none;stroke-width:2;stroke:var(--c)}.dot,.key{fill:var(--c)}
.s0{--c:var(--s0)}.s1{--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}
.bad{color:var(--bad)}p{margin:.5rem 0}
)";

std::string ms(double seconds) {
  const double value = seconds * 1e3;
  return fmt::format("{:.{}f}", value, value < 10 ? 2 : value < 100 ? 1 : 0);
}

std::string tile(const std::string& value, const std::string& name) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>", escaped(value),
                     escaped(name));
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
          .series = {cumulative(title, values.sorted, 1e3)}};
}

std::string plots_of_run(const Step& step) {
  return "<div class=\"plots\">" +
         svg_of(distribution("Time to first token", step.statistics.ttft)) +
         svg_of(distribution("Time per output token", step.statistics.tpot)) +
         svg_of(distribution("End to end", step.statistics.e2el)) + svg_of(timeline(step.run)) +
         "</div>\n";
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
    html += svg_of(sweep(layer, closed, "Output tokens", "tokens a second",
                         {{"tokens", [](const Statistics& s) { return s.output_throughput(); }}}));
    html += svg_of(sweep(layer, closed, "Requests", "requests a second", rates));
    html += svg_of(sweep(layer, closed, "Time to first token", "milliseconds",
                         {{"P50", ttft(50)}, {"P99", ttft(99)}}));
    html +=
        svg_of(sweep(layer, closed, "Time per output token, P99", "milliseconds", {{"P99", tpot}}));
  }
  return html + "</div>\n";
}

std::string section(const Layer& layer, const Goodput& goodput) {
  std::string html = fmt::format("<h2>{}</h2>\n", escaped(layer.name));
  if (layer.knee) {
    html += "<div class=\"tiles\">" + tile(layer.knee->concurrency_text, "knee: concurrency") +
            tile(layer.knee->rate_text, "knee: rate") + "</div>\n";
    html += fmt::format("<p>The rule: {}.</p>\n", escaped(layer.knee->rule));
  }
  if (!layer.knee && !layer.steps.empty()) {
    const Statistics& s = layer.steps.back().statistics;
    html += "<div class=\"tiles\">" + tile(fmt::format("{:.2f}", s.request_throughput()), "req/s") +
            tile(fmt::format("{:.1f}", s.output_throughput()), "output tok/s") +
            tile(ms(s.ttft.median()), "P50 TTFT, ms") + tile(ms(s.ttft.at(99)), "P99 TTFT, ms") +
            tile(ms(s.tpot.median()), "P50 TPOT, ms") + tile(ms(s.e2el.at(99)), "P99 E2E, ms") +
            "</div>\n";
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
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<title>{0}</title><style>{1}</style></head><body>\n<h1>{0}</h1>\n<dl>",
      escaped(report.title), kStyle);
  for (const auto& [name, value] : report.facts) {
    html += fmt::format("<dt>{}</dt><dd>{}</dd>", escaped(name), escaped(value));
  }
  html += "</dl>\n";
  for (const Layer& layer : report.layers) html += section(layer, report.goodput);
  return html +
         "<p>TTFT: from sending a request to its first token. TPOT: (end - first token) / (tokens "
         "- "
         "1). E2E: to the last token. Percentiles are interpolated linearly.</p>\n</body></html>\n";
}

}  // namespace octet::load
