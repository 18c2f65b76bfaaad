"""What must happen in the background, kept running by the server.

    housekeeping   what ``interlock maintain`` does: stale grants, due tasks and schedules, old data
    guards         looks at branches, files and commands that this host allows, for what waits
    swarm          keeps the swarm on its bus: its entry, its snapshot, shared values
    requests       posts and takes in requests between swarms
    record         judges the record, and keeps the verdict for all servers (``judging.py``)
    watch BRANCH   alerts all agents when a branch moves, for each ``--watch-branch``
    models         ends the sessions of models that were not used for long
    address        says in the store that this server runs, for ``interlock open``

Several servers share the work: one of them has the lease of housekeeping, of requests and of the
record at a time, guards and the bus have leases of their own, and the watch of a branch its lock.
Without a server the same is done by agents and by ``interlock maintain``, and branches are watched
by ``interlock watch-branch``.

A part that fails is restarted half a second later, with a client of its own; ``/healthz`` and the
overview say so.  An error is logged when it is new, not at every attempt.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.core.safe_text import one_line
from interlock.errors import InterlockError
from interlock.nouns.fleet.server_service import ServerPlace
from interlock.runtime.identity import Actor
from interlock.runtime.process_lease import ProcessLease
from interlock.runtime.stoppable import stoppable
from interlock.steps import drive
from interlock.threads import background

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.faces.http.clients import Clients
    from interlock.runtime.attempt import DecideOp
    from interlock.steps import Op

Work: TypeAlias = "Callable[[Fleet, threading.Event], None]"
AGAIN = 0.5
"""Seconds after which a part that failed is restarted."""
LASTED = 60.0
"""Seconds after which a part that runs counts as recovered."""
LEASE = 10.0
_STEP = 1.0
_SLICE = 0.25
"""Seconds after which a part that listens looks whether it is to end."""
_ADDRESS_TTL = 15.0
WATCHER = "branch-watcher"
"""The agent that watches branches for a server, and sends the alerts."""


class BackgroundPart:
    """One part: a thread that runs it, and what became of it."""

    def __init__(self, name: str, work: Work, clients: Clients, stopped: threading.Event) -> None:
        self.name = name
        self._work = work
        self._clients = clients
        self._stopped = stopped
        self._since = time.time()
        self._failed = float("-inf")
        self._restarts = 0
        self._error = ""
        self._thread = background(self._run, f"interlock-{name}")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Wait until it has ended, at most this long."""
        self._thread.join(seconds)

    @property
    def failing(self) -> bool:
        """Whether it failed a short while ago."""
        return bool(self._error) and time.monotonic() - self._failed < LASTED

    def about(self) -> dict[str, Any]:
        """How it is, for people and monitors."""
        state = "failing" if self.failing else "running"
        about = {"name": self.name, "state": state, "since": self._since}
        return about | {"restarts": self._restarts, "error": self._error}

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._run_once()
            except Exception as error:  # noqa: BLE001 - it is restarted
                self._say(error)
            if not self._stopped.wait(AGAIN):
                self._restarts += 1
                self._since = time.time()

    def _run_once(self) -> None:
        with self._clients.own() as fleet:
            self._work(fleet, self._stopped)

    def _say(self, error: Exception) -> None:
        said = one_line(str(error) or type(error).__name__)
        if not isinstance(error, InterlockError):
            said = f"unexpected {type(error).__name__}: {said}"
        new = said != self._error or not self.failing
        self._error, self._failed = said, time.monotonic()
        if new:
            sys.stderr.write(f"interlock: {self.name} is restarted: {said}\n")


class Parts:
    """All parts of one server."""

    def __init__(self, clients: Clients, works: dict[str, Work]) -> None:
        self._stopped = threading.Event()
        self.all = [
            BackgroundPart(name, work, clients, self._stopped) for name, work in works.items()
        ]

    def start(self) -> None:
        """Begin all of them."""
        for part in self.all:
            part.start()

    def stop(self) -> None:
        """Let them end soon."""
        self._stopped.set()

    def join(self, seconds: float) -> None:
        """Wait for them, at most this long."""
        ends = time.monotonic() + seconds
        for part in self.all:
            part.join(max(0.0, ends - time.monotonic()))

    def about(self) -> list[dict[str, Any]]:
        """How each of them is."""
        return [part.about() for part in self.all]


