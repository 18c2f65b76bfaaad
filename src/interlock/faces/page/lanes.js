// The drawing of the timeline: a lane for each thing or agent, a bar for each span, thinner ones for
// waits; spans at the same time have rows of their own.

import { svg } from "./dom.js";
import { brief, clock, duration, plural } from "./format.js";
import { go } from "./route.js";

const LANES = 80;
const LANE = 30;
const TOP = 24;
const BAR = 21;
const WAIT = 15;
const TICKS = 6;

/** A drawing of spans between two moments, in lanes by `thing` or by `agent`. */
export function lanes(spans, by, from, to, wide) {
  const found = new Map();
  for (const span of spans.sort((a, b) => a.from - b.from))
    found.set(span[by], [...(found.get(span[by]) || []), span]);
  const left = wide < 600 ? 92 : 168;
  const x = (at) => left + ((Math.min(Math.max(at, from), to) - from) / (to - from)) * (wide - left);
  let y = TOP;
  const drawn = [...found.keys()]
    .sort()
    .slice(0, LANES)
    .map((name) => {
      const { rows, high } = packed(found.get(name), to);
      y += high;
      return lane(name, rows, y - high, high, x, { by, left, wide, to });
    });
  return svg(
    "svg.lanes",
    {
      width: wide,
      height: y,
      viewBox: `0 0 ${wide} ${y}`,
      role: "img",
      "aria-label": `${plural(spans.length, "span")} of ${plural(found.size, by)}`,
    },
    ticks(from, to, x, y),
    drawn,
  );
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
  for (const { waits } of ends) {
    tops.push(high);
    high += waits ? WAIT + 3 : BAR + 3;
  }
  return {
    rows: placed.map(({ span, row }) => ({ span, y: tops[row], high: ends[row].waits ? WAIT : BAR })),
    high: Math.max(high + 3, LANE),
  };
}

function ticks(from, to, x, high) {
  const steps = x(to) - x(from) < 420 ? 3 : TICKS;
  return Array.from({ length: steps + 1 }, (_, n) => from + ((to - from) * n) / steps).map((at, n) => [
    svg("line.tick", { x1: x(at), x2: x(at), y1: 18, y2: high }),
    svg(
      "text.tick",
      { x: x(at), y: 12, "text-anchor": n === 0 ? "start" : n === steps ? "end" : "middle" },
      clock(at),
    ),
  ]);
}

function lane(name, rows, top, high, x, { by, left, wide, to }) {
  return svg(
    "g.lane",
    svg("line.base", { x1: 0, x2: wide, y1: top + high, y2: top + high }),
    svg("text.name", { x: 0, y: top + 19 }, brief(name, left < 100 ? 13 : 24), svg("title", name)),
    rows.map(({ span, y, high: bar }) => {
      const [x1, x2] = [x(span.from), x(span.to ?? to)];
      const label = by === "thing" ? span.agent : span.thing.replace(/^(lock|task|sem)\//, "");
      const width = Math.max(3, x2 - x1);
      const waits = span.kind === "waiting";
      return svg(
        "g.span",
        {
          "data-kind": span.kind,
          "data-open": span.to === null,
          "data-end": span.end || "",
          tabindex: 0,
          role: "button",
          "aria-label": `${span.agent} ${waits ? "waited for" : "held"} ${span.thing}`,
          onclick: () => go({ show: span.thing }),
          onkeydown: (event) => {
            if (event.key === "Enter") go({ show: span.thing });
          },
        },
        svg(
          "title",
          `${span.agent} ${waits ? "waits for" : "has"} ${span.thing}\n${clock(span.from)}, ${duration((span.to ?? to) - span.from)}${span.end ? `, ${span.end}` : ""}`,
        ),
        svg("rect", { x: x1, y: top + y, width, height: bar, rx: 4 }),
        width > 34 &&
          svg(
            "text",
            { x: x1 + 6, y: top + y + bar - (waits ? 4 : 6) },
            brief(waits ? `${label} waits` : label, Math.max(2, Math.floor((width - 8) / 7))),
          ),
      );
    }),
  );
}
