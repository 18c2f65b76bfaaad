// The head of a view: its title, its search box, its chips and what can be done to all that is shown.

import { button, byId, h, show } from "./dom.js";
import { count, plural } from "./format.js";
import { go, params } from "./route.js";
import { actionsFor, perform } from "./actions.js";

/** {title, hint, search, chips: [{name, options: [[value, label, number, tone]]}], bulk: {kind, items}, extra}. */
export function paintHead({ title, summary = "", search, chips = [], bulk, extra = [] }) {
  const head = byId("head");
  if (head.dataset.title !== title) {
    head.dataset.title = title;
    show(
      head,
      h("div.title", h("h1", title), h("span.summary"), h("div.extra")),
      search && searchBox(search),
      h("div.chips"),
      h("div.bulk"),
    );
  }
  head.querySelector(".summary").textContent = summary;
  replace(head.querySelector(".extra"), extra);
  const box = head.querySelector("input[type=search]");
  if (box && document.activeElement !== box) box.value = params().q || "";
  replace(
    head.querySelector(".chips"),
    chips.flatMap((each, n) => (n ? [h("span.gap"), ...chipGroup(each)] : chipGroup(each))),
  );
  replace(head.querySelector(".bulk"), bulk ? bulkBar(bulk) : []);
}

// A repaint must not take the focus or the pointer from a button: it is skipped if nothing changed.
function replace(place, children) {
  const list = [children].flat().filter(Boolean);
  const mark = list
    .map(
      (each) =>
        `${each.className} ${each.textContent} ${each.getAttribute("aria-pressed")} ${each.getAttribute("href")}`,
    )
    .join("|");
  if (place.dataset.mark === mark) return;
  place.dataset.mark = mark;
  place.replaceChildren(...list);
}

function searchBox(placeholder) {
  let timer;
  const box = h("input", {
    type: "search",
    placeholder,
    "aria-label": "Filter",
    value: params().q || "",
    spellcheck: "false",
    oninput: () => {
      clearTimeout(timer);
      timer = setTimeout(() => go({ q: box.value.trim() }, { replace: true }), 120);
    },
  });
  box.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      box.value = "";
      go({ q: "" }, { replace: true });
      box.blur();
      event.stopPropagation();
    }
    if (event.key === "Enter") {
      box.blur();
      event.preventDefault();
    }
  });
  return h("div.search", box, h("kbd", "/"));
}

function chipGroup({ name, options, single = false }) {
  const chosen = new Set((params()[name] || "").split(",").filter(Boolean));
  return options
    .filter(([value, , number]) => number !== 0 || chosen.has(value))
    .map(([value, label, number, tone]) => {
      const pressed = chosen.has(value) || (single && !chosen.size && value === "");
      return h(
        "button.filter",
        {
          type: "button",
          "aria-pressed": String(pressed),
          data: { tone: tone || "" },
          onclick: () => {
            if (single) {
              go({ [name]: value });
              return;
            }
            if (chosen.has(value)) chosen.delete(value);
            else chosen.add(value);
            go({ [name]: [...chosen].join(",") });
          },
        },
        label,
        number !== undefined && h("span.number", count(number)),
      );
    });
}

let latest = null; // what the bulk bar acts on: a click means what is shown then, not at the last repaint

function groupsOf({ kind, items }) {
  const groups = new Map();
  for (const item of items)
    for (const action of actionsFor(kind, item))
      if (!action.single) groups.set(action, [...(groups.get(action) || []), item]);
  return groups;
}

function bulkBar(bulk) {
  latest = bulk;
  const groups = groupsOf(bulk);
  if (!groups.size) return [];
  const { items, noun } = bulk;
  return [
    h("span.muted", `All ${plural(items.length, noun)} shown:`),
    ...[...groups].map(([action, some]) =>
      button(
        `${action.label} ${count(some.length)}`,
        () => perform(action, groupsOf(latest).get(action) || []),
        {
          kind: action.ask?.danger ? "quiet.dangerous" : "quiet",
        },
      ),
    ),
  ];
}
