// The one event stream of the page: changes as they are committed, what is away, what was missed.
//
// A browser reconnects by itself and names the last event it has, so the server sends the rest, or
// `resync` if it no longer has it.  Three cases need more: a stream that the browser gave up (it
// answered with an error), a laptop that slept (timers show it), and a tab that was hidden for long
// (its stream is closed, since a browser opens only six connections to a host for all tabs).

const HIDDEN_MOST = 120_000;
const TICK = 5_000;
const SLEPT = 20_000;

export class Stream {
  /** on: {hello, change, resync, away(what, since), back}. */
  constructor(on, { keepHidden }) {
    this.on = on;
    this.keepHidden = keepHidden;
    this.revision = 0;
    this.trouble = "";
    this.retry = 1000;
    this.open();
    this.watchSleep();
    document.addEventListener("visibilitychange", () => this.visibility());
    addEventListener("online", () => this.reopen());
    addEventListener("pagehide", () => this.source?.close());
    addEventListener("pageshow", (event) => event.persisted && this.reopen());
  }

  open() {
    this.source?.close();
    clearTimeout(this.timer);
    const source = new EventSource("/api/events");
    this.source = source;
    source.addEventListener("hello", (event) => this.hello(JSON.parse(event.data)));
    source.addEventListener("change", (event) => this.change(event));
    source.addEventListener("resync", () => this.on.resync());
    source.addEventListener("store", (event) => this.store(JSON.parse(event.data)));
    source.onerror = () => this.failed(source);
  }

  hello(said) {
    this.retry = 1000;
    this.mend("server");
    this.on.hello(said);
  }

  change(event) {
    const change = JSON.parse(event.data);
    if (change.revision > this.revision) this.revision = change.revision;
    this.on.change(change);
  }

  store(said) {
    if (said.state === "away") this.fail("store");
    else this.mend("store");
  }

  failed(source) {
    this.fail("server");
    if (source.readyState !== EventSource.CLOSED) return; // the browser tries again
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(), this.retry);
    this.retry = Math.min(this.retry * 2, 15_000);
  }

  fail(what) {
    if (this.trouble === what) return;
    this.trouble = what;
    this.on.away(what);
  }

  mend(what) {
    // A server that answers says nothing about its store: that has events of its own.
    const was = this.trouble;
    if (was && (was === what || what === "server")) {
      this.trouble = "";
      this.on.back(was);
    }
  }

  reopen() {
    this.open();
    this.on.resync();
  }

  visibility() {
    clearTimeout(this.hiding);
    if (document.hidden) {
      this.hiding = setTimeout(() => {
        if (!this.keepHidden()) this.source.close();
      }, HIDDEN_MOST);
    } else if (this.source.readyState === EventSource.CLOSED) {
      this.reopen();
    }
  }

  watchSleep() {
    let last = Date.now();
    setInterval(() => {
      const gap = Date.now() - last;
      last = Date.now();
      if (gap > TICK + SLEPT && !document.hidden) this.reopen();
    }, TICK);
  }
}
