// The views, in the order of their keys: what each reads, and its number beside its name.  Its module
// is loaded when it is shown first.

import { data } from "./state.js";
import { needs } from "./needs.js";

const isOpenTask = (each) => each.state !== "complete" && each.state !== "dropped";
const aliveAgents = (agents) =>
  new Set(agents.filter((each) => each.state === "alive").map((each) => each.agent)).size;
const count = (items, test) => items && [...items].filter(test).length;

export const VIEWS = [
  {
    id: "now",
    title: "Needs you",
    uses: ["agents", "tasks", "locks", "semaphores"],
    followsEvents: true,
    number: () => needs().length,
  },
  {
    id: "agents",
    title: "Agents",
    uses: ["agents"],
    number: () => data.agents && aliveAgents(data.agents.agents),
  },
  { id: "tasks", title: "Tasks", uses: ["tasks"], number: () => count(data.tasks?.values(), isOpenTask) },
  {
    id: "locks",
    title: "Locks",
    uses: ["locks", "semaphores", "deadlocks", "messages"],
    number: () => data.locks && data.locks.length + (data.semaphores?.length || 0),
  },
  {
    id: "messages",
    title: "Messages",
    uses: ["messages"],
    number: () => count(data.messages, (each) => each.kind === "query" && each.state === "open"),
  },
  {
    id: "pipelines",
    title: "Pipelines",
    uses: ["pipelines"],
    number: () => count(data.pipelines, (each) => each.state === "running"),
  },
  {
    id: "swarms",
    title: "Swarms",
    uses: ["swarms", "quarantine"],
    number: () => count(data.swarms?.swarms, (each) => each.role !== "own"),
  },
  { id: "record", title: "Record", uses: [], followsEvents: true },
  { id: "timeline", title: "Timeline", uses: ["locks", "semaphores"], followsEvents: true },
  {
    id: "files",
    title: "Files",
    uses: ["reservations"],
    number: () => data.reservations?.length,
  },
  {
    id: "merges",
    title: "Merges",
    uses: ["merges"],
    number: () => count(data.merges?.merges, (each) => each.place > 0),
  },
  { id: "schedules", title: "Schedules", uses: ["schedules"], number: () => data.schedules?.length },
  {
    id: "guards",
    title: "Guards",
    uses: ["guards"],
    number: () => count(data.guards, (each) => each.blocked),
  },
  {
    id: "budgets",
    title: "Budgets",
    uses: ["budgets"],
    number: () => count(data.budgets, (each) => each.over),
  },
];

/** The key of the view at this place: digits, then digits with Shift. */
export const keyOf = (n) => (n < 10 ? String((n + 1) % 10) : `⇧${n - 9}`);

/** The view that this key shows; a keyboard whose digits need Shift has the first ten. */
export function viewOf(event) {
  if (/^[0-9]$/.test(event.key)) return VIEWS[(Number(event.key) + 9) % 10];
  const digit = event.shiftKey && /^Digit([1-9])$/.exec(event.code);
  return digit ? VIEWS[Number(digit[1]) + 9] : null;
}

/** The module of a view; `again` if the last try failed, since a browser remembers that. */
export const loadView = (view, again) => import(`./views/${view.id}.js${again ? `?${again}` : ""}`);
