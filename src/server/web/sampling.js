// The sampling controls, shared by all views. What is left at its default is not sent, so that the
// server's own defaults count.

import { byId, element } from "/console/dom.js";

const fields = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05 },
  { name: "top_p", label: "Top p", min: 0.01, max: 1, step: 0.01 },
  { name: "top_k", label: "Top k", min: 0, max: 100000, step: 1, whole: true },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01 },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1 },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1 },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 2, step: 0.01 },
  { name: "seed", label: "Seed", min: 0, max: 9007199254740991, step: 1, whole: true },
  { name: "max_tokens", label: "Most tokens", min: 1, max: 1000000, step: 1, value: "256", whole: true },
  { name: "logprobs", label: "Best tokens shown", min: 0, max: 20, step: 1, value: "5", whole: true },
];

export function buildSampling() {
  const form = byId("sampling");
  for (const field of fields) {
    form.append(element("label", {}, field.label, element("input", {
      type: "number", name: field.name, min: field.min, max: field.max, step: field.step,
      value: field.value ?? "", inputmode: field.whole ? "numeric" : "decimal",
      placeholder: field.name === "seed" ? "random" : "default",
    })));
  }
  form.append(element("label", { class: "wide" }, "Stop strings, one a line (\\n is a line break)",
    element("textarea", { name: "stop", rows: 2, spellcheck: "false" })));
  form.append(element("label", { class: "wide" }, "System message (chat)",
    element("textarea", { name: "system", rows: 2 })));
  form.append(element("button", { type: "reset", class: "quiet" }, "Reset"));
  form.addEventListener("submit", (event) => event.preventDefault());
}

function stopStrings(text) {
  return text.split("\n").filter((line) => line !== "")
    .map((line) => line.replaceAll("\\n", "\n").replaceAll("\\t", "\t"));
}

// The fields of a request, and what goes elsewhere: {fields, logprobs, system}. A number that is
// wrong is sent all the same: the server says what it accepts.
export function sampling() {
  const form = byId("sampling");
  const out = {};
  for (const field of fields) {
    const text = form.elements[field.name].value.trim();
    if (text === "" || field.name === "logprobs") continue;
    const value = Number(text);
    // Beyond this, JavaScript would send another number than was typed.
    if (field.whole && Math.abs(value) > Number.MAX_SAFE_INTEGER) {
      throw new Error(`${field.label}: at most ${Number.MAX_SAFE_INTEGER}`);
    }
    out[field.name] = value;
  }
  const stop = stopStrings(form.elements.stop.value);
  if (stop.length) out.stop = stop;
  const logprobs = form.elements.logprobs.value.trim();
  return {
    fields: out,
    logprobs: logprobs === "" ? null : Number(logprobs),
    system: form.elements.system.value,
  };
}
