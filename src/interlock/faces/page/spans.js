// Spans of time: who held what from when to when, and who waited, from the events of the record.

const BEGIN = { acquired: "held", claimed: "held" };
const END = new Set([
  "released",
  "reclaimed",
  "broken",
  "completed",
  "failed",
  "dead",
  "requeued",
  "cancelled",
  "dropped",
  "fenced_off",
]);
const NOUNS = new Set(["lock", "semaphore", "task"]);

const keyOf = (thing, agent, kind) => `${thing}\u0001${agent}\u0001${kind}`;

export class Spans {
  constructor() {
    this.closed = []; // {thing, agent, kind, from, to, end}
    this.open = new Map(); // "thing agent kind" -> span
    this.revision = 0; // of the last entry that was read from the record
    this.applied = new WeakSet(); // events of the stream after it
  }

  /** An event of the stream: once, and unless the record had it; those of a commit share a revision. */
  live(change) {
    if (change.revision <= this.revision || this.applied.has(change)) return;
    this.applied.add(change);
    this.event(change);
  }

  /** An event: {event, at, thing, agent}. */
  event({ event, at, thing, agent }) {
    const [noun, what] = event.split(":");
    if (!NOUNS.has(noun) || !thing) return;
    if (BEGIN[what]) {
      this.end(thing, agent, "waiting", at, "got it");
      if (noun !== "semaphore")
        for (const span of [...this.open.values()])
          if (span.thing === thing && span.kind === "held")
            this.end(thing, span.agent, "held", at, "taken over");
      this.begin(thing, agent, "held", at);
    } else if (END.has(what)) {
      if (!this.end(thing, agent, "held", at, what) && noun === "task")
        for (const span of [...this.open.values()])
          if (span.thing === thing && span.kind === "held") this.end(thing, span.agent, "held", at, what);
    }
  }

  /** An entry of the record; waits are there, and have no events. */
  entry(line) {
    const verb = line.verb.split(".")[1];
    for (const thing of line.thing.split(",").map((each) => each.trim())) {
      if (verb === "wait" && line.outcome === "waiting") this.begin(thing, line.agent, "waiting", line.at);
      if (verb === "withdraw") this.end(thing, line.agent, "waiting", line.at, line.outcome);
    }
    for (const each of line.events)
      this.event({
        event: each.name,
        at: line.at,
        thing: each.thing || line.thing,
        agent: each.agent,
      });
    this.revision = Math.max(this.revision, line.revision);
  }

  /** Who waits for what now, as [thing, agent]: those that do not wait any more left the queue. */
  queues(waiting, at) {
    const now = new Set(waiting.map(([thing, agent]) => keyOf(thing, agent, "waiting")));
    for (const [key, { thing, agent, kind }] of [...this.open])
      if (kind === "waiting" && !now.has(key)) this.end(thing, agent, kind, at, "left the queue");
    for (const [thing, agent] of waiting)
      if (!this.open.has(keyOf(thing, agent, "waiting"))) this.begin(thing, agent, "waiting", at);
  }

  begin(thing, agent, kind, from) {
    this.open.set(keyOf(thing, agent, kind), { thing, agent, kind, from, to: null });
  }

  end(thing, agent, kind, to, end) {
    const key = keyOf(thing, agent, kind);
    const span = this.open.get(key);
    if (!span) return false;
    this.open.delete(key);
    this.closed.push({ ...span, to, end });
    if (this.closed.length > 6000) this.closed.splice(0, 1000);
    return true;
  }

  /** The spans that overlap a window. */
  between(from, to) {
    return [
      ...this.closed.filter((each) => each.to >= from && each.from <= to),
      ...[...this.open.values()].filter((each) => each.from <= to),
    ];
  }
}
