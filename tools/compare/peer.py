"""What a contender is, and what it notes while it works.

The processes of a contender import this module and that of its section, and nothing of Interlock:
they run in the environment of the contenders.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import ClassVar

TEXT = "x" * 100
"""The payload of each task and message, beside its number."""
NUMBER_BYTES = 8


class Peer:
    """A contender at one place: the path of a file, or the URL of a server."""

    name: ClassVar[str]
    """What ``ONLY=section/name`` calls it."""
    title: ClassVar[str]
    lacks: ClassVar[str]
    """What it does not do, of: lease, fairness, fencing, record."""
    keeps: ClassVar[str] = "every commit synced"
    """How durable its work is."""
    server: ClassVar[str] = ""
    """The server that it needs, if any: postgres, redis, etcd, nats."""
    packages: ClassVar[tuple[str, ...]] = ()
    """The packages whose versions the report names."""
    beside: ClassVar[str] = "interlock"
    """The contender that its figures are compared with."""
    ours: ClassVar[bool] = False
    """Whether it runs in the environment of Interlock."""

    def __init__(self, place: str) -> None:
        self.place = place

    def versions(self) -> dict[str, str]:
        """The versions of its packages, in its own environment."""
        from importlib.metadata import version

        return {package: version(package) for package in self.packages}


@dataclass(frozen=True, kw_only=True)
class Job:
    """What one process does: a method of a contender, as one of several workers."""

    peer: str
    """Its module and class, like ``claims.Huey``."""
    place: str
    method: str
    shared: str
    """A file that all processes of the run share."""
    worker: int = 0
    count: int = 0
    """How many tasks or messages there are."""
    at_once: int = 1
    pace: float = 1 / 80
    """Seconds between messages that are sent one at a time; an agent may send 100 a second."""


class Work:
    """What a process does in a run: it begins with the others, notes what it did, and stops.

    ``stopped`` is set when the run is over.  If the process that started this one dies, this one
    ends at once.
    """

    def __init__(self, job: Job) -> None:
        self.worker = job.worker
        self.count = job.count
        self.at_once = job.at_once
        self.pace = job.pace
        self.stopped = threading.Event()
        self.notes: list[tuple[int, float]] = []
        self._shared = os.open(job.shared, os.O_RDWR)

    def begin(self) -> None:
        """Say that this process is ready, and wait for the moment at which all begin."""
        print("ready", flush=True)
        begin = float(sys.stdin.readline())
        threading.Thread(target=self._listen, daemon=True).start()
        time.sleep(max(0.0, begin - time.monotonic()))

    def note(self, number: int) -> None:
        """Note that this task, message or grant was there, and when."""
        self.notes.append((number, time.monotonic()))
        place = NUMBER_BYTES * (1 + self.worker)
        os.pwrite(self._shared, len(self.notes).to_bytes(NUMBER_BYTES, "little"), place)

    def note_grant(self) -> None:
        """Note a grant by a counter that is read and written: two holders would lose a number."""
        number = int.from_bytes(os.pread(self._shared, NUMBER_BYTES, 0), "little") + 1
        os.pwrite(self._shared, number.to_bytes(NUMBER_BYTES, "little"), 0)
        self.note(number)

    def _listen(self) -> None:
        if not sys.stdin.readline():
            os._exit(1)
        self.stopped.set()
