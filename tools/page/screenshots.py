"""Photographs of the page, light and dark, wide and narrow, with a fleet at work.

    python -m tools.page.screenshots FOLDER [VIEW ...]

writes FOLDER/VIEW-light-1280.png and so on.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright
from tools.page.fleet import Sample

VIEWS = {
    "now": "",
    "agents": "?view=agents",
    "tasks": "?view=tasks",
    "picture": "?view=tasks&as=picture",
    "detail": "?view=tasks&show=task/login-test",
    "locks": "?view=locks",
    "messages": "?view=messages",
    "pipelines": "?view=pipelines",
    "swarms": "?view=swarms",
    "record": "?view=record",
    "timeline": "?view=timeline&zoom=60",
    "files": "?view=files",
    "merges": "?view=merges",
    "schedules": "?view=schedules",
    "guards": "?view=guards",
    "budgets": "?view=budgets",
    "panel": "?view=merges&show=schedule/invoices",
}
SIZES = {1280: 800, 390: 780}


@contextmanager
def served(url: str) -> Iterator[str]:
    """The address of an ``interlock up`` for this store."""
    words = ["up", "--open", "--port", "0", "--as", "maria", "--store", url]
    interlock = shutil.which("interlock", path=str(Path(sys.executable).parent))
    assert interlock
    process = subprocess.Popen([interlock, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = next(each for each in process.stdout if "http://" in each)
        yield "http://" + line.split("http://")[1].split()[0].rstrip("/,;.")
    finally:
        process.terminate()
        process.wait(10)


def photograph(browser: Browser, address: str, names: list[str], folder: Path) -> None:
    """Each view in each colour and size."""
    for scheme in ("light", "dark"):
        for wide, high in SIZES.items():
            context = browser.new_context(
                viewport={"width": wide, "height": high},
                color_scheme="light" if scheme == "light" else "dark",
            )
            page = context.new_page()
            page.on("console", lambda said: print("console:", said.text))
            page.on("pageerror", lambda error: print("error:", error))
            for name in names:
                page.goto(f"{address}/{VIEWS[name]}")
                page.wait_for_timeout(1200)
                page.screenshot(path=folder / f"{name}-{scheme}-{wide}.png")
            context.close()


def main() -> None:
    """Fill a store, serve it, photograph it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("views", nargs="*", default=list(VIEWS))
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium-headless-shell")
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        sample = Sample(Path(folder))
        sample.fill()
        moving = threading.Thread(target=sample.move, args=(stop,), daemon=True)
        moving.start()
        browser = driver.chromium.launch(executable_path=chromium)
        with served(sample.url) as address:
            photograph(browser, address, asked.views, asked.folder)
        browser.close()
        stop.set()
        moving.join()
        sample.close()


if __name__ == "__main__":
    main()
