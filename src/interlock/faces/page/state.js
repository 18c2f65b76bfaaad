// What the page knows: one resource for each list of the server, read again when an event says that
// it changed.
//
// Events have no content, so a change means a read: at once, then at most once per interval, which
// grows with the time that a read takes.  A slow server is asked less often, never faster.  Lists
// that also change without a commit (a queue, a lapsed session) are read every few seconds.

import { read, Trouble } from "./api.js";
import { loadTasks, taskChanged, takeTaskChanges } from "./task_store.js";

const LEAST_PAUSE = 120;
const SHARE = 3; // of the time, at most a third goes into reads of one resource

const RESOURCES = {
  agents: { nouns: ["agent", "task", "lock", "semaphore"], poll: 5, load: async () => read("agent list") },
  tasks: { nouns: ["task", "pipeline"], poll: 90, load: loadTasks },
  locks: { nouns: ["lock"], poll: 2, load: async () => (await read("lock list")).locks },
  semaphores: { nouns: ["semaphore"], poll: 2, load: async () => (await read("sem list")).semaphores },
  reservations: { nouns: ["reservation"], poll: 5, load: async () => read("reservations") },
  decisions: {
    nouns: ["decision", "query"],
    poll: 15,
    load: async () => (await read("decision list", { all: true })).decisions,
  },
  quarantine: {
    nouns: ["request", "quarantine", "swarm"],
    poll: 15,
    load: async () => (await read("quarantine list", { limit: 500 })).messages,
  },
  pipelines: { nouns: ["pipeline", "lock", "guard"], poll: 5, load: loadPipelines },
  swarms: { nouns: ["swarm", "key", "request"], poll: 10, load: loadSwarms },
  messages: {
    nouns: ["message", "alert", "query", "decision"],
    poll: 15,
    load: async () => (await read("message list", { limit: 300 })).messages,
  },
  health: {
    nouns: ["agent", "decision", "request", "pipeline", "query"],
    poll: 5,
    load: async () => (await read("health")).problems,
  },
  deadlocks: { nouns: [], poll: 60, load: loadDeadlocks },
};
const HEALTH_EVENTS =
  /:(dead|failed|lapsed|deadlock|retried|cancelled|requeued|reclaimed|acknowledged|broken|left)$/;
const ALWAYS = ["health", "decisions", "quarantine", "agents", "tasks", "locks", "semaphores", "pipelines"];
const UNSEEN = 5; // lists that no view shows are polled less often

export const data = {}; // name -> what was read last
export const recent = []; // the last events, newest first
export const failures = new Map(); // name -> Trouble
const states = Object.fromEntries(
  Object.keys(RESOURCES).map((name) => [name, { dirty: true, busy: false, pause: LEAST_PAUSE, last: 0 }]),
);
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
  for (const name of active) schedule(name);
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

/** Read everything that is shown again: after a gap, an outage, a sleep. */
export function resync() {
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
  if (!state.dirty || state.busy || state.timer || !active.has(name)) return;
  const wait = Math.max(0, state.last + state.pause - performance.now());
  state.timer = setTimeout(
    () => {
      state.timer = 0;
      refresh(name);
    },
    state.last ? Math.max(wait, 20) : 0,
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
    state.read = performance.now();
  } catch (error) {
    if (!(error instanceof Trouble)) throw error;
    failures.set(name, error);
    state.whole = true;
    setTimeout(() => touch(name), 3000);
  } finally {
    state.busy = false;
    state.last = performance.now();
    state.pause = Math.max(LEAST_PAUSE, (state.last - begun) * SHARE);
  }
  changedCall(name);
  schedule(name);
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

async function loadPipelines(last) {
  const { pipelines } = await read("pipeline list", { limit: 200 });
  const known = new Map((last || []).map((each) => [each.pipeline, each]));
  const open = pipelines
    .filter((each) => each.state === "running" || !known.get(each.pipeline)?.phases.length)
    .slice(0, 40);
  const shown = await Promise.all(open.map((each) => read("pipeline show", { pipeline: each.pipeline })));
  const whole = new Map(shown.filter((each) => each.pipeline).map((each) => [each.pipeline, each]));
  return pipelines.map(
    (each) =>
      whole.get(each.pipeline) || { ...each, phases: known.get(each.pipeline)?.phases || each.phases },
  );
}

async function loadSwarms() {
  const listed = await read("swarm list");
  if (!listed.swarms) return { swarms: [], sent: [], received: [], trust: [], bus: "" };
  const [sent, received, trust] = await Promise.all([
    read("request list", { limit: 100 }),
    read("request list", { received: true, limit: 100 }),
    read("swarm trust").catch(() => ({})),
  ]);
  return {
    ...listed,
    sent: sent.requests || [],
    received: received.requests || [],
    trust: trust.peers || [],
  };
}

async function loadDeadlocks() {
  const verbs = ["lock.withdraw", "sem.withdraw"];
  const logs = await Promise.all(verbs.map((verb) => read("record log", { verb, limit: 50, since: "1h" })));
  const found = logs.flatMap(({ entries }) =>
    entries.flatMap((line) =>
      line.events
        .filter((each) => each.name.endsWith(":deadlock"))
        .map((each) => ({
          at: line.at,
          revision: line.revision,
          agent: line.agent,
          thing: each.thing || line.thing,
          cycle: each.details.cycle || [],
        })),
    ),
  );
  return found.sort((a, b) => b.at - a.at);
}
