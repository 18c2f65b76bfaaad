// The panel beside the list: one thing with its facts, what blocks it, its text, and its story.

import { button, byId, h, show } from "./dom.js";
import { shortId } from "./format.js";
import { read, refused, Trouble } from "./api.js";
import { nextFrame } from "./frame.js";
import { data } from "./state.js";
import { rowActions, stateChip } from "./rows.js";
import { split } from "./thing.js";
import { body } from "./detail_parts.js";
import { roster } from "./views/agents.js";

const SHOWS = {
  task: ["task show", "task"],
  lock: ["lock show", "lock"],
  sem: ["sem show", "semaphore"],
  agent: ["agent show", "name"],
  pipeline: ["pipeline show", "pipeline"],
  decision: ["decision show", "id"],
  quarantine: ["quarantine show", "id"],
  guard: ["guard show", "guard"],
  schedule: ["schedule show", "schedule"],
  merge: ["merge show", "merge"],
};
const EXPLAINED = new Set([
  "task",
  "lock",
  "sem",
  "agent",
  "pipeline",
  "schedule",
  "merge",
  "query",
  "message",
  "request",
]);
const JOINED = /, |\+(?=lock\/|sem\/)/; // several things that were acquired at once
const LEAST_PAUSE = 150;
const AFTER_TROUBLE = 3000;
const SHARE = 3; // of the time, at most a third goes into readings
const POLL = 5000; // a queue moves and a session expires without an event
let open = { thing: "" }; // {thing, close, found, stale, busy, timer, last, pause}

/** Show this thing in the panel; "" closes it. */
export function paintDetail(thing, close) {
  if (open.thing === thing) return;
  const panel = byId("detail");
  clearTimeout(open.timer);
  open = { thing, close, pause: LEAST_PAUSE, last: 0 };
  panel.hidden = !thing;
  document.body.toggleAttribute("data-detail", Boolean(thing));
  if (!thing) {
    panel.replaceChildren();
    return;
  }
  show(panel, head(thing), h("div.body", h("p.muted", "Reading …")));
  panel.querySelector("button")?.focus({ preventScroll: true });
  readAgain(open);
}

/** An event: what it is about is read again. */
export function detailChanged(change) {
  if (open.thing && isAbout(open.thing, change)) readAgain(open);
}

/** What the page knows about agents changed: the head of the panel shows some of it. */
export function repaintDetail() {
  if (open.found && open.thing.startsWith("agent/")) nextFrame("detail body", () => paint(open));
}

/** Anything may have changed: after a gap, an outage, a sleep. */
export function detailStale() {
  if (open.thing) readAgain(open);
}

function isAbout(thing, change) {
  if (thing.startsWith("thread/")) return /^(message|query|alert|decision):/.test(change.event);
  const names = [...change.thing.split(JOINED), change.on, `agent/${change.agent}`, `agent/${change.by}`];
  return names.includes(thing);
}

// One reading at a time, and another one if anything happened after it began: what is shown last was
// read after the last event, however late an answer comes.
function readAgain(mine) {
  mine.stale = true;
  if (mine.busy || mine.timer) return;
  const due = mine.last ? mine.last + mine.pause - performance.now() : 0;
  mine.timer = setTimeout(() => load(mine), Math.max(0, due));
}

async function load(mine) {
  const begun = performance.now();
  Object.assign(mine, { busy: true, stale: false, timer: 0, pause: LEAST_PAUSE });
  try {
    mine.found = await reading(mine.thing);
    if (open === mine) nextFrame("detail body", () => paint(open));
  } catch (error) {
    if (!(error instanceof Trouble)) throw error;
    Object.assign(mine, { stale: true, pause: AFTER_TROUBLE }); // what is shown stays
  } finally {
    mine.busy = false;
    mine.last = performance.now();
    mine.pause = Math.max(mine.pause, (mine.last - begun) * SHARE);
  }
  if (open === mine && mine.stale) readAgain(mine);
}

async function reading(thing) {
  const [kind, id] = thing.startsWith("thread/") ? ["thread", thing.slice(7)] : split(thing);
  const [operation, field] = SHOWS[kind] || [];
  const [shown, why, story] = await Promise.all([
    operation
      ? orNothing(read(operation, { [field]: id }))
      : kind === "thread"
        ? readThread(id)
        : kind === "message" || kind === "query"
          ? readMessage(id)
          : kind === "reservation"
            ? reservationOf(id)
            : kind === "budget"
              ? readBudget(id)
              : null,
    isExplained(kind, id) ? orNothing(read("why", { thing: `${kind}/${id}` })) : null,
    kind === "thread" ? null : orNothing(read("record explain", { thing: `${kind}/${id}`, limit: 100 })),
  ]);
  return { kind, shown, why, story };
}

// To ask why a guard fails that looks at files or commands would let the server look, each time.
const isExplained = (kind, id) =>
  EXPLAINED.has(kind) ||
  (kind === "guard" && data.guards?.some((each) => each.guard === id && !each.outside));

/** An answer; null if there is none for this thing. */
async function orNothing(answer) {
  try {
    const found = await answer;
    return refused(found) ? null : found;
  } catch (error) {
    if (error instanceof Trouble && error.status >= 400 && error.status < 500) return null;
    throw error;
  }
}

// A part that says the same is left alone, so that neither the focus nor a click is lost.
function paint(mine) {
  if (!mine.found) return;
  const { kind, shown, why, story } = mine.found;
  const panel = byId("detail");
  const focused = panel.contains(document.activeElement) ? document.activeElement.textContent : null;
  const item = itemOf(kind, mine.thing, shown);
  const parts = [head(mine.thing, kind, shown), h("div.body", body(kind, shown, why, story))];
  parts.forEach((fresh, n) => {
    fresh.dataset.mark = `${fresh.textContent} ${n ? "" : JSON.stringify(item)}`;
    if (panel.children[n].dataset.mark !== fresh.dataset.mark) panel.children[n].replaceWith(fresh);
  });
  if (focused !== null && !panel.contains(document.activeElement))
    [...panel.querySelectorAll("button, a")]
      .find((each) => each.textContent === focused)
      ?.focus({ preventScroll: true });
}

const readThread = (thread) => read("message list", { thread, limit: 300 });
const readMessage = async (id) => ({ messages: (data.messages || []).filter((each) => each.id === id) });

const readBudget = async (thing) => (await read("budget show", { thing })).budgets[0] || null;
const reservationOf = (id) => (data.reservations || []).find((each) => each.id === id) || null;

const idOf = (thing) => thing.slice(thing.indexOf("/") + 1);
const itemOf = (kind, thing, shown) =>
  kind === "agent" ? roster().find((each) => each.agent === idOf(thing)) : shown;

function head(thing, kind = split(thing)[0], shown = null) {
  const id = idOf(thing);
  const item = itemOf(kind, thing, shown);
  const state = kind === "agent" ? item?.shown : item?.state;
  return h(
    "header",
    h(
      "div.line",
      h("span.muted", kind),
      state && stateChip(state),
      h("span.grow"),
      button("×", () => open.close(), { kind: "quiet", "aria-label": "Close (Esc)" }),
    ),
    h("h2", shown?.title || shortId(id)),
    shown?.title && h("code.id", id),
    item && !item.outcome && rowActions(kind === "sem" ? "semaphore" : kind, item),
  );
}

setInterval(() => {
  if (open.thing && !document.hidden && performance.now() - open.last > POLL) readAgain(open);
}, 1000);
