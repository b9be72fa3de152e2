// Prometheus text: parsing, and what two scrapes say about the time between them.

// A Map from a metric's name to its samples [{labels, value}].
export function parseMetrics(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    if (line === "" || line.startsWith("#")) continue;
    const match = /^([A-Za-z_:][\w:]*)(\{.*\})?\s+(\S+)/.exec(line);
    if (!match) continue;
    const [, name, labels, value] = match;
    if (!found.has(name)) found.set(name, []);
    found.get(name).push({ labels: labels ? parseLabels(labels) : {}, value: parseValue(value) });
  }
  return found;
}

function parseLabels(text) {
  const labels = {};
  for (const [, name, value] of text.matchAll(/([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"/g)) {
    labels[name] = value.replace(/\\(.)/g, (_, letter) => (letter === "n" ? "\n" : letter));
  }
  return labels;
}

function parseValue(text) {
  if (text === "+Inf") return Infinity;
  if (text === "-Inf") return -Infinity;
  return Number(text);
}

// The sum of the samples of the first of `names` that there is; NaN if there is none.
export function total(metrics, ...names) {
  for (const name of names) {
    const samples = metrics?.get(name);
    if (samples) return samples.reduce((sum, sample) => sum + sample.value, 0);
  }
  return NaN;
}

// How much a counter grew; after a restart of the server, which begins at zero, what it has now.
export function growth(before, after, ...names) {
  const from = total(before, ...names), to = total(after, ...names);
  if (Number.isNaN(from)) return NaN;
  return to >= from ? to - from : to;
}

// The buckets of a histogram over the time between two scrapes: [{le, count}], counts cumulative.
function buckets(before, after, name) {
  const sums = (metrics) => {
    const byBound = new Map();
    for (const { labels, value } of metrics?.get(`${name}_bucket`) ?? []) {
      const bound = parseValue(labels.le);
      byBound.set(bound, (byBound.get(bound) ?? 0) + value);
    }
    return byBound;
  };
  const from = sums(before), to = sums(after);
  return [...to.keys()].sort((a, b) => a - b)
    .map((le) => ({ le, count: to.get(le) - (from.get(le) ?? 0) }));
}

// A quantile of what a histogram saw between two scrapes, even within a bucket (as PromQL's
// histogram_quantile); NaN if it saw nothing.
export function quantile(before, after, q, ...names) {
  const name = names.find((one) => after?.has(`${one}_bucket`));
  if (!name) return NaN;
  const all = buckets(before, after, name);
  const count = all.at(-1)?.count ?? 0;
  if (!(count > 0)) return NaN;
  const rank = q * count;
  let low = 0, below = 0;
  for (const bucket of all) {
    if (bucket.count >= rank) {
      if (bucket.le === Infinity) return low;
      return low + (bucket.le - low) * ((rank - below) / Math.max(bucket.count - below, 1e-9));
    }
    low = bucket.le;
    below = bucket.count;
  }
  return low;
}

// The samples of a metric by its label `layers` (or `layer`): a Map from "0-3" to the value, in the
// order of the layers.
export function byLayer(metrics, name) {
  const sums = new Map();
  for (const { labels, value } of metrics?.get(name) ?? []) {
    const layer = labels.layers ?? labels.layer;
    if (layer !== undefined) sums.set(layer, (sums.get(layer) ?? 0) + value);
  }
  return new Map([...sums].sort(([a], [b]) => a.localeCompare(b, undefined, { numeric: true })));
}
