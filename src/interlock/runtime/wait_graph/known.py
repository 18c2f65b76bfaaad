"""What a waiter has read anyway: its pools, and what their holders wait for.

A waiter reads how long the holders live before it sleeps.  The same read brings the lists of their
waits, so a wait whose holders all run costs no read of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from interlock.core import keys
from interlock.core.wait import caller_name_of
from interlock.drivers import Op, Read
from interlock.nouns.grants.pool import Pool
from interlock.runtime.reads import KEYS_AT_ONCE, looked_up
from interlock.store import Item, Range, Snapshot


class KnownAround:
    """The pools of a wait as they were read, and the lists that came with them."""

    def __init__(self, pools: Mapping[str, Pool | None]) -> None:
        self.pools = pools
        self.lists: dict[Range, tuple[Item, ...]] = {}
        self._looked = False

    def look(self, liveness: Iterable[str]) -> Op[dict[str, Item | None]]:
        """How long all of these live, and what the holders wait for, if one read has room."""
        wanted = list(dict.fromkeys(liveness))
        pages = self._pages()
        if not 0 < len(wanted) + len(pages) <= KEYS_AT_ONCE:
            return (yield from looked_up(wanted, times=True))
        snapshot: Snapshot = yield Read(*wanted, *pages, times=True)
        self.lists = {page: tuple(snapshot.ranges[page]) for page in pages}
        self._looked = True
        return dict(snapshot.items)

    @property
    def open(self) -> bool:
        """Whether all callers that can be reached from here run: then there is no cycle."""
        if not self._looked or any(self.lists.values()):
            return False
        return not any(w.together for pool in self.pools.values() if pool for w in pool.waiters)

    def _pages(self) -> list[Range]:
        grants = [grant for pool in self.pools.values() if pool for grant in pool.grants]
        callers = dict.fromkeys([caller for caller in map(caller_name_of, grants) if caller])
        return list(dict.fromkeys(first_page(keys.waits(caller)) for caller in callers))


def first_page(prefix: str) -> Range:
    """The beginning of a list; it is nearly always all of it."""
    return Range(prefix, limit=KEYS_AT_ONCE)
