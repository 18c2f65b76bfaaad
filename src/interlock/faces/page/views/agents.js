// The roster: who does what, since when, and the last sign of life.

import { h } from "../dom.js";
import { ago } from "../format.js";
import { data } from "../state.js";
import { rowActions, stateChip } from "../rows.js";
import { empty } from "../empty.js";
import { full, thingLink } from "../thing.js";
import { listView } from "../list_view.js";

const ORDER = ["lapsed", "busy", "waiting", "idle", "alive"];
const stateOf = (agent) => (agent.state === "alive" ? agent.status || "alive" : agent.state);

/** The sessions, with what `health` knows about them; those that died and are not acknowledged too. */
export function roster() {
  const problems = data.health || [];
  const silent = new Set(problems.filter((each) => each.kind === "silent").map((each) => each.agent));
  return (data.agents?.agents || []).map((each) => ({
    ...each,
    shown: stateOf(each),
    silent: silent.has(each.agent),
  }));
}

export const open = listView({
  title: "Agents",
  noun: "session",
  search: "Filter by name, can:rust, holds:merge",
  items: () => data.agents && roster(),
  states: ORDER,
  state: (each) => each.shown,
  order: (a, b) => ORDER.indexOf(a.shown) - ORDER.indexOf(b.shown) || (a.agent < b.agent ? -1 : 1),
  text: (a) => `${a.agent} ${a.doing} ${a.note} ${a.host} ${a.can.join(" ")} ${a.holds.join(" ")}`,
  facets: (a) => ({ can: a.can, host: a.host, holds: a.holds, state: a.shown, doing: a.doing }),
  key: (a) => a.session,
  version: (a) =>
    JSON.stringify([a.shown, a.doing, a.note, a.holds, a.heard, a.last_heartbeat, a.paused, a.silent]),
  kind: "agent",
  thing: (a) => `agent/${a.agent}`,
  row,
  first: () =>
    empty(
      "No agent is here yet",
      "A program joins when it connects; in a shell:",
      'eval "$(interlock agent join --agent ada)"',
    ),
});

function row(agent) {
  return h(
    "div.cells.agents",
    stateChip(agent.shown),
    h(
      "div.main",
      h(
        "div.first",
        h("strong.name", agent.agent),
        agent.silent && h("span.flag", "silent"),
        agent.paused && h("span.flag", "paused"),
      ),
      h(
        "div.second",
        agent.doing
          ? [
              agent.doing.includes("/") ? thingLink(full(agent.doing), agent.doing) : agent.doing,
              agent.note && ` · ${agent.note}`,
            ]
          : agent.note || "nothing reported",
      ),
    ),
    h(
      "div.holds",
      agent.holds.slice(0, 4).map((each) => thingLink(full(each), each)),
      agent.holds.length > 4 && h("span.muted", `+${agent.holds.length - 4}`),
    ),
    h(
      "div.seen",
      h("span.muted", "seen "),
      ago(Math.max(agent.heard || 0, agent.last_heartbeat || 0) || agent.since, " ago"),
    ),
    h("div.since", h("span.muted", "here "), ago(agent.since)),
    rowActions("agent", agent, ["Stop", "Pause", "Resume", "Message"]),
  );
}
