// Notices: the title counts what needs a person; a new item is said on the page, or by the browser
// if the person asked for that and looks elsewhere.

import { go, goView } from "./route.js";
import { toast } from "./toast.js";
import { brief } from "./format.js";

let told = null;
let on = null;

/** Whether the person turned on notices of the browser, and it allows them. */
export function wantsNotices() {
  on ??=
    "Notification" in window &&
    Notification.permission === "granted" &&
    localStorage.getItem("notices") === "on";
  return on;
}

/** Ask the browser for permission, or turn notices off. */
export async function toggleNotices() {
  if (wantsNotices()) {
    localStorage.setItem("notices", "off");
    on = false;
    return;
  }
  if (!("Notification" in window)) {
    toast("This browser has no notices.", { bad: true });
    return;
  }
  const answer = await Notification.requestPermission();
  localStorage.setItem("notices", answer === "granted" ? "on" : "off");
  on = answer === "granted";
  if (answer !== "granted")
    toast("The browser does not allow notices for this page; its settings can.", { bad: true });
}

/** What needs a person now: counts it, and says what is new. */
export function noticeNeeds(items) {
  document.title = items.length ? `(${items.length}) Interlock` : "Interlock";
  const keys = new Set(items.map((each) => each.key));
  const fresh = told ? items.filter((each) => !told.has(each.key)) : [];
  told = keys;
  for (const each of fresh.slice(0, 2)) {
    if (document.hidden && wantsNotices()) notify(each);
    else toast(`${each.word}: ${brief(each.text, 90)}`, { open: ["Show", () => goView("now")] });
  }
}

function notify(item) {
  const notice = new Notification(`Interlock: ${item.word}`, { body: brief(item.text, 120), tag: item.key });
  notice.onclick = () => {
    window.focus();
    goView("now");
    if (item.thing) go({ show: item.thing });
  };
}
