"""How a decision gets what it reads: the generators that decide, and the two ways to run them.

A ``DecideOp`` yields the refs that it needs, receives them as one snapshot, and returns a Decision.
Inside a transaction of a local engine every ref is read when the decision needs it.  Across a
network a ref is taken, in this order, from what is known, from hope, or from a read:

    known  items that a conflict brought back, or a guess of the caller
    hope   a liveness key is taken for alive, which it nearly always is
    read   everything else

The result is an ``Attempt``: the decision, and every item that the commit has to check.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, TypeAlias, TypeVar, cast

from msgspec import Struct

from interlock.core.decision import Decision
from interlock.drivers import Op
from interlock.runtime.steps import Read
from interlock.store import LIVE, Item, Ref, Snapshot, View

T = TypeVar("T")
ReadOp: TypeAlias = Generator[tuple[Ref, ...], Snapshot, T]
"""Yields the refs that it needs, receives them as one snapshot, and returns its result."""
DecideOp: TypeAlias = ReadOp[Decision[T]]

ALIVE = Item("", b"", 0, 0)
"""A liveness key that is taken for alive: nothing else of it matters."""


class Unchecked(tuple[Ref, ...]):
    """Refs that a decision reads without relying on them: the commit does not check them.

    Correct for facts that stay true, such as an expired liveness key: it never comes back.
    """

    __slots__ = ()


class Attempt(Struct, frozen=True, gc=False):
    """A decision with the items that it relies on, and those of them that were only hoped for."""

    decision: Decision[Any]
    seen: Mapping[str, Item | None]
    on: int
    hoped: tuple[str, ...] = ()


def decide_inside(op: DecideOp[T], view: View) -> Attempt:
    """Decide inside a transaction, where everything can be read and nothing changes."""
    seen: dict[str, Item | None] = {}
    on = 0
    try:
        refs = next(op)
        while True:
            snapshot = view.read(*refs)
            on = snapshot.revision
            if type(refs) is not Unchecked:
                seen.update(snapshot.items)
            refs = op.send(snapshot)
    except StopIteration as done:
        return Attempt(done.value, seen, on)


def decide_remotely(
    op: DecideOp[T], known: Mapping[str, Item | None], *, hopeful: bool
) -> Op[Attempt]:
    """Decide on items that are known, hoped for or read, in this order."""
    found = cast("dict[Ref, Item | None]", dict(known))
    hoped: set[str] = set()
    seen: dict[str, Item | None] = {}
    on = 0
    try:
        refs = next(op)
        while True:
            snapshot = _without_a_read(refs, found, hoped if hopeful else None)
            if snapshot is None:  # an item that an earlier step saw must not change under it
                missing = tuple(ref for ref in refs if ref not in found)
                read: Snapshot = yield Read(*missing, times=_only_liveness(missing))
                found.update(read.items)
                on = max(on, read.revision)
                items = {ref: found[ref] for ref in refs if isinstance(ref, str)}
                snapshot = Snapshot(read.revision, items, read.ranges)
            if type(refs) is not Unchecked:
                seen.update(snapshot.items)
            refs = op.send(snapshot)
    except StopIteration as done:
        return Attempt(done.value, seen, on, tuple(hoped))


def _without_a_read(
    refs: tuple[Ref, ...], found: dict[Ref, Item | None], hoped: set[str] | None
) -> Snapshot | None:
    """A snapshot of known items and of liveness that may be hoped for; None if a read is needed."""
    try:
        return Snapshot(0, {str(ref): found[ref] for ref in refs})
    except KeyError:
        missing = tuple(ref for ref in refs if ref not in found)
    if hoped is None or not _only_liveness(missing):
        return None
    hoped.update(map(str, missing))
    found.update(dict.fromkeys(missing, ALIVE))
    return Snapshot(0, {str(ref): found[ref] for ref in refs})


def _only_liveness(refs: tuple[Ref, ...]) -> bool:
    """Whether the read is of liveness alone: the reader may then need the remaining times."""
    return all(isinstance(ref, str) and ref.startswith(LIVE) for ref in refs)
