// The timeline: who held what, when, and who waited for it; live, with zoom.  Lanes are things or
// agents; the window follows the clock until the person pans away.

import { button, h } from "../dom.js";
import { duration, now } from "../format.js";
import { recent, data } from "../state.js";
import { read, Trouble } from "../api.js";
import { paintHead } from "../head.js";
import { fits, parse } from "../filter.js";
import { empty, loading } from "../empty.js";
import { go, params as address } from "../route.js";
import { Spans } from "../spans.js";
import { lanes } from "../lanes.js";

const ZOOMS = [60, 300, 900, 3600, 21600, 86400];
const HISTORY = 2000;

export function open(place, repaint) {
  const own = { spans: null, back: 0, box: h("div.timeline"), reading: 0, repaint };
  place.append(own.box);
  load(own);
  const timer = setInterval(() => !document.hidden && own.back === 0 && repaint(), 1000);
  own.box.addEventListener("wheel", (event) => wheel(event, own), { passive: false });
  const stopDrag = drag(own);
  return {
    paint: (params) => paint(params, own),
    resync: () => load(own),
    close: () => {
      own.closed = true;
      clearInterval(timer);
      stopDrag();
    },
  };
}

const zoomOf = ({ zoom }) => (ZOOMS.includes(Number(zoom)) ? Number(zoom) : 300);

// Of two readings the one that began last counts; events after it come from the stream.
async function load(own) {
  const reading = (own.reading += 1);
  const spans = new Spans();
  try {
    for (const line of (await read("record log", { limit: HISTORY })).entries) spans.entry(line);
    if (own.reading === reading)
      Object.assign(own, { spans, locks: data.locks, semaphores: data.semaphores });
  } catch (error) {
    if (!(error instanceof Trouble)) throw error;
    setTimeout(() => !own.closed && own.reading === reading && load(own), 3000);
  }
  own.repaint();
}

function paint(params, own) {
  const zoom = zoomOf(params);
  const by = params.by === "agent" ? "agent" : "thing";
  const follow = () => {
    own.back = 0;
    own.repaint();
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
          own.repaint();
        },
        { kind: "quiet", "aria-label": "Earlier" },
      ),
      button(
        "→",
        () => {
          own.back = Math.max(0, own.back - zoomOf(address()) / 2);
          own.repaint();
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
  for (const change of [...recent].reverse()) own.spans.live(change);
  if (data.locks && data.semaphores && (own.locks !== data.locks || own.semaphores !== data.semaphores)) {
    Object.assign(own, { locks: data.locks, semaphores: data.semaphores });
    own.spans.queues(waiters(), now());
  }
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

/** [thing, agent] of all that wait now: waits have no events. */
const waiters = () => [
  ...data.locks.flatMap(({ lock, waiters: all }) => all.map((agent) => [`lock/${lock}`, agent])),
  ...data.semaphores.flatMap(({ semaphore, waiters: all }) =>
    all.map(({ agent }) => [`sem/${semaphore}`, agent]),
  ),
];

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
    own.repaint();
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
    own.repaint();
  });
  const end = () => {
    start = null;
  };
  addEventListener("pointerup", end);
  return () => removeEventListener("pointerup", end);
}
