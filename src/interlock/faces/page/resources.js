// What the page reads: a resource for each list of the server, with the nouns whose events change it.

import { read } from "./api.js";
import { isBehind, loadTasks } from "./task_store.js";

const SHOWN_GUARDS = 60;

/** name -> {nouns whose events change it, poll in s, least pause in ms, load(last, whole, part), and
 *  isBehind(): whether a reading left something to read}. */
export const RESOURCES = {
  agents: {
    nouns: ["agent", "task", "lock", "semaphore"],
    poll: 5,
    least: 1000,
    load: async () => read("agent list"),
  },
  tasks: { nouns: ["task", "pipeline"], poll: 90, isBehind, load: loadTasks },
  locks: { nouns: ["lock"], poll: 2, load: async () => (await read("lock list")).locks },
  semaphores: { nouns: ["semaphore"], poll: 2, load: async () => (await read("sem list")).semaphores },
  reservations: {
    nouns: ["reservation"],
    poll: 5,
    load: async () => (await read("reservations", { all: true, limit: 1000 })).reservations,
  },
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
  pipelines: { nouns: ["pipeline", "lock", "guard"], poll: 5, least: 400, load: loadPipelines },
  swarms: { nouns: ["swarm", "key", "request"], poll: 10, least: 2000, load: loadSwarms },
  messages: {
    nouns: ["message", "alert", "query", "decision"],
    poll: 15,
    load: async () => (await read("message list", { limit: 300 })).messages,
  },
  health: {
    nouns: ["agent", "decision", "request", "pipeline", "query"],
    poll: 5,
    least: 1000,
    load: async () => (await read("health")).problems,
  },
  deadlocks: { nouns: [], poll: 60, load: loadDeadlocks },
  merges: { nouns: ["merge"], poll: 5, load: async () => read("merge list", { all: true, limit: 300 }) },
  schedules: {
    nouns: ["schedule"],
    poll: 10,
    load: async () => (await read("schedule list", { limit: 500 })).schedules,
  },
  guards: { nouns: ["guard", "lock", "pipeline"], poll: 5, least: 400, load: loadGuards },
  budgets: {
    nouns: ["budget"],
    poll: 15,
    least: 1000,
    load: async () => (await read("budget show")).budgets,
  },
};

/** The first guards, with what keeps each of them, or what hosts saw last: to ask why one fails that
 *  looks at files or commands would let the server look again. */
async function loadGuards() {
  const { guards } = await read("guard list");
  return Promise.all(guards.map((each, n) => (n < SHOWN_GUARDS ? loadGuard(each) : each)));
}

async function loadGuard(guard) {
  if (guard.outside) return { ...guard, ...(await read("guard show", { guard: guard.guard })), state: "" };
  const why = await read("why", { thing: `guard/${guard.guard}` });
  return { ...guard, why, state: why.state, blocked: why.blocked };
}

async function loadPipelines(last) {
  const { pipelines } = await read("pipeline list", { limit: 200 });
  const known = new Map((last || []).map((each) => [each.pipeline, each]));
  const open = pipelines
    .filter((each) => each.state === "running" || !known.get(each.pipeline)?.phases.length)
    .slice(0, 40);
  const shown = await Promise.all(open.map((each) => read("pipeline show", { pipeline: each.pipeline })));
  const whole = new Map(shown.filter((each) => each.phases).map((each) => [each.pipeline, each]));
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
