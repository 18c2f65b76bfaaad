// Parts that rows of several views share: states with their colours, buttons, second lines.

import { button, chip, h } from "./dom.js";
import { actionsFor, perform } from "./actions.js";

export const STATE_TONES = {
  running: "busy",
  pending: "",
  blocked: "wait",
  complete: "ok",
  failed: "bad",
  dead: "bad",
  dropped: "off",
  alive: "ok",
  lapsed: "bad",
  busy: "busy",
  waiting: "wait",
  idle: "off",
  held: "busy",
  reserved: "busy",
  queued: "wait",
  stale: "bad",
  open: "accent",
  cancelled: "off",
  online: "ok",
  degraded: "warn",
  offline: "bad",
  unknown: "off",
  testing: "busy",
  landing: "busy",
  bounced: "bad",
  merged: "ok",
  active: "ok",
  paused: "warn",
  ended: "off",
  passed: "ok",
  "used up": "bad",
  limited: "busy",
};

export const stateChip = (state) => chip(state, STATE_TONES[state] || "");

/** The buttons of a row: what a person can do to it. */
export function rowActions(kind, item, only) {
  const found = actionsFor(kind, item).filter((each) => !only || only.includes(each.label));
  return h(
    "div.actions",
    found.map((action) =>
      button(
        action.label,
        (event) => {
          event.stopPropagation();
          perform(action, [item]);
        },
        {
          kind: action.ask?.danger ? "quiet.dangerous" : "quiet",
          title: action.key ? `Key: ${action.key}` : null,
        },
      ),
    ),
  );
}

/** A bar of progress, with its number. */
export function progress(part) {
  if (part === null || part === undefined) return null;
  const percent = Math.round(Math.min(1, Math.max(0, part)) * 100);
  return h(
    "span.progress",
    { role: "progressbar", "aria-valuenow": percent, "aria-valuemin": 0, "aria-valuemax": 100 },
    h("span.bar", h("span.fill", { vars: { "--part": `${percent}%` } })),
    h("span.number", `${percent} %`),
  );
}

export const labels = (names) =>
  h(
    "span.labels",
    names.map((each) => h("span.label", each)),
  );
