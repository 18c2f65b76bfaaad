// Swarms: the peers on the bus with trust, breaker and standing; requests between them; quarantine.

import { chip, h, show } from "../dom.js";
import { ago, brief, count, duration, plural, shortId, valueText } from "../format.js";
import { data } from "../state.js";
import { List } from "../list.js";
import { paintHead } from "../head.js";
import { filtered } from "../filter.js";
import { rowActions, stateChip } from "../rows.js";
import { empty, loading } from "../empty.js";
import { go } from "../route.js";

const ROLE_TONES = { own: "accent", peer: "ok", stranger: "warn", denied: "bad" };

export function open(place) {
  const top = h("div.peers");
  const list = new List(place, {
    row,
    key: (each) => each.key,
    version: (each) => `${each.kind} ${each.state} ${each.item.reason} ${each.item.step}`,
    open: (each) => each.kind === "request" && go({ show: `request/${each.item.request}` }),
    label: "Requests and quarantine",
  });
  list.kindOf = (each) => (each.kind === "quarantine" ? "quarantine" : null);
  const title = h("h2.section");
  place.append(top, title, list.element);
  return { list, close: () => list.close(), paint: (params) => paint(params, list, top, title) };
}

function entries() {
  const held = (data.quarantine || []).map((item) => ({
    ...item,
    kind: "quarantine",
    key: item.id,
    state: "quarantined",
    item,
  }));
  const requests = [...(data.swarms?.sent || []), ...(data.swarms?.received || [])].map((item) => ({
    kind: "request",
    key: `${item.from_swarm} ${item.request}`,
    state: item.state,
    item,
  }));
  return [...held, ...requests.sort((a, b) => b.item.at - a.item.at)];
}

function paint(params, list, top, title) {
  const peers = data.swarms?.swarms || [];
  const all = entries();
  const shown = filtered(all, params, {
    chips: { kind: (each) => each.kind },
    text: ({ item }) =>
      `${item.request || item.id} ${item.swarm || ""} ${item.to_swarm || ""} ${item.from_swarm || ""} ${item.reason} ${item.agent}`,
    facets: ({ item }) => ({ swarm: [item.swarm, item.to_swarm, item.from_swarm].filter(Boolean) }),
  });
  paintHead({
    title: "Swarms",
    search: "Filter requests, swarm:bank",
    summary: data.swarms ? plural(peers.length, "swarm") : "",
    chips: [
      {
        name: "kind",
        options: [
          ["quarantine", "quarantine", data.quarantine?.length || 0, "bad"],
          ["request", "requests", all.length - (data.quarantine?.length || 0)],
        ],
      },
    ],
    bulk:
      params.kind === "quarantine" || params.q
        ? { kind: "quarantine", items: shown.filter((each) => each.kind === "quarantine"), noun: "message" }
        : null,
  });
  const trust = new Map((data.swarms?.trust || []).map((each) => [each.swarm, each]));
  show(
    top,
    !data.swarms
      ? loading()
      : !peers.length
        ? empty(
            "This fleet is alone",
            "Fleets that share no store ask each other over a bus:",
            "interlock key new shop",
            "interlock swarm register shop --bus bus.db --key shop --agent ada",
          )
        : peers.map((each) => peer(each, trust.get(each.swarm))),
  );
  title.textContent = shown.length ? "Requests and quarantine" : "";
  list.setItems(shown);
}

function peer(swarm, trust) {
  const blocked = trust?.standing.blocked || [];
  const fact = (name, value) =>
    value !== null && value !== undefined && value !== "" && [h("dt", name), h("dd", value)];
  return h(
    "article.peer",
    { data: { role: swarm.role } },
    h(
      "header",
      h("strong.name", swarm.swarm),
      chip(swarm.role, ROLE_TONES[swarm.role]),
      stateChip(swarm.status),
    ),
    h(
      "dl",
      fact("agents", swarm.agents === null ? null : count(swarm.agents)),
      fact("queue", swarm.depth === null ? null : count(swarm.depth)),
      fact(
        "breaker",
        trust &&
          chip(trust.breaker.state.replaceAll("_", " "), trust.breaker.state === "closed" ? "ok" : "bad"),
      ),
      trust?.breaker.retry_in > 0 && fact("tries in", duration(trust.breaker.retry_in)),
      fact("conflicts", trust && `${(trust.standing.conflict_rate * 100).toFixed(1)} %`),
      fact("timeouts", trust && `${(trust.standing.timeout_rate * 100).toFixed(1)} %`),
      fact("rate", trust && `${count(trust.rate)} each ${duration(trust.window)}`),
      fact(
        "key",
        swarm.keys[0] &&
          h(
            "code",
            { title: swarm.keys[0].fingerprint },
            `${swarm.keys[0].fingerprint.slice(7, 19)}… (${swarm.keys[0].how.replaceAll("_", " ")})`,
          ),
      ),
      blocked.length > 0 && fact("blocked", blocked.join(", ")),
    ),
    swarm.last_refused && h("p.error", `refused: ${swarm.last_refused}`),
  );
}

function row({ kind, item }) {
  const held = kind === "quarantine";
  return h(
    "div.cells.requests",
    held ? chip("quarantine", "bad") : stateChip(item.state),
    h(
      "div.main",
      h(
        "div.first",
        h(
          "strong.name",
          held
            ? `${item.kind} from ${item.swarm || "an unknown swarm"}`
            : item.to_swarm
              ? `to ${item.to_agent} of ${item.to_swarm}`
              : `from ${item.from_swarm}`,
        ),
        h("code.id", shortId(held ? item.id : item.request)),
      ),
      h(
        "div.second",
        held
          ? brief(`${item.reason.replaceAll("_", " ")}: ${item.detail} ${valueText(item.payload)}`)
          : `step ${item.step} of 10 · ${item.reason}${item.next ? ` · next: ${item.next}` : ""}`,
      ),
    ),
    h("div.holder", item.agent || h("span.muted", "–")),
    h("div.since", ago(item.at, " ago")),
    held ? rowActions("quarantine", item) : h("div.actions"),
  );
}
