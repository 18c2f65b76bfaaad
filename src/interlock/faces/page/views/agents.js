// The roster: who does what, since when, and the last sign of life.

import { h } from "../dom.js";
import { ago, plural } from "../format.js";
import { data } from "../state.js";
import { List } from "../list.js";
import { paintHead } from "../head.js";
import { filtered, tally } from "../filter.js";
import { rowActions, stateChip, STATE_TONES } from "../rows.js";
import { empty, loading, nothingFits } from "../empty.js";
import { full, thingLink } from "../thing.js";
import { go } from "../route.js";

const ORDER = ["lapsed", "busy", "waiting", "idle", "alive"];
const stateOf = (agent) => (agent.state === "alive" ? agent.status || "alive" : agent.state);

/** The sessions, with what `health` knows about them; those that died and are not acknowledged too. */
export function roster() {
  const problems = data.health || [];
  const paused = new Set(problems.filter((each) => each.kind === "paused").map((each) => each.agent));
  const silent = new Set(problems.filter((each) => each.kind === "silent").map((each) => each.agent));
  return (data.agents?.agents || []).map((each) => ({
    ...each,
    shown: stateOf(each),
    paused: paused.has(each.agent),
    silent: silent.has(each.agent),
  }));
}

export const agents = {
  id: "agents",
  title: "Agents",
  uses: ["agents"],
  number: () =>
    data.agents &&
    new Set(data.agents.agents.filter((each) => each.state === "alive").map((each) => each.agent)).size,
  open(place) {
    const list = new List(place, {
      row,
      key: (a) => a.session,
      version: (a) =>
        JSON.stringify([a.shown, a.doing, a.note, a.holds, a.heard, a.last_heartbeat, a.paused, a.silent]),
      open: (a) => go({ show: `agent/${a.agent}` }),
      label: "Agents",
    });
    list.kindOf = () => "agent";
    const none = h("div");
    place.append(none, list.element);
    return { list, close: () => list.close(), paint: (params) => paint(params, list, none) };
  },
};

function paint(params, list, none) {
  const all = roster();
  const chips = { state: (each) => each.shown };
  const shown = filtered(all, params, {
    chips,
    text: (a) => `${a.agent} ${a.doing} ${a.note} ${a.host} ${a.can.join(" ")} ${a.holds.join(" ")}`,
    facets: (a) => ({ can: a.can, host: a.host, holds: a.holds, state: a.shown, doing: a.doing }),
  });
  shown.sort((a, b) => ORDER.indexOf(a.shown) - ORDER.indexOf(b.shown) || (a.agent < b.agent ? -1 : 1));
  const numbers = tally(all, (each) => each.shown);
  paintHead({
    title: "Agents",
    search: "Filter by name, can:rust, holds:merge",
    summary: data.agents ? plural(shown.length, "session") : "",
    chips: [
      {
        name: "state",
        options: ORDER.map((each) => [each, each, numbers.get(each) || 0, STATE_TONES[each]]),
      },
    ],
    bulk: params.q || params.state ? { kind: "agent", items: shown, noun: "session" } : null,
  });
  none.replaceChildren(
    ...(!data.agents
      ? [loading()]
      : !all.length
        ? [
            empty(
              "No agent is here yet",
              "A program joins when it connects; in a shell:",
              'eval "$(interlock agent join --agent ada)"',
            ),
          ]
        : !shown.length
          ? [nothingFits()]
          : []),
  );
  list.setItems(shown);
}

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
