// The palette: one box that goes to any view, agent, task, lock or pipeline, and does what can be
// done to the selected row.

import { h } from "./dom.js";
import { go, goView } from "./route.js";
import { data } from "./state.js";
import { actionsFor, nameOf, perform } from "./actions.js";
import { linkKinds } from "./thing.js";
import { keyOf, VIEWS } from "./views.js";

const MOST = 12;

export function openPalette(ctx) {
  const entries = [...rowActions(ctx), ...views(), ...things()];
  let shown = [];
  let at = 0;
  const results = h("ul", { role: "listbox", id: "palette-results" });
  const box = h("input", {
    type: "text",
    role: "combobox",
    "aria-expanded": "true",
    "aria-controls": "palette-results",
    "aria-label": "Go to or do",
    placeholder: "Go to a view or a thing, or do something",
    autocomplete: "off",
    spellcheck: "false",
    oninput: () => {
      at = 0;
      paint();
    },
  });
  const dialog = h(
    "dialog.palette",
    { onclose: () => dialog.remove(), onclick: (event) => event.target === dialog && dialog.close() },
    box,
    results,
  );

  function run(entry) {
    dialog.close();
    entry?.run();
  }

  function paint() {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    shown = entries
      .filter((each) => words.every((word) => each.text.toLowerCase().includes(word)))
      .slice(0, MOST);
    results.replaceChildren(
      ...shown.map((each, n) =>
        h(
          "li",
          { role: "option", "aria-selected": String(n === at), id: `option-${n}`, onclick: () => run(each) },
          h("span.muted", each.group),
          h("span", each.label),
        ),
      ),
    );
    if (!shown.length) results.replaceChildren(h("li.none", "Nothing has these words."));
    box.setAttribute("aria-activedescendant", shown.length ? `option-${at}` : "");
  }

  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      run(shown[at]);
    }
    const step =
      { ArrowDown: 1, ArrowUp: -1 }[event.key] || (event.ctrlKey && { n: 1, p: -1 }[event.key]) || 0;
    if (step) {
      event.preventDefault();
      at = (at + step + shown.length) % Math.max(shown.length, 1);
      paint();
    }
  });
  document.body.append(dialog);
  dialog.showModal();
  paint();
  box.focus();
}

const entry = (group, label, run, more = "") => ({ group, label, run, text: `${group} ${label} ${more}` });

function rowActions(ctx) {
  const list = ctx.list();
  const item = list?.current();
  const kind = item && list.kindOf?.(item);
  return kind
    ? actionsFor(kind, item).map((action) =>
        entry("do", `${action.label} ${nameOf(item)}`, () => perform(action, [item])),
      )
    : [];
}

function views() {
  return VIEWS.map((each, n) => entry("view", each.title, () => goView(each.id), keyOf(n)));
}

function things() {
  return linkKinds(data).map(({ kind, id, title }) =>
    entry(kind, title ? `${id}  ${title}` : id, () => go({ show: `${kind}/${id}` })),
  );
}
