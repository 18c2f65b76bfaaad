// What the page knows: one resource for each list of the server, read again when an event says that
// it changed.
//
// Events have no content, so a change means a read: at once, then at most once per interval, which
// grows with the time that a read takes.  A slow server is asked less often, never faster.  Lists
// that also change without a commit (a queue, a lapsed session) are read every few seconds.

import { Trouble } from "./api.js";
import { RESOURCES } from "./resources.js";
import { takeTaskChanges, taskChanged } from "./task_store.js";

const LEAST_PAUSE = 120;
const SHARE = 3; // of the time, at most a third goes into reads of one resource

const HEALTH_EVENTS =
  /:(dead|failed|lapsed|deadlock|retried|cancelled|requeued|reclaimed|acknowledged|broken|left)$/;
const ALWAYS = ["health", "decisions", "quarantine", "agents", "tasks", "locks", "semaphores", "pipelines"];
const UNSEEN = 5; // lists that no view shows are polled less often
// and read at most once in so many milliseconds
const UNSEEN_PAUSE = { health: 1000, decisions: 1000, quarantine: 1000, tasks: 1000, other: 3000 };
const UNSEEN_START = 600; // and come after what is shown first

export const data = {}; // name -> what was read last
export const recent = []; // the last events, newest first
export const failures = new Map(); // name -> Trouble
const states = Object.fromEntries(
  Object.keys(RESOURCES).map((name) => [name, { dirty: true, busy: false, pause: LEAST_PAUSE, last: 0 }]),
);
const begun = performance.now();
let begins = false; // until then an event may be missing
let active = new Set(ALWAYS);
let shown = new Set();
let changedCall = () => {};

/** Call this after any change of `data`, with the name of the resource. */
export function onData(call) {
  changedCall = call;
}

/** Which resources are on the screen; others are read when they are needed again. */
export function activate(names) {
  shown = new Set(names);
  active = new Set([...ALWAYS, ...names]);
  for (const name of active) {
    clearTimeout(states[name].timer); // what is shown now is read sooner
    states[name].timer = 0;
    schedule(name);
  }
}

/** An event of the stream. */
export function noteChange(change) {
  recent.unshift(change);
  if (recent.length > 500) recent.length = 500;
  const noun = change.event.split(":")[0];
  for (const [name, { nouns }] of Object.entries(RESOURCES)) {
    if (nouns.includes(noun)) touch(name);
  }
  if (noun === "task") taskChanged(change);
  if (HEALTH_EVENTS.test(change.event)) touch("health");
  if (change.event.endsWith(":deadlock")) touch("deadlocks");
  changedCall("recent", change);
}

/** Read everything that is shown: when events begin to come, after a gap, an outage, a sleep. */
export function resync() {
  begins = true;
  takeTaskChanges();
  for (const name of Object.keys(RESOURCES)) states[name].whole = true;
  for (const name of Object.keys(RESOURCES)) touch(name);
}

/** This resource is out of date. */
export function touch(name) {
  states[name].dirty = true;
  schedule(name);
}

function schedule(name) {
  const state = states[name];
  if (!begins || !state.dirty || state.busy || state.timer || !active.has(name)) return;
  const least = shown.has(name) ? RESOURCES[name].least || 0 : UNSEEN_PAUSE[name] || UNSEEN_PAUSE.other;
  const due = state.last
    ? state.last + Math.max(state.pause, least)
    : shown.has(name)
      ? 0
      : begun + UNSEEN_START;
  state.timer = setTimeout(
    () => {
      state.timer = 0;
      refresh(name);
    },
    Math.max(0, due - performance.now()),
  );
}

async function refresh(name) {
  const state = states[name];
  const begun = performance.now();
  const whole = state.whole !== false;
  Object.assign(state, { busy: true, dirty: false, whole: false });
  try {
    data[name] = await RESOURCES[name].load(data[name], whole, (part) => {
      data[name] = part;
      changedCall(name);
    });
    failures.delete(name);
    if (RESOURCES[name].isBehind?.()) state.dirty = true;
  } catch (error) {
    if (!(error instanceof Trouble)) throw error;
    failures.set(name, error);
    state.whole = true;
    setTimeout(() => touch(name), 3000);
  } finally {
    state.busy = false;
    state.last = performance.now();
    state.pause = Math.max(LEAST_PAUSE, (state.last - begun) * SHARE);
    schedule(name);
  }
  changedCall(name);
}

setInterval(() => {
  const at = performance.now();
  for (const name of active) {
    const often = RESOURCES[name].poll * (shown.has(name) || name === "health" ? 1 : UNSEEN);
    const patience = document.hidden ? Math.max(often, 30) : often;
    if (at - (states[name].last || 0) > patience * 1000) {
      if (name === "tasks") states[name].whole = true;
      touch(name);
    }
  }
}, 1000);
