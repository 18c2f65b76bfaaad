// The timeline: who held what, when, and who waited for it; live, with zoom.  Lanes are things or
// agents; the window follows the clock until the person pans away.

import { button, h } from "../dom.js";
import { duration, now } from "../format.js";
import { recent, data } from "../state.js";
import { read } from "../api.js";
import { nextFrame } from "../frame.js";
import { paintHead } from "../head.js";
import { fits, parse } from "../filter.js";
import { empty, loading } from "../empty.js";
import { go, params as address } from "../route.js";
import { Spans } from "../spans.js";
import { lanes } from "../lanes.js";

const ZOOMS = [60, 300, 900, 3600, 21600, 86400];
const HISTORY = 2000;

export const timeline = {
  id: "timeline",
  title: "Timeline",
  uses: ["locks", "semaphores"],
  followsEvents: true,
  open(place) {
    const own = { spans: null, back: 0, place, box: h("div.timeline"), painted: 0 };
    place.append(own.box);
    load(own);
    const timer = setInterval(() => !document.hidden && own.back === 0 && repaint(own), 1000);
    own.box.addEventListener("wheel", (event) => wheel(event, own), { passive: false });
    drag(own);
    return { paint: () => repaint(own), close: () => clearInterval(timer) };
  },
};

const zoomOf = ({ zoom }) => (ZOOMS.includes(Number(zoom)) ? Number(zoom) : 300);
const repaint = (own) => nextFrame("view", () => paint(address(), own));

async function load(own) {
  const spans = new Spans();
  try {
    for (const line of (await read("record log", { limit: HISTORY })).entries) spans.entry(line);
    own.spans = spans;
  } catch {
    setTimeout(() => load(own), 3000);
  }
  repaint(own);
}

function paint(params, own) {
  const zoom = zoomOf(params);
  const by = params.by === "agent" ? "agent" : "thing";
  const follow = () => {
    own.back = 0;
    repaint(own);
  };
  paintHead({
    title: "Timeline",
    search: "Filter lanes: merge, task/, bob",
    summary: own.back ? `ends ${duration(own.back)} ago` : "live",
    chips: [
      {
        name: "by",
        single: true,
        options: [
          ["", "by thing"],
          ["agent", "by agent"],
        ],
      },
      {
        name: "zoom",
        single: true,
        options: ZOOMS.map((each) => [each === 300 ? "" : String(each), duration(each)]),
      },
    ],
    extra: [
      button(
        "←",
        () => {
          own.back += zoomOf(address()) / 2;
          repaint(own);
        },
        { kind: "quiet", "aria-label": "Earlier" },
      ),
      button(
        "→",
        () => {
          own.back = Math.max(0, own.back - zoomOf(address()) / 2);
          repaint(own);
        },
        { kind: "quiet", "aria-label": "Later" },
      ),
      own.back > 0 && button("Follow", follow, { kind: "quiet" }),
    ],
  });
  if (!own.spans) {
    own.box.replaceChildren(loading());
    return;
  }
  for (const change of [...recent].reverse())
    if (change.revision > own.spans.revision) own.spans.event(change);
  for (const lock of data.locks || [])
    for (const waiter of lock.waiters)
      if (!own.spans.open.has(`lock/${lock.lock}\u0001${waiter}\u0001waiting`))
        own.spans.begin(`lock/${lock.lock}`, waiter, "waiting", now());
  const to = now() - own.back;
  const parsed = parse(params.q);
  const spans = own.spans
    .between(to - zoom, to)
    .filter((each) => fits(parsed, `${each.thing} ${each.agent}`, { agent: each.agent, thing: each.thing }));
  if (!spans.length) {
    own.box.replaceChildren(
      empty(
        "Nothing was held in this time",
        "Zoom out, go back, or hold something:",
        "interlock lock run deploy --agent ada -- sleep 30",
      ),
    );
    return;
  }
  own.box.replaceChildren(
    lanes(
      spans,
      by,
      to - zoom,
      to,
      (own.box.clientWidth || 848) - 2 * parseFloat(getComputedStyle(own.box).paddingLeft),
    ),
  );
}

function wheel(event, own) {
  if (!event.ctrlKey && !event.shiftKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
  event.preventDefault();
  const zoom = zoomOf(address());
  if (event.ctrlKey) {
    const next =
      ZOOMS[Math.min(ZOOMS.length - 1, Math.max(0, ZOOMS.indexOf(zoom) + Math.sign(event.deltaY)))];
    go({ zoom: next === 300 ? "" : next }, { replace: true });
  } else {
    own.back = Math.max(0, own.back - ((event.deltaX || event.deltaY) / own.box.clientWidth) * zoom);
    repaint(own);
  }
}

function drag(own) {
  let start = null;
  own.box.addEventListener("pointerdown", (event) => {
    start = event.target.closest(".span") ? null : [event.clientX, own.back];
  });
  own.box.addEventListener("pointermove", (event) => {
    if (!start) return;
    own.back = Math.max(0, start[1] + ((event.clientX - start[0]) / own.box.clientWidth) * zoomOf(address()));
    repaint(own);
  });
  addEventListener("pointerup", () => {
    start = null;
  });
}
