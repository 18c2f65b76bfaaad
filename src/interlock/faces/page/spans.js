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

export class Spans {
  constructor() {
    this.closed = []; // {thing, agent, kind, from, to, end}
    this.open = new Map(); // "thing agent kind" -> span
    this.revision = 0;
    this.begins = 0;
  }

  /** An event: {event, at, thing, agent, revision}. */
  event({ event, at, thing, agent, revision }) {
    const [noun, what] = event.split(":");
    this.revision = Math.max(this.revision, revision);
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
        revision: line.revision,
      });
    this.begins ||= line.at;
  }

  begin(thing, agent, kind, from) {
    this.open.set(`${thing}\u0001${agent}\u0001${kind}`, { thing, agent, kind, from, to: null });
  }

  end(thing, agent, kind, to, end) {
    const key = `${thing}\u0001${agent}\u0001${kind}`;
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
