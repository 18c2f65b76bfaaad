// The panel beside the list: one thing with its facts, what blocks it, its text, and its story.

import { button, byId, h, show } from "./dom.js";
import { shortId } from "./format.js";
import { read } from "./api.js";
import { nextFrame } from "./frame.js";
import { data } from "./state.js";
import { rowActions, stateChip } from "./rows.js";
import { split } from "./thing.js";
import { body } from "./detail_parts.js";
import { roster } from "./views/agents.js";

export const USED_BY_DETAIL = ["tasks", "locks", "semaphores", "agents"];
const SHOWS = {
  task: ["task show", "task"],
  lock: ["lock show", "lock"],
  sem: ["sem show", "semaphore"],
  agent: ["agent show", "name"],
  pipeline: ["pipeline show", "pipeline"],
  decision: ["decision show", "id"],
  quarantine: ["quarantine show", "id"],
  guard: ["guard show", "guard"],
  schedule: ["schedule show", "schedule"],
};
const EXPLAINED = new Set([
  "task",
  "lock",
  "sem",
  "agent",
  "pipeline",
  "guard",
  "schedule",
  "query",
  "message",
  "request",
]);
let open = { thing: "" };

/** Paint the panel; a change of its thing reads it again. */
export function paintDetail(thing, close, change) {
  const panel = byId("detail");
  if (!thing) {
    if (open.thing) {
      panel.hidden = true;
      panel.replaceChildren();
      document.body.removeAttribute("data-detail");
    }
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
  } else if (
    change &&
    [change.thing, change.on].some((each) => each && (each === thing || thing === `agent/${change.agent}`))
  ) {
    clearTimeout(open.timer);
    open.timer = setTimeout(() => load(open), 150);
  }
}

// Of several readings at once the last one counts: an earlier answer may arrive after it.
async function load(mine) {
  const reading = (mine.reading = (mine.reading || 0) + 1);
  const [kind, id] = mine.thing.startsWith("thread/") ? ["thread", mine.thing.slice(7)] : split(mine.thing);
  const none = () => null;
  const [operation, field] = SHOWS[kind] || [];
  const [shown, why, story] = await Promise.all([
    operation
      ? read(operation, { [field]: id }).catch(none)
      : kind === "thread"
        ? readThread(id)
        : kind === "message" || kind === "query"
          ? readMessage(id)
          : null,
    EXPLAINED.has(kind) ? read("why", { thing: `${kind}/${id}` }).catch(none) : null,
    kind === "thread" ? null : read("record explain", { thing: `${kind}/${id}`, limit: 100 }).catch(none),
  ]);
  if (open !== mine || mine.reading !== reading) return;
  nextFrame(
    "detail body",
    () => open === mine && show(byId("detail"), head(mine.thing, kind, shown), body(kind, shown, why, story)),
  );
}

const readThread = async (thread) =>
  await read("message list", { thread, limit: 300 }).catch(() => ({ messages: [] }));
const readMessage = async (id) => ({ messages: (data.messages || []).filter((each) => each.id === id) });

function head(thing, kind = split(thing)[0], shown = null) {
  const id = thing.slice(thing.indexOf("/") + 1);
  const item = kind === "agent" ? roster().find((each) => each.agent === id) : shown;
  const state = kind === "agent" ? item?.shown : item?.state;
  return h(
    "header",
    h(
      "div.line",
      h("span.muted", kind),
      state && stateChip(state),
      h("span.grow"),
      button("×", () => open.close(), { kind: "quiet", "aria-label": "Close (Esc)" }),
    ),
    h("h2", shown?.title || shortId(id)),
    shown?.title && h("code.id", id),
    item && !item.outcome && rowActions(kind === "sem" ? "semaphore" : kind, item),
  );
}
