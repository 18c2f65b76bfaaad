// What a view shows when it has nothing: why, and the first command to try.

import { command, h } from "./dom.js";

/** A title, a sentence, commands to copy. */
export function empty(title, text, ...commands) {
  return h("div.empty", h("h2", title), text && h("p", text), commands.map(command));
}

/** Nothing fits the filters. */
export const nothingFits = () =>
  h(
    "div.empty",
    h("h2", "Nothing fits the filters"),
    h("p", "Press Esc to clear the words, or take a chip out."),
  );

export const loading = () => h("div.empty", { "aria-busy": "true" }, h("p.muted", "Reading the store …"));
