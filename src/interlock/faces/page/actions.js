// What a person can do, by kind of thing: which operation it is, when it applies, what it asks for
// first, and how it is undone.
//
//   ask      the dialog: {title, text, reason: "optional"|"required", fields, danger}; none: at once
//   request  the fields of the operation, from the thing and the answers
//   undo     the operation that takes it back, from the thing and the outcome

import { act, refused, Trouble } from "./api.js";
import { ask } from "./dialog.js";
import { toast } from "./toast.js";
import { plural } from "./format.js";

const OPEN = ["pending", "blocked", "running"];
const AT_ONCE = 4;
export const person = { role: "admin", agent: "" };

const note = (task, said) => (said.reason ? act("task note", { task: task.task, text: `retried: ${said.reason}` }) : null);

export const ACTIONS = {
  task: {
    retry: {
      label: "Retry", key: "r", operation: "task retry", when: (t) => ["failed", "dead", "dropped"].includes(t.state),
      ask: { text: "It returns to the queue with all its attempts.", reason: "optional" },
      request: (t) => ({ task: t.task }), before: note, done: "is in the queue again",
    },
    requeue: {
      label: "Requeue", key: "u", operation: "task requeue", when: (t) => t.state === "running",
      ask: { text: "The claim of its worker ends at once, and its token is fenced: what it did so far may be lost.", reason: "required", danger: true },
      request: (t, said) => ({ task: t.task, reason: said.reason, ...(t.token ? { token: t.token } : {}) }), done: "waits for a worker",
    },
    cancel: {
      label: "Cancel", key: "c", operation: "task cancel", when: (t) => OPEN.includes(t.state),
      ask: { text: "It will not be done. A worker that has it loses its claim; tasks that need it stay blocked.", reason: "required", danger: true },
      request: (t, said) => ({ task: t.task, reason: said.reason }), done: "is cancelled",
      undo: (t) => ["task retry", { task: t.task }],
    },
    edit: {
      label: "Edit", key: "e", operation: "task edit", when: (t) => ["pending", "blocked"].includes(t.state), single: true,
      ask: {
        text: "The record keeps the old values.",
        fields: (t) => [
          { name: "title", label: "Title", value: t.title },
          { name: "priority", label: "Priority (a lower number comes first)", value: String(t.priority), type: "number" },
          { name: "labels", label: "Labels, separated by commas", value: t.labels.join(", ") },
          { name: "needs", label: "Needs, separated by commas", value: t.needs.join(", ") },
        ],
      },
      request: editRequest, done: "is changed",
      undo: (t, outcome) => ["task edit", { task: t.task, ...Object.fromEntries(Object.entries(outcome.changed).map(([name, { old }]) => [name === "labels" ? "label" : name, old])) }],
    },
    note: {
      label: "Note", key: "n", operation: "task note", when: () => true, single: true,
      ask: { text: "All who look at the task see it.", fields: () => [{ name: "text", label: "Note", lines: 4, required: true }] },
      request: (t, said) => ({ task: t.task, text: said.text }), done: "has a note",
    },
  },
  agent: {
    stop: {
      label: "Stop", key: "x", operation: "stop", when: (a) => a.state === "alive",
      ask: { text: "It is asked to finish its step and to exit. This cannot be taken back.", reason: "required", danger: true },
      request: (a, said) => ({ who: a.agent, reason: said.reason }), done: "is asked to stop",
    },
    pause: {
      label: "Pause", key: "p", operation: "agent pause", when: (a) => a.state === "alive" && !a.paused,
      ask: { text: "It may not send messages until it is resumed. Its work goes on.", reason: "required" },
      request: (a, said) => ({ name: a.agent, reason: said.reason }), done: "is paused", undo: (a) => ["agent resume", { name: a.agent }],
    },
    resume: { label: "Resume", operation: "agent resume", when: (a) => Boolean(a.paused), request: (a) => ({ name: a.agent }), done: "may send again" },
    message: {
      label: "Message", key: "m", operation: "send", when: () => true,
      ask: { text: "It has the mail in its inbox, as from you.", fields: () => [{ name: "subject", label: "Subject" }, { name: "body", label: "Text", lines: 5, required: true }] },
      request: (a, said) => ({ who: [a.agent], subject: said.subject, body: said.body, hold: true }), done: "has your message",
    },
    ack: { label: "Acknowledge", operation: "agent ack", when: (a) => Boolean(a.died), request: (a) => ({ name: a.agent }), done: "is acknowledged" },
  },
  lock: {
    release: {
      label: "Release", key: "u", operation: "lock break", when: (l) => Boolean(l.holder),
      ask: { text: "The grant of its holder ends at once, and its token is fenced. The first waiter gets the lock.", reason: "required", danger: true },
      request: (l, said) => ({ lock: l.lock, reason: said.reason, ...(l.token ? { token: l.token } : {}) }), done: "is released",
    },
  },
  slots: {
    release: {
      label: "Release", key: "u", operation: "sem break", when: () => true,
      ask: { text: "The grant of this holder ends at once, and its token is fenced. Waiters that fit get the slots.", reason: "required", danger: true },
      request: (s, said) => ({ semaphore: s.semaphore, reason: said.reason, token: s.token }), done: "lost its slots",
    },
  },
  semaphore: {
    resize: {
      label: "Resize", operation: "sem resize", when: () => true, single: true,
      ask: { text: "No holder loses a slot.", fields: (s) => [{ name: "capacity", label: "Capacity", type: "number", value: String(s.capacity), required: true }] },
      request: (s, said) => ({ semaphore: s.semaphore, capacity: Number(said.capacity) }), done: "has a new capacity",
      undo: (s) => ["sem resize", { semaphore: s.semaphore, capacity: s.capacity }],
    },
  },
  decision: {
    answer: { label: "Answer", operation: "decision resolve", when: (d) => d.state === "open", ask: null, request: (d, said) => ({ id: d.decision, text: said.text }), done: "is decided" },
  },
  quarantine: {
    release: {
      label: "Release", operation: "quarantine release", when: (q) => q.releasable,
      ask: { text: "It is treated as if it had been accepted: its task is published.", danger: true }, request: (q) => ({ id: q.id }), done: "is released",
    },
    drop: { label: "Drop", operation: "quarantine drop", when: () => true, ask: { text: "It is deleted. This cannot be taken back.", danger: true }, request: (q) => ({ ids: [q.id] }), done: "is dropped" },
  },
  pipeline: {
    advance: { label: "Advance", operation: "pipeline advance", when: (p) => p.state === "running", ask: { text: "You say that the work of this phase is done. Its guards decide." }, request: (p) => ({ pipeline: p.pipeline, phase: p.phase }), done: "moved on" },
    cancel: {
      label: "Cancel", operation: "pipeline cancel", when: (p) => p.state === "running",
      ask: { text: "It ends, releases what it holds, and its open tasks are cancelled. This cannot be taken back.", reason: "required", danger: true },
      request: (p, said) => ({ pipeline: p.pipeline, reason: said.reason }), done: "is cancelled",
    },
  },
};

