// The record: its verdict, its last entries, and the story of one thing (beside the list).

import { button, chip, h, show } from "../dom.js";
import { clock, count, plural, shortId } from "../format.js";
import { recent } from "../state.js";
import { read } from "../api.js";
import { List } from "../list.js";
import { paintHead } from "../head.js";
import { filtered, tally } from "../filter.js";
import { empty, loading, nothingFits } from "../empty.js";
import { agentLink, thingLink } from "../thing.js";
import { go } from "../route.js";

const PAGE = 500;
const VERDICT = { ok: "ok", bad: "bad", unproven: "warn" };

export function open(place, repaint) {
  const own = { verdict: null, lines: null, seen: 0, repaint };
  const list = new List(place, {
    row,
    key: (each) => String(each.revision),
    version: (each) => each.revision,
    open: (each) => each.thing && go({ show: each.thing.split(",")[0].trim() }),
    label: "Entries of the record",
    size: "short",
  });
  const top = h("div.verdict");
  const none = h("div");
  place.append(top, none, list.element);
  load(own);
  verify(own);
  const timer = setInterval(() => own.stale && !own.busy && !document.hidden && load(own), 1000);
  return {
    list,
    close: () => {
      list.close();
      clearInterval(timer);
    },
    resync: () => {
      own.stale = true;
    },
    paint: (params) => paint(params, own, list, top, none),
  };
}

async function load(own) {
  Object.assign(own, { stale: false, busy: true });
  try {
    own.lines = (await read("record log", { limit: PAGE })).entries.reverse();
    own.seen = own.lines[0]?.revision || 0;
  } catch {
    own.stale = true;
  }
  own.busy = false;
  own.repaint();
}

async function verify(own) {
  own.verdict = "reading";
  own.repaint();
  try {
    own.verdict = await read("record verify");
  } catch (error) {
    own.verdict = error;
  }
  own.repaint();
}

function paint(params, own, list, top, none) {
  if (recent[0]?.revision > own.seen) own.stale = true;
  const all = own.lines || [];
  const noun = (each) => each.verb.split(".")[0];
  const shown = filtered(all, params, {
    chips: { noun },
    text: (e) => `${e.verb} ${e.outcome} ${e.agent} ${e.thing} ${e.reason} ${e.trace}`,
    facets: (e) => ({ by: e.agent, verb: e.verb, thing: e.thing, trace: e.trace }),
  });
  const numbers = [...tally(all, noun)].sort((a, b) => b[1] - a[1]);
  paintHead({
    title: "Record",
    search: "Filter by words, by:ada, verb:lock, thing:task/t1",
    summary: own.lines ? `last ${plural(shown.length, "entry", "entries")}` : "",
    chips: [
      {
        name: "noun",
        options: numbers.slice(0, 9).map(([name, number]) => [name, name || "several", number]),
      },
    ],
  });
  const mark = JSON.stringify(own.verdict);
  if (top.dataset.mark !== mark) {
    top.dataset.mark = mark;
    show(
      top,
      verdict(own, () => verify(own)),
    );
  }
  none.replaceChildren(
    ...(!own.lines
      ? [loading()]
      : !all.length
        ? [
            empty(
              "The record is empty",
              "Every change is written to it, such as this one:",
              "interlock task add hello --agent ada",
            ),
          ]
        : !shown.length
          ? [nothingFits()]
          : []),
  );
  list.setItems(shown);
}

function verdict({ verdict: found }, again) {
  if (found === "reading" || !found) return h("p.muted", "Checking the hashes of the record …");
  if (!found.integrity) return h("p.error", `The record cannot be checked: ${found.message}`);
  const part = (name, text) =>
    h("span.part", { title: text }, chip(found[name], VERDICT[found[name]]), h("span", name));
  return [
    h(
      "div.line",
      part("integrity", "No entry was changed: every hash fits"),
      part("completeness", "No entry is missing between the first and the last"),
      part("truncation", "The end was not cut off: proven by an anchor kept elsewhere"),
      h(
        "span.muted",
        `${count(found.entries)} entries, ${count(found.begins)} to ${count(found.ends)}${found.anchored ? `, anchored at ${count(found.anchored)}` : ""}`,
      ),
      h("span.grow"),
      button("Check again", again, { kind: "quiet" }),
    ),
    found.findings.slice(0, 5).map((each) => h("p.error", each.says)),
    found.truncation === "unproven" &&
      h(
        "p.muted",
        "An anchor kept elsewhere proves that the end was not cut off: ",
        h("code", "interlock record anchor anchors.jsonl"),
      ),
  ];
}

function row(entry) {
  return h(
    "div.cells.record",
    h("span.number", count(entry.revision)),
    h("time.clock", clock(entry.at)),
    h(
      "div.main",
      h(
        "div.first",
        h("strong.name", entry.verb),
        h("span", { data: { bad: /refused|fenced|deadlock|failed/.test(entry.outcome) } }, entry.outcome),
        entry.signed && h("span.flag", "signed"),
      ),
      h("div.second", entry.reason),
    ),
    h(
      "div.thing",
      entry.thing
        .split(",")
        .slice(0, 2)
        .map((each) => thingLink(each.trim(), each.trim().replace(/[a-z]{3}_[0-9a-f]{32}/g, shortId))),
    ),
    h("div.holder", entry.agent ? agentLink(entry.agent) : h("span.muted", "–")),
  );
}
