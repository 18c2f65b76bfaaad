"""``doctor``: look at everything that Interlock stands on, and say what to mend.

The store examines its engine and its place; here is what every store has in common.
One check is one function that yields its findings; a check that fails with an error of ours has
found something, too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from interlock import places
from interlock.errors import InterlockError, StoreDamaged
from interlock.faces.cli.command import answer
from interlock.faces.cli.connect import Identity, opened, shown
from interlock.faces.cli.parse import Parsed
from interlock.faces.operations.fleet import Diagnosis
from interlock.faces.render import lasting
from interlock.store import Finding

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.services.runner import Deciding

LEAST_PYTHON = (3, 11)
EARLIEST = 1_704_067_200.0  # 2024
MAY_BE_AHEAD = 5.0
MOST_SHOWN = 3

Findings = Iterator[Finding]


def doctor(parsed: Parsed) -> int:
    """Every check, in the order in which one builds on the other."""
    return answer(parsed, Diagnosis(checks=tuple(_checks(parsed))))


def _checks(parsed: Parsed) -> Findings:
    yield _python()
    try:
        given = Identity(parsed.common).store
        found = places.Found(given, "--store") if given else places.locate()
        yield _ok("store", f"{shown(found.url)} (from {found.how})")
        with opened(given, create=False) as fleet:  # a look makes nothing
            yield from _inside(fleet)
    except InterlockError as error:
        yield _trouble("store", error)


def _inside(fleet: Fleet) -> Findings:
    sound = True
    for finding in fleet.store.examine():
        sound = sound and finding.verdict != "bad"
        yield finding
    if sound:  # else it would fail for a reason that was just given, after a long wait
        yield _writing(fleet)
    for name, check in _EVERYWHERE.items():
        try:
            yield from check(fleet)
        except StoreDamaged as error:  # what cannot be read ends its own check, and no other
            yield _trouble(name, error)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < LEAST_PYTHON:
        return _bad("python", version, "install Python 3.11 or newer")
    return _ok("python", version)


def _writing(fleet: Fleet) -> Finding:
    """A full disk shows only at a commit: one that nobody notices, and that lapses by itself."""
    from interlock.core import keys
    from interlock.core.decision import Decision, Write
    from interlock.driving import drive
    from interlock.services.runner import Who

    runner = fleet.calls.desk.runner
    key = keys.live(runner.new_id("doc"))
    least = fleet.store.capabilities.min_ttl

    def deciding() -> Deciding[str]:
        yield (key,)
        return Decision(outcome="written", puts=(Write(key, "doctor", least),), quiet=True)

    began = time.monotonic()
    try:
        drive(runner.change(deciding, Who()), fleet.store)
    except InterlockError as error:
        return _trouble("writing", error)
    return _ok("writing", f"a commit took {(time.monotonic() - began) * 1000:.1f} ms")


def _integrity(fleet: Fleet) -> Findings:
    from interlock.driving import drive
    from interlock.services.integrity import unreadable

    found = drive(unreadable(), fleet.store)
    for error in found[:MOST_SHOWN]:
        yield _trouble("integrity", error)
    if len(found) > MOST_SHOWN:
        yield _bad("integrity", f"{len(found) - MOST_SHOWN} more cannot be read")
    if not found:
        yield _ok("integrity", "all locks, semaphores, tasks, messages and sessions can be read")


def _record(fleet: Fleet) -> Findings:
    from interlock.driving import drive
    from interlock.services.seal import Sealing

    desk = fleet.calls.desk
    yield from drive(Sealing(desk.runner, desk.settings).findings(), fleet.store)


def _clock(fleet: Fleet) -> Findings:
    now = time.time()
    last = fleet.record.log(limit=1)
    ahead = last[-1].at - now if last else 0.0
    if now < EARLIEST:
        yield _warn("clock", "it shows a year before 2024", "set the clock")
    elif ahead > MAY_BE_AHEAD:
        fact = f"the newest entry is {lasting(ahead)} in the future"
        yield _warn("clock", fact, "set the clock; the order of events does not depend on it")
    else:
        yield _ok("clock", "plausible")


def _stale(fleet: Fleet) -> Findings:
    found = [lock.lock for lock in fleet.locks.list() if lock.state == "stale"]
    slots = [(each.semaphore, each.holders) for each in fleet.semaphores.list()]
    found += [f"sem/{name}" for name, held in slots if any(s.state == "stale" for s in held)]
    yield _left_over("stale grants", found)


def _lapsed(fleet: Fleet) -> Findings:
    found = [agent.agent for agent in fleet.agents.list() if agent.state == "lapsed"]
    yield _left_over("lapsed sessions", found)


def _left_over(name: str, found: list[str]) -> Finding:
    if not found:
        return _ok(name, "none")
    some = ", ".join(found[:MOST_SHOWN]) + (" ..." if len(found) > MOST_SHOWN else "")
    return _warn(name, f"{len(found)} ({some})", "run 'interlock maintain'")


_EVERYWHERE: dict[str, Callable[[Fleet], Findings]] = {
    "integrity": _integrity,
    "record": _record,
    "clock": _clock,
    "stale grants": _stale,
    "lapsed sessions": _lapsed,
}


def _ok(name: str, fact: str) -> Finding:
    return Finding(verdict="ok", name=name, fact=fact)


def _warn(name: str, fact: str, remedy: str) -> Finding:
    return Finding(verdict="warn", name=name, fact=fact, remedy=remedy)


def _bad(name: str, fact: str, remedy: str = "") -> Finding:
    return Finding(verdict="bad", name=name, fact=fact, remedy=remedy)


def _trouble(name: str, error: InterlockError) -> Finding:
    return _bad(name, *str(error).split("; ", 1))