function editRequest(task, said) {
  const list = (text) => text.split(",").map((each) => each.trim()).filter(Boolean);
  const request = { task: task.task };
  if (said.title !== task.title) request.title = said.title;
  if (Number(said.priority) !== task.priority) request.priority = Number(said.priority);
  if (String(list(said.labels)) !== String(task.labels)) request.label = list(said.labels);
  if (String(list(said.needs)) !== String(task.needs)) request.needs = list(said.needs);
  return request;
}

export const nameOf = (thing) => thing.task || thing.lock || (thing.token && thing.holder) || thing.semaphore || thing.pipeline || thing.decision || thing.agent || thing.id || thing.swarm;

/** The actions that fit this thing; none for a reader. */
export function actionsFor(kind, thing) {
  if (person.role === "read") return [];
  return Object.values(ACTIONS[kind] || {}).filter((each) => each.ask !== null && each.when(thing));
}

/** Do it to one thing or to many, after asking; says what happened, with an undo where there is one. */
export async function perform(action, things) {
  const many = things.length > 1;
  const what = many ? plural(things.length, "item") : nameOf(things[0]);
  let said = {};
  if (action.ask) {
    const fields = typeof action.ask.fields === "function" ? action.ask.fields(things[0]) : [];
    said = await ask({ ...action.ask, fields, title: `${action.label} ${what}`, label: action.label, names: many ? things.map(nameOf) : [] });
    if (!said) return;
  }
  await carryOut(action, things, said);
}

/** Do it without asking: the answers are given. */
export async function carryOut(action, things, said = {}) {
  const many = things.length > 1;
  const done = [];
  const wrong = [];
  const todo = [...things];
  const worker = async () => {
    for (let thing = todo.shift(); thing; thing = todo.shift()) {
      try {
        await action.before?.(thing, said);
        const outcome = await act(action.operation, action.request(thing, said));
        const why = refused(outcome);
        if (why) wrong.push([thing, why]);
        else done.push([thing, outcome]);
      } catch (error) {
        if (!(error instanceof Trouble)) throw error;
        wrong.push([thing, error.message]);
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  if (done.length) {
    const text = many ? `${action.label}: ${plural(done.length, "item")} done.` : `${nameOf(done[0][0])} ${action.done}.`;
    toast(text, { undo: action.undo && (() => takeBack(action, done)) });
  }
  if (wrong.length) {
    const [thing, why] = wrong[0];
    toast(`${action.label} did not work for ${many ? `${plural(wrong.length, "item")}, such as ` : ""}${nameOf(thing)}: ${why}`, { bad: true });
  }
  return done.length;
}

async function takeBack(action, done) {
  let wrong = "";
  for (const [thing, outcome] of done) {
    try {
      wrong ||= refused(await act(...action.undo(thing, outcome)));
    } catch (error) {
      wrong ||= error.message;
    }
  }
  toast(wrong ? `It could not be taken back: ${wrong}` : "It is taken back.", { bad: Boolean(wrong) });
}
