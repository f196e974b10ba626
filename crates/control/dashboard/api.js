// Requests to the control API of the same origin.

const KEY = "forebay-token";

// An error that the API has reported, or a failed connection.
export class Problem extends Error {
  constructor(status, message, remedy) {
    super(message);
    this.status = status;
    this.remedy = remedy;
  }

  get sentence() {
    return this.remedy ? `${this.message}: ${this.remedy}` : this.message;
  }
}

// The token in a link of the daemon; null if there is none.
export function tokenIn(link) {
  const found = /[#&]token=([^&\s]+)/.exec(link);
  return found ? decodeURIComponent(found[1]) : null;
}

// The daemon's link has the token in its fragment, which browsers do not send. The token is stored
// for this tab and removed from the address, so that no bookmark contains it.
export function takeToken() {
  const found = tokenIn(location.hash);
  if (found) {
    sessionStorage.setItem(KEY, found);
    history.replaceState(null, "", `${location.pathname}#/`);
  }
}

export function setToken(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

export const token = () => sessionStorage.getItem(KEY);

async function send(method, path, body) {
  const headers = {};
  if (token()) headers.authorization = `Bearer ${token()}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const options = { method, headers, cache: "no-store", credentials: "omit" };
  if (body !== undefined) options.body = JSON.stringify(body);
  if (method === "GET") options.signal = AbortSignal.timeout(10000);
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Problem(0, "no answer from the daemon", "");
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

async function problemOf(response) {
  try {
    const { error } = await response.json();
    return new Problem(response.status, error.message, error.remedy);
  } catch {
    return new Problem(response.status, `the daemon answered ${response.status}`, "");
  }
}

export async function ask(method, path, body) {
  const response = await send(method, path, body);
  const json = await response.json();
  const taken = Number(response.headers.get("forebay-taken-ms"));
  return { json, taken, role: response.headers.get("forebay-role") };
}

// A long operation, which answers with one event a line.
export async function operate(path, onProgress) {
  const response = await send("POST", path);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = lines.pop();
    for (const line of lines.filter(Boolean)) {
      const event = JSON.parse(line);
      if (event.error) throw new Problem(0, event.error.message, event.error.remedy);
      if (event.done) return;
      if (event.progress) onProgress(event.progress);
    }
    if (done) throw new Problem(0, "the connection ended before the operation completed", "");
  }
}

export const volumePath = (name, verb = "") =>
  `/v1/volumes/${encodeURIComponent(name)}${verb ? `/${verb}` : ""}`;
