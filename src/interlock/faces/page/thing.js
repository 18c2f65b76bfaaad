// Things by their names: `task/t1`, `lock/merge`, `agent/ada`; links that open them.

import { h } from "./dom.js";
import { go } from "./route.js";

const WORDS = { semaphore: "sem" };

/** A link that opens a thing beside the list. */
export function thingLink(thing, label = thing) {
  return h(
    "a.thing",
    {
      href: `?show=${encodeURIComponent(thing)}`,
      onclick: (event) => {
        if (event.metaKey || event.ctrlKey) return;
        event.preventDefault();
        event.stopPropagation();
        go({ show: thing });
      },
    },
    label,
  );
}

export const agentLink = (name) => (name ? thingLink(`agent/${name}`, name) : null);

/** `task/t1` as ["task", "t1"]; what an agent holds may leave `lock/` out. */
export function split(thing) {
  const at = thing.indexOf("/");
  const kind = at < 0 ? "" : thing.slice(0, at);
  return [
    "task",
    "lock",
    "sem",
    "agent",
    "pipeline",
    "decision",
    "query",
    "message",
    "quarantine",
    "request",
    "schedule",
    "guard",
    "merge",
    "reservation",
    "swarm",
    "budget",
  ].includes(kind)
    ? [kind, thing.slice(at + 1)]
    : ["lock", thing];
}

export const full = (thing) => split(thing).join("/");

/** Everything that can be gone to, from what the page has read. */
export function linkKinds(data) {
  const found = [];
  const agents = new Set((data.agents?.agents || []).map((each) => each.agent));
  for (const agent of agents) found.push({ kind: "agent", id: agent });
  for (const each of data.tasks?.values() || [])
    found.push({ kind: "task", id: each.task, title: each.title });
  for (const each of data.locks || []) found.push({ kind: "lock", id: each.lock });
  for (const each of data.semaphores || []) found.push({ kind: WORDS.semaphore, id: each.semaphore });
  for (const each of data.pipelines || []) found.push({ kind: "pipeline", id: each.pipeline });
  for (const each of data.schedules || []) found.push({ kind: "schedule", id: each.schedule });
  for (const each of data.guards || []) found.push({ kind: "guard", id: each.guard });
  for (const each of data.merges?.merges || [])
    found.push({ kind: "merge", id: each.merge, title: `${each.branch} → ${each.into}` });
  return found;
}
