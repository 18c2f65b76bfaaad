"""How a decision gets what it reads: the generators that decide, and the two ways to run them.

A ``DecideOp`` yields the refs that it needs, receives them as one snapshot, and returns a Decision.
Inside a transaction of a local engine every ref is read when the decision needs it.  Across a
network a ref is taken, in this order, from what is known, from hope, or from a read:

    known  items that a conflict brought back, or a guess of the caller
    hope   a liveness key is taken for alive, which it nearly always is
    read   everything else

The result is an ``Attempt``: the decision, and every item that the commit has to check.
``FactReader`` is the generator for a pure decision that asks for its facts one by one
(``core/decision.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

from msgspec import Struct

from interlock.core.decision import Decision, Facts, Missing
from interlock.drivers import Op, Read
from interlock.runtime.reads import KEYS_AT_ONCE
from interlock.store import LIVE, Item, Ref, Snapshot, View

if TYPE_CHECKING:
    from interlock.runtime.runner import Runner

T = TypeVar("T")
ReadOp: TypeAlias = Generator[tuple[Ref, ...], Snapshot, T]
"""Yields the refs that it needs, receives them as one snapshot, and returns its result."""
DecideOp: TypeAlias = ReadOp[Decision[T]]

F = TypeVar("F", bound=Facts)

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


class FactReader(Generic[F]):
    """Reads the facts for one attempt at a decision, as the decision asks for them.

    A subclass decodes the items of its noun (``learn``).  A missing key under ``glances`` is read
    without a check; the commit checks it only if the decision relies on it.
    """

    glances = ""

    def __init__(self, runner: Runner, base: int, facts: F) -> None:
        self.facts = facts
        self.base = base
        self._local = runner.capabilities.transacts
        self._checked: set[str] = set()

    def learn(self, items: Mapping[str, Item | None], *, checked: bool = True) -> None:
        """Add items to the facts; ``checked`` says that the commit checks them anyway."""
        raise NotImplementedError

    def decide(self, decide: Callable[[F], Decision[T]]) -> DecideOp[T]:
        """Decide, read what is missing and decide again; then read what the commit has to check.

        A local engine checks nothing; what it reads again is named in the entry, which never names
        liveness keys.
        """
        facts, unneeded = self.facts, LIVE if self._local else ()
        while True:
            facts.relied.clear()
            try:
                decision = decide(facts)
            except Missing as missing:
                yield from self._read(missing.refs)
                continue
            if not facts.relied.keys() <= self._checked and decision.changes:
                unread = [key for key in facts.relied if key not in self._checked]
                unread = [key for key in unread if not key.startswith(unneeded)]
                for start in range(0, len(unread), KEYS_AT_ONCE):
                    yield tuple(unread[start : start + KEYS_AT_ONCE])
            return decision

    def _read(self, refs: tuple[str, ...]) -> ReadOp[None]:
        for start in range(0, len(refs), KEYS_AT_ONCE):
            some = refs[start : start + KEYS_AT_ONCE]
            glance = some[0].startswith(self.glances)
            self.learn((yield Unchecked(some) if glance else some).items, checked=not glance)
