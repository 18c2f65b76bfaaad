// Who blocks whom: a line for each agent that others wait for, and each cycle of waits as a ring.

import { h } from "./dom.js";
import { clock } from "./format.js";
import { data } from "./state.js";
import { agentLink, thingLink } from "./thing.js";
import { blockers, cycles, waits } from "./wait_graph.js";
import { ring } from "./ring.js";

const DEADLOCKS_SHOWN = 3;

/** The parts to show above the list of locks, none if no agent waits. */
export function blocking() {
  const questions = (data.messages || []).filter((each) => each.kind === "query" && each.state === "open");
  const edges = waits({ locks: data.locks, semaphores: data.semaphores, questions });
  return [chains(edges), ...rings(cycles(edges))].filter(Boolean);
}

function rings(standing) {
  const past = (data.deadlocks || []).slice(0, DEADLOCKS_SHOWN);
  if (!standing.length && !past.length) return [];
  const refusedRing = ({ cycle, thing }) =>
    ring(cycle.map((from, n) => ({ from, to: cycle[(n + 1) % cycle.length], thing: n === 0 ? thing : "" })));
  return [
    h(
      "section.rings",
      { "aria-label": "Cycles" },
      standing.map((edges) =>
        h(
          "figure.cycle",
          { data: { tone: "bad" } },
          ring(edges),
          h(
            "figcaption",
            h("strong", "Waits in a cycle now"),
            h(
              "span",
              edges.map((each) => `${each.from} waits for ${each.thing}, which ${each.to} has`).join("; "),
            ),
          ),
        ),
      ),
      past.map((each) =>
        h(
          "figure.cycle",
          refusedRing(each),
          h(
            "figcaption",
            h("strong", "Deadlock refused"),
            h("span", `${each.agent} did not get ${each.thing}; `, h("time", clock(each.at))),
          ),
        ),
      ),
    ),
  ];
}

function chains(edges) {
  const found = blockers(edges).slice(0, 6);
  if (!found.length) return null;
  return h(
    "section.chains",
    h("h2", "Who blocks whom"),
    h(
      "ul",
      found.map(([agent, waiters]) =>
        h(
          "li",
          agentLink(agent),
          h("span.muted", ` blocks ${waiters.size}: `),
          [...waiters]
            .slice(0, 8)
            .flatMap(([waiter, thing], n) => [
              n > 0 && ", ",
              agentLink(waiter),
              h("span.muted", " for "),
              thingLink(thing, thing.replace(/(qry_).*(.{6})$/, "$1…$2")),
            ]),
        ),
      ),
    ),
  );
}
