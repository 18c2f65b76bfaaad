"""One browser, one server and one store for all tests of a module; a page for each test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright
from tests.faces.http.served import Served

import interlock
from interlock.errors import StoreMissing


class Stage:
    """A store with a server, and agents that work on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "home" / "store.db"
        self.store.parent.mkdir()
        self._open = ExitStack()
        self._agents: dict[str, interlock.Fleet] = {}
        self.agent("ada").tasks.publish("there-before")  # so that a filter leaves nothing, not all
        environment = {**os.environ, "INTERLOCK_SERVER_DIR": str(folder / "server")}
        self.server = Served(
            folder, "--as", "maria", "--store", str(self.store), environment=environment
        )

    def agent(self, name: str) -> interlock.Fleet:
        """An agent with a session, which lasts as long as the stage."""
        if name not in self._agents:
            joined = interlock.connect(str(self.store), agent=name)
            self._agents[name] = self._open.enter_context(joined)
        return self._agents[name]

    def forget_agents(self) -> None:
        """Agents join anew: those of before may have seen that the store was away, for good."""
        with suppress(StoreMissing):
            self._open.close()
        self._open = ExitStack()
        self._agents.clear()

    def at(self, view: str, **filters: str) -> str:
        """The address of a view, with the token."""
        given = {"token": self.server.token, "view": view, **filters}
        return f"{self.server.url}?{urlencode(given)}"

    def close(self) -> None:
        self.server.stop()
        for stream in (self.server.process.stdout, self.server.process.stderr):
            if stream is not None:
                stream.close()
        self._open.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium-headless-shell")
    if path is None:
        pytest.skip("no chromium-headless-shell here; 'make test' gets it")
    expect.set_options(timeout=15_000)
    with sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=path)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def stage(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("page"))
    yield made
    made.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that fails the test if a script breaks or breaks the security policy."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    opened = context.new_page()
    wrong: list[str] = []

    def said(message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text or "Content-Security-Policy" in message.text:
            wrong.append(message.text)

    opened.on("console", said)
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    yield opened
    context.close()
    assert not wrong
