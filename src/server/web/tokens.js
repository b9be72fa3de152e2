// Text as a row of tokens: what the model thought of each is shown on hover and on focus.
//
// One token is a tab stop; the arrow keys go on from it (a "roving" tab index), so that a long
// answer costs one press of Tab.

import { byId, element, percent, visible } from "/console/dom.js";

const nearly = (logprob) => percent(Math.exp(logprob));

// The table of the best tokens: [{token, logprob}], the drawn one marked.
export function tokenTable(token) {
  const table = element("table", { class: "alternatives" });
  table.append(element("caption", {}, element("code", {}, visible(token.text)),
    ` ${nearly(token.logprob)}, log-probability ${token.logprob.toFixed(3)}`));
  for (const one of token.top ?? []) {
    const bar = element("span", { class: "bar" });
    bar.style.setProperty("--part", Math.exp(one.logprob));
    table.append(element("tr", { class: one.token === token.token ? "drawn" : false },
      element("td", {}, element("code", {}, visible(one.token))),
      element("td", { class: "number" }, nearly(one.logprob)),
      element("td", { class: "bars" }, bar)));
  }
  return table;
}

function placeTip(anchor) {
  const tip = byId("tip");
  const box = anchor.getClientRects()[0] ?? anchor.getBoundingClientRect();
  const margin = 8;
  const left = Math.min(Math.max(box.left, margin), innerWidth - tip.offsetWidth - margin);
  const below = box.bottom + 6;
  const fits = below + tip.offsetHeight + margin <= innerHeight || box.top < tip.offsetHeight;
  tip.style.left = `${Math.max(left, margin)}px`;
  tip.style.top = `${fits ? below : box.top - tip.offsetHeight - 6}px`;
}

export function showTip(anchor, content) {
  const tip = byId("tip");
  tip.replaceChildren(content);
  tip.hidden = false;
  anchor.setAttribute("aria-describedby", "tip");
  placeTip(anchor);
}

export function hideTip() {
  byId("tip").hidden = true;
  document.querySelector("[aria-describedby=tip]")?.removeAttribute("aria-describedby");
}

const rows = new WeakMap();  // by container: what ends the listeners of its row

// Fills `container` with tokens. A token is {text, token, logprob, top}; `options`:
//   describe(token)  what the tip shows; tokenTable if not given
//   pick(token, index)  on click and Enter
export class TokenRow {
  #container;
  #describe;
  #pick;
  #tokens = [];
  #spans = [];
  #current = 0;

  constructor(container, { describe = tokenTable, pick = null } = {}) {
    this.#container = container;
    this.#describe = describe;
    this.#pick = pick;
    container.replaceChildren();
    container.classList.add("tokens");
    // One listener each for all tokens; those of an earlier row in the same place end.
    rows.get(container)?.abort();
    rows.set(container, new AbortController());
    const { signal } = rows.get(container);
    const on = (type, act) => container.addEventListener(type, act, { signal });
    on("pointerover", (event) => this.#show(event.target));
    on("pointerout", hideTip);
    on("focusin", (event) => this.#show(event.target));
    on("focusout", hideTip);
    on("click", (event) => this.#picked(event.target));
    on("keydown", (event) => this.#key(event));
  }

  get tokens() { return this.#tokens; }
  span(index) { return this.#spans[index]; }

  // Plain text, where nothing is known of its tokens.
  addText(text) {
    this.#container.append(text);
  }

  add(token) {
    const span = element("span", { class: "token", tabindex: this.#spans.length ? -1 : 0 });
    // Bytes of an unfinished character have no text; they are still a token.
    span.textContent = token.text;
    if (token.text === "") span.classList.add("part");
    if (this.#pick) span.setAttribute("role", "button");
    this.#tokens.push(token);
    this.#spans.push(span);
    this.#container.append(span);
    return span;
  }

  #index(node) {
    return this.#spans.indexOf(node);
  }
  #show(node) {
    const index = this.#index(node);
    if (index >= 0 && this.#tokens[index].logprob !== undefined) {
      showTip(node, this.#describe(this.#tokens[index]));
    }
  }
  #picked(node) {
    const index = this.#index(node);
    if (index < 0) return;
    this.#move(index);
    if (!this.#pick) return;
    hideTip();
    this.#pick(this.#tokens[index], index);
  }
  #move(index) {
    this.#spans[this.#current].tabIndex = -1;
    this.#current = index;
    this.#spans[index].tabIndex = 0;
    this.#spans[index].focus();
  }
  #key(event) {
    const last = this.#spans.length - 1;
    const at = this.#index(event.target);
    if (at < 0) return;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (to !== undefined) {
      this.#move(Math.min(Math.max(to, 0), last));
      event.preventDefault();
    } else if (event.key === "Enter" || event.key === " ") {
      this.#picked(event.target);
      event.preventDefault();
    }
  }
}

// The tokens of a completion's chunk. Their texts are cut from the chunk's own text, since a token
// alone may hold a part of a character only: text_offset counts characters from the beginning.
export class CompletionTokens {
  #seen = 0;  // characters of earlier chunks

  take(choice) {
    const letters = Array.from(choice.text);
    const begin = this.#seen;
    this.#seen += letters.length;
    const known = choice.logprobs;
    if (!known?.tokens?.length) return choice.text ? [{ text: choice.text }] : [];
    // What was held back of a token that an earlier chunk brought.
    const rest = letters.slice(0, Math.max(known.text_offset[0] - begin, 0)).join("");
    const tokens = known.tokens.map((token, i) => ({
      token,
      text: letters.slice(known.text_offset[i] - begin,
        (known.text_offset[i + 1] ?? begin + letters.length) - begin).join(""),
      logprob: known.token_logprobs[i],
      top: Object.entries(known.top_logprobs?.[i] ?? {})
        .map(([text, logprob]) => ({ token: text, logprob }))
        .sort((a, b) => b.logprob - a.logprob),
    }));
    return rest ? [{ text: rest }, ...tokens] : tokens;
  }
}

// The same of chat, where each token brings its bytes.
export class ChatTokens {
  #decoder = new TextDecoder();

  take(choice) {
    const known = choice.logprobs?.content;
    if (!known?.length) {
      const text = choice.delta?.content ?? "";
      return text ? [{ text }] : [];
    }
    return known.map((one) => ({
      token: one.token,
      text: one.bytes ? this.#decoder.decode(new Uint8Array(one.bytes), { stream: true })
        : one.token,
      logprob: one.logprob,
      top: one.top_logprobs ?? [],
    }));
  }
}
