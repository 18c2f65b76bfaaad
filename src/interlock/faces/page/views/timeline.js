// The timeline: who held what, when, and who waited for it; live, with zoom.  Lanes are things or
// agents; the window follows the clock until the person pans away.

import { button, h, svg } from "../dom.js";
import { brief, clock, duration, now, plural } from "../format.js";
import { recent, data } from "../state.js";
import { read } from "../api.js";
import { nextFrame } from "../frame.js";
import { paintHead } from "../head.js";
import { fits, parse } from "../filter.js";
import { empty, loading } from "../empty.js";
import { go, params as address } from "../route.js";
import { Spans } from "../spans.js";

const ZOOMS = [60, 300, 900, 3600, 21600, 86400];
const LANES = 80;
const LANE = 30;
const TOP = 24;
const BAR = 21;
const WAIT = 15;
const TICKS = 6;
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

const repaint = (own) => nextFrame("view", () => paint(address(), own));

async function load(own) {
  const spans = new Spans();
  try {
    for (const line of (await read("record log", { limit: HISTORY })).entries) spans.entry(line);
    own.spans = spans;
  } catch { setTimeout(() => load(own), 3000); }
  repaint(own);
}

function paint(params, own) {
  const zoom = ZOOMS.includes(Number(params.zoom)) ? Number(params.zoom) : 300;
  const by = params.by === "agent" ? "agent" : "thing";
  const follow = () => { own.back = 0; repaint(own); };
  paintHead({ title: "Timeline", search: "Filter lanes: merge, task/, bob", summary: own.back ? `ends ${duration(own.back)} ago` : "live",
    chips: [{ name: "by", single: true, options: [["", "by thing"], ["agent", "by agent"]] }, { name: "zoom", single: true, options: ZOOMS.map((each) => [each === 300 ? "" : String(each), duration(each)]) }],
    extra: [button("←", () => { own.back += zoom / 2; repaint(own); }, { kind: "quiet", "aria-label": "Earlier" }), button("→", () => { own.back = Math.max(0, own.back - zoom / 2); repaint(own); }, { kind: "quiet", "aria-label": "Later" }), own.back > 0 && button("Follow", follow, { kind: "quiet" })] });
  if (!own.spans) { own.box.replaceChildren(loading()); return; }
  for (const change of [...recent].reverse()) if (change.revision > own.spans.revision) own.spans.event(change);
  for (const lock of data.locks || []) for (const waiter of lock.waiters) if (!own.spans.open.has(`lock/${lock.lock}\u0001${waiter}\u0001waiting`)) own.spans.begin(`lock/${lock.lock}`, waiter, "waiting", now());
  const to = now() - own.back;
  const parsed = parse(params.q);
  const spans = own.spans.between(to - zoom, to).filter((each) => fits(parsed, `${each.thing} ${each.agent}`, { agent: each.agent, thing: each.thing }));
  if (!spans.length) { own.box.replaceChildren(empty("Nothing was held in this time", "Zoom out, go back, or hold something:", "interlock lock run deploy --agent ada -- sleep 30")); return; }
  own.box.replaceChildren(drawing(spans, by, to - zoom, to, (own.box.clientWidth || 848) - 2 * parseFloat(getComputedStyle(own.box).paddingLeft)));
}

function drawing(spans, by, from, to, wide) {
  const lanes = new Map();
  for (const span of spans.sort((a, b) => a.from - b.from)) lanes.set(span[by], [...(lanes.get(span[by]) || []), span]);
  const left = wide < 600 ? 92 : 168;
  const x = (at) => left + ((Math.min(Math.max(at, from), to) - from) / (to - from)) * (wide - left);
  let y = TOP;
  const drawn = [...lanes.keys()].sort().slice(0, LANES).map((name) => {
    const { rows, high } = packed(lanes.get(name), to);
    y += high;
    return lane(name, rows, y - high, high, x, { by, left, wide, to });
  });
  return svg("svg.lanes", { width: wide, height: y, viewBox: `0 0 ${wide} ${y}`, role: "img", "aria-label": `${plural(spans.length, "span")} of ${plural(lanes.size, by)}` }, ticks(from, to, x, y), drawn);
}

