// Starts the page: the stream, the views, the keys.  A view is an object {id, title, uses, open},
// and `open(place)` returns {paint, list, close}; the address says which one is open.

import { button, byId, h, show } from "./dom.js";
import { count, startTicker } from "./format.js";
import { nextFrame } from "./frame.js";
import { go, goView, onRoute, params } from "./route.js";
import { activate, data, noteChange, onData, resync } from "./state.js";
import { Stream } from "./stream.js";
import { needs } from "./needs.js";
import { noticeNeeds, toggleNotices, wantsNotices } from "./notice.js";
import { paintDetail, USED_BY_DETAIL } from "./detail.js";
import { startKeys } from "./keys.js";
import { person } from "./actions.js";
import { VIEWS } from "./views.js";
import { paintBanner, setTrouble } from "./banner.js";

const NEEDS = ["health", "decisions", "quarantine", "tasks"];
const NARROW = 760; // as in layout.css: the views are a strip that scrolls sideways
let current = null; // {view, opened}

function openView() {
  const wanted = params().view || "now";
  const view = VIEWS.find((each) => each.id === wanted) || VIEWS[0];
  if (current?.view !== view) {
    current?.opened.close?.();
    const place = byId("view");
    place.replaceChildren();
    place.scrollTop = 0;
    delete byId("head").dataset.title;
    current = { view, opened: view.open(place) };
  }
  activate([...view.uses, ...(params().show ? USED_BY_DETAIL : [])]);
  paintAll();
}

function paintAll() {
  nextFrame("nav", paintNav);
  nextFrame("view", () => current.opened.paint(params()));
  nextFrame("detail", () => paintDetail(params().show || "", closeDetail));
}

function closeDetail() {
  go({ show: "" });
  byId("view").focus({ preventScroll: true });
}

function paintNav() {
  const items = needs();
  const here = current.view.id;
  const numbers = {
    ...Object.fromEntries(VIEWS.map((each) => [each.id, each.number?.()])),
    now: items.length,
  };
  const mark = JSON.stringify([here, numbers, person, wantsNotices()]);
  if (byId("nav").dataset.mark === mark) return;
  const focused = document.activeElement?.dataset.view; // the repaint would take the focus
  byId("nav").dataset.mark = mark;
  show(
    byId("nav"),
    h(
      "a.brand",
      {
        href: "/",
        onclick: (event) => {
          event.preventDefault();
          goView("now");
        },
      },
      icon(),
      h("span", "Interlock"),
    ),
    h(
      "ol",
      VIEWS.map((each, n) =>
        h(
          "li",
          h(
            "a",
            {
              href: each.id === "now" ? "/" : `/?view=${each.id}`,
              "aria-current": each.id === here ? "page" : null,
              data: { view: each.id },
              onclick: (event) => {
                if (!event.metaKey && !event.ctrlKey) {
                  event.preventDefault();
                  goView(each.id);
                }
              },
            },
            h("kbd", String(n + 1)),
            h("span", each.title),
            numbers[each.id]
              ? h(each.id === "now" ? "span.number.urgent" : "span.number", count(numbers[each.id]))
              : null,
          ),
        ),
      ),
    ),
    h(
      "div.foot",
      button(
        wantsNotices() ? "Notices on" : "Notify me",
        async () => {
          await toggleNotices();
          nextFrame("nav", paintNav);
        },
        { kind: "quiet" },
      ),
      button("Keys ?", () => dispatchEvent(new CustomEvent("help")), { kind: "quiet" }),
      h("span.who", person.agent ? `${person.agent.replace(/^person:/, "")} · ${person.role}` : ""),
    ),
  );
  if (innerWidth <= NARROW) byId("nav").querySelector("[aria-current]")?.scrollIntoView({ inline: "center" });
  if (focused) byId("nav").querySelector(`[data-view="${focused}"]`).focus();
}

function icon() {
  return h("img", { src: "/assets/icon.svg", alt: "", width: 20, height: 20 });
}

function dataChanged(name, change) {
  if (NEEDS.includes(name) && NEEDS.every((each) => data[each])) noticeNeeds(needs());
  if (name !== "recent") nextFrame("nav", paintNav);
  if (name === "recent" || current.view.uses.includes(name) || NEEDS.includes(name)) {
    if (name !== "recent" || current.view.followsEvents)
      nextFrame("view", () => current.opened.paint(params()));
  }
  if (params().show) nextFrame("detail", () => paintDetail(params().show || "", closeDetail, change));
}

onData(dataChanged);
onRoute(openView);
openView();
startTicker();
startKeys({
  list: () => current.opened.list,
  views: VIEWS,
  openView: (n) => VIEWS[n] && goView(VIEWS[n].id),
});
new Stream(
  {
    hello: (said) => {
      Object.assign(person, { role: said.role || "admin", agent: said.agent || "" });
      nextFrame("nav", paintNav);
      nextFrame("view", () => current.opened.paint(params()));
    },
    change: noteChange,
    resync,
    away: (what) => {
      setTrouble(what);
      nextFrame("banner", paintBanner);
    },
    back: () => {
      setTrouble("");
      nextFrame("banner", paintBanner);
      resync();
    },
  },
  { keepHidden: wantsNotices },
);
