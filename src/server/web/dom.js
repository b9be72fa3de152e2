// Makes elements. Text is always text: nothing here, or anywhere in the console, parses HTML.

export const byId = (id) => document.getElementById(id);

// element("td", {class: "number"}, "1.5", child, ...): strings become text nodes.
export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === undefined || value === null) continue;
    node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

// A number as people read it: three digits that count.
export function shortNumber(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e6) return `${(value / 1e6).toPrecision(3)} M`;
  if (size >= 1e4) return `${(value / 1e3).toPrecision(3)} k`;
  if (size >= 100) return value.toFixed(0);
  if (size >= 0.001) return String(Number(value.toPrecision(3)));
  return value.toExponential(1);
}

export function seconds(value) {
  if (!Number.isFinite(value)) return "–";
  return value < 1 ? `${shortNumber(value * 1000)} ms` : `${shortNumber(value)} s`;
}

export function percent(value) {
  return Number.isFinite(value) ? `${shortNumber(100 * value)} %` : "–";
}

// What a token looks like where its white space must be seen.
export function visible(text) {
  if (text === "") return "∅";
  return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣");
}
