// What needs a person, most urgent first: decisions, damage, deadlocks, dead and stuck things,
// quarantine.  Made of `decision list`, `quarantine list` and `health`.

import { data } from "./state.js";
import { valueText } from "./format.js";

// Problems that the rows of decisions and of quarantine already show.
const ELSEWHERE = new Set(["undecided", "refused"]);
const RANK = {
  decision: 0,
  damaged: 1,
  record: 1,
  deadlock: 1,
  dead: 2,
  dead_letter: 2,
  stuck: 3,
  silent: 3,
  failed: 3,
  quarantine: 4,
};
export const WORDS = {
  dead_letter: "dead letter",
  dead: "dead agent",
  stuck: "stuck",
  silent: "silent agent",
  undecided: "decision",
  refused: "quarantine",
  unable: "no able agent",
  unattended: "no worker",
  unread: "unread",
  unsent: "not sent",
  waiting: "long wait",
  overdue: "overdue",
  leftover: "left over",
  unreachable: "unreachable",
  unfinished: "unfinished",
  full: "limit reached",
};
export const TONES = {
  decision: "accent",
  waiting: "warn",
  unread: "warn",
  paused: "warn",
  unattended: "warn",
  leftover: "warn",
  stale: "warn",
  unable: "warn",
  quarantine: "warn",
  blocked: "warn",
  full: "warn",
  overdue: "warn",
  silent: "warn",
  stuck: "warn",
  unsent: "warn",
};

/** Each: {key, kind, word, tone, text, remedy, thing, since, item}. */
export function needs() {
  const found = [];
  for (const each of data.decisions || []) {
    if (each.state !== "open") continue;
    found.push({
      key: each.decision,
      kind: "decision",
      text: valueText(each.question),
      from: each.agent,
      thing: `decision/${each.decision}`,
      since: each.at,
      item: each,
    });
  }
  for (const each of data.quarantine || []) {
    found.push({
      key: each.id,
      kind: "quarantine",
      text: `${each.kind} from ${each.swarm || "an unknown swarm"}: ${each.detail || each.reason}`,
      thing: `quarantine/${each.id}`,
      since: each.at,
      item: each,
    });
  }
  const dead = [...(data.tasks?.values() || [])].filter((each) => each.state === "dead");
  for (const each of dead) {
    const text = `${each.title || each.task} died: ${each.reason || "no reason is known"}`;
    found.push({
      key: `dead ${each.task} ${each.since}`,
      kind: "dead_letter",
      text,
      thing: `task/${each.task}`,
      since: each.since,
      item: each,
    });
  }
  for (const each of data.health || []) {
    if (ELSEWHERE.has(each.kind) || (dead.length && each.kind === "dead_letter")) continue;
    found.push({
      key: [each.kind, each.thing, each.agent, each.since].join(" "), // the text counts minutes
      kind: each.kind,
      text: each.says,
      remedy: each.remedy,
      thing: each.thing,
      agent: each.agent,
      since: each.since,
      item: each,
    });
  }
  for (const each of found) {
    each.word = WORDS[each.kind] || each.kind.replaceAll("_", " ");
    each.tone = TONES[each.kind] || "bad";
  }
  return found.sort((a, b) => (RANK[a.kind] ?? 5) - (RANK[b.kind] ?? 5) || (a.since || 0) - (b.since || 0));
}
