// The microscope: each token of an answer coloured by how far the served model's prediction is from
// the baseline's; a token that is picked shows both predictions, and which parts of the model make
// the difference.

import { postJson } from "/console/api.js";
import { complete } from "/console/completion.js";
import { byId, element, percent, shortNumber, visible } from "/console/dom.js";
import { Runner, showError } from "/console/run.js";
import { sampling } from "/console/sampling.js";
import { TokenRow } from "/console/tokens.js";

// 0 below a thousandth of a nat, 1 from one nat on, even steps of the logarithm between them.
const least = 1e-3, most = 1;
export function heat(kl) {
  if (!(kl > least)) return 0;
  return Math.min(Math.log(kl / least) / Math.log(most / least), 1);
}

let view = null;  // {tokens: ids, promptTokens, row} of the answer that is shown
let lookup = null;  // aborts the details that are being fetched

function tip(token) {
  const body = element("div", {});
  const rows = [["KL to the baseline", `${shortNumber(token.kl)} nats`],
    ["served gives it", percent(Math.exp(token.logprob))],
    ["baseline gives it", percent(Math.exp(token.baseline_logprob))]];
  body.append(element("p", {}, element("code", {}, visible(token.text || token.token))));
  const list = element("dl", {});
  for (const [name, value] of rows) {
    list.append(element("dt", {}, name), element("dd", {}, value));
  }
  body.append(list);
  return body;
}

function alternatives(token) {
  const table = element("table", { class: "both" },
    element("caption", {}, "Best tokens of both"),
    element("tr", {}, ...["token", "served", "baseline"].map((name) =>
      element("th", { scope: "col" }, name))));
  for (const one of token.alternatives) {
    const cell = (logprob, side) => {
      const bar = element("span", { class: `bar ${side}` });
      bar.style.setProperty("--part", Math.exp(logprob));
      return element("td", {}, element("span", { class: "number" }, percent(Math.exp(logprob))), bar);
    };
    table.append(element("tr", { class: one.id === token.id ? "drawn" : false },
      element("th", { scope: "row" }, element("code", {}, visible(one.token))),
      cell(one.logprob, "served"), cell(one.baseline_logprob, "baseline")));
  }
  return table;
}

// With one digit behind the point, so that a column can be compared at a glance.
const tenths = (share) => `${(100 * share).toFixed(1).replace(/^-0\.0$/, "0.0")} %`;
const nameOf = (part) => (part.layer < 0 ? "embedding" : `layer ${part.layer} ${part.part}`);

// One line for each part, in the model's order, its bar from the middle: shares may be negative.
function partsTable(parts) {
  const largest = Math.max(...parts.map((part) => Math.abs(part.share)), 1e-9);
  const table = element("table", { class: "parts" },
    element("caption", {}, "Parts of the model, in their order"),
    element("tr", {}, element("th", { scope: "col" }, "part"),
      element("th", { scope: "col", colspan: 2 }, "share"),
      element("th", { scope: "col" }, "adds"),
      element("th", { scope: "col" }, "differs")));
  for (const part of parts) {
    const bar = element("span", { class: part.share < 0 ? "swing against" : "swing" });
    bar.style.setProperty("--part", Math.abs(part.share) / largest);
    table.append(element("tr", {},
      element("th", { scope: "row" }, nameOf(part)),
      element("td", { class: "swings" }, bar),
      element("td", { class: "number" }, tenths(part.share)),
      element("td", { class: "number" }, tenths(part.added)),
      element("td", { class: "number" }, tenths(part.difference))));
  }
  return table;
}

function partsSentence(parts) {
  const best = [...parts].sort((a, b) => b.share - a.share).slice(0, 3).filter((p) => p.share > 0);
  if (!best.length) return "The two streams are the same here.";
  return `Most of the difference that reaches the head comes from ${best
    .map((part) => `${nameOf(part)} (${percent(part.share)})`).join(", ")}.`;
}

