// Talks to the server: JSON requests, and streams of server-sent events.

// What the server said in an error object, or why it could not be reached.
export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

// The key stays in this tab: sessionStorage ends with it.
const keyName = "octet-api-key";
export function apiKey() {
  return sessionStorage.getItem(keyName) ?? "";
}
export function setApiKey(key) {
  if (key) sessionStorage.setItem(keyName, key);
  else sessionStorage.removeItem(keyName);
}

async function send(path, body, signal) {
  const headers = {};
  if (apiKey()) headers.Authorization = `Bearer ${apiKey()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method: body === undefined ? "GET" : "POST", headers, signal, cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("the server cannot be reached", 0);
  }
  if (!response.ok) throw new ServerError(await explain(response), response.status);
  return response;
}

// The message of {"error": {"message"}}, or else what there is.
async function explain(response) {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text);
    return typeof error === "string" ? error : error.message;
  } catch {
    return text || `${response.status} ${response.statusText}`;
  }
}

export async function getJson(path, signal) {
  return (await send(path, undefined, signal)).json();
}
export async function getText(path, signal) {
  return (await send(path, undefined, signal)).text();
}
export async function postJson(path, body, signal) {
  return (await send(path, body, signal)).json();
}

// The data of each event in a stream of bytes; events end with an empty line.
export class EventParser {
  #decoder = new TextDecoder();
  #rest = "";

  push(bytes) {
    this.#rest += this.#decoder.decode(bytes, { stream: true });
    const events = this.#rest.split(/\r?\n\r?\n/);
    this.#rest = events.pop();
    return events
      .map((event) => event.split(/\r?\n/)
        .filter((line) => line.startsWith("data:"))
        .map((line) => line.slice(5).replace(/^ /, "")).join("\n"))
      .filter((data) => data !== "");
  }
}

// Posts `body` with stream: true and calls `each` with every object of the answer, until [DONE].
export async function postStream(path, body, signal, each) {
  const options = { include_usage: true };
  const response = await send(path, { ...body, stream: true, stream_options: options }, signal);
  const reader = response.body.getReader();
  const parser = new EventParser();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new ServerError("the stream ended before its answer was complete", 0);
    for (const data of parser.push(value)) {
      if (data === "[DONE]") return;
      const object = JSON.parse(data);
      if (object.error) throw new ServerError(object.error.message, object.error.code);
      each(object);
    }
  }
}
