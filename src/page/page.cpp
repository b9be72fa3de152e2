#include "page/page.h"

#include <fmt/format.h>

#include "page/plot.h"

namespace octet::page {
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
.texts td{text-align:left;white-space:pre-wrap;vertical-align:top;overflow-wrap:anywhere}
.texts th{text-align:left}
.heat td{text-align:center;border:1px solid var(--bg);color:var(--fg)}
)";

std::string head_of(const std::vector<std::string>& header) {
  std::string html = "<thead><tr>";
  for (const std::string& name : header) html += fmt::format("<th>{}</th>", escaped(name));
  return html + "</tr></thead>";
}

std::string cells_of(const std::vector<std::string>& row) {
  std::string html = "<tr>";
  for (const std::string& cell : row) html += fmt::format("<td>{}</td>", escaped(cell));
  return html + "</tr>\n";
}

std::string table_of(std::string_view kind, const std::vector<std::string>& header,
                     const std::vector<std::vector<std::string>>& rows) {
  std::string html =
      fmt::format("<div class=\"scroll\"><table{}>", kind) + head_of(header) + "<tbody>\n";
  for (const std::vector<std::string>& row : rows) html += cells_of(row);
  return html + "</tbody></table></div>\n";
}

}  // namespace

std::string document(std::string_view title,
                     const std::vector<std::pair<std::string, std::string>>& facts,
                     std::string_view body) {
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<title>{0}</title><style>{1}</style></head><body>\n<h1>{0}</h1>\n<dl>",
      escaped(title), kStyle);
  for (const auto& [name, value] : facts) {
    html += fmt::format("<dt>{}</dt><dd>{}</dd>", escaped(name), escaped(value));
  }
  html += "</dl>\n";
  html += body;
  return html + "</body></html>\n";
}

std::string heading(std::string_view text) {
  return fmt::format("<h2>{}</h2>\n", escaped(text));
}

std::string paragraph(std::string_view text) {
  return fmt::format("<p>{}</p>\n", escaped(text));
}

std::string tiles(const std::vector<std::pair<std::string, std::string>>& values) {
  std::string html = "<div class=\"tiles\">";
  for (const auto& [value, name] : values) {
    html += fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>", escaped(value),
                        escaped(name));
  }
  return html + "</div>\n";
}

std::string table(const std::vector<std::string>& header,
                  const std::vector<std::vector<std::string>>& rows) {
  return table_of("", header, rows);
}

std::string heat_map(const HeatMap& map) {
  std::vector<std::string> header = {map.corner};
  header.insert(header.end(), map.columns.begin(), map.columns.end());
  std::string html =
      fmt::format("<figure><figcaption>{}</figcaption><div class=\"scroll\"><table class=\"heat\">",
                  escaped(map.title));
  html += head_of(header) + "<tbody>\n";
  for (size_t row = 0; row < map.rows.size(); ++row) {
    html += fmt::format("<tr><td>{}</td>", escaped(map.rows[row]));
    for (const std::optional<double>& share : map.shares[row]) {
      html += share ? fmt::format(
                          "<td style=\"background:color-mix(in srgb,var(--s2) {:.0f}%,"
                          "var(--bad) {:.0f}%)\">{:.0f} %</td>",
                          100 * *share, 100 - 100 * *share, 100 * *share)
                    : "<td></td>";
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div></figure>\n";
}

std::string plots(const std::vector<std::string>& svgs) {
  std::string html = "<div class=\"plots\">";
  for (const std::string& svg : svgs) html += svg;
  return html + "</div>\n";
}

std::string texts(const std::vector<std::string>& header,
                  const std::vector<std::vector<std::string>>& rows) {
  return table_of(" class=\"texts\"", header, rows);
}

}  // namespace octet::page