async function pick(token) {
  lookup?.abort();
  lookup = new AbortController();
  const { signal } = lookup;
  const detail = byId("microscope-detail");
  const parts = element("div", { class: "wide" }, element("p", { class: "hint" }, "Looking into the layers…"));
  detail.hidden = false;
  detail.replaceChildren(
    element("h2", {}, "Token ", element("code", {}, visible(token.text || token.token)),
      ` KL ${shortNumber(token.kl)} nats`),
    element("div", { class: "pair" }, alternatives(token), parts));
  if (!view.parts) {
    parts.replaceChildren(element("p", { class: "hint" },
      "The baseline has other layers than the model: they cannot be compared."));
    return;
  }
  try {
    const found = await postJson("/v1/octet/microscope",
      { tokens: view.tokens, prompt_tokens: view.promptTokens, position: token.index }, signal);
    parts.replaceChildren(element("p", {}, partsSentence(found.parts)), partsTable(found.parts),
      element("p", { class: "hint" },
        "Share: how much of the difference of the residual streams before the head this part adds, " +
        "all together 100 %. Adds: the difference of what it adds, against the size of the stream. " +
        "Differs: how far the streams are from each other behind it. " +
        "A part whose input differs already adds a difference even where its own arithmetic is exact."));
  } catch (error) {
    if (error.name !== "AbortError") showError(error);
  }
}

// Colours the answer. `ids` is what the server said of the tokens, or nothing if it did not: then
// the texts are tokenized again, which may cut them elsewhere.
async function compare(request, signal, status) {
  status("comparing with the baseline");
  const found = await postJson("/v1/octet/microscope", { ...request, top: 5 }, signal);
  const output = byId("microscope-output");
  const row = new TokenRow(output, { describe: tip, pick });
  const tokens = [found.first.id, ...found.tokens.map((token) => token.id)];
  view = { ...view, tokens, promptTokens: found.prompt_tokens, row };
  for (const token of found.tokens) {
    if (token.index < found.prompt_tokens) continue;
    const span = row.add(token);
    span.style.setProperty("--heat", heat(token.kl));
    span.classList.add("heated");
    span.classList.toggle("other", !token.same_top1);
    span.setAttribute("aria-label", `${token.text}, KL ${shortNumber(token.kl)}`);
  }
  byId("microscope-summary").textContent =
    `${row.tokens.length} tokens: mean KL ${shortNumber(found.mean_kl)} nats, the same most likely ` +
    `token at ${percent(found.top1_agreement)} of them.`;
  return found;
}

// Shows where the baseline's own answer leaves the served one.
function showBaseline(text, served) {
  const output = byId("baseline-output");
  let same = 0;
  while (same < text.length && text[same] === served[same]) ++same;
  output.replaceChildren(element("span", { class: "same" }, text.slice(0, same)),
    element("span", { class: "leaves" }, text.slice(same)));
}

async function run(signal, status) {
  const prompt = byId("microscope-input").value;
  const asChat = byId("microscope-chat").checked;
  const { fields, system } = sampling();
  const output = byId("microscope-output");
  const row = new TokenRow(output);
  byId("baseline-output").replaceChildren();
  byId("microscope-summary").textContent = "";
  byId("microscope-detail").hidden = true;
  lookup?.abort();

  const body = { temperature: 0, ...fields, prompt, return_token_ids: true };
  if (asChat) {
    const messages = [{ role: "user", content: prompt }];
    if (system) messages.unshift({ role: "system", content: system });
    body.prompt = (await postJson("/tokenize", { messages }, signal)).tokens;
  }
  let promptIds = asChat ? body.prompt : null;
  const ids = [];
  const text = await complete({
    body, container: output, signal, status, row,
    each: (choice, chunk) => {
      promptIds ??= choice.prompt_token_ids ?? chunk.prompt_token_ids ?? null;
      ids.push(...(choice.token_ids ?? []));
    },
  });
  const exact = promptIds !== null && ids.length > 0;
  const request = exact ? { tokens: [...promptIds, ...ids], prompt_tokens: promptIds.length }
    : { prompt, completion: text };
  const found = await compare(request, signal, status);
  status("the baseline writes its own answer");
  const start = view.tokens.slice(0, found.prompt_tokens);
  const count = Math.max(view.tokens.length - start.length, 1);
  const baseline = await postJson("/v1/octet/baseline", { tokens: start, max_tokens: count }, signal);
  showBaseline(baseline.text, text);
  status(exact ? "done" : "done; the tokens are those of the text, which need not be those drawn");
}

export function startMicroscope(baseline) {
  view = { parts: baseline.parts };
  byId("tab-microscope").hidden = false;
  byId("baseline-title").textContent = `Baseline ${baseline.baseline}, greedy`;
  for (let step = 0; step <= 6; ++step) {
    const kl = least * (most / least) ** (step / 6);
    const cell = element("span", { class: "heated" }, kl >= 0.1 ? kl.toFixed(1) : kl.toPrecision(1));
    cell.style.setProperty("--heat", heat(kl));
    byId("legend").append(cell);
  }
  return new Runner(byId("microscope-form"), run);
}
