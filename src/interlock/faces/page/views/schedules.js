// Schedules: what is published again and again, when next, and what became of the last run.

import { h } from "../dom.js";
import { brief, count, until } from "../format.js";
import { data } from "../state.js";
import { rowActions, stateChip } from "../rows.js";
import { empty } from "../empty.js";
import { thingLink } from "../thing.js";
import { listView } from "../list_view.js";

const STATES = ["active", "paused", "ended"];

export const open = listView({
  title: "Schedules",
  noun: "schedule",
  search: "Filter by name, by:ada",
  items: () => data.schedules,
  states: STATES,
  state: (each) => each.state,
  order: (a, b) => (a.next_run || Infinity) - (b.next_run || Infinity) || (a.schedule < b.schedule ? -1 : 1),
  text: (each) => `${each.schedule} ${each.when} ${each.added_by} ${each.failure} ${each.reason}`,
  facets: (each) => ({ by: each.added_by, state: each.state }),
  key: (each) => each.schedule,
  kind: "schedule",
  thing: (each) => `schedule/${each.schedule}`,
  row,
  first: () =>
    empty(
      "Nothing is scheduled",
      "A schedule publishes a task again and again, each run once:",
      "interlock schedule add nightly --cron '0 2 * * *' --title 'Nightly build' --agent ada",
    ),
});

function row(each) {
  return h(
    "div.cells.schedules",
    stateChip(each.state),
    h("div.main", h("div.first", h("strong.name", each.schedule), h("span.muted", each.when)), second(each)),
    h("div.number", `${count(each.published)} published`),
    h("div.since", each.next_run ? [h("span.muted", "next "), until(each.next_run)] : ""),
    rowActions("schedule", each),
  );
}

/** What went wrong; else why it is paused, the last run, and runs that were not published. */
function second(each) {
  if (each.failure) return h("div.second.error", brief(each.failure));
  const why = each.reason ? `: ${brief(each.reason, 80)}` : "";
  const parts = [
    each.state === "paused" && `paused by ${each.changed_by}${why}`,
    each.last_task && h("span", "last ", thingLink(`task/${each.last_task}`, each.last_task)),
    each.lost && `${count(each.lost)} not published in time`,
    each.skipped && `${count(each.skipped)} skipped`,
  ].filter(Boolean);
  return h(
    "div.second",
    parts.map((part, n) => [n > 0 && " · ", part]),
  );
}
