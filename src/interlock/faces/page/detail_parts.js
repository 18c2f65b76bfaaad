// The parts of the panel: what blocks a thing, its text and data, its other facts, and its story.

import { chip, h } from "./dom.js";
import { ago, clock, duration, now, until, valueText } from "./format.js";
import { data } from "./state.js";
import { agentLink, split, thingLink } from "./thing.js";
import { picture } from "./picture.js";
import { steps } from "./views/pipelines.js";

const SKIPPED = new Set([
  "task",
  "title",
  "state",
  "text",
  "data",
  "result",
  "error",
  "notes",
  "earlier_notes",
  "lock",
  "semaphore",
  "pipeline",
  "holders",
  "waiters",
  "phases",
  "phase",
  "blocked_by",
  "tasks",
  "agents",
  "known",
  "count",
  "outcome",
  "progress",
  "digest",
  "metadata",
  "schedule",
  "guard",
  "definition",
  "stored",
  "observations",
  "hosts",
  "because",
  "id",
]);

/** Everything below the head of the panel. */
export function body(kind, shown, why, story) {
  const parts = [];
  if (!shown && !why && !story) return h("p.muted", "Nothing is known about it any more.");
  if (why?.because)
    parts.push(
      h(
        "section.why",
        { data: { blocked: why.blocked } },
        h("p", why.because),
        why.clear && h("p.muted", `to clear it: ${why.clear}`),
        why.chain?.map((each) => h("p.muted", "↳ ", thingLink(each.thing), ` ${each.because}`)),
      ),
    );
  if (kind === "task" && shown?.task) parts.push(...taskParts(shown));
  if (kind === "pipeline" && shown?.phases)
    parts.push(
      h(
        "section",
        steps(shown),
        shown.blocked_by && h("p.kept", h("code", shown.blocked_by.leaf), ` ${shown.blocked_by.reason}`),
      ),
    );
  if (kind === "guard" && shown?.definition) parts.push(...guardParts(shown));
  if (shown?.messages) parts.push(...shown.messages.map(messagePart));
  if (shown && !shown.outcome && !shown.messages)
    parts.push(facts(kind === "agent" ? shown.agents?.[0] || {} : shown));
  if (story?.happenings?.length)
    parts.push(
      h(
        "section.story",
        h("h3", "Story"),
        story.earlier && h("p.muted", "Earlier events are not shown."),
        h("ol", [...story.happenings].reverse().map(happening)),
      ),
    );
  return parts;
}

function taskParts(task) {
  const block = (title, value, tone = "") =>
    value !== null &&
    value !== undefined &&
    value !== "" &&
    h("section", h("h3", title), h("pre", { data: { tone } }, valueText(value, 2)));
  const near = data.tasks
    ? [...data.tasks.values()].filter((each) => each.task === task.task || each.needs.includes(task.task))
    : [];
  return [
    block("Error", task.error, "bad"),
    task.text && h("section", h("h3", "Text"), h("p.prose", task.text)),
    block("Data", task.data),
    block("Result", task.result),
    near.length && (task.needs.length || near.length > 1)
      ? h("section", h("h3", "Needs and dependents"), picture(near, data.tasks, { centre: task.task }))
      : null,
    task.notes?.length
      ? h(
          "section",
          h("h3", "Notes"),
          task.notes.map((each) =>
            h("div.note", h("p.prose", each.text), h("p.muted", each.by, " · ", ago(each.at, " ago"))),
          ),
        )
      : null,
  ];
}

function guardParts(guard) {
  const seen = guard.observations.map((each) =>
    h("p", h("code", each.condition), ` ${each.says} `, h("span.muted", each.host, ", ", ago(each.at, " ago"))),
  );
  const hosts = guard.hosts.map((each) => each.host).join(", ");
  return [
    h("section", h("h3", "Definition"), h("pre", guard.definition.join("\n"))),
    guard.outside &&
      h(
        "section",
        h("h3", "Last seen"),
        seen.length ? seen : h("p.muted", hosts ? `${hosts} may look, and saw nothing yet` : guard.because),
      ),
  ];
}

function messagePart(message) {
  return h(
    "section.letter",
    h(
      "p.line",
      chip(message.kind),
      agentLink(message.from),
      h("span.muted", `→ ${message.to.join(", ") || "subscribers"}`),
      h("span.grow"),
      ago(message.at, " ago"),
    ),
    message.subject && h("strong", message.subject),
    h("p.prose", valueText(message.body ?? message.data, 2)),
  );
}

const moment = (at) => (at > now() ? until(at) : ago(at, " ago"));

/** The other fields, as names and values; moments as times. */
function facts(item) {
  const rows = Object.entries(item).filter(
    ([name, value]) =>
      !SKIPPED.has(name) &&
      !name.endsWith("_iso") &&
      value !== null &&
      value !== "" &&
      value !== false &&
      !(Array.isArray(value) && !value.length),
  );
  const value = (name, each) => {
    if (`${name}_iso` in item) return [each].flat().map((at, n) => [n > 0 && ", ", moment(at)]);
    if (/expires_in|max_hold|retry_in|max_age|every/.test(name)) return duration(each);
    if (name === "holder" || name === "agent" || name.endsWith("_by") || name === "by")
      return agentLink(each);
    if (name === "needs") return each.map((need, n) => [n > 0 && ", ", thingLink(`task/${need}`, need)]);
    if (name === "holds")
      return each.map((held, n) => [n > 0 && ", ", thingLink(split(held).join("/"), held)]);
    return Array.isArray(each) ? each.map((part) => valueText(part)).join(", ") : valueText(each);
  };
  return h(
    "dl.facts",
    rows.map(([name, each]) => [
      h("dt", name.replaceAll("_", " ").replace(/ at$/, "")),
      h("dd", value(name, each)),
    ]),
  );
}

// Reasons that are codes; others are the words of an agent or a person.
const REASONS = {
  attempts: "no attempt is left",
  deadline: "no worker began it before its deadline",
  deadlock: "the wait would never have ended",
  evidence: "evidence is missing",
  fenced: "the token was an older one",
  final: "for good",
  left: "the agent left",
  not_owner: "the agent did not hold it",
};

const verbOf = ({ what, thing }) =>
  what === "dead" && thing.startsWith("task/") ? "failed; the task is dead" : what.replaceAll("_", " ");

function happening(event) {
  const more = [
    event.held && `held ${duration(event.held)}`,
    event.waited && `waited ${duration(event.waited)}`,
    event.token && `token ${event.token}`,
    event.behind.length && `behind ${event.behind.join(", ")}`,
    event.went_to.length && `to ${event.went_to.join(", ")}`,
    event.by && `by ${event.by}`,
    REASONS[event.reason] || event.reason,
    event.says,
  ].filter(Boolean);
  return h(
    "li",
    h("time", { title: String(event.revision) }, clock(event.at)),
    h(
      "span",
      agentLink(event.agent),
      ` ${verbOf(event)}`,
      more.length > 0 && h("span.muted", ` · ${more.join(" · ")}`),
    ),
  );
}