/** Spans at the same time get rows of their own: [{span, y, high}], and the height of the lane. */
function packed(spans, to) {
  const ends = []; // of the last span in each row
  const placed = spans.map((span) => {
    const waits = span.kind === "waiting";
    let row = ends.findIndex((each) => each.waits === waits && each.to <= span.from);
    if (row < 0) row = ends.push({ waits }) - 1;
    ends[row].to = span.to ?? to;
    return { span, row };
  });
  const tops = [];
  let high = 4;
  for (const { waits } of ends) { tops.push(high); high += waits ? WAIT + 3 : BAR + 3; }
  return { rows: placed.map(({ span, row }) => ({ span, y: tops[row], high: ends[row].waits ? WAIT : BAR })), high: Math.max(high + 3, LANE) };
}

function ticks(from, to, x, high) {
  const steps = x(to) - x(from) < 420 ? 3 : TICKS;
  return Array.from({ length: steps + 1 }, (_, n) => from + ((to - from) * n) / steps).map((at, n) => [
    svg("line.tick", { x1: x(at), x2: x(at), y1: 18, y2: high }), svg("text.tick", { x: x(at), y: 12, "text-anchor": n === 0 ? "start" : n === steps ? "end" : "middle" }, clock(at))]);
}

function lane(name, rows, top, high, x, { by, left, wide, to }) {
  return svg("g.lane", svg("line.base", { x1: 0, x2: wide, y1: top + high, y2: top + high }), svg("text.name", { x: 0, y: top + 19 }, brief(name, left < 100 ? 13 : 24), svg("title", name)),
    rows.map(({ span, y, high: bar }) => {
      const [x1, x2] = [x(span.from), x(span.to ?? to)];
      const label = by === "thing" ? span.agent : span.thing.replace(/^(lock|task|sem)\//, "");
      const width = Math.max(3, x2 - x1);
      const waits = span.kind === "waiting";
      return svg("g.span", { "data-kind": span.kind, "data-open": span.to === null, "data-end": span.end || "", tabindex: 0, role: "button", "aria-label": `${span.agent} ${waits ? "waited for" : "held"} ${span.thing}`, onclick: () => go({ show: span.thing }), onkeydown: (event) => { if (event.key === "Enter") go({ show: span.thing }); } },
        svg("title", `${span.agent} ${waits ? "waits for" : "has"} ${span.thing}\n${clock(span.from)}, ${duration((span.to ?? to) - span.from)}${span.end ? `, ${span.end}` : ""}`),
        svg("rect", { x: x1, y: top + y, width, height: bar, rx: 4 }),
        width > 34 && svg("text", { x: x1 + 6, y: top + y + bar - (waits ? 4 : 6) }, brief(waits ? `${label} waits` : label, Math.max(2, Math.floor((width - 8) / 7)))));
    }));
}

function wheel(event, own) {
  if (!event.ctrlKey && !event.shiftKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
  event.preventDefault();
  const zoom = Number(address().zoom) || 300;
  if (event.ctrlKey) {
    const next = ZOOMS[Math.min(ZOOMS.length - 1, Math.max(0, ZOOMS.indexOf(zoom) + Math.sign(event.deltaY)))];
    go({ zoom: next === 300 ? "" : next }, { replace: true });
  } else {
    own.back = Math.max(0, own.back - ((event.deltaX || event.deltaY) / own.box.clientWidth) * zoom);
    repaint(own);
  }
}

function drag(own) {
  let start = null;
  own.box.addEventListener("pointerdown", (event) => { start = event.target.closest(".span") ? null : [event.clientX, own.back]; });
  own.box.addEventListener("pointermove", (event) => {
    if (!start) return;
    own.back = Math.max(0, start[1] + ((event.clientX - start[0]) / own.box.clientWidth) * (Number(address().zoom) || 300));
    repaint(own);
  });
  addEventListener("pointerup", () => { start = null; });
}
