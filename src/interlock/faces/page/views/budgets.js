// Budgets: what the fleet, its agents and its tasks have spent, beside their limits.

import { chip, h } from "../dom.js";
import { ago, brief, count } from "../format.js";
import { data } from "../state.js";
import { rowActions } from "../rows.js";
import { empty } from "../empty.js";
import { thingLink } from "../thing.js";
import { listView } from "../list_view.js";

const STATES = ["used up", "limited", "counted"];
const TONES = { "used up": "bad", limited: "busy", counted: "off" };
const KINDS = ["fleet", "agent", "task"];
const rank = (each) => KINDS.indexOf(each.thing.split("/")[0]);
const isLimited = (each) => each.limit_tokens !== null || each.limit_cost !== null;
const stateOf = (each) => (each.over ? "used up" : isLimited(each) ? "limited" : "counted");
const NAMES = { fleet: "the whole fleet", "agent/*": "every agent" };
const isOne = (thing) => !(thing in NAMES);
const money = (amount) => amount.toFixed(2);

/** The part of its limit that a thing has used, the fuller one of tokens and money. */
const part = (each) =>
  Math.max(
    each.limit_tokens === null ? 0 : each.tokens / Math.max(each.limit_tokens, 1),
    each.limit_cost === null ? 0 : each.cost / Math.max(each.limit_cost, 0.000001),
  );

export const open = listView({
  title: "Budgets",
  noun: "budget",
  search: "Filter by name, kind:agent",
  items: () => data.budgets,
  states: STATES,
  state: stateOf,
  order: (a, b) => rank(a) - rank(b) || Number(b.over) - Number(a.over) || b.tokens - a.tokens,
  text: (each) => `${each.thing} ${each.reason}`,
  facets: (each) => ({ kind: each.thing.split("/")[0] }),
  key: (each) => each.thing,
  kind: "budget",
  thing: (each) => (isOne(each.thing) ? each.thing : ""),
  row,
  first: () =>
    empty(
      "Nothing is counted yet",
      "Coding agents report what they spend; a limit refuses further claims and edits:",
      "interlock budget set fleet --cost 50 --agent maria",
      "interlock budget count --input 1200 --output 300 --agent ada",
    ),
});

function row(each) {
  const state = stateOf(each);
  const kinds = [
    ["input", each.input],
    ["output", each.output],
    ["cache written", each.cache_write],
    ["cache read", each.cache_read],
  ].filter(([, number]) => number > 0);
  return h(
    "div.cells.budgets",
    chip(state, TONES[state]),
    h(
      "div.main",
      h(
        "div.first",
        h("strong.name", isOne(each.thing) ? thingLink(each.thing) : NAMES[each.thing] || each.thing),
        each.reason && h("span.muted", brief(each.reason, 60)),
      ),
      h("div.second", kinds.map(([name, number]) => `${count(number)} ${name}`).join(" · ")),
    ),
    h("div.used", isLimited(each) ? meter(part(each), each.over) : ""),
    amount(count(each.tokens), each.limit_tokens === null ? "" : count(each.limit_tokens), "tokens"),
    amount(money(each.cost), each.limit_cost === null ? "" : money(each.limit_cost), "cost"),
    h("div.since", each.at ? ago(each.at, " ago") : ""),
    rowActions("budget", each),
  );
}

const amount = (spent, limit, word) =>
  h("div.amount", h("span", spent), h("span.muted", limit ? ` of ${limit}` : ` ${word}`));

function meter(share, over) {
  const percent = Math.round(Math.min(1, share) * 100);
  return h(
    "span.progress",
    { role: "meter", "aria-valuenow": percent, "aria-valuemin": 0, "aria-valuemax": 100, data: { over } },
    h("span.bar", h("span.fill", { vars: { "--part": `${percent}%` } })),
    h("span.number", `${Math.round(share * 100)} %`),
  );
}
