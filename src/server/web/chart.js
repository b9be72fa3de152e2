// Small drawings without a library: a line over time, and a heat map of layers over time.

import { element, svg } from "/console/dom.js";

// A line through the finite values of `values`, from 0 to the largest; gaps stay gaps.
export function sparkline(values, length) {
  const width = 240, height = 48;
  const largest = Math.max(...values.filter(Number.isFinite), 1e-12);
  const x = (i) => ((i + length - values.length) / (length - 1)) * width;
  const y = (value) => height - 2 - (value / largest) * (height - 6);
  let path = "", pen = "M";
  values.forEach((value, i) => {
    if (!Number.isFinite(value)) {
      pen = "M";
      return;
    }
    path += `${pen}${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
    // A value alone is a dot.
    if (pen === "M" && !Number.isFinite(values[i + 1])) path += "h0.1";
    pen = "L";
  });
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none",
    class: "sparkline", "aria-hidden": "true" },
    svg("path", { d: `M0 ${height - 1}H${width}`, class: "ground" }),
    svg("path", { d: path, class: "line" }));
}

// By orders of magnitude: 0 at a share of 1e-6 and below, 1 only where all values are at the end.
export function shareHeat(share) {
  if (!(share > 1e-6)) return 0;
  return Math.min(Math.log10(share / 1e-6) / 6, 1);
}

// rows: [{name, values, label}], the newest value last; each cell is a place in time.
export function heatMap(rows, length) {
  const cell = 6, height = 12;
  const map = element("div", { class: "heat-rows" });
  for (const row of rows) {
    const picture = svg("svg", { viewBox: `0 0 ${length * cell} ${height}`, class: "heat-row",
      preserveAspectRatio: "none", role: "img", "aria-label": `layer ${row.name}: ${row.label}` });
    row.values.forEach((value, i) => {
      const rect = svg("rect", { x: (i + length - row.values.length) * cell, y: 0, width: cell,
        height, class: Number.isFinite(value) ? "cell" : "cell none" });
      rect.style.setProperty("--heat", shareHeat(value));
      picture.append(rect);
    });
    map.append(element("span", { class: "heat-name" }, row.name), picture,
      element("span", { class: "heat-value number" }, row.label));
  }
  return map;
}
