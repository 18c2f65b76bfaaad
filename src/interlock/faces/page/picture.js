// The dependency picture: each task in a column after all that it needs, lines from need to
// dependent.  Tasks without needs and dependents are left out: they have nothing to show here.

import { h, svg } from "./dom.js";
import { go } from "./route.js";
import { brief, plural } from "./format.js";

const WIDE = 188;
const HIGH = 40;
const GAP_X = 56;
const GAP_Y = 12;
const MOST = 400;

/** A drawing of these tasks with their direct needs; `all` finds those by id. */
export function picture(tasks, all, { centre = "" } = {}) {
  const nodes = connected(tasks, all, centre);
  if (!nodes.size)
    return h("div.empty", h("h2", "Nothing to draw"), h("p", "None of these tasks needs another one."));
  const columns = place(nodes);
  const wide = columns.length * (WIDE + GAP_X) - GAP_X + 2;
  const high = Math.max(...columns.map((each) => each.length)) * (HIGH + GAP_Y) - GAP_Y + 2;
  const at = new Map();
  columns.forEach((column, x) => {
    const top = (high - column.length * (HIGH + GAP_Y) + GAP_Y) / 2;
    column.forEach((id, y) => at.set(id, [x * (WIDE + GAP_X) + 1, Math.max(1, top) + y * (HIGH + GAP_Y)]));
  });
  const lines = [...nodes.values()].flatMap((task) =>
    task.needs
      .filter((need) => at.has(need))
      .map((need) => edge(at.get(need), at.get(task.task), nodes.get(need), task)),
  );
  return h(
    "div.scroll",
    svg(
      "svg.dependencies",
      {
        width: wide,
        height: high,
        viewBox: `0 0 ${wide} ${high}`,
        role: "img",
        "aria-label": `Dependencies of ${plural(nodes.size, "task")}`,
      },
      lines,
      [...nodes.values()].map((task) => node(task, at.get(task.task), task.task === centre)),
    ),
  );
}

/** Tasks with needs or dependents; around a centre only its own needs are added. */
function connected(tasks, all, centre) {
  const nodes = new Map();
  const needed = new Set(tasks.flatMap((each) => each.needs));
  for (const task of tasks) {
    if (nodes.size >= MOST) break;
    if (!task.needs.length && !needed.has(task.task)) continue;
    nodes.set(task.task, task);
    if (centre && task.task !== centre) continue;
    for (const need of task.needs)
      if (!nodes.has(need))
        nodes.set(need, all?.get(need) || { task: need, state: "complete", title: "", needs: [] });
  }
  return nodes;
}

/** Columns by the longest way from a task without needs; each ordered to keep lines short. */
function place(nodes) {
  const depth = new Map();
  const visit = (id, path) => {
    if (depth.has(id) || path.has(id)) return depth.get(id) || 0;
    path.add(id);
    const needs = nodes.get(id).needs.filter((each) => nodes.has(each));
    const found = needs.length ? Math.max(...needs.map((each) => visit(each, path))) + 1 : 0;
    path.delete(id);
    depth.set(id, found);
    return found;
  };
  for (const id of nodes.keys()) visit(id, new Set());
  const columns = [];
  for (const [id, x] of depth) (columns[x] ||= []).push(id);
  const y = new Map(columns[0].map((id, n) => [id, n]));
  for (const column of columns.slice(1)) {
    const middle = (id) => {
      const needs = nodes.get(id).needs.filter((each) => y.has(each));
      return needs.reduce((sum, each) => sum + y.get(each), 0) / Math.max(needs.length, 1);
    };
    column.sort((a, b) => middle(a) - middle(b));
    column.forEach((id, n) => y.set(id, n));
  }
  return columns;
}

function edge([x1, y1], [x2, y2], from, to) {
  const [ax, ay, bx, by] = [x1 + WIDE, y1 + HIGH / 2, x2, y2 + HIGH / 2];
  const bend = Math.max(24, (bx - ax) / 2);
  return svg("path.edge", {
    d: `M${ax} ${ay}C${ax + bend} ${ay} ${bx - bend} ${by} ${bx} ${by}`,
    "data-done": from?.state === "complete",
    "data-bad": ["failed", "dead", "dropped"].includes(from?.state) && to.state === "blocked",
  });
}

function node(task, [x, y], centre) {
  const label = brief(task.title || task.task, 23);
  return svg(
    "g.node",
    {
      transform: `translate(${x} ${y})`,
      tabindex: 0,
      role: "button",
      "data-state": task.state,
      "data-centre": centre,
      "aria-label": `${task.task}: ${task.state}`,
      onclick: () => go({ show: `task/${task.task}` }),
      onkeydown: (event) => {
        if (event.key === "Enter") go({ show: `task/${task.task}` });
      },
    },
    svg("title", `${task.task}${task.title ? `: ${task.title}` : ""} (${task.state})`),
    svg("rect", { width: WIDE, height: HIGH, rx: 8 }),
    svg("rect.mark", { x: 0, y: 8, width: 3, height: HIGH - 16, rx: 1.5 }),
    svg("text", { x: 14, y: 17 }, label),
    svg("text.sub", { x: 14, y: 31 }, brief(`${task.state}${task.holder ? ` · ${task.holder}` : ""}`, 28)),
  );
}
