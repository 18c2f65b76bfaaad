// Messages: the feed of all agents, threads, and the questions that nobody answered yet.

import { chip, h } from "../dom.js";
import { ago, brief, plural, shortId, valueText } from "../format.js";
import { data, failures } from "../state.js";
import { List } from "../list.js";
import { paintHead } from "../head.js";
import { filtered, tally } from "../filter.js";
import { empty, loading, nothingFits } from "../empty.js";
import { agentLink } from "../thing.js";
import { go } from "../route.js";

const TONES = {
  alert: "warn",
  query: "accent",
  answer: "ok",
  stop: "bad",
  mail: "",
  share: "busy",
  missed: "bad",
};
const KINDS = ["query", "mail", "alert", "answer", "share", "stop"];
const bodyOf = (message) => valueText(message.body ?? message.data);
const isOpen = (message) => message.kind === "query" && message.state === "open";

export function open(place) {
  const list = new List(place, {
    row,
    key: (each) => each.key,
    version: (each) => `${each.state} ${each.replies} ${each.at} ${each.read}`,
    open: (each) => go({ show: each.replies ? `thread/${each.thread}` : `message/${each.id}` }),
    label: "Messages",
  });
  const none = h("div");
  place.append(none, list.element);
  return { list, close: () => list.close(), paint: (params) => paint(params, list, none) };
}

/** One row for each thread, at the time of its last message, and one for each other message. */
export function threads(all) {
  const found = new Map();
  for (const each of [...all].sort((a, b) => a.at - b.at)) {
    const key = each.thread || each.id;
    const before = found.get(key);
    found.set(key, {
      ...each,
      key,
      replies: before ? before.replies + 1 : 0,
      subject: before?.subject || each.subject,
      people: [...new Set([...(before?.people || []), each.from])],
    });
  }
  return [...found.values()];
}

function paint(params, list, none) {
  const all = data.messages || [];
  const rows =
    params.as === "feed"
      ? all.map((each) => ({ ...each, key: each.id, replies: 0, people: [each.from] }))
      : threads(all);
  const chips = { kind: (each) => each.kind, open: (each) => (isOpen(each) ? "yes" : "no") };
  const shown = filtered(rows, params, {
    chips,
    text: (m) => `${m.subject} ${bodyOf(m)} ${m.type} ${m.from} ${m.to.join(" ")} ${m.thread}`,
    facets: (m) => ({ from: m.people, to: m.to, type: m.type, thread: m.thread, kind: m.kind }),
  });
  shown.sort((a, b) => Number(isOpen(b)) - Number(isOpen(a)) || b.at - a.at);
  const numbers = tally(rows, (each) => each.kind);
  paintHead({
    title: "Messages",
    search: "Filter by words, from:ada, to:bob, thread:x",
    summary: data.messages ? plural(all.length, "message") : "",
    chips: [
      { name: "open", options: [["yes", "open questions", all.filter(isOpen).length, "accent"]] },
      {
        name: "kind",
        options: KINDS.map((each) => [
          each,
          each === "query" ? "questions" : each,
          numbers.get(each) || 0,
          TONES[each],
        ]),
      },
    ],
    extra: [
      h(
        "button.quiet",
        { type: "button", onclick: () => go({ as: params.as === "feed" ? "" : "feed" }) },
        params.as === "feed" ? "Threads" : "Feed",
      ),
    ],
  });
  const failed = failures.get("messages");
  none.replaceChildren(
    ...(failed && !data.messages
      ? [empty("Messages cannot be read", failed.message)]
      : !data.messages
        ? [loading()]
        : !all.length
          ? [
              empty(
                "No messages yet",
                "Agents write to each other, and you can write to them:",
                "interlock send all 'Hello from a person' --agent maria",
              ),
            ]
          : !shown.length
            ? [nothingFits()]
            : []),
  );
  list.setItems(shown);
}

function row(message) {
  return h(
    "div.cells.messages",
    chip(
      message.kind === "query" ? (message.state ? `question, ${message.state}` : "question") : message.kind,
      isOpen(message) || message.kind !== "query" ? TONES[message.kind] : "off",
    ),
    h(
      "div.main",
      h(
        "div.first",
        h(
          "strong.name",
          message.subject || message.type || brief(bodyOf(message), 80) || shortId(message.id),
        ),
        message.urgent && h("span.flag", "urgent"),
        message.replies > 0 && h("span.muted", plural(message.replies + 1, "message")),
      ),
      h("div.second", message.subject || message.type ? brief(bodyOf(message)) : ""),
    ),
    h(
      "div.people",
      agentLink(message.from),
      h("span.muted", " → "),
      message.to.length
        ? message.to
            .slice(0, 3)
            .map((each, n) => [
              n > 0 && ", ",
              each === "all" || each.startsWith("?") ? h("span", each) : agentLink(each),
            ])
        : h("span.muted", "subscribers"),
      message.to.length > 3 && h("span.muted", ` +${message.to.length - 3}`),
    ),
    h("div.since", ago(message.at, " ago")),
  );
}
