// One request at a time in each view: its stop button, its status line, its errors.

import { byId, seconds, shortNumber } from "/console/dom.js";

export function showError(error) {
  const box = byId("error");
  box.textContent = error.message;
  box.hidden = false;
}
export function clearError() {
  byId("error").hidden = true;
}

// How long an answer took, as it comes: counts tokens (or chunks, where tokens are not told).
export class Clock {
  #begin = performance.now();
  #first = null;
  tokens = 0;

  saw(tokens) {
    if (tokens > 0) this.#first ??= performance.now();
    this.tokens += tokens;
  }
  text() {
    if (this.#first === null) return "waiting for the first token";
    const rate = (this.tokens - 1) / ((performance.now() - this.#first) / 1000);
    return `${this.tokens} tokens, first after ${seconds((this.#first - this.#begin) / 1000)}` +
      (this.tokens > 1 ? `, ${shortNumber(rate)} tokens/s` : "");
  }
}

export class Runner {
  #form;
  #abort = null;

  // `work(signal, status)` runs on submit; Ctrl+Enter submits, Esc and the stop button abort.
  constructor(form, work) {
    this.#form = form;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.start(work);
    });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    form.querySelector("[data-role=stop]").addEventListener("click", () => this.stop());
  }

  get busy() { return this.#abort !== null; }
  stop() { this.#abort?.abort(); }

  status(text) {
    this.#form.querySelector(".status").textContent = text;
  }

  async start(work) {
    if (this.busy) return;
    clearError();
    this.status("");
    this.#abort = new AbortController();
    this.#buttons(true);
    try {
      await work(this.#abort.signal, (text) => this.status(text));
    } catch (error) {
      if (error.name === "AbortError") {
        this.status("stopped");
      } else {
        this.status("");
        showError(error);
      }
    } finally {
      this.#abort = null;
      this.#buttons(false);
    }
  }

  #buttons(busy) {
    const stop = this.#form.querySelector("[data-role=stop]");
    const submit = this.#form.querySelector("[type=submit]");
    const focused = document.activeElement;
    stop.disabled = !busy;
    submit.disabled = busy;
    // A disabled button loses the focus; the keyboard goes on where it makes sense.
    if (busy && focused === submit) stop.focus();
    if (!busy && focused === stop) submit.focus();
  }
}
