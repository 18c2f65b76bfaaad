"""Real processes for tests: forked from a module of actors, spoken to by lines, ended by their id.

An actor is a function in a module whose ``main`` calls the one that its first word names.
It prints lines, and reads lines when it has to wait for us; nobody sleeps to be in step.
"""

from __future__ import annotations

import os
import queue
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, NamedTuple, Self, TypeVar

from tests.forks import template

import interlock
from interlock.stores import open_store

T = TypeVar("T")

_STORES = (
    "interlock.aio",
    "interlock.stores.sqlite",
    "interlock.stores.redis",
    "interlock.stores.etcd",
)
PATIENCE = 60.0
"""How long a test waits for what must happen; far longer than it takes, even on a busy machine."""
CALM = 10
"""Looks in a row that find a process asleep, a hundredth of a second apart."""


def until(condition: Callable[[], T], within: float = PATIENCE) -> T:
    """Ask again and again until the answer is true, and return it."""
    ends = time.monotonic() + within
    while not (answer := condition()):
        if time.monotonic() > ends:
            raise AssertionError(f"did not happen within {within:g} s: {condition}")
        time.sleep(0.002)
    return answer


class Terms(NamedTuple):
    """The times that a store is good for.

    ttl    the shortest that it takes
    late   how much later than that a lapse is noticed, on a machine that stands still for a while
    """

    ttl: float
    late: float

    def at_least(self, seconds: float) -> float:
        """So long, or as long as the store wants it to be."""
        return max(seconds, self.ttl)


def terms(url: str) -> Terms:
    """What the store behind this URL declares."""
    store = open_store(url)
    try:
        return Terms(store.capabilities.min_ttl, 10 + 2 * store.capabilities.grain)
    finally:
        store.close()


class Actor:
    """One process, and what it says."""

    def __init__(self, program: str, words: Sequence[str]) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in end()
        their_in, our_in = os.pipe()
        our_out, their_out = os.pipe()
        files = their_in, their_out, self._errors.fileno()
        self._process = template(program, *_STORES).fork(program, words, files)
        for file in (their_in, their_out):
            os.close(file)
        self._stdin = os.fdopen(our_in, "w", buffering=1)
        self._stdout = os.fdopen(our_out)
        self.name = " ".join(words)
        self.pid = self._process.pid
        self.greeting = ""
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._ears = threading.Thread(target=self._listen, daemon=True)
        self._ears.start()

    def hear(self, within: float = PATIENCE) -> str:
        """The next line that it says."""
        try:
            line = self._lines.get(timeout=within)
        except queue.Empty:
            raise AssertionError(f"{self.name} said nothing for {within:g} s") from None
        if line is None:
            raise AssertionError(f"{self.name} ended: {self.errors()}")
        return line

    def said(self) -> bool:
        """Whether it said something that we have not heard yet."""
        return not self._lines.empty()

    def rest(self, within: float = PATIENCE) -> list[str]:
        """All lines up to its end, which must be a good one."""
        self.finish(within)
        self._ears.join(within)
        lines = []
        while (line := self._lines.get()) is not None:
            lines.append(line)
        return lines

    def tell(self, line: str = "go") -> None:
        """Say a line to it."""
        self._stdin.write(line + "\n")

    def freeze(self) -> None:
        """Stop it in its tracks."""
        os.kill(self.pid, signal.SIGSTOP)
        self.frozen()

    def freeze_asleep(self) -> None:
        """Stop it when it does nothing: in the midst of a write it would hold the store up."""
        calm = 0
        while calm < CALM:
            calm = calm + 1 if self.states() == {"S"} else 0
            threading.Event().wait(0.01)
        self.freeze()

    def frozen(self) -> None:
        """Wait until it stands still."""
        until(lambda: self.state() == "T")

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it as a power cut would, and wait until it is gone."""
        self._process.kill()
        self._process.wait(PATIENCE)

    def finish(self, within: float = PATIENCE) -> None:
        """Wait for its good end."""
        self._stdin.close()
        status = self._process.wait(within)
        assert status == 0, f"{self.name} ended with {status}: {self.errors()}"
        assert not self.errors(), f"{self.name}: {self.errors()}"

    def died(self, within: float = PATIENCE) -> None:
        """Wait until it was killed, by itself or by us."""
        status = self._process.wait(within)
        assert status == -signal.SIGKILL, f"{self.name} ended with {status}: {self.errors()}"

    def finished(self, within: float = PATIENCE) -> bool:
        """Wait for its end: True if it was a good one, False if it was killed."""
        status = self._process.wait(within)
        assert status in (0, -signal.SIGKILL), f"{self.name}: {status}: {self.errors()}"
        return status == 0

    def alive(self) -> bool:
        """Whether it runs, or stands still."""
        return self._process.poll() is None

    def state(self) -> str:
        """The letter that the kernel has for what it does: R, S, T, Z ..."""
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0]

    def states(self) -> set[str]:
        """The letters of all its threads."""
        found = set()
        for thread in os.listdir(f"/proc/{self.pid}/task"):
            with (
                suppress(OSError),  # it ended meanwhile
                open(f"/proc/{self.pid}/task/{thread}/stat", encoding="ascii") as file,
            ):
                found.add(file.read().rpartition(")")[2].split()[0])
        return found

    def errors(self) -> str:
        """What it wrote to stderr."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def end(self) -> None:
        """Make sure that nothing is left of it."""
        self.kill()
        self._ears.join(PATIENCE)
        for stream in (self._stdin, self._stdout, self._errors):
            with suppress(BrokenPipeError):
                stream.close()

    def _listen(self) -> None:
        for line in self._stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)


class Heirs:
    """Threads of this process that wait for a lock each, and give it back at once."""

    def __init__(self, url: str, locks: Sequence[str]) -> None:
        self._url = url
        self._locks = sorted(locks)
        self._came: dict[str, tuple[int, float]] = {}
        self._threads = [
            threading.Thread(daemon=True, target=self._inherit, args=(lock,)) for lock in locks
        ]
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        """Until all of them stand in the queue."""
        with interlock.connect(self._url) as fleet:
            for lock in self._locks:
                until(lambda name=lock: "heir" in fleet.locks.show(name).waiters)  # type: ignore[misc]

    def came(self) -> dict[str, tuple[int, float]]:
        """Each lock's token for its heir, and the moment at which it had it."""
        for thread in self._threads:
            thread.join(PATIENCE)
        assert sorted(self._came) == self._locks
        return self._came

    def _inherit(self, lock: str) -> None:
        with (
            interlock.connect(self._url, agent="heir") as fleet,
            fleet.lock(lock, wait=PATIENCE) as held,
        ):
            self._came[lock] = held.token, time.monotonic()


class Cast:
    """All actors of a test, from one module; none outlives it."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._actors: list[Actor] = []

    def start(self, name: str, *arguments: object) -> Actor:
        """Start the actor of this name."""
        actor = Actor(self._program, [name, *map(str, arguments)])
        self._actors.append(actor)
        return actor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self._actors:
            actor.end()
