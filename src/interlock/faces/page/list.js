// A long list that stays smooth: only the rows in view are elements.  Rows have one height, so the
// place of a row is its number.  The selected row survives a repaint; j and k move it.

import { h } from "./dom.js";
import { nextFrame } from "./frame.js";

const SPARE = 8; // rows kept above and below the view
let numbered = 0;

export class List {
  /** row(item) -> element content; key(item) -> text; version(item) -> anything that changes with it. */
  constructor(scroller, { row, key, version, open, label, size = "" }) {
    Object.assign(this, { scroller, row, key, version, open });
    this.name = `list${(numbered += 1)}`;
    this.items = [];
    this.rows = new Map(); // key -> {element, version, index}
    this.selected = "";
    this.element = h(size ? `ul.rows.${size}` : "ul.rows", { "aria-label": label });
    this.onscroll = () => nextFrame(this.name, () => this.paint());
    scroller.addEventListener("scroll", this.onscroll, { passive: true });
    this.resized = new ResizeObserver(() => {
      this.height = 0;
      this.onscroll();
    });
    this.resized.observe(scroller);
    this.element.addEventListener("click", (event) => this.clicked(event));
  }

  close() {
    this.scroller.removeEventListener("scroll", this.onscroll);
    this.resized.disconnect();
  }

  setItems(items) {
    this.items = items;
    this.paint();
  }

  measure() {
    if (!this.height)
      this.height = parseFloat(getComputedStyle(this.element).getPropertyValue("--row")) || 44;
    return this.height;
  }

  paint() {
    const height = this.measure();
    const top = Math.max(0, this.scroller.scrollTop - this.element.offsetTop);
    const first = Math.max(0, Math.floor(top / height) - SPARE);
    const last = Math.min(this.items.length, Math.ceil((top + this.scroller.clientHeight) / height) + SPARE);
    this.element.style.height = `${this.items.length * height}px`;
    const wanted = new Map();
    for (let n = first; n < last; n += 1) wanted.set(this.key(this.items[n]), n);
    for (const [key, { element }] of this.rows) {
      if (!wanted.has(key)) {
        element.remove();
        this.rows.delete(key);
      }
    }
    for (const [key, n] of wanted) this.place(key, n, height);
  }

  place(key, n, height) {
    const item = this.items[n];
    const version = this.version(item);
    let kept = this.rows.get(key);
    if (!kept) {
      const element = h("li.row", { tabindex: "-1", data: { key } });
      kept = { element };
      this.rows.set(key, kept);
      this.element.append(element);
    }
    if (kept.version !== version) {
      kept.element.replaceChildren(...[this.row(item, kept.element)].flat().filter(Boolean));
      kept.version = version;
    }
    if (kept.index !== n || kept.height !== height) {
      kept.element.style.transform = `translateY(${n * height}px)`;
      kept.index = n;
      kept.height = height;
    }
    kept.element.toggleAttribute("data-selected", key === this.selected);
  }

  clicked(event) {
    const row = event.target.closest(".row");
    if (!row || event.target.closest("button, a, input, select")) return;
    this.select(row.dataset.key);
    this.open?.(this.current());
  }

  current() {
    return this.items.find((each) => this.key(each) === this.selected);
  }

  select(key) {
    this.selected = key;
    this.paint();
  }

  /** Move the selection; the row comes into view and has the focus. */
  move(step) {
    if (!this.items.length) return;
    const at = this.items.findIndex((each) => this.key(each) === this.selected);
    const next =
      at < 0
        ? step === 1 || step === -Infinity
          ? 0
          : this.items.length - 1
        : Math.min(this.items.length - 1, Math.max(0, at + step));
    this.selected = this.key(this.items[next]);
    const top = this.element.offsetTop + next * this.measure();
    const view = this.scroller;
    const header = 8;
    if (top < view.scrollTop + header) view.scrollTop = top - header;
    else if (top + this.height > view.scrollTop + view.clientHeight)
      view.scrollTop = top + this.height - view.clientHeight + header;
    this.paint();
    this.rows.get(this.selected)?.element.focus({ preventScroll: true });
  }
}
