"""Reading for decisions: what a decision asks for as it goes, and many keys at once.

What was read of pools is checked by the commit.  Liveness is only glanced at, but for the waiters
that a decision promotes: see Facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.driving import Op
from interlock.nouns.grants.pool import Pool
from interlock.nouns.grants.pool_change import Facts, Missing
from interlock.runtime import decode
from interlock.runtime.runner import Deciding, Glance, Reading, Runner
from interlock.runtime.steps import Read
from interlock.store import LIVE, Item, Range, Snapshot

T = TypeVar("T")

KEYS_AT_ONCE = 100
FIRST_PAGE, LEAST_PAGE, MOST_PAGE = 16, 2, 1000
PAGE_BYTES = 1_000_000
"""A page of more than this is followed by a smaller one."""
_OWN_OPERATIONS = 8


class Gathering:
    """The facts for one attempt at a decision, read as it asks for them."""

    def __init__(self, runner: Runner, base: int) -> None:
        self._base = base
        self._local = runner.capabilities.local
        self._pools: dict[str, Pool | None] = {}
        self._live: dict[str, bool] = {}
        self._newest: dict[str, int] = {}
        self.times: dict[str, Item] = {}
        room = runner.capabilities.max_operations - _OWN_OPERATIONS
        self.facts = Facts(self._pools, self._live, self._newest, room)

    def learn(self, items: Mapping[str, Item | None]) -> None:
        """Know what was read."""
        for key, item in items.items():
            if key.startswith(LIVE):
                self._live[key] = item is not None
                if item is not None:
                    self.times[key] = item
            else:
                self._pools[key] = decode.pool(item, self._base)
                self._newest[key] = 0 if item is None else self._base + item.revision

    def decide(self, decide: Callable[[Facts], Decision[T]]) -> Deciding[T]:
        """Decide on what is known, and on whatever else that takes."""
        while True:
            self.facts.relied.clear()
            try:
                decision = decide(self.facts)
            except Missing as missing:
                yield from self._find(missing.refs)
                continue
            if self._local or not self.facts.relied:
                return decision
            if any(self._live.get(key) is False for key in self.facts.relied):
                raise AssertionError("a decision relies on what it knows to be gone")
            relied = (yield tuple(self.facts.relied)).items
            if None not in relied.values():
                return decision
            self.learn(relied)

    def _find(self, refs: tuple[str, ...]) -> Reading[None]:
        for start in range(0, len(refs), KEYS_AT_ONCE):
            some = refs[start : start + KEYS_AT_ONCE]
            liveness = some[0].startswith(LIVE)
            self.learn((yield Glance(some) if liveness else some).items)


def looked_up(wanted: Iterable[str], *, times: bool = False) -> Op[dict[str, Item | None]]:
    """Many keys, in portions: one round trip for each."""
    keys_ = list(dict.fromkeys(wanted))
    found: dict[str, Item | None] = {}
    for start in range(0, len(keys_), KEYS_AT_ONCE):
        snapshot: Snapshot = yield Read(*keys_[start : start + KEYS_AT_ONCE], times=times)
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
    """Look at all items under a prefix, page by page; what they say may be much, and is not kept.

    Returns the revision of the first page, and whether that was all: with ``most``, it ends after
    so many bytes.
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


def every_pool(prefix: str, base: int) -> Op[tuple[dict[str, Pool], dict[str, Item | None]]]:
    """All locks, or all semaphores, by name, and what keeps their grants alive.

    One that cannot be read is left out: doctor names it.
    """
    pools: dict[str, Pool] = {}
    for item in (yield from every(prefix)):
        pool = decode.readable_pool(item, base)
        if pool is not None:
            pools[keys.name(item.key.removeprefix(prefix))] = pool
    wanted = (key for pool in pools.values() for grant in pool.grants for key in grant.live)
    return pools, (yield from looked_up(wanted, times=True))


def outside(reading: Reading[T]) -> Op[T]:
    """What a decision would read, read for its own sake: nothing is hoped for."""
    try:
        refs = next(reading)
        while True:
            snapshot: Snapshot = yield Read(*refs)
            refs = reading.send(snapshot)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
