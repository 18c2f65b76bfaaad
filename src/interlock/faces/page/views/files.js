// Reserved files: which agent edits which, until when and why, and who waits for them.

import { h } from "../dom.js";
import { ago, brief, duration } from "../format.js";
import { data } from "../state.js";
import { rowActions, stateChip } from "../rows.js";
import { empty } from "../empty.js";
import { agentLink } from "../thing.js";
import { listView } from "../list_view.js";

const STATES = ["reserved", "queued", "stale"];

export const open = listView({
  title: "Files",
  noun: "reservation",
  search: "Filter by path, holder:bob",
  items: () => data.reservations,
  states: STATES,
  state: (each) => each.state,
  order: (a, b) => STATES.indexOf(a.state) - STATES.indexOf(b.state) || a.since - b.since,
  text: (each) =>
    [...each.patterns, each.holder, each.reason, each.repository, each.worktree].join(" "),
  facets: (each) => ({ holder: each.holder, path: each.patterns, repository: each.repository }),
  key: (each) => each.id,
  version: (each) =>
    JSON.stringify([each.state, each.patterns, each.reason, Math.round(each.expires_in / 5)]),
  kind: "reservation",
  thing: (each) => `reservation/${each.id}`,
  row,
  first: () =>
    empty(
      "No file is reserved",
      "An agent reserves what it is going to edit; others are refused until it is done:",
      "interlock reserve 'src/*.py' --reason 'new parser' --agent ada",
    ),
});

function row(each) {
  return h(
    "div.cells.files",
    stateChip(each.state),
    h(
      "div.main",
      h(
        "div.first",
        h("strong.name.path", each.patterns.join("  ")),
        each.shared && h("span.flag", "shared"),
      ),
      h(
        "div.second",
        [each.repository, brief(each.reason, 100), each.worktree].filter(Boolean).join(" · "),
      ),
    ),
    h("div.holder", agentLink(each.holder)),
    h("div.token", each.token ? h("span", { title: "Fencing token" }, `#${each.token}`) : ""),
    h(
      "div.since",
      ago(each.since),
      each.expires_in ? h("span.muted", ` · ${duration(each.expires_in)} left`) : "",
    ),
    rowActions("reservation", each),
  );
}
