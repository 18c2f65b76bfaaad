// The tasks that the page knows, by id: read whole in pages at first, then task by task as events
// name them, since a list of thousands is too much to read again for one change.

import { read } from "./api.js";

const PAGE = 500;
const FIRST_PAGE = 80; // what fills a screen is there sooner
const MOST = 5000; // open tasks; beyond that the page says so
const ENDED = 300; // complete ones, the last by id
const ONE_BY_ONE = 24; // more changes than this at once: read the list again
const WHOLE_EVERY = 5000; // but no more often than this

const FIRST = ["running", "failed", "dead"];
const REST = ["pending", "blocked", "dropped"];
const AFTER = {
  claimed: "running",
  completed: "complete",
  failed: "failed",
  dead: "dead",
  ready: "pending",
  released: "pending",
  requeued: "pending",
  reclaimed: "pending",
  retried: "pending",
  cancelled: "failed",
  dropped: "dropped",
  published: "pending",
};

const changes = new Map(); // id -> the last event
const known = new Map(); // id -> the list row
let truncated = false;
let wholeAt = 0;

/** Whether the store has more open tasks than the page reads. */
export const isTruncated = () => truncated;

/** Whether tasks that events named are still to be read. */
export const isBehind = () => changes.size > 0;

/** An event about a task: shown at once as far as it tells, and read soon. */
export function taskChanged(change) {
  const id = change.thing.replace(/^task\//, "");
  changes.set(id, change);
  const task = known.get(id);
  const state = AFTER[change.event.slice(5)];
  if (task && state && change.event !== "task:failed") {
    const holder = state === "running" ? change.agent : "";
    known.set(id, {
      ...task,
      state,
      holder,
      since: change.at,
      progress: state === "running" ? task.progress : null,
    });
  }
}

/** Forget what events said: everything is read again. */
export function takeTaskChanges() {
  const ids = [...changes.keys()];
  changes.clear();
  return ids;
}

/** All tasks, those first that a person looks for; `part` paints while the rest is read. */
export async function loadTasks(last, whole, part) {
  const ids = takeTaskChanges();
  const often = performance.now() - wholeAt < WHOLE_EVERY;
  if (last && !whole && (ids.length <= ONE_BY_ONE || often)) {
    for (const id of ids.slice(ONE_BY_ONE)) changes.set(id, null); // shown by their events until then
    return loadSome(ids.slice(0, ONE_BY_ONE));
  }
  wholeAt = performance.now();
  const fresh = new Map();
  truncated = false;
  await Promise.all([pages(FIRST, fresh, part), pages(REST, fresh, part)]);
  const { tasks } = await read("task list", { state: ["complete"], limit: ENDED });
  for (const each of tasks) fresh.set(each.task, each);
  known.clear();
  for (const [id, task] of fresh) known.set(id, task);
  return known;
}

async function pages(state, into, part) {
  let after = "";
  let limit = known.size ? PAGE : FIRST_PAGE;
  do {
    const found = await read("task list", { state, limit, ...(after ? { after } : {}) });
    for (const each of found.tasks) into.set(each.task, each);
    if (!known.size && found.tasks.length) part(into);
    after = found.more;
    limit = PAGE;
  } while (after && into.size < MOST);
  truncated ||= Boolean(after);
}

async function loadSome(ids) {
  const rows = await Promise.all(ids.map((task) => read("task show", { task })));
  rows.forEach((row, n) => (row.outcome === "nothing" ? known.delete(ids[n]) : known.set(row.task, row)));
  return known;
}
