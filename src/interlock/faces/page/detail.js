// The panel beside the list: one thing with its facts, what blocks it, its text, and its story.

import { button, byId, chip, h, show } from "./dom.js";
import { ago, clock, duration, shortId, valueText } from "./format.js";
import { read } from "./api.js";
import { nextFrame } from "./frame.js";
import { data } from "./state.js";
import { rowActions, stateChip } from "./rows.js";
import { agentLink, split, thingLink } from "./thing.js";
import { picture } from "./picture.js";
import { steps } from "./views/pipelines.js";
import { roster } from "./views/agents.js";

export const USED_BY_DETAIL = ["tasks", "locks", "semaphores", "agents"];
const SHOWS = { task: ["task show", "task"], lock: ["lock show", "lock"], sem: ["sem show", "semaphore"], agent: ["agent show", "name"], pipeline: ["pipeline show", "pipeline"], decision: ["decision show", "id"], quarantine: ["quarantine show", "id"], guard: ["guard show", "guard"], schedule: ["schedule show", "schedule"] };
const EXPLAINED = new Set(["task", "lock", "sem", "agent", "pipeline", "guard", "schedule", "query", "message", "request"]);
const SKIPPED = new Set(["task", "title", "state", "text", "data", "result", "error", "notes", "earlier_notes", "lock", "semaphore", "pipeline", "holders", "waiters", "phases", "phase", "blocked_by", "tasks", "agents", "known", "count", "outcome", "progress", "digest", "metadata"]);

let open = { thing: "" };

/** Paint the panel; a change of its thing reads it again. */
export function paintDetail(thing, close, change) {
  const panel = byId("detail");
  if (!thing) {
    if (open.thing) { panel.hidden = true; panel.replaceChildren(); document.body.removeAttribute("data-detail"); }
    open = { thing: "" };
    return;
  }
  if (open.thing !== thing) {
    open = { thing, close };
    panel.hidden = false;
    document.body.dataset.detail = "";
    show(panel, head(thing), h("p.muted", "Reading …"));
    panel.querySelector("button")?.focus({ preventScroll: true });
    load(open);
  } else if (change && [change.thing, change.on].some((each) => each && (each === thing || thing === `agent/${change.agent}`))) {
    clearTimeout(open.timer);
    open.timer = setTimeout(() => load(open), 150);
  }
}

async function load(mine) {
  const [kind, id] = mine.thing.startsWith("thread/") ? ["thread", mine.thing.slice(7)] : split(mine.thing);
  const none = () => null;
  const [operation, field] = SHOWS[kind] || [];
  const [shown, why, story] = await Promise.all([
    operation ? read(operation, { [field]: id }).catch(none) : kind === "thread" ? readThread(id) : kind === "message" || kind === "query" ? readMessage(id) : null,
    EXPLAINED.has(kind) ? read("why", { thing: `${kind}/${id}` }).catch(none) : null,
    kind === "thread" ? null : read("record explain", { thing: `${kind}/${id}`, limit: 100 }).catch(none),
  ]);
  if (open !== mine) return;
  nextFrame("detail body", () => open === mine && show(byId("detail"), head(mine.thing, kind, shown), body(kind, id, shown, why, story)));
}

const readThread = async (thread) => (await read("message list", { thread, limit: 300 }).catch(() => ({ messages: [] })));
const readMessage = async (id) => ({ messages: ((data.messages || []).filter((each) => each.id === id)) });

function head(thing, kind = split(thing)[0], shown = null) {
  const id = thing.slice(thing.indexOf("/") + 1);
  const item = kind === "agent" ? roster().find((each) => each.agent === id) : shown;
  const state = kind === "agent" ? item?.shown : item?.state;
  return h("header", h("div.line", h("span.muted", kind), state && stateChip(state), h("span.grow"), button("×", () => open.close(), { kind: "quiet", "aria-label": "Close (Esc)" })),
    h("h2", shown?.title || shortId(id)), shown?.title && h("code.id", id),
    item && !item.outcome && rowActions(kind === "sem" ? "semaphore" : kind, item));
}