def works(place: ServerPlace) -> dict[str, Work]:
    """What a server at this place does in the background."""
    return {
        "address": lambda fleet, stopped: _address(fleet, stopped, place),
        "housekeeping": _housekeeping,
        "guards": _guards,
        "swarm": _swarm,
        "requests": _requests,
    }


def branch_works(names: Collection[str], folder: str, clients: Clients) -> dict[str, Work]:
    """A part for each branch to watch, of the repository in a folder; ``origin/main`` is remote."""
    from interlock.nouns.merges.calls import branch_name
    from interlock.nouns.merges.repository import MergeRepository

    if not names:
        return {}
    git = MergeRepository(folder)
    git.common()
    remotes = git.remotes()
    found: dict[str, Work] = {}
    for name in names:
        remote, _, rest = branch_name(name).partition("/")
        away = remote in remotes and bool(rest)
        found[f"watch {name}"] = partial(
            _watch_branch, clients, rest if away else name, remote if away else None, folder
        )
    return found


def _watch_branch(
    clients: Clients, branch: str, remote: str | None, folder: str,
    _: Fleet, stopped: threading.Event,
) -> None:  # fmt: skip
    from interlock.nouns.branches.calls import BranchCalls

    with clients.own(WATCHER) as fleet:
        calls = BranchCalls[Any](fleet.context)
        watching: Op[object] = calls.watch(branch, remote=remote, repository=folder)
        drive(stoppable(watching, stopped.is_set), fleet.store)


def _housekeeping(fleet: Fleet, stopped: threading.Event) -> None:
    from interlock.nouns.guards.maintenance import GuardMaintenance

    maintenance = GuardMaintenance(fleet.context)
    leased(fleet, stopped, "housekeeping", lambda: drive(maintenance.keep_house(), fleet.store))


def _requests(fleet: Fleet, stopped: threading.Event) -> None:
    from interlock.nouns.requests.housekeeping import tend

    leased(fleet, stopped, "requests", lambda: drive(tend(fleet.context), fleet.store))


def leased(fleet: Fleet, stopped: threading.Event, name: str, step: Callable[[], object]) -> None:
    """Do this again and again, while no other server does it."""
    runner = fleet.context.runner
    lease = ProcessLease(runner, keys.server_part(name), runner.new_id("srv"), LEASE)
    taken, held = float("-inf"), False
    try:
        while not stopped.is_set():
            now = time.monotonic()
            if now - taken > lease.ttl / 3:
                held, taken = drive(lease.take(Actor()), fleet.store), now
            if held:
                step()
            stopped.wait(runner.capabilities.allow(_STEP))
    finally:
        with suppress(InterlockError):  # then it expires
            drive(lease.leave(Actor()), fleet.store)


def _guards(fleet: Fleet, stopped: threading.Event) -> None:
    from interlock.nouns.guards.poller import OutsidePoller

    poller = OutsidePoller(fleet.context)

    def check() -> Op[None]:
        if stopped.is_set():
            poller.stop()
        yield from ()

    poller.also = check
    drive(poller.run(), fleet.store)


def _swarm(fleet: Fleet, stopped: threading.Event) -> None:
    with fleet.swarms.keep() as link:
        while not stopped.is_set():
            link.take(_SLICE)


def _address(fleet: Fleet, stopped: threading.Event, place: ServerPlace) -> None:
    runner = fleet.context.runner
    key = keys.live_server(f"{os.uname().nodename}.{os.getpid()}")
    ttl = max(_ADDRESS_TTL, runner.capabilities.min_ttl)

    def putting() -> DecideOp[None]:
        yield (key,)
        return Decision(outcome=None, puts=(Write(key, place, ttl),), quiet=True)

    def deleting() -> DecideOp[None]:
        yield (key,)
        return Decision(outcome=None, deletes=(key,), quiet=True)

    try:
        while not stopped.is_set():
            drive(runner.change(putting, Actor()), fleet.store)
            stopped.wait(ttl / 3)
    finally:
        with suppress(InterlockError):  # then it expires
            drive(runner.change(deleting, Actor()), fleet.store)
