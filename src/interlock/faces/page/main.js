// Starts the page: the stream, the views, the keys.  The module of a view has `open(place, repaint)`,
// which returns {paint(params), list, close, resync}; the address says which view is open.

import { button, byId, h, show } from "./dom.js";
import { count, startTicker } from "./format.js";
import { nextFrame } from "./frame.js";
import { go, goView, onRoute, params } from "./route.js";
import { activate, data, noteChange, onData, resync } from "./state.js";
import { stream } from "./stream.js";
import { needs } from "./needs.js";
import { noticeNeeds, toggleNotices, wantsNotices } from "./notice.js";
import { startKeys } from "./keys.js";
import { person } from "./actions.js";
import { keyOf, loadView, VIEWS } from "./views.js";
import { paintBanner, setTrouble } from "./banner.js";
import { empty } from "./empty.js";

const NEEDS = ["health", "decisions", "quarantine", "tasks"];
const USED_BY_DETAIL = ["tasks", "locks", "semaphores", "agents"];
const NARROW = 760; // as in layout.css: the views are a strip that scrolls sideways
const TRY_AGAIN = 2000;
let current = { view: null, opened: null }; // opened is null until the module of the view is there
let detail = null; // the module of the panel, once something was opened

function openView() {
  const wanted = params().view || "now";
  const view = VIEWS.find((each) => each.id === wanted) || VIEWS[0];
  activate([...view.uses, ...(params().show ? USED_BY_DETAIL : [])]);
  if (current.view !== view) change(view);
  if (params().show || detail) openDetail();
  nextFrame("nav", paintNav);
  paintView();
}

async function change(view, again = 0) {
  current.opened?.close?.();
  const mine = { view, opened: null };
  current = mine;
  const module = await loadView(view, again).catch(() => null);
  if (current !== mine) return;
  const place = byId("view");
  place.replaceChildren();
  place.scrollTop = 0;
  delete byId("head").dataset.title;
  if (!module) {
    show(place, empty("This view cannot be read", "The server does not answer; the page tries again."));
    tryAgain(again, () => current === mine && change(view, again + 1));
    return;
  }
  mine.opened = module.open(place, () => current === mine && paintView());
  paintView();
}

const paintView = () => nextFrame("view", () => current.opened?.paint(params()));

async function openDetail(again = 0) {
  detail ??= await import(`./detail.js${again ? `?${again}` : ""}`).catch(() => null);
  if (detail) nextFrame("detail", () => detail.paintDetail(params().show || "", closeDetail));
  else tryAgain(again, () => openDetail(again + 1));
}

/** A module could not be loaded: the server is away, or a newer one has other files, with which the
 *  page starts again. */
async function tryAgain(again, load) {
  await new Promise((resolve) => setTimeout(resolve, TRY_AGAIN));
  const answers = again && (await fetch("/").then(({ ok }) => ok, () => false));
  if (answers) location.reload();
  else load();
}

function closeDetail() {
  go({ show: "" });
  byId("view").focus({ preventScroll: true });
}

function paintNav() {
  const here = current.view.id;
  const numbers = Object.fromEntries(VIEWS.map((each) => [each.id, each.number?.()]));
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
            h("kbd", keyOf(n)),
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

function dataChanged(name) {
  if (NEEDS.includes(name) && NEEDS.every((each) => data[each])) noticeNeeds(needs());
  if (name !== "recent") nextFrame("nav", paintNav);
  const { uses, followsEvents } = current.view;
  if (name === "recent" ? followsEvents : uses.includes(name) || NEEDS.includes(name)) paintView();
  if (USED_BY_DETAIL.includes(name)) detail?.repaintDetail();
}

/** After a gap, an outage, a sleep: events are missing, so everything that is shown is read again. */
function readEverything() {
  resync();
  current.opened?.resync?.();
  detail?.detailStale();
}

onData(dataChanged);
onRoute(openView);
openView();
startTicker();
startKeys({
  list: () => current.opened?.list,
});
stream.start(
  {
    hello: (said) => {
      Object.assign(person, { role: said.role || "admin", agent: said.agent || "" });
      nextFrame("nav", paintNav);
      paintView();
    },
    change: (said) => {
      noteChange(said);
      detail?.detailChanged(said);
    },
    resync: readEverything,
    away: (what) => {
      setTrouble(what);
      nextFrame("banner", paintBanner);
    },
    back: () => {
      setTrouble("");
      nextFrame("banner", paintBanner);
      readEverything();
    },
  },
  { keepHidden: wantsNotices },
);
