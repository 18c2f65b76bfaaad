// Says that the server or the store is away, since when, and that what is shown may be old; or that
// the server wants a token.

import { byId, h, show } from "./dom.js";
import { ago, now } from "./format.js";

const TEXT = {
  server: [
    "The server does not answer",
    "The page tries again by itself. What you see may be old.",
    "interlock up",
  ],
  token: [
    "This page needs a token",
    "Open /?token=TOKEN once, and the browser keeps it. The address with the token of your own server:",
    "interlock open",
  ],
  store: [
    "The store is away",
    "The server tries again by itself. What you see may be old, and nothing can be changed.",
    "interlock doctor",
  ],
};
let trouble = "";
let since = 0;

/** "server", "token", "store", or "" when all is well again. */
export function setTrouble(what) {
  if (what && what !== trouble) since = now();
  trouble = what;
  document.documentElement.dataset.trouble = what;
}

export function paintBanner() {
  const place = byId("banner");
  if (!trouble) {
    place.replaceChildren();
    return;
  }
  const [title, text, next] = TEXT[trouble];
  show(
    place,
    h(
      "div.away",
      h("strong", title),
      trouble === "token"
        ? h("span", text, " ", h("code", next))
        : h("span", " for ", ago(since), ". ", text, " If it stays: ", h("code", next)),
    ),
  );
}
