// Words for times, durations, numbers and values.  Times that pass are elements with the moment in
// `data-since`; one ticker a page writes them again each second.

import { h } from "./dom.js";

let skew = 0; // server clock minus this clock, in seconds

/** Note the server's clock, so that ages are right on a laptop whose clock is not. */
export function setServerTime(date) {
  if (date)
    skew =
      Math.abs(Date.parse(date) / 1000 - Date.now() / 1000) > 2
        ? Date.parse(date) / 1000 - Date.now() / 1000
        : 0;
}

export const now = () => Date.now() / 1000 + skew;

/** 42 s, 3 min, 2 h 5 min, 4 d. */
export function duration(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return two(s, 3600, "h", 60, "min");
  return two(s, 86400, "d", 3600, "h");
}

function two(s, large, word, small, less) {
  const rest = Math.floor((s % large) / small);
  return `${Math.floor(s / large)} ${word}${rest ? ` ${rest} ${less}` : ""}`;
}

/** How long ago a moment was, kept up to date; the exact time is its tooltip. */
export function ago(moment, word = "") {
  if (!moment) return h("span.muted", "–");
  return h(
    "time",
    { data: { since: moment, word }, title: exact(moment), datetime: iso(moment) },
    duration(now() - moment) + word,
  );
}

/** How long it is until a moment, kept up to date; "now" when it has come. */
export function until(moment) {
  return h(
    "time",
    { data: { until: moment }, title: exact(moment), datetime: iso(moment) },
    untilText(moment, now()),
  );
}

const untilText = (moment, at) => (moment > at ? `in ${duration(moment - at + 0.999)}` : "now");

const iso = (moment) => {
  const date = new Date(moment * 1000);
  return Number.isNaN(date.getTime()) ? "" : date.toISOString();
};

/** The time of day, and the day if it is another. */
export function clock(moment) {
  const date = new Date(moment * 1000);
  const time = date.toLocaleTimeString([], {
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
    hour12: false,
  });
  return date.toDateString() === new Date().toDateString()
    ? time
    : `${date.toLocaleDateString([], { month: "short", day: "numeric" })} ${time}`;
}

export const exact = (moment) => new Date(moment * 1000).toLocaleString();

export const count = (number) => Number(number || 0).toLocaleString("en");

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/** A value from an agent as text: a text as it is, anything else as JSON. */
export function valueText(value, indent = 0) {
  if (value === null || value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value, null, indent);
}

/** The beginning of a text, in one line. */
export function brief(text, most = 160) {
  const line = String(text).replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}

/** A long id, shortened as the command line accepts it. */
export const shortId = (id) =>
  /^[a-z]{3}_[0-9a-f]{32}$/.test(id) ? `${id.slice(0, 4)}…${id.slice(-6)}` : id;

/** Write passing times again, once a second, those in view only. */
export function startTicker() {
  setInterval(() => {
    if (document.hidden) return;
    const at = now();
    for (const each of document.querySelectorAll("time[data-since]")) {
      const text = duration(at - Number(each.dataset.since)) + (each.dataset.word || "");
      if (each.textContent !== text) each.textContent = text;
    }
    for (const each of document.querySelectorAll("time[data-until]"))
      each.textContent = untilText(Number(each.dataset.until), at);
  }, 1000);
}
