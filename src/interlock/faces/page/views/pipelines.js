// Pipelines: the phases, where each one is, and the condition that keeps it.

import { h } from "../dom.js";
import { ago, plural } from "../format.js";
import { data } from "../state.js";
import { List } from "../list.js";
import { paintHead } from "../head.js";
import { filtered, isFiltered, tally } from "../filter.js";
import { rowActions, stateChip, STATE_TONES } from "../rows.js";
import { empty, loading, nothingFits } from "../empty.js";
import { agentLink, thingLink } from "../thing.js";
import { go } from "../route.js";

const ORDER = ["running", "failed", "complete", "cancelled"];
const CHIPS = { state: (each) => each.state };

export const pipelines = {
  id: "pipelines",
  title: "Pipelines",
  uses: ["pipelines"],
  number: () => data.pipelines?.filter((each) => each.state === "running").length,
  open(place) {
    const list = new List(place, {
      row,
      size: "tall",
      key: (p) => p.pipeline,
      version: (p) => JSON.stringify([p.state, p.phase, p.phases, p.blocked_by, p.reason, p.tasks, p.holds]),
      open: (p) => go({ show: `pipeline/${p.pipeline}` }),
      label: "Pipelines",
    });
    list.kindOf = () => "pipeline";
    const none = h("div");
    place.append(none, list.element);
    return { list, close: () => list.close(), paint: (params) => paint(params, list, none) };
  },
};

function paint(params, list, none) {
  const all = data.pipelines || [];
  const shown = filtered(all, params, {
    chips: CHIPS,
    text: (p) => `${p.pipeline} ${p.definition} ${p.phase} ${p.by} ${p.reason} ${p.blocked_by?.reason || ""}`,
    facets: (p) => ({ phase: p.phase, by: p.by, state: p.state }),
  });
  shown.sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || b.since - a.since);
  const numbers = tally(all, (each) => each.state);
  paintHead({
    title: "Pipelines",
    search: "Filter by id, phase:merge, by:ada",
    summary: data.pipelines ? plural(shown.length, "pipeline") : "",
    chips: [
      {
        name: "state",
        options: ORDER.map((each) => [each, each, numbers.get(each) || 0, STATE_TONES[each]]),
      },
    ],
    bulk: isFiltered(params, CHIPS) ? { kind: "pipeline", items: shown, noun: "pipeline" } : null,
  });
  none.replaceChildren(
    ...(!data.pipelines
      ? [loading()]
      : !all.length
        ? [
            empty(
              "No pipeline was started",
              "Define one in a file, then start it:",
              "interlock pipeline define release.toml --agent ada",
              "interlock pipeline start release --id r1 --agent ada",
            ),
          ]
        : !shown.length
          ? [nothingFits()]
          : []),
  );
  list.setItems(shown);
}

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
