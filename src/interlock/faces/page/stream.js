// The one event stream of the page: changes as they are committed, what is away, what was missed.
//
// A browser reconnects by itself and names the last event it has, so the server sends the rest, or
// `resync` if it no longer has it.  Three cases need more: a stream that the browser gave up (it
// answered with an error), a laptop that slept (timers show it), and a tab that was hidden for long
// (its stream is closed, since a browser opens only six connections to a host for all tabs).
//
// What is committed after a reading and before the stream begins has no event: so whenever a stream
// begins that continues no earlier one, everything is read, after its first message.  It is opened
// before the rest of the page is loaded, to have that message in time.

const HIDDEN_MOST = 120_000;
const PATIENCE = 1_500; // a proxy may keep the first message back: the page reads all the same
const TICK = 5_000;
const SLEPT = 20_000;
const UNAUTHORIZED = 401;

/** The status of an address, which an EventSource does not tell; 0 if there is no answer. */
async function statusOf(address) {
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), TICK);
  const answer = await fetch(address, { signal: abort.signal }).catch(() => null);
  clearTimeout(timer);
  abort.abort(); // the body of a stream has no end
  return answer?.status ?? 0;
}

class Stream {
  constructor() {
    this.trouble = "";
    this.retry = 1000;
    this.waiting = []; // what came before the rest of the page
    this.open();
  }

  /** on: {hello, change, resync, away(what), back}; what came until now is told first. */
  start(on, { keepHidden }) {
    this.on = on;
    this.keepHidden = keepHidden;
    for (const [name, said] of this.waiting.splice(0)) on[name](said);
    setTimeout(() => this.began || this.begin(), PATIENCE);
    this.watchSleep();
    document.addEventListener("visibilitychange", () => this.visibility());
    addEventListener("online", () => this.open());
    addEventListener("pagehide", () => this.source?.close());
    addEventListener("pageshow", (event) => event.persisted && this.open());
  }

  tell(name, said) {
    if (this.on) this.on[name](said);
    else this.waiting.push([name, said]);
  }

  begin() {
    this.began = true;
    this.tell("resync");
  }

  open() {
    this.source?.close();
    this.position = "";
    clearTimeout(this.timer);
    const source = new EventSource("/api/events");
    this.source = source;
    source.addEventListener("hello", (event) => this.hello(JSON.parse(event.data)));
    source.addEventListener("change", (event) => this.change(event));
    source.addEventListener("resync", () => this.begin());
    source.addEventListener("store", (event) => this.store(JSON.parse(event.data)));
    source.onerror = () => this.failed(source);
  }

  hello(said) {
    this.retry = 1000;
    this.mend("server");
    this.tell("hello", said);
    if (!this.position) this.begin(); // else the browser named it, and the server sends the rest
  }

  change(event) {
    this.position = event.lastEventId;
    this.tell("change", JSON.parse(event.data));
  }

  store(said) {
    if (said.state === "away") this.fail("store");
    else this.mend("store");
  }

  async failed(source) {
    if (source.readyState !== EventSource.CLOSED) {
      this.fail("server");
      return; // the browser tries again
    }
    const status = await statusOf("/api/events");
    if (source !== this.source) return; // another one was opened in the meantime
    this.fail(status === UNAUTHORIZED ? "token" : "server");
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(), this.retry);
    this.retry = Math.min(this.retry * 2, 15_000);
  }

  fail(what) {
    if (this.trouble === what) return;
    this.trouble = what;
    this.tell("away", what);
    if (!this.began) this.begin();
  }

  mend(what) {
    // A server that answers says nothing about its store: that has events of its own.
    const was = this.trouble;
    if (was && (was === what || what === "server")) {
      this.trouble = "";
      this.tell("back");
    }
  }

  visibility() {
    clearTimeout(this.hiding);
    if (document.hidden) {
      this.hiding = setTimeout(() => {
        if (!this.keepHidden()) this.source.close();
      }, HIDDEN_MOST);
    } else if (this.source.readyState === EventSource.CLOSED) {
      this.open();
    }
  }

  watchSleep() {
    let last = Date.now();
    setInterval(() => {
      const gap = Date.now() - last;
      last = Date.now();
      if (gap > TICK + SLEPT && !document.hidden) this.open();
    }, TICK);
  }
}

export const stream = new Stream();
