"""Real processes for tests: forked from a module of programs, driven by lines, ended by pid.

A program is a function of a module whose ``main`` calls the function that its first word names.
It prints lines, and reads a line where it has to wait for the test; no program sleeps to
synchronize.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, NamedTuple, Self, TypeVar

from tests.forks import SHOW_STACKS, template

import interlock
from interlock.stores import is_git, open_store

T = TypeVar("T")

_STORES = (
    "interlock.aio",
    "interlock.stores.sqlite",
    "interlock.stores.redis",
    "interlock.stores.etcd",
)
PATIENCE = 60.0
"""How long a test waits for something that must happen; far longer than it takes."""
CALM = 10
"""Checks in a row that find a process asleep, a hundredth of a second apart."""


def until(condition: Callable[[], T], within: float = PATIENCE) -> T:
    """Poll until the condition is true, and return its value."""
    ends, pause = time.monotonic() + within, 0.002
    while not (answer := condition()):
        if time.monotonic() > ends:
            raise AssertionError(f"did not happen within {within:g} s: {condition}")
        time.sleep(pause)
        pause = min(1.2 * pause, 0.03)  # what takes long is not kept from it by who asks
    return answer


def until_asleep(thread: threading.Thread) -> None:
    """Wait until a thread of this process has slept for a while, as one that waits does."""
    ends, calm = time.monotonic() + PATIENCE, 0
    while calm < 5:
        assert time.monotonic() < ends, f"{thread} does not sleep"
        with open(f"/proc/self/task/{thread.native_id}/stat", encoding="ascii") as file:
            state = file.read().rpartition(")")[2].split()[0]
        calm = calm + 1 if state == "S" else 0
        time.sleep(0.004)


def fewer(url: str, number: int) -> int:
    """So many steps of a long run: a tenth of them on git, where each is a push."""
    return number // 10 if is_git(url) else number


class StoreTimes(NamedTuple):
    """The times of a store.

    ttl    the shortest that it accepts
    late   how much later an expiry is noticed at the latest, on a machine that stalls for a while
    """

    ttl: float
    late: float

    def at_least(self, seconds: float) -> float:
        """These seconds, or the shortest ttl of the store if that is longer."""
        return max(seconds, self.ttl)


def store_times(url: str) -> StoreTimes:
    """The times that the store of this URL declares."""
    store = open_store(url)
    try:
        return StoreTimes(store.capabilities.min_ttl, 10 + 2 * store.capabilities.grain)
    finally:
        store.close()


class Process:
    """One process, and the lines that it prints."""

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
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def read_line(self, within: float = PATIENCE) -> str:
        """The next line that it prints."""
        try:
            line = self._lines.get(timeout=within)
        except queue.Empty:
            raise AssertionError(
                f"{self.name} printed nothing for {within:g} s: {self._stacks()}"
            ) from None
        if line is None:
            raise AssertionError(f"{self.name} ended: {self.errors()}")
        return line

    def has_line(self) -> bool:
        """Whether it printed a line that is not read yet."""
        return not self._lines.empty()

    def remaining_lines(self, within: float = PATIENCE) -> list[str]:
        """All lines until it ends with status 0."""
        self.finish(within)
        self._reader.join(within)
        lines = []
        while (line := self._lines.get()) is not None:
            lines.append(line)
        return lines

    def write_line(self, line: str = "go") -> None:
        """Write a line to its stdin."""
        self._stdin.write(line + "\n")

    def freeze(self) -> None:
        """Stop it with SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)
        self.frozen()

    def freeze_asleep(self) -> None:
        """Stop it while it is idle: stopped in the middle of a write it would block the store."""
        calm = 0
        while calm < CALM:
            calm = calm + 1 if self.states() == {"S"} else 0
            threading.Event().wait(0.01)
        self.freeze()

    def frozen(self) -> None:
        """Wait until it is stopped."""
        until(lambda: self.state() == "T")

    def thaw(self) -> None:
        """Continue it."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait until it has ended."""
        self._process.kill()
        self._process.wait(PATIENCE)

    def finish(self, within: float = PATIENCE) -> None:
        """Wait until it ends with status 0."""
        self._stdin.close()
        status = self._wait(within)
        assert status == 0, f"{self.name} ended with {status}: {self.errors()}"
        assert not self.errors(), f"{self.name}: {self.errors()}"

    def died(self, within: float = PATIENCE) -> None:
        """Wait until it was killed, by itself or by the test."""
        status = self._wait(within)
        assert status == -signal.SIGKILL, f"{self.name} ended with {status}: {self.errors()}"

    def finished(self, within: float = PATIENCE) -> bool:
        """Wait until it ends: True for status 0, False if it was killed."""
        status = self._wait(within)
        assert status in (0, -signal.SIGKILL), f"{self.name}: {status}: {self.errors()}"
        return status == 0

    def _wait(self, within: float) -> int:
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.name} did not end within {within:g} s: {self._stacks()}"
            ) from None

    def _stacks(self) -> str:
        """What its threads do, as it wrote it itself; what it wrote so far, if it does not."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, SHOW_STACKS)
        with suppress(AssertionError):  # it is stopped, or in the kernel
            until(lambda: "Current thread" in self.errors(), 2.0)
        return f"{self.states() if self.alive() else 'ended'} {self.errors()}"

    def alive(self) -> bool:
        """Whether it runs, or is stopped."""
        return self._process.poll() is None

    def state(self) -> str:
        """Its state in the kernel: R, S, T, Z ..."""
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0]

    def states(self) -> set[str]:
        """The states of all its threads."""
        found = set()
        for thread in os.listdir(f"/proc/{self.pid}/task"):
            with (
                suppress(OSError),  # it has just ended
                open(f"/proc/{self.pid}/task/{thread}/stat", encoding="ascii") as file,
            ):
                found.add(file.read().rpartition(")")[2].split()[0])
        return found

    def errors(self) -> str:
        """Its stderr."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def end(self) -> None:
        """Kill it and close its pipes."""
        self.kill()
        self._reader.join(PATIENCE)
        for stream in (self._stdin, self._stdout, self._errors):
            with suppress(BrokenPipeError):
                stream.close()

    def _read(self) -> None:
        for line in self._stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)


class LockWaiters:
    """Threads of this process that each wait for a lock, and release it at once."""

    def __init__(self, url: str, locks: Sequence[str]) -> None:
        self._url = url
        self._locks = sorted(locks)
        self._came: dict[str, tuple[int, float]] = {}
        self._threads = [
            threading.Thread(daemon=True, target=self._acquire, args=(lock,)) for lock in locks
        ]
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        """Wait until all of them are in the queue."""
        with interlock.connect(self._url) as fleet:
            for lock in self._locks:
                until(lambda name=lock: "waiter" in fleet.locks.show(name).waiters)  # type: ignore[misc]

    def came(self) -> dict[str, tuple[int, float]]:
        """The token that each waiter got, and when."""
        for thread in self._threads:
            thread.join(PATIENCE)
        assert sorted(self._came) == self._locks
        return self._came

    def _acquire(self, lock: str) -> None:
        with (
            interlock.connect(self._url, agent="waiter") as fleet,
            fleet.lock(lock, wait=PATIENCE) as held,
        ):
            self._came[lock] = held.token, time.monotonic()


class ProcessGroup:
    """All processes of a test, from one module; none outlives it."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._processes: list[Process] = []

    def start(self, name: str, *arguments: object) -> Process:
        """Start the program of this name."""
        process = Process(self._program, [name, *map(str, arguments)])
        self._processes.append(process)
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.end()
