// The first view: what needs a person, with the buttons to settle it, and the fleet at a glance.

import { command, h, show } from "../dom.js";
import { count, plural, shortId } from "../format.js";
import { data, recent } from "../state.js";
import { read } from "../api.js";
import { needs } from "../needs.js";
import { paintHead } from "../head.js";
import { needCard, needMark, updateText } from "../need_card.js";
import { thingLink } from "../thing.js";
import { linkTo, goView } from "../route.js";
import { tally } from "../filter.js";

const MOST = 100;
const EVENTS = 12;

export function open(place, repaint) {
  const sections = { glance: h("div.glance"), needs: h("ul.needs"), feed: h("section.feed") };
  place.append(sections.glance, sections.needs, sections.feed);
  const cards = new Map();
  earlier().then(repaint, () => {});
  return { paint: () => paint(sections, cards) };
}

/** The last events before the stream began, so that the page does not start empty. */
async function earlier() {
  const { entries } = await read("record log", { limit: EVENTS });
  const known = recent.at(-1)?.revision ?? Infinity;
  const events = entries.flatMap((line) =>
    line.events.map((each) => ({
      event: each.name,
      agent: each.agent,
      thing: each.thing || line.thing,
      at: line.at,
      revision: line.revision,
      to: [],
    })),
  );
  recent.push(...events.filter((each) => each.revision < known).reverse());
}

function paint({ glance, needs: list, feed }, cards) {
  const items = needs();
  const known = data.health && data.decisions;
  paintHead({
    title: "Needs you",
    summary: known ? (items.length ? plural(items.length, "thing") : "nothing") : "",
  });
  refill(glance, tiles());
  const keys = new Set(items.map((each) => each.key));
  for (const [key, card] of cards)
    if (!keys.has(key)) {
      card.remove();
      cards.delete(key);
    }
  items.slice(0, MOST).forEach((item, n) => {
    let card = cards.get(item.key);
    const mark = needMark(item);
    if (!card || card.dataset.mark !== mark) {
      const fresh = needCard(item);
      fresh.dataset.mark = mark;
      if (card) card.replaceWith(fresh);
      else list.append(fresh);
      card = fresh;
      cards.set(item.key, card);
    }
    updateText(card, item);
    if (list.children[n] !== card) list.insertBefore(card, list.children[n] || null);
  });
  list.classList.toggle("none", Boolean(known) && !items.length);
  const well = list.querySelector(".well");
  if (!known || items.length) well?.remove();
  else if (well?.textContent !== allWell().textContent) list.replaceChildren(allWell());
  refill(
    feed,
    recent.length ? [h("h2", "Just now"), h("ol.events", recent.slice(0, EVENTS).map(eventLine))] : [],
  );
}

/** Replace the children if their words changed: a repaint would take the focus. */
function refill(place, children) {
  if (place.textContent !== children.map((each) => each.textContent).join("")) show(place, children);
}

function allWell() {
  const fresh = data.agents && data.tasks && !data.agents.agents.length && !data.tasks.size;
  return h(
    "li.well",
    h("h2", fresh ? "This fleet is empty" : "Nothing needs you"),
    h(
      "p",
      fresh
        ? "Publish a task and let an agent claim it; both appear here at once."
        : "Questions for a person, dead letters, stuck or dead agents and quarantined messages appear here.",
    ),
    fresh && [
      command("interlock task add hello --title 'Say hello' --agent ada"),
      command("interlock task next --agent bob"),
    ],
  );
}

function tiles() {
  const agents = data.agents?.agents || [];
  const states = tally(data.tasks?.values() || [], (each) => each.state);
  const waiting =
    (data.locks || []).reduce((sum, each) => sum + each.waiters.length, 0) +
    (data.semaphores || []).reduce((sum, each) => sum + each.waiters.length, 0);
  const tile = (number, words, view, filters = {}) =>
    h(
      "a.tile",
      {
        href: linkTo(view, filters),
        onclick: (event) => {
          event.preventDefault();
          goView(view, filters);
        },
      },
      h("strong", number),
      h("span", words),
    );
  return [
    tile(
      data.agents
        ? count(new Set(agents.filter((each) => each.state === "alive").map((each) => each.agent)).size)
        : "–",
      "agents alive",
      "agents",
    ),
    tile(data.tasks ? count(states.get("running")) : "–", "tasks running", "tasks", { state: "running" }),
    tile(data.tasks ? count(states.get("pending")) : "–", "ready or later", "tasks", { state: "pending" }),
    tile(data.tasks ? count(states.get("blocked")) : "–", "blocked", "tasks", { state: "blocked" }),
    tile(data.locks ? count((data.locks || []).length) : "–", "locks held", "locks"),
    tile(data.locks ? count(waiting) : "–", "waiting", "locks"),
  ];
}

export function eventLine(event) {
  return h(
    "li",
    h(
      "time.clock",
      { data: { at: event.at } },
      new Date(event.at * 1000).toLocaleTimeString([], { hour12: false }),
    ),
    h("span.agent", event.agent || event.by || "–"),
    h("span.what", event.event.split(":")[1].replaceAll("_", " ")),
    event.thing && thingLink(event.thing, shortThing(event.thing)),
    event.to?.length > 0 && h("span.muted", ` to ${event.to.join(", ")}`),
  );
}

const shortThing = (thing) => thing.replace(/[a-z]{3}_[0-9a-f]{32}/g, shortId);
