"""Reads items for decisions (``FactReader`` drives ``core/changes.py``), and many keys at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from interlock.core.changes import Facts, Missing
from interlock.core.decision import Decision
from interlock.drivers import Op
from interlock.runtime.decide import DecideOp, ReadOp, Unchecked
from interlock.runtime.runner import Runner
from interlock.runtime.steps import Read
from interlock.store import LIVE, Item, Range, Snapshot

T = TypeVar("T")
F = TypeVar("F", bound=Facts)

KEYS_AT_ONCE = 100
FIRST_PAGE, LEAST_PAGE, MOST_PAGE = 16, 2, 1000
PAGE_BYTES = 1_000_000
"""A page of more than this is followed by a smaller one."""
OWN_OPERATIONS = 8
"""Operations that the runner adds to a commit, such as the check of its entry."""


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


def looked_up(
    wanted: Iterable[str], *, times: bool = False, fresh: bool = True
) -> Op[dict[str, Item | None]]:
    """Read many keys, in portions: one round trip for each."""
    keys_ = list(dict.fromkeys(wanted))
    found: dict[str, Item | None] = {}
    for start in range(0, len(keys_), KEYS_AT_ONCE):
        some = keys_[start : start + KEYS_AT_ONCE]
        snapshot: Snapshot = yield Read(*some, times=times, fresh=fresh)
        found.update(snapshot.items)
    return found


def every(*prefixes: str, most: int | None = None) -> Op[list[Item]]:
    """All items under these prefixes, in pages; or ``most`` of them, and less than a page more."""
    found: list[Item] = []
    for prefix in prefixes:
        after = ""
        while True:
            page = Range(prefix, after)
            items = (yield Read(page)).ranges[page]
            found.extend(items)
            if len(items) < page.limit or (most is not None and len(found) >= most):
                break
            after = items[-1].key
    return found


def paged(
    prefix: str, look: Callable[[Sequence[Item]], object], most: int | None = None
) -> Op[tuple[int, bool]]:
    """Pass all items under a prefix to ``look``, page by page, without keeping them.

    Returns the revision of the first page, and whether that was all: with ``most``, it ends after
    this number of bytes.
    """
    after, limit, revision, size = "", FIRST_PAGE, 0, 0
    while True:
        page = Range(prefix, after, limit)
        snapshot: Snapshot = yield Read(page)
        revision, items = revision or snapshot.revision, snapshot.ranges[page]
        look(items)
        if len(items) < limit:
            return revision, True
        here = sum(len(item.value) for item in items)
        size += here
        if most is not None and size > most:
            return revision, False
        after = items[-1].key
        limit = max(LEAST_PAGE, limit // 4) if here > PAGE_BYTES else min(MOST_PAGE, limit * 4)


def outside(reading: ReadOp[T]) -> Op[T]:
    """Run the reads of a decision outside of one; nothing is guessed."""
    try:
        refs = next(reading)
        while True:
            snapshot: Snapshot = yield Read(*refs)
            refs = reading.send(snapshot)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
