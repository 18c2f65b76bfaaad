// Calls of the server: a declared operation by its name, with its fields, and its answer.

import { setServerTime } from "./format.js";

/** An answer that could not be had: `code` is that of the error, or "offline". */
export class Trouble extends Error {
  constructor(code, message, status = 0) {
    super(message);
    this.code = code;
    this.status = status;
  }
}

const MOST_WAIT = 20_000;
const refusals = new WeakSet();

async function fetched(url, init) {
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), MOST_WAIT);
  try {
    const answer = await fetch(url, { ...init, signal: abort.signal, credentials: "same-origin" });
    setServerTime(answer.headers.get("date"));
    const body = await answer.json().catch(() => null);
    if (!answer.ok && body?.outcome) refusals.add(body); // an error has no outcome
    if (body && (answer.ok || refusals.has(body))) return body;
    if (answer.ok) throw new Trouble("offline", "The answer of the server was cut off.");
    throw new Trouble(
      body?.error || String(answer.status),
      body?.message || `The server answered ${answer.status}.`,
      answer.status,
    );
  } catch (error) {
    if (error instanceof Trouble) throw error;
    throw new Trouble("offline", "The server does not answer.");
  } finally {
    clearTimeout(timer);
  }
}

const path = (operation) => `/api/${operation.split(" ").join("/")}`;

/** Read: `read("task list", {state: ["running"], limit: 100})`; may be a refusal, as of `act`. */
export function read(operation, fields = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(fields)) {
    for (const each of Array.isArray(value) ? value : [value]) query.append(name, String(each));
  }
  const words = query.toString();
  return fetched(path(operation) + (words ? `?${words}` : ""), {});
}

/** Act: the outcome, which may be a refusal (`refused(outcome)`). */
export function act(operation, fields) {
  return fetched(path(operation), {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(fields),
  });
}

/** Why an outcome is a refusal, in words; "" if it is none. */
export function refused(outcome) {
  if (!refusals.has(outcome)) return "";
  const why = outcome.reason || (outcome.state ? `it is ${outcome.state}` : "") || outcome.message || "";
  return `${outcome.outcome.replaceAll("_", " ")}${why ? `: ${why}` : ""}`;
}
