// The merge queue: the branches in their order, what is tested now, why one bounced; who serves it.

import { chip, h, show } from "../dom.js";
import { ago, brief, count, plural } from "../format.js";
import { data } from "../state.js";
import { rowActions, stateChip } from "../rows.js";
import { empty } from "../empty.js";
import { agentLink } from "../thing.js";
import { listView } from "../list_view.js";

const STATES = ["landing", "testing", "waiting", "bounced", "merged", "cancelled"];
const short = (commit) => commit.slice(0, 8);

export const open = listView({
  title: "Merges",
  noun: "merge",
  search: "Filter by branch, by:ada, into:main",
  items: () => data.merges?.merges,
  states: STATES,
  state: (each) => each.state,
  order: (a, b) => (a.place || Infinity) - (b.place || Infinity) || (b.ended_at || 0) - (a.ended_at || 0),
  text: (each) => [each.branch, each.into, each.by, each.reason, ...each.files, each.commit].join(" "),
  facets: (each) => ({ by: each.by, into: each.into, branch: each.branch, file: each.files }),
  key: (each) => each.merge,
  kind: "merge",
  thing: (each) => `merge/${each.merge}`,
  row,
  top: paintTargets,
  first: () =>
    empty(
      "No branch waits",
      "A server tests each branch and merges it when the tests pass; agents submit theirs:",
      "interlock merge serve --agent queue -- make test",
      "interlock merge submit feature --agent ada",
    ),
});

/** A line for each target: who serves it, what is tested, and what keeps all of it. */
function paintTargets(place) {
  const parts = (data.merges?.targets || []).map(target);
  const mark = parts.map((each) => each.textContent).join("|");
  if (place.dataset.mark === mark) return;
  place.dataset.mark = mark;
  show(place, parts);
}

function target(each) {
  const tested = each.testing.length;
  return h(
    "div.target",
    h("strong.name", each.target),
    each.held
      ? chip("held", "bad")
      : each.server
        ? chip(each.landing ? "landing" : tested ? "testing" : "ready", tested ? "busy" : "ok")
        : chip("not served", each.waiting ? "warn" : "off"),
    h(
      "span.muted",
      [
        each.waiting ? `${count(each.waiting)} waiting` : "nothing waits",
        tested && `${plural(tested, "branch", "branches")} in test`,
        each.guard && `guard ${each.guard}`,
        each.remote && `at ${each.remote}`,
        each.last && `last merge ${short(each.last)}`,
      ]
        .filter(Boolean)
        .join(" · "),
    ),
    each.server && h("span", h("span.muted", "served by "), agentLink(each.server)),
    each.held && h("p.error", each.held),
    !each.server && each.waiting > 0 && h("p.muted", "start it: ", h("code", "interlock merge serve")),
  );
}

function row(merge) {
  const bad = merge.state === "bounced";
  return h(
    "div.cells.merges",
    stateChip(merge.state),
    h("span.number", merge.place ? `${merge.place}.` : ""),
    h(
      "div.main",
      h(
        "div.first",
        h("strong.name", merge.branch),
        h("span.muted", `into ${merge.into}`),
        h("code.id", short(merge.commit)),
      ),
      h(
        bad ? "div.second.error" : "div.second",
        [merge.cause, brief(merge.reason), !merge.reason && merge.files.slice(0, 4).join(", ")]
          .filter(Boolean)
          .join(": "),
      ),
    ),
    h("div.holder", agentLink(merge.by)),
    h("div.since", ago(merge.ended_at || merge.at, " ago")),
    rowActions("merge", merge),
  );
}
