// The tasks: what runs, what went wrong and why, what waits for what; as rows or as a picture.

import { button, h } from "../dom.js";
import { ago, brief, count, plural } from "../format.js";
import { data } from "../state.js";
import { List } from "../list.js";
import { paintHead } from "../head.js";
import { filtered, isFiltered, tally } from "../filter.js";
import { labels, progress, rowActions, stateChip, STATE_TONES } from "../rows.js";
import { empty, loading, nothingFits } from "../empty.js";
import { agentLink } from "../thing.js";
import { go } from "../route.js";
import { isTruncated } from "../task_store.js";
import { picture } from "../picture.js";

const ORDER = ["running", "dead", "failed", "pending", "blocked", "complete", "dropped"];
const RANK = Object.fromEntries(ORDER.map((state, n) => [state, n]));
const CHIPS = { state: (each) => each.state, label: (each) => each.labels };
const SORTS = {
  "": (a, b) =>
    RANK[a.state] - RANK[b.state] ||
    (a.state === "complete" ? b.since - a.since : a.priority - b.priority) ||
    (a.task < b.task ? -1 : 1),
  since: (a, b) => (b.since || b.published_at || 0) - (a.since || a.published_at || 0),
  id: (a, b) => (a.task < b.task ? -1 : 1),
};

export function open(place) {
  const list = new List(place, {
    row: (task) => row(task),
    key: (t) => t.task,
    version,
    open: (t) => go({ show: `task/${t.task}` }),
    label: "Tasks",
  });
  list.kindOf = () => "task";
  const none = h("div");
  const drawing = h("div.drawing");
  place.append(none, drawing, list.element);
  return { list, close: () => list.close(), paint: (params) => paint(params, list, none, drawing) };
}

const cancelled = (task) => task.state === "failed" && task.reason.startsWith("cancelled ");
const bad = (task) =>
  !cancelled(task) &&
  (task.state === "failed" || task.state === "dead" || (task.attempts > 0 && task.state === "pending"));

function version(task) {
  return [
    task.state,
    task.title,
    task.holder,
    task.since,
    task.progress,
    task.doing,
    task.attempts,
    task.priority,
    task.stale,
    task.reason,
    task.on,
    task.labels,
    task.needs.length,
  ].join("\u0001");
}

function paint(params, list, none, drawing) {
  const all = [...(data.tasks?.values() || [])];
  const shown = filtered(all, params, {
    chips: CHIPS,
    text: (t) => `${t.task} ${t.title} ${t.holder} ${t.labels.join(" ")} ${t.doing} ${t.plan}`,
    facets: (t) => ({
      label: t.labels,
      holder: t.holder,
      state: t.state,
      needs: t.needs,
      requires: t.requires,
      plan: t.plan,
      by: t.published_by,
    }),
  });
  shown.sort(SORTS[params.sort] || SORTS[""]);
  const states = tally(all, (each) => each.state);
  const names = [...tally(all, (each) => each.labels)].sort((a, b) => b[1] - a[1]).slice(0, 8);
  const drawn = params.as === "picture";
  paintHead({
    title: "Tasks",
    search: "Filter by words, label:web, holder:bob, needs:api",
    summary: data.tasks
      ? `${count(shown.length)}${shown.length < all.length ? ` of ${count(all.length)}` : ""}${isTruncated() ? "; more are in the store" : ""}`
      : "",
    chips: [
      { name: "state", options: ORDER.map((each) => [each, each, states.get(each) || 0, STATE_TONES[each]]) },
      { name: "label", options: names.map(([name, number]) => [name, name, number, "label"]) },
    ],
    bulk: isFiltered(params, CHIPS) && shown.length ? { kind: "task", items: shown, noun: "task" } : null,
    extra: [
      sortButton(params),
      button(drawn ? "Rows" : "Picture", () => go({ as: drawn ? "" : "picture" }), { kind: "quiet" }),
    ],
  });
  none.replaceChildren(
    ...(!data.tasks
      ? [loading()]
      : !all.length
        ? [
            empty(
              "No tasks yet",
              "Publish the first one; it appears here at once.",
              "interlock task add hello --title 'Say hello' --agent ada",
            ),
          ]
        : !shown.length
          ? [nothingFits()]
          : []),
  );
  drawing.hidden = !drawn;
  list.element.hidden = drawn;
  if (drawn) drawing.replaceChildren(picture(shown, data.tasks));
  else list.setItems(shown);
}

function sortButton(params) {
  const next = { "": "since", since: "id", id: "" };
  const words = { "": "by state", since: "newest first", id: "by id" };
  return button(`Sorted ${words[params.sort || ""]}`, () => go({ sort: next[params.sort || ""] }), {
    kind: "quiet",
  });
}

function row(task) {
  return h(
    "div.cells.tasks",
    stateChip(task.stale ? "stale" : cancelled(task) ? "cancelled" : task.state),
    h(
      "div.main",
      h("div.first", h("strong.name", task.title || task.task), task.title && h("code.id", task.task)),
      second(task),
    ),
    labels(task.labels.slice(0, 3)),
    h(
      "div.holder",
      task.holder ? agentLink(task.holder) : task.by ? h("span.muted", task.by) : h("span.muted", "–"),
    ),
    h("div.since", ago(task.since || task.published_at)),
    rowActions("task", task, ["Retry", "Requeue", "Cancel", "Edit"]),
  );
}

/** The second line: the error, else what goes on, else what it waits for. */
function second(task) {
  if (bad(task) && task.reason) return h("div.second.error", brief(task.reason));
  if (task.state === "running") return h("div.second", progress(task.progress), task.doing);
  const parts = [];
  if (task.reason) parts.push(task.reason);
  if (task.state === "blocked" && task.on) parts.push(`waits for ${task.on}`);
  else if (task.needs.length && task.state === "blocked") parts.push(`needs ${task.needs.join(", ")}`);
  if (task.guard) parts.push(`guard ${task.guard}: ${task.leaf}`);
  if (task.requires.length) parts.push(`requires ${task.requires.join(", ")}`);
  if (task.attempts) parts.push(`${plural(task.attempts, "failed attempt")} of ${task.retries + 1}`);
  if (task.priority !== 5) parts.push(`priority ${task.priority}`);
  return h("div.second", parts.join(" · "));
}
