// The keyboard: j and k move, Enter opens, / filters, digits change the view, ? lists the keys, and
// Ctrl-K opens the palette.  A key that is typed into a field stays there.

import { h } from "./dom.js";
import { go, goView, params } from "./route.js";
import { showDialog } from "./dialog.js";
import { openPalette } from "./palette.js";
import { viewOf } from "./views.js";
import { actionsFor, perform } from "./actions.js";

const HELP = [
  ["j, k", "next and previous row"],
  ["Enter or o", "open the row"],
  ["Esc", "close, clear"],
  ["/", "filter: words, label:web, holder:bob, -state:dead"],
  ["1 … 9, 0", "change the view; Shift and 1 … 4 for the last ones"],
  ["Ctrl-K", "palette: go to anything, do anything"],
  ["g, G", "first and last row"],
  ["r, u, c, e, n", "task: retry, requeue, cancel, edit, note"],
  ["x, p, m", "agent: stop, pause, message"],
  ["u", "lock, slots, files: release"],
  ["c, p, d", "merge: cancel; schedule: pause, drop; budget: no limit"],
  ["?", "this list"],
];

/** ctx: {list() -> the open list}. */
export function startKeys(ctx) {
  addEventListener("help", help);
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      if (!document.querySelector("dialog[open]")) openPalette(ctx);
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.closest?.("input, textarea, select")) return;
    if (handle(event.key, ctx, event)) event.preventDefault();
  });
}

function handle(key, ctx, event) {
  const list = ctx.list();
  if (key === "?") {
    help();
    return true;
  }
  if (key === "/") {
    document.querySelector("#head input[type=search]")?.focus();
    return true;
  }
  const view = viewOf(event);
  if (view) {
    goView(view.id);
    return true;
  }
  if (key === "Escape") return escape(list);
  if (!list) return false;
  if (key === "j" || key === "ArrowDown") {
    list.move(1);
    return true;
  }
  if (key === "k" || key === "ArrowUp") {
    list.move(-1);
    return true;
  }
  if (key === "g") {
    list.move(-Infinity);
    return true;
  }
  if (key === "G") {
    list.move(Infinity);
    return true;
  }
  const item = list.current();
  if (!item) return false;
  if ((key === "Enter" && !event.target.closest("button, a")) || key === "o") {
    list.open?.(item);
    return true;
  }
  return actOn(key, list, item);
}

function actOn(key, list, item) {
  const kind = list.kindOf?.(item);
  const action = kind && actionsFor(kind, item).find((each) => each.key === key);
  if (!action) return false;
  perform(action, [item]);
  return true;
}

function escape(list) {
  if (params().show) {
    go({ show: "" });
    list?.rows.get(list.selected)?.element.focus();
    return true;
  }
  if (params().q) {
    go({ q: "" });
    return true;
  }
  if (list) list.select("");
  return true;
}

function help() {
  if (!document.querySelector("dialog[open]"))
    showDialog(
      "Keys",
      h(
        "dl.keys",
        HELP.map(([keys, what]) => [
          h(
            "dt",
            keys.split(/(, | or | … )/).map((each, n) => (n % 2 ? each : h("kbd", each))),
          ),
          h("dd", what),
        ]),
      ),
    );
}
