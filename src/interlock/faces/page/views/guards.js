// Guards: the conditions, whether each passes now, and what keeps it.

import { chip, h } from "../dom.js";
import { ago, brief } from "../format.js";
import { data } from "../state.js";
import { rowActions } from "../rows.js";
import { empty } from "../empty.js";
import { listView } from "../list_view.js";

const STATES = ["failed", "unknown", "passed", "outside"];
const TONES = { passed: "ok", failed: "warn", unknown: "off", outside: "off" };
const WORDS = { passed: "passes", failed: "fails" };
const stateOf = (guard) => guard.state || "outside";

export const open = listView({
  title: "Guards",
  noun: "guard",
  search: "Filter by name or condition",
  items: () => data.guards,
  states: STATES,
  words: WORDS,
  state: stateOf,
  order: (a, b) =>
    STATES.indexOf(stateOf(a)) - STATES.indexOf(stateOf(b)) || (a.guard < b.guard ? -1 : 1),
  text: (each) => `${each.guard} ${each.condition} ${each.why?.because || ""}`,
  facets: (each) => ({ action: each.action }),
  key: (each) => each.guard,
  kind: "guard",
  thing: (each) => `guard/${each.guard}`,
  row,
  first: () =>
    empty(
      "No guard is defined",
      "A guard keeps a lock, a task or a phase waiting until its conditions hold; it is defined in a file:",
      "interlock guard define guards.toml --agent ada",
      "interlock guard check lock-free=deploy",
    ),
});

function row(guard) {
  const state = stateOf(guard);
  return h(
    "div.cells.guards",
    chip(WORDS[state] || state, TONES[state]),
    h(
      "div.main",
      h("div.first", h("strong.name", guard.guard), h("code.id", brief(guard.condition, 120))),
      second(guard),
    ),
    h("div.holder", h("span.muted", guard.action && `else ${guard.action}`)),
    h("div.since", guard.why?.since ? ago(guard.why.since) : ""),
    rowActions("guard", guard),
  );
}

/** What keeps it; of one that looks at files or commands, what hosts saw last, or why none looks. */
function second(guard) {
  if (guard.blocked) return h("div.second.kept", brief(guard.why.because));
  if (!guard.outside) return h("div.second", brief(guard.why?.because || ""));
  const seen = guard.observations?.[0];
  if (seen)
    return h(
      "div.second",
      brief(`${seen.condition}: ${seen.says}`, 100),
      ` · ${seen.host}, `,
      ago(seen.at, " ago"),
    );
  const hosts = guard.hosts?.map((each) => each.host).join(", ");
  return h("div.second", hosts ? `allowed on ${hosts}; nothing was seen yet` : brief(guard.because));
}
