// The dashboard: /metrics, once a second, while it is looked at. What the server does not tell is
// shown as a dash.

import { getText } from "/console/api.js";
import { heatMap, sparkline } from "/console/chart.js";
import { byId, element, percent, seconds, shortNumber } from "/console/dom.js";
import { byLayer, growth, parseMetrics, quantile, total } from "/console/metrics.js";

const kept = 120;      // scrapes that the lines show
const windowed = 10;   // scrapes that latencies look back on

// value(now, before, past, dt): of the last scrape, the one before it, and one `windowed` ago.
const cards = [
  { title: "Output", unit: (v) => `${shortNumber(v)} tokens/s`,
    value: (now, before, past, dt) =>
      growth(before, now, "octet_generation_tokens_total", "vllm:generation_tokens_total") / dt },
  { title: "Prompts", unit: (v) => `${shortNumber(v)} tokens/s`,
    value: (now, before, past, dt) =>
      growth(before, now, "octet_prompt_tokens_total", "vllm:prompt_tokens_total") / dt },
  { title: "First token, P50", unit: seconds,
    value: (now, before, past) => quantile(past, now, 0.5, "octet_time_to_first_token_seconds",
      "vllm:time_to_first_token_seconds") },
  { title: "First token, P95", unit: seconds,
    value: (now, before, past) => quantile(past, now, 0.95, "octet_time_to_first_token_seconds",
      "vllm:time_to_first_token_seconds") },
  { title: "Between tokens, P50", unit: seconds,
    value: (now, before, past) => quantile(past, now, 0.5, "octet_inter_token_latency_seconds",
      "vllm:inter_token_latency_seconds") },
  { title: "Between tokens, P95", unit: seconds,
    value: (now, before, past) => quantile(past, now, 0.95, "octet_inter_token_latency_seconds",
      "vllm:inter_token_latency_seconds") },
  { title: "Running", unit: shortNumber,
    value: (now) => total(now, "octet_num_requests_running", "octet_requests_running",
      "vllm:num_requests_running") },
  { title: "Waiting", unit: shortNumber,
    value: (now) => total(now, "octet_num_requests_waiting", "octet_requests_waiting",
      "vllm:num_requests_waiting") },
  { title: "KV cache in use", unit: percent,
    value: (now) => total(now, "octet_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc") },
  { title: "Prefix hits, 10 s", unit: percent,
    value: (now, before, past) =>
      growth(past, now, "octet_prefix_cache_hits_total", "vllm:prefix_cache_hits_total") /
      growth(past, now, "octet_prefix_cache_queries_total", "vllm:prefix_cache_queries_total") },
  { title: "Requests finished, all", unit: shortNumber,
    value: (now) => total(now, "octet_requests_ended_total", "vllm:request_success_total") },
  { title: "Preemptions, all", unit: shortNumber,
    value: (now) => total(now, "octet_num_preemptions_total", "octet_preemptions_total",
      "vllm:num_preemptions_total") },
];

let scrapes = [];    // {at, metrics}, the newest last
let series = cards.map(() => []);
let layers = new Map();  // by layer: shares, the newest last
let timer = null;
let polling = null;  // aborts the scrape that is under way

function push(values, value) {
  values.push(value);
  if (values.length > kept) values.shift();
}

// The saturated share of the values of the KV cache that were sampled since the last scrape. Layers
// are sampled in turn, so that most scrapes tell of some only.
function readLayers(now, before) {
  const saturated = "octet_kv_saturated_values_total", sampled = "octet_kv_sampled_values_total";
  const hits = byLayer(now, saturated), hitsBefore = byLayer(before, saturated);
  const seen = byLayer(now, sampled), seenBefore = byLayer(before, sampled);
  for (const [layer, value] of hits) {
    if (!layers.has(layer)) layers.set(layer, []);
    const part = seen.get(layer) - (seenBefore.get(layer) ?? 0);
    push(layers.get(layer), (value - (hitsBefore.get(layer) ?? 0)) / part);
  }
}

function draw() {
  byId("cards").replaceChildren(...cards.map((card, i) => {
    const newest = series[i].at(-1) ?? NaN;
    return element("article", { class: "card" }, element("h3", {}, card.title),
      element("p", { class: "figure" }, card.unit(newest)), sparkline(series[i], kept));
  }));
  const rows = [...layers].map(([name, values]) => {
    const last = values.findLast(Number.isFinite) ?? NaN;
    return { name: name.replace(/^(\d+)-\1$/, "$1"), values, label: percent(last) };
  });
  byId("heat").replaceChildren(rows.length ? heatMap(rows, kept)
    : element("p", { class: "hint" }, "This server tells no FP8 saturation by layer (yet)."));
}

async function poll() {
  polling = new AbortController();
  try {
    const metrics = parseMetrics(await getText("/metrics", polling.signal));
    const now = { at: performance.now(), metrics };
    const before = scrapes.at(-1);
    const past = scrapes.at(-windowed) ?? scrapes[0];
    if (before) {
      const dt = (now.at - before.at) / 1000;
      cards.forEach((card, i) =>
        push(series[i], card.value(metrics, before.metrics, past.metrics, dt)));
      readLayers(metrics, before.metrics);
      draw();
    }
    scrapes.push(now);
    if (scrapes.length > windowed + 1) scrapes.shift();
    byId("dashboard-status").textContent = "Live, once a second.";
  } catch (error) {
    if (error.name === "AbortError") return;
    byId("dashboard-status").textContent = `No metrics: ${error.message}`;
    // Nothing there, or nothing for us: asking again would not help until this view is opened again.
    if (error.status >= 400 && error.status < 500) return stopDashboard();
  }
  if (timer !== null) timer = setTimeout(poll, 1000);
}

export function startDashboard() {
  if (timer !== null) return;
  if (!scrapes.length) draw();
  timer = 0;
  poll();
}

export function stopDashboard() {
  if (timer === null) return;
  clearTimeout(timer);
  polling?.abort();
  timer = null;
  // A pause would look like one long second.
  scrapes = [];
}
