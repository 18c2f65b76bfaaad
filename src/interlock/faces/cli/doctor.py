"""``doctor``: look at everything that Interlock stands on, and say what to mend.

One check is one function that yields its findings; a check that fails with an error of ours has
found something, too.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from interlock import places
from interlock.errors import InterlockError, StoreDamaged
from interlock.faces.cli.command import answer
from interlock.faces.cli.connect import Identity
from interlock.faces.cli.parse import Parsed
from interlock.faces.operations.fleet import Check, Diagnosis
from interlock.faces.render import lasting
from interlock.stores import file_of

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.stores.sqlite import SQLiteStore

LEAST_PYTHON = (3, 11)
LEAST_SQLITE = (3, 51, 3)
LARGEST_WAL = 64 * 1024 * 1024
EARLIEST = 1_704_067_200.0  # 2024
MAY_BE_AHEAD = 5.0
MOST_SHOWN = 3

Findings = Iterator[Check]


def doctor(parsed: Parsed) -> int:
    """Every check, in the order in which one builds on the other."""
    return answer(parsed, Diagnosis(checks=tuple(_checks(parsed))))


def _checks(parsed: Parsed) -> Findings:
    yield from _python()
    yield from _sqlite()
    try:
        url, how = _where(parsed)
        yield _ok("store", f"{url} (from {how})")
        path = file_of(url)
        if path is not None:
            yield from _place(path)
        from interlock.client import connect

        with connect(url if how == "--store" and _exists(path) else None) as fleet:
            for name, check in _INSIDE.items():
                yield from _despite_damage(name, check(fleet))
    except InterlockError as error:
        yield _trouble("store", error)


def _despite_damage(name: str, findings: Findings) -> Findings:
    """One thing that cannot be read ends its own check, and no other."""
    try:
        yield from findings
    except StoreDamaged as error:
        yield _trouble(name, error)


def _where(parsed: Parsed) -> tuple[str, str]:
    if given := Identity(parsed.common).store:
        path = file_of(given)
        if path is not None and not _exists(path):
            from interlock.errors import StoreMissing

            raise StoreMissing(f"there is no store at {path}; run 'interlock init --store {path}'")
        return given, "--store"
    found = places.locate()
    return found.url, found.how


def _exists(path: str | None) -> bool:
    return path is None or os.path.exists(path)


def _python() -> Findings:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < LEAST_PYTHON:
        yield _bad("python", version, "install Python 3.11 or newer")
    else:
        yield _ok("python", version)


def _sqlite() -> Findings:
    import apsw

    version = apsw.sqlite_lib_version()
    if tuple(map(int, version.split(".")[:3])) < LEAST_SQLITE:
        yield _bad("sqlite", f"{version} can damage a shared store", "install apsw 3.51.3 or newer")
    else:
        yield _ok("sqlite", version)


def _place(path: str) -> Findings:
    """The file system, and who may read."""
    from interlock.stores.sqlite import place

    kind = place.file_system(path)
    try:
        place.refuse_shared(path, kind)
    except InterlockError as error:
        yield _bad("file system", *str(error).split("; ", 1))
    else:
        if kind in place.VOLATILE:
            yield _warn("file system", f"{kind} is gone with the machine", "move it to a disk")
        else:
            yield _ok("file system", kind or "unknown")
    yield from _permissions(path)


def _permissions(path: str) -> Findings:
    folder = os.path.dirname(os.path.abspath(path))
    wanted = {path: 0o600, path + "-wal": 0o600, path + "-shm": 0o600}
    if os.path.basename(folder) == places.FOLDER:
        wanted[folder] = 0o700
    clean = True
    for name, mode in wanted.items():
        if os.path.exists(name) and (found := os.stat(name).st_mode & 0o777) & 0o077:
            clean = False
            fact = f"{name} is open to others ({found:o})"
            yield _warn("permissions", fact, f"chmod {mode:o} {name}")
    if clean:
        yield _ok("permissions", "for you only")


def _format(fleet: Fleet) -> Findings:
    info = _local(fleet).info()
    yield _ok("format", str(info.get("format", "")))
    wal = info.get("wal_bytes")
    if isinstance(wal, int) and wal > LARGEST_WAL:
        fact = f"the write-ahead log has {wal >> 20} MB"
        yield _warn("write-ahead log", fact, "end long readers, then run 'interlock maintain'")
    elif wal is not None:
        yield _ok("write-ahead log", "within 64 MB")
    bells = str(info.get("doorbells", "ok"))
    if bells == "ok":
        yield _ok("doorbells", "waiters are woken at once")
    else:
        yield _warn("doorbells", bells, "waiters look once a second instead; allow Unix sockets")


def _integrity(fleet: Fleet) -> Findings:
    problems = _local(fleet).check()
    if problems:
        remedy = "stop all agents and restore a copy"
        yield _bad("integrity", f"{problems[0]} ({len(problems)} in all)", remedy)
        return
    unreadable = list(_unreadable(fleet))
    for error in unreadable[:MOST_SHOWN]:
        yield _trouble("integrity", error)
    if len(unreadable) > MOST_SHOWN:
        yield _bad("integrity", f"{len(unreadable) - MOST_SHOWN} more cannot be read")
    if not unreadable:
        yield _ok("integrity", "the file is whole")


def _unreadable(fleet: Fleet) -> Iterator[StoreDamaged]:
    """What is wrong with each lock and session that does not read as one."""
    from interlock.core import keys
    from interlock.services import states
    from interlock.services.lock import every
    from interlock.driving import drive

    for prefix in (keys.LOCKS, keys.SESSIONS):
        for item in drive(every(prefix), fleet.store):
            try:
                states.lock(item, 0) if prefix == keys.LOCKS else states.session(item)
            except StoreDamaged as error:
                yield error


def _queue(fleet: Fleet) -> Findings:
    """A process stopped while it had the turn to write holds everybody up."""
    pid = _local(fleet).held_up_by()
    if pid is not None and _stopped(pid):
        remedy = f"let it go on with 'kill -CONT {pid}', or end it"
        yield _bad("queue", f"process {pid} is stopped while it writes", remedy)
    else:
        yield _ok("queue", "nobody holds it up")


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
    yield _left_over("stale locks", found)


def _lapsed(fleet: Fleet) -> Findings:
    found = [agent.agent for agent in fleet.agents.list() if agent.state == "lapsed"]
    yield _left_over("lapsed sessions", found)


def _left_over(name: str, found: list[str]) -> Check:
    if not found:
        return _ok(name, "none")
    shown = ", ".join(found[:MOST_SHOWN]) + (" ..." if len(found) > MOST_SHOWN else "")
    return _warn(name, f"{len(found)} ({shown})", "run 'interlock maintain'")


_INSIDE: dict[str, Callable[[Fleet], Findings]] = {
    "format": _format,
    "integrity": _integrity,
    "queue": _queue,
    "clock": _clock,
    "stale locks": _stale,
    "lapsed sessions": _lapsed,
}


def _local(fleet: Fleet) -> SQLiteStore:
    return fleet.store  # type: ignore[return-value]  # the only engine so far


def _stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in (b"T", b"t")
    except OSError:
        return False


def _ok(name: str, fact: str) -> Check:
    return Check(verdict="ok", name=name, fact=fact)


def _warn(name: str, fact: str, remedy: str) -> Check:
    return Check(verdict="warn", name=name, fact=fact, remedy=remedy)


def _bad(name: str, fact: str, remedy: str = "") -> Check:
    return Check(verdict="bad", name=name, fact=fact, remedy=remedy)


def _trouble(name: str, error: InterlockError) -> Check:
    return _bad(name, *str(error).split("; ", 1))
