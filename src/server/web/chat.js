// The chat view: a conversation that lives in this page alone.

import { postStream } from "/console/api.js";
import { byId, element } from "/console/dom.js";
import { Clock, Runner } from "/console/run.js";
import { sampling } from "/console/sampling.js";
import { ChatTokens, TokenRow } from "/console/tokens.js";

let messages = [];

function bubble(role) {
  const text = element("div", { class: "text" });
  const log = byId("chat-log");
  log.append(element("article", { class: `message ${role}` },
    element("h2", {}, role === "user" ? "You" : "Model"), text));
  log.scrollTop = log.scrollHeight;
  return text;
}

function buttons() {
  byId("chat-retry").disabled = !messages.some((message) => message.role === "user");
}

async function answer(signal, status) {
  const { fields, logprobs, system } = sampling();
  const conversation = messages;  // "New chat" may begin another one meanwhile
  const body = { ...fields, messages: [...conversation] };
  if (system) body.messages.unshift({ role: "system", content: system });
  if (logprobs !== null) Object.assign(body, { logprobs: true, top_logprobs: logprobs });

  const log = byId("chat-log");
  const text = bubble("assistant");
  const row = new TokenRow(text);
  const tokens = new ChatTokens();
  const clock = new Clock();
  let content = "", reason = "";
  text.setAttribute("aria-busy", "true");
  try {
    await postStream("/v1/chat/completions", body, signal, (chunk) => {
      const choice = chunk.choices[0];
      if (!choice) return;
      content += choice.delta?.content ?? "";
      reason = choice.finish_reason ?? reason;
      const stays = log.scrollTop + log.clientHeight < log.scrollHeight - 40;
      const news = tokens.take(choice);
      for (const token of news) {
        if (token.logprob === undefined) row.addText(token.text);
        else row.add(token);
      }
      clock.saw(news.length);
      status(clock.text());
      if (!stays) log.scrollTop = log.scrollHeight;
    });
    status(`${clock.text()}, finished: ${reason}`);
  } finally {
    text.removeAttribute("aria-busy");
    // What came before a stop is part of the conversation.
    if (content) conversation.push({ role: "assistant", content });
    else text.parentElement.remove();
    buttons();
  }
}

export function startChat() {
  const input = byId("chat-input");
  const runner = new Runner(byId("chat-form"), async (signal, status) => {
    const content = input.value;
    if (content.trim() === "") return;
    input.value = "";
    messages.push({ role: "user", content });
    bubble("user").textContent = content;
    buttons();
    await answer(signal, status);
  });
  byId("chat-retry").addEventListener("click", () => {
    if (runner.busy) return;
    if (messages.at(-1)?.role === "assistant") {
      messages.pop();
      byId("chat-log").lastElementChild.remove();
    }
    runner.start(answer);
  });
  byId("chat-new").addEventListener("click", () => {
    runner.stop();
    messages = [];
    byId("chat-log").replaceChildren();
    runner.status("");
    buttons();
    input.focus();
  });
  return runner;
}
