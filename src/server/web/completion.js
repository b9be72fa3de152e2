// The completion view: one prompt, as it is, and what the model makes of it.

import { postStream } from "/console/api.js";
import { byId } from "/console/dom.js";
import { Clock, Runner } from "/console/run.js";
import { sampling } from "/console/sampling.js";
import { CompletionTokens, TokenRow } from "/console/tokens.js";

// Streams a completion into `container`; `each(choice, chunk)` sees what comes. Gives the text.
export async function complete({ body, container, signal, status, row, each }) {
  const tokens = new CompletionTokens();
  const clock = new Clock();
  let text = "", reason = "";
  container.setAttribute("aria-busy", "true");
  try {
    await postStream("/v1/completions", body, signal, (chunk) => {
      const choice = chunk.choices[0];
      if (!choice) return;
      text += choice.text;
      reason = choice.finish_reason ?? reason;
      const news = tokens.take(choice);
      for (const token of news) {
        if (token.logprob === undefined) row.addText(token.text);
        else row.add(token);
      }
      each?.(choice, chunk);
      clock.saw(news.length);
      status(clock.text());
    });
    status(`${clock.text()}, finished: ${reason}`);
  } finally {
    container.removeAttribute("aria-busy");
  }
  return text;
}

export function startCompletion() {
  const input = byId("completion-input");
  const container = byId("completion-output");
  const append = byId("completion-append");
  const runner = new Runner(byId("completion-form"), async (signal, status) => {
    const { fields, logprobs } = sampling();
    const body = { ...fields, prompt: input.value };
    if (logprobs !== null) body.logprobs = logprobs;
    append.disabled = true;
    try {
      await complete({ body, container, signal, status, row: new TokenRow(container) });
    } finally {
      append.disabled = container.textContent === "";
    }
  });
  append.addEventListener("click", () => {
    input.value += container.textContent;
    container.replaceChildren();
    append.disabled = true;
    input.focus();
  });
  return runner;
}
