"""The page of ``interlock up`` in a real browser: its first rows, a change, and its frames.

It needs playwright and Debian's chromium-headless-shell; without them it is left out.  The floor is
the same browser with a document that does nothing, from the same server: its loading, and its
frames.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import interlock
from interlock.bench.engine import BenchEngine
from interlock.bench.http import server
from interlock.bench.measuring import Row, Sizes, percentile
from interlock.errors import BadInput
from interlock.threads import background

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

BROWSER = "chromium-headless-shell"
SIZE: ViewportSize = {"width": 1280, "height": 800}
CHANGES = 9
PLAN = 500
"""Tasks that are published at once."""
PACE = 0.1
"""Seconds between two claims while frames are measured: twenty changes a second."""
SETTLED = 2500
"""Milliseconds after which the page has read everything."""
_FIRST = """
new MutationObserver((_, observer) => {
  if (!document.querySelector(".row")) return;
  window.first_ = performance.now();
  observer.disconnect();
}).observe(document, { childList: true, subtree: true });
"""
_SEEN = """
() => {
  window.seen_ = {};
  new MutationObserver(() => {
    for (const each of document.querySelectorAll(".row .name")) {
      window.seen_[each.textContent] ??= Date.now();
    }
  }).observe(document.getElementById("view"), { childList: true, subtree: true });
}
"""
_FRAMES = """
(scrolls) => {
  const place = document.getElementById("view") || document.documentElement;
  window.frames_ = [];
  let last = performance.now();
  const step = (at) => {
    window.frames_.push(at - last);
    last = at;
    if (scrolls)
      place.scrollTop =
        (place.scrollTop + 37) % Math.max(1, place.scrollHeight - place.clientHeight);
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}
"""


def missing() -> str:
    """What the measurement needs and this machine does not have; empty if it has all."""
    if find_spec("uvicorn") is None:
        return "a server needs two more packages; run: pip install 'interlock[web]'"
    if find_spec("playwright") is None:
        return "it needs playwright; run: pip install playwright"
    if not _chromium():
        return (
            "no chromium-headless-shell is on PATH: install it (Debian: apt install"
            " chromium-headless-shell), or run `make test` in a clone, which gets it"
        )
    return ""


def _chromium() -> str:
    """The browser, on PATH or as ``make test`` of a clone unpacked it; empty if there is none."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    unpacked = os.path.join(cache, "interlock", "servers", "bin", BROWSER)
    return shutil.which(BROWSER) or shutil.which(unpacked) or ""


def in_browser(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """The page with a large fleet: first rows, a change, and frames while it scrolls."""
    if lack := missing():
        raise BadInput(f"the page is not measured: {lack}")
    path = engine.fresh()
    tasks, agents, loads, seconds = size.page
    with (
        interlock.connect(path, agent="bench") as fleet,
        _agents(path, agents),
        server(path) as served,
        _browser() as browser,
    ):
        plan = [{"id": f"bulk/{number:05}", "title": f"Page {number}"} for number in range(tasks)]
        for start in range(0, tasks, PLAN):
            fleet.tasks.publish_all(plan[start : start + PLAN], id=f"plan-{start}")
        address = f"http://127.0.0.1:{served.port}"
        first, bare = _first_rows(browser, address, loads)
        yield Row(
            name=f"first rows of the page, {tasks:,} tasks",
            floor=percentile(bare, 0.5),
            p50=percentile(first, 0.5),
            p95=percentile(first, 0.95),
            ratio=percentile(first, 0.5) / percentile(bare, 0.5),
            target="p50 at most 1 s",
        )
        opened = browser.new_page(viewport=SIZE)
        delays = _changes(opened, address, fleet)
        yield Row(
            name="a change on the page, from its commit to its row",
            p50=percentile(delays, 0.5),
            p95=percentile(delays, 0.95),
            target="p50 at most 100 ms",
        )
        still = _frames(opened, f"{address}/assets/icon.svg", seconds / 2, scrolls=False)
        with _changing(fleet):
            moving = _frames(opened, f"{address}/?view=tasks", seconds, scrolls=True)
        yield Row(
            name=f"frame while it scrolls, {tasks:,} tasks, {agents} agents",
            floor=percentile(still, 0.5),
            p50=percentile(moving, 0.5),
            p95=percentile(moving, 0.95),
            p99=percentile(moving, 0.99),
            rate=1000 * len(moving) / sum(moving),
            target="p99 at most 50 ms",
        )


@contextmanager
def _agents(path: str, number: int) -> Iterator[None]:
    """Agents with sessions that need no renewal, each of which reports what it does."""
    with ExitStack() as all_of_them:
        for each in range(number):
            agent = interlock.connect(path, agent=f"worker-{each:03}", ttl=3600)
            all_of_them.enter_context(closing(agent))
            agent.pulse.be("idle")
        yield


@contextmanager
def _browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=_chromium())
        yield browser
        browser.close()


def _first_rows(browser: Browser, address: str, loads: int) -> tuple[list[float], list[float]]:
    """Milliseconds to the first rows, and to the end of loading an empty document, in turns.

    Each load has a fresh context, so nothing comes from a cache; the first one warms the server.
    """
    first, bare = [], []
    for number in range(-1, loads):
        with closing(browser.new_context(viewport=SIZE)) as context:
            page = context.new_page()
            page.goto(f"{address}/assets/icon.svg")
            empty = page.evaluate("performance.getEntriesByType('navigation')[0].duration")
        with closing(browser.new_context(viewport=SIZE)) as context:
            page = context.new_page()
            page.add_init_script(_FIRST)
            page.goto(f"{address}/?view=tasks")
            page.locator(".row").first.wait_for()
            rows = page.evaluate("window.first_")
        if number >= 0:
            first.append(float(rows))
            bare.append(float(empty))
    return first, bare


def _changes(page: Page, address: str, fleet: interlock.Fleet) -> Sequence[float]:
    """Milliseconds from commits until their rows are there, by the clock of this machine."""
    page.goto(f"{address}/?view=tasks&q=seen")
    page.locator(".empty", has_text="Nothing fits").wait_for()
    page.wait_for_timeout(SETTLED)
    page.evaluate(_SEEN)
    delays = []
    for number in range(CHANGES):
        fleet.tasks.publish(f"seen-{number}", title=f"Seen {number}", not_before=3600)
        committed = time.time()
        page.locator(".row", has_text=f"Seen {number}").wait_for()
        seen = float(page.evaluate(f"window.seen_['Seen {number}']"))
        delays.append(max(0.0, seen - committed * 1000))
    return delays


@contextmanager
def _changing(fleet: interlock.Fleet) -> Iterator[None]:
    """A worker in the background that claims and completes one task after the other."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(PACE):
            claim = fleet.tasks.next()
            if isinstance(claim, interlock.Claimed):
                fleet.tasks.complete(claim.task, token=claim.token)

    worker = background(work, "bench-worker")
    worker.start()
    try:
        yield
    finally:
        stop.set()
        worker.join()


def _frames(page: Page, address: str, seconds: float, *, scrolls: bool) -> list[float]:
    """Milliseconds between frames, while a list scrolls or nothing happens."""
    page.goto(address)
    if scrolls:
        page.locator(".row").first.wait_for()
        page.wait_for_timeout(SETTLED)
    page.evaluate(_FRAMES, scrolls)
    page.wait_for_timeout(seconds * 1000)
    found: list[float] = page.evaluate("window.frames_.slice(1)")
    return found
