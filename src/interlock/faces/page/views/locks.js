// Locks and slots: who has them, who waits, who blocks whom; each cycle of waits as a ring.

import { h } from "../dom.js";
import { ago, brief, duration, plural, valueText } from "../format.js";
import { data } from "../state.js";
import { List } from "../list.js";
import { paintHead } from "../head.js";
import { filtered } from "../filter.js";
import { rowActions, stateChip } from "../rows.js";
import { empty, loading, nothingFits } from "../empty.js";
import { agentLink } from "../thing.js";
import { go } from "../route.js";
import { blocking } from "../blocking.js";

export function open(place) {
  const list = new List(place, {
    row,
    key: (each) => `${each.kind} ${each.name} ${each.item.token ?? ""}`,
    version: (each) =>
      JSON.stringify([
        each.item.holder,
        each.item.token,
        each.item.state,
        each.waiters,
        each.item.capacity,
        each.item.available,
        Math.round(each.item.expires_in / 5),
      ]),
    open: (each) => go({ show: each.thing }),
    label: "Locks and slots",
  });
  list.kindOf = (each) => each.kind;
  const top = h("div.blocking");
  place.append(top, list.element);
  return { list, close: () => list.close(), paint: (params) => paint(params, list, top) };
}

/** Locks, and semaphores with their holders below them. */
function entries() {
  const found = (data.locks || []).map((item) => ({
    ...item,
    kind: "lock",
    name: item.lock,
    thing: `lock/${item.lock}`,
    item,
    waiters: item.waiters,
  }));
  for (const item of data.semaphores || []) {
    const waiters = item.waiters.map((each) =>
      each.weight > 1 ? `${each.agent} (${each.weight})` : each.agent,
    );
    found.push({
      ...item,
      kind: "semaphore",
      name: item.semaphore,
      thing: `sem/${item.semaphore}`,
      item,
      waiters,
    });
    for (const holder of item.holders)
      found.push({
        ...holder,
        semaphore: item.semaphore,
        kind: "slots",
        name: item.semaphore,
        thing: `sem/${item.semaphore}`,
        item: holder,
        waiters: [],
      });
  }
  return found;
}

function paint(params, list, top) {
  const all = entries();
  const shown = filtered(all, params, {
    chips: { kind: (each) => (each.waiters.length ? [each.kind, "contended"] : each.kind) },
    text: (each) =>
      `${each.name} ${each.item.holder || ""} ${each.waiters.join(" ")} ${valueText(each.item.metadata)}`,
    facets: (each) => ({ holder: each.item.holder || "", waiter: each.waiters }),
  });
  const contended = all.filter((each) => each.waiters.length).length;
  paintHead({
    title: "Locks",
    search: "Filter by name, holder:bob, waiter:carol",
    summary: data.locks
      ? `${plural(data.locks.length, "lock")}, ${plural(data.semaphores?.length || 0, "semaphore")}`
      : "",
    chips: [
      {
        name: "kind",
        options: [
          ["contended", "with waiters", contended, "wait"],
          ["lock", "locks", data.locks?.length || 0],
          ["semaphore", "semaphores", data.semaphores?.length || 0],
        ],
      },
    ],
    bulk: params.q
      ? { kind: "lock", items: shown.filter((each) => each.kind === "lock"), noun: "lock" }
      : null,
  });
  const none =
    !data.locks || !data.semaphores
      ? loading()
      : !all.length
        ? empty(
            "No lock is held",
            "A lock appears while an agent holds it:",
            "interlock lock run deploy --agent ada -- sleep 30",
          )
        : !shown.length
          ? nothingFits()
          : null;
  const parts = [...blocking(), none].filter(Boolean);
  const mark = parts.map((each) => each.textContent).join("|");
  if (top.dataset.mark !== mark) {
    top.dataset.mark = mark;
    top.replaceChildren(...parts);
  }
  list.setItems(shown);
}

function row(each) {
  const { item, kind } = each;
  const name =
    kind === "slots"
      ? h(
          "div.first.sub",
          h("strong.name", item.holder),
          h("span.muted", `${plural(item.weight, "slot")} of ${each.name}`),
        )
      : h(
          "div.first",
          h("strong.name", each.name),
          kind === "semaphore" &&
            h("span.muted", `${item.capacity - item.available} of ${item.capacity} slots in use`),
        );
  return h(
    "div.cells.locks",
    { data: { kind } },
    kind === "semaphore" ? meter(item) : stateChip(item.state || "held"),
    h(
      "div.main",
      name,
      h("div.second", queue(each), item.metadata ? brief(valueText(item.metadata), 80) : ""),
    ),
    h("div.holder", kind === "lock" ? agentLink(item.holder) : ""),
    h("div.token", item.token ? h("span", { title: "Fencing token" }, `#${item.token}`) : ""),
    h(
      "div.since",
      item.since ? ago(item.since) : "",
      item.expires_in ? h("span.muted", ` · ${duration(item.expires_in)} left`) : "",
    ),
    rowActions(kind, kind === "slots" ? { ...item, semaphore: each.name } : item),
  );
}

function queue({ waiters }) {
  if (!waiters.length) return null;
  return h(
    "span.queue",
    h("span.flag", plural(waiters.length, "waiter")),
    waiters.slice(0, 6).map((each, n) => [n > 0 && h("span.muted", " → "), agentLink(each)]),
    waiters.length > 6 && h("span.muted", ` +${waiters.length - 6}`),
    " ",
  );
}

function meter({ capacity, available }) {
  const used = capacity - available;
  return capacity <= 8
    ? h(
        "span.slots",
        { role: "img", "aria-label": `${used} of ${capacity} in use` },
        Array.from({ length: capacity }, (_, n) => h("i", { data: { used: n < used } })),
      )
    : h("span.number", `${used}/${capacity}`);
}
