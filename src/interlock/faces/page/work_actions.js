// What a person can do about work, by kind of thing: which operation it is, when it applies, what it
// asks for first, and how it is undone.
//
//   ask      the dialog: {text, reason: "optional"|"required", fields, danger}; none: at once
//   request  the fields of the operation, from the thing and the answers
//   undo     the operation that takes it back, from the thing and the outcome
//   single   whether it is for one thing at a time

import { act } from "./api.js";

const OPEN = ["pending", "blocked", "running"];

const note = (task, said) =>
  said.reason ? act("task note", { task: task.task, text: `retried: ${said.reason}` }) : null;

export const WORK_ACTIONS = {
  task: {
    retry: {
      label: "Retry",
      key: "r",
      operation: "task retry",
      when: (t) => ["failed", "dead", "dropped"].includes(t.state),
      ask: { text: "It returns to the queue with all its attempts.", reason: "optional" },
      request: (t) => ({ task: t.task }),
      before: note,
      done: "is in the queue again",
    },
    requeue: {
      label: "Requeue",
      key: "u",
      operation: "task requeue",
      when: (t) => t.state === "running",
      ask: {
        text: "The claim of its worker ends at once, and its token is fenced: what it did so far may be lost.",
        reason: "required",
        danger: true,
      },
      request: (t, said) => ({ task: t.task, reason: said.reason, ...(t.token ? { token: t.token } : {}) }),
      done: "waits for a worker",
    },
    cancel: {
      label: "Cancel",
      key: "c",
      operation: "task cancel",
      when: (t) => OPEN.includes(t.state),
      ask: {
        text: "It will not be done. A worker that has it loses its claim; tasks that need it stay blocked.",
        reason: "required",
        danger: true,
      },
      request: (t, said) => ({ task: t.task, reason: said.reason }),
      done: "is cancelled",
      undo: (t) => ["task retry", { task: t.task }],
    },
    edit: {
      label: "Edit",
      key: "e",
      operation: "task edit",
      when: (t) => ["pending", "blocked"].includes(t.state),
      single: true,
      ask: {
        text: "The record keeps the old values.",
        fields: (t) => [
          { name: "title", label: "Title", value: t.title },
          {
            name: "priority",
            label: "Priority (a lower number comes first)",
            value: String(t.priority),
            type: "number",
          },
          { name: "labels", label: "Labels, separated by commas", value: t.labels.join(", ") },
          { name: "needs", label: "Needs, separated by commas", value: t.needs.join(", ") },
        ],
      },
      request: editRequest,
      done: "is changed",
      undo: (t, outcome) => [
        "task edit",
        {
          task: t.task,
          ...Object.fromEntries(
            Object.entries(outcome.changed).map(([name, { old }]) => [
              name === "labels" ? "label" : name,
              old,
            ]),
          ),
        },
      ],
    },
    note: {
      label: "Note",
      key: "n",
      operation: "task note",
      when: () => true,
      single: true,
      ask: {
        text: "All who look at the task see it.",
        fields: () => [{ name: "text", label: "Note", lines: 4, required: true }],
      },
      request: (t, said) => ({ task: t.task, text: said.text }),
      done: "has a note",
    },
  },
  agent: {
    stop: {
      label: "Stop",
      key: "x",
      operation: "stop",
      when: (a) => a.state === "alive",
      ask: {
        text: "It is asked to finish its step and to exit. This cannot be taken back.",
        reason: "required",
        danger: true,
      },
      request: (a, said) => ({ who: a.agent, reason: said.reason }),
      done: "is asked to stop",
    },
    pause: {
      label: "Pause",
      key: "p",
      operation: "agent pause",
      when: (a) => a.state === "alive" && !a.paused,
      ask: { text: "It may not send messages until it is resumed. Its work goes on.", reason: "required" },
      request: (a, said) => ({ name: a.agent, reason: said.reason }),
      done: "is paused",
      undo: (a) => ["agent resume", { name: a.agent }],
    },
    resume: {
      label: "Resume",
      operation: "agent resume",
      when: (a) => Boolean(a.paused),
      request: (a) => ({ name: a.agent }),
      done: "may send again",
    },
    message: {
      label: "Message",
      key: "m",
      operation: "send",
      when: () => true,
      ask: {
        text: "It has the mail in its inbox, as from you.",
        fields: () => [
          { name: "subject", label: "Subject" },
          { name: "body", label: "Text", lines: 5, required: true },
        ],
      },
      request: (a, said) => ({ who: [a.agent], subject: said.subject, body: said.body, hold: true }),
      done: "has your message",
    },
    ack: {
      label: "Acknowledge",
      operation: "agent ack",
      when: (a) => Boolean(a.died),
      request: (a) => ({ name: a.agent }),
      done: "is acknowledged",
    },
  },
  decision: {
    answer: {
      label: "Answer",
      operation: "decision resolve",
      when: (d) => d.state === "open",
      ask: null,
      request: (d, said) => ({ id: d.decision, text: said.text }),
      done: "is decided",
    },
  },
  pipeline: {
    advance: {
      label: "Advance",
      operation: "pipeline advance",
      when: (p) => p.state === "running",
      ask: { text: "You say that the work of this phase is done. Its guards decide." },
      request: (p) => ({ pipeline: p.pipeline, phase: p.phase }),
      done: "moved on",
    },
    cancel: {
      label: "Cancel",
      operation: "pipeline cancel",
      when: (p) => p.state === "running",
      ask: {
        text: "It ends, releases what it holds, and its open tasks are cancelled. This cannot be taken back.",
        reason: "required",
        danger: true,
      },
      request: (p, said) => ({ pipeline: p.pipeline, reason: said.reason }),
      done: "is cancelled",
    },
  },
};

function editRequest(task, said) {
  const list = (text) =>
    text
      .split(",")
      .map((each) => each.trim())
      .filter(Boolean);
  const request = { task: task.task };
  if (said.title !== task.title) request.title = said.title;
  if (Number(said.priority) !== task.priority) request.priority = Number(said.priority);
  if (String(list(said.labels)) !== String(task.labels)) request.label = list(said.labels);
  if (String(list(said.needs)) !== String(task.needs)) request.needs = list(said.needs);
  return request;
}
