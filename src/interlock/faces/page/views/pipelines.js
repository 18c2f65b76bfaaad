// Pipelines: the phases, where each one is, and the condition that keeps it.

import { h } from "../dom.js";
import { ago } from "../format.js";
import { data } from "../state.js";
import { rowActions, stateChip } from "../rows.js";
import { empty } from "../empty.js";
import { agentLink, thingLink } from "../thing.js";
import { listView } from "../list_view.js";

const ORDER = ["running", "failed", "complete", "cancelled"];

export const open = listView({
  title: "Pipelines",
  noun: "pipeline",
  search: "Filter by id, phase:merge, by:ada",
  items: () => data.pipelines,
  states: ORDER,
  state: (each) => each.state,
  order: (a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || b.since - a.since,
  text: (p) => `${p.pipeline} ${p.definition} ${p.phase} ${p.by} ${p.reason} ${p.blocked_by?.reason || ""}`,
  facets: (p) => ({ phase: p.phase, by: p.by, state: p.state }),
  key: (p) => p.pipeline,
  version: (p) => JSON.stringify([p.state, p.phase, p.phases, p.blocked_by, p.reason, p.tasks, p.holds]),
  kind: "pipeline",
  thing: (p) => `pipeline/${p.pipeline}`,
  size: "tall",
  row,
  first: () =>
    empty(
      "No pipeline was started",
      "Define one in a file, then start it:",
      "interlock pipeline define release.toml --agent ada",
      "interlock pipeline start release --id r1 --agent ada",
    ),
});

/** The phases as steps: those before the current one are done. */
export function steps(pipeline) {
  const at = pipeline.phases.indexOf(pipeline.phase);
  const state = (n) =>
    pipeline.state === "complete" || n < at
      ? "done"
      : n > at
        ? "later"
        : pipeline.state === "failed"
          ? "bad"
          : pipeline.blocked_by
            ? "kept"
            : "now";
  return h(
    "ol.steps",
    { "aria-label": "Phases" },
    pipeline.phases.map((phase, n) =>
      h("li", { data: { at: state(n) }, "aria-current": n === at ? "step" : null }, phase),
    ),
  );
}

function row(pipeline) {
  const kept = pipeline.blocked_by;
  return h(
    "div.cells.pipelines",
    stateChip(pipeline.state),
    h(
      "div.main",
      h(
        "div.first",
        h("strong.name", pipeline.pipeline),
        h("span.muted", pipeline.definition),
        steps(pipeline),
      ),
      kept
        ? h(
            "div.second.kept",
            h("code", kept.leaf),
            h("span", kept.reason),
            h("span.muted", `guard ${kept.guard}, for `),
            ago(kept.since),
          )
        : h(
            "div.second",
            pipeline.reason ||
              pipeline.tasks
                .slice(0, 4)
                .map((each, n) => [
                  n > 0 && " · ",
                  thingLink(`task/${each.task}`, each.task),
                  h("span.muted", ` ${each.state}`),
                ]),
          ),
    ),
    h("div.holder", agentLink(pipeline.by)),
    h("div.since", ago(pipeline.since)),
    rowActions("pipeline", pipeline),
  );
}