function body(kind, id, shown, why, story) {
  const parts = [];
  if (!shown && !why && !story) return h("p.muted", "Nothing is known about it any more.");
  if (why?.because) parts.push(h("section.why", { data: { blocked: why.blocked } }, h("p", why.because), why.clear && h("p.muted", `to clear it: ${why.clear}`), why.chain?.map((each) => h("p.muted", "↳ ", thingLink(each.thing), ` ${each.because}`))));
  if (kind === "task" && shown?.task) parts.push(...taskParts(shown));
  if (kind === "pipeline" && shown?.phases) parts.push(h("section", steps(shown), shown.blocked_by && h("p.kept", h("code", shown.blocked_by.leaf), ` ${shown.blocked_by.reason}`)));
  if (shown?.messages) parts.push(...shown.messages.map(messagePart));
  if (shown && !shown.outcome && !shown.messages) parts.push(facts(kind === "agent" ? shown.agents?.[0] || {} : shown));
  if (story?.happenings?.length) parts.push(h("section.story", h("h3", "Story"), story.earlier && h("p.muted", "Earlier events are not shown."), h("ol", [...story.happenings].reverse().map(happening))));
  return parts;
}

function taskParts(task) {
  const block = (title, value, tone = "") => value !== null && value !== undefined && value !== "" && h("section", h("h3", title), h("pre", { data: { tone } }, valueText(value, 2)));
  const near = data.tasks ? [...data.tasks.values()].filter((each) => each.task === task.task || each.needs.includes(task.task)) : [];
  return [block("Error", task.error, "bad"), task.text && h("section", h("h3", "Text"), h("p.prose", task.text)), block("Data", task.data), block("Result", task.result),
    near.length && (task.needs.length || near.length > 1) ? h("section", h("h3", "Needs and dependents"), picture(near, data.tasks, { centre: task.task })) : null,
    task.notes?.length ? h("section", h("h3", "Notes"), task.notes.map((each) => h("div.note", h("p.prose", each.text), h("p.muted", each.by, " · ", ago(each.at, " ago"))))) : null];
}

function messagePart(message) {
  return h("section.letter", h("p.line", chip(message.kind), agentLink(message.from), h("span.muted", `→ ${message.to.join(", ") || "subscribers"}`), h("span.grow"), ago(message.at, " ago")), message.subject && h("strong", message.subject), h("p.prose", valueText(message.body ?? message.data, 2)));
}

/** The other fields, as names and values; moments as times. */
function facts(item) {
  const rows = Object.entries(item).filter(([name, value]) => !SKIPPED.has(name) && !name.endsWith("_iso") && value !== null && value !== "" && value !== false && !(Array.isArray(value) && !value.length));
  const value = (name, each) => {
    if (`${name}_iso` in item) return ago(each, " ago");
    if (/expires_in|max_hold|retry_in/.test(name)) return duration(each);
    if (name === "holder" || name === "agent" || name.endsWith("_by") || name === "by") return agentLink(each);
    if (name === "needs") return each.map((need, n) => [n > 0 && ", ", thingLink(`task/${need}`, need)]);
    if (name === "holds") return each.map((held, n) => [n > 0 && ", ", thingLink(split(held).join("/"), held)]);
    return Array.isArray(each) ? each.map((part) => valueText(part)).join(", ") : valueText(each);
  };
  return h("dl.facts", rows.map(([name, each]) => [h("dt", name.replaceAll("_", " ").replace(/ at$/, "")), h("dd", value(name, each))]));
}

function happening(event) {
  const more = [event.held && `held ${duration(event.held)}`, event.waited && `waited ${duration(event.waited)}`, event.token && `token ${event.token}`, event.behind.length && `behind ${event.behind.join(", ")}`, event.went_to.length && `to ${event.went_to.join(", ")}`, event.by && `by ${event.by}`, event.reason, event.says].filter(Boolean);
  return h("li", h("time", { title: String(event.revision) }, clock(event.at)), h("span", agentLink(event.agent), ` ${event.what.replaceAll("_", " ")}`, more.length > 0 && h("span.muted", ` · ${more.join(" · ")}`)));
}
