// Short words about what happened, with an undo where there is one.  They leave by themselves, later
// while the pointer or the focus is on them.

import { button, byId, h } from "./dom.js";

const MOST = 4;

/** Say something: {undo: function, bad: whether it went wrong, open: [label, function]}. */
export function toast(text, { undo, bad = false, open } = {}) {
  const end = () => {
    clearTimeout(timer);
    element.remove();
  };
  const element = h(
    "div.toast",
    { data: { tone: bad ? "bad" : "" } },
    h("span", text),
    undo &&
      button("Undo", () => {
        end();
        undo();
      }),
    open &&
      button(open[0], () => {
        end();
        open[1]();
      }),
    button("×", end, { kind: "quiet", "aria-label": "Dismiss" }),
  );
  let timer;
  const later = () => {
    clearTimeout(timer);
    timer = setTimeout(end, bad || undo ? 12_000 : 5000);
  };
  element.addEventListener("pointerenter", () => clearTimeout(timer));
  element.addEventListener("focusin", () => clearTimeout(timer));
  element.addEventListener("pointerleave", later);
  element.addEventListener("focusout", later);
  later();
  const place = byId("toasts");
  while (place.children.length >= MOST) place.firstChild.remove();
  place.append(element);
}
