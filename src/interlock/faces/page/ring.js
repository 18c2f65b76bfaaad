// A cycle of waits, drawn as a ring: agents on a circle, an arrow from each to the one it waits for.

import { svg } from "./dom.js";
import { brief } from "./format.js";

const SIZE = 210;

/** edges: [{from, to, thing}], in their order around the ring. */
export function ring(edges) {
  const centre = SIZE / 2;
  const radius = SIZE / 2 - 34;
  const place = (n) => {
    const angle = (n / edges.length) * 2 * Math.PI - Math.PI / 2;
    return [centre + radius * Math.cos(angle), centre + radius * Math.sin(angle), angle];
  };
  const parts = edges.map((edge, n) => {
    const [x1, y1, a1] = place(n);
    const [, , a2] = place(n + 1);
    const trim = 34 / radius;
    const [start, end] = [a1 + trim, a2 - trim + (a2 < a1 ? 2 * Math.PI : 0)];
    const on = (angle, far = radius) => [centre + far * Math.cos(angle), centre + far * Math.sin(angle)];
    const [sx, sy] = on(start);
    const [ex, ey] = on(end);
    const [lx, ly] = on((start + end) / 2, radius + 16);
    const anchor = Math.abs(lx - centre) < 12 ? "middle" : lx > centre ? "start" : "end";
    const large = end - start > Math.PI ? 1 : 0;
    const tip = [[ex, ey], on(end - 0.12, radius + 5), on(end - 0.12, radius - 5)]
      .map((each) => each.join(","))
      .join(" ");
    return [
      svg("path.arc", { d: `M${sx} ${sy}A${radius} ${radius} 0 ${large} 1 ${ex} ${ey}` }),
      svg("polygon.tip", { points: tip }),
      svg("text.waits", { x: lx, y: ly + 4, "text-anchor": anchor }, brief(edge.thing, 18)),
      svg("circle.agent", { cx: x1, cy: y1, r: 22 }),
      svg("text.agent", { x: x1, y: y1 + 4, "text-anchor": "middle" }, brief(edge.from, 9)),
    ];
  });
  return svg(
    "svg.ring",
    {
      viewBox: `-50 4 ${SIZE + 100} ${SIZE - 8}`,
      role: "img",
      "aria-label": `Cycle: ${edges.map((each) => each.from).join(" waits for ")} waits for ${edges[0].from}`,
    },
    parts,
  );
}
