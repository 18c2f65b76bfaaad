"""What locks and semaphores are underneath: room, grants, and waiters in their order.

The state is one item for each thing, its *pool*: a capacity (1 for a lock), the grants that take
some of it, and the waiters behind them.

    room ──acquire──> granted ──release──> room again, given to the first live waiters that fit,
                         │                 in one commit
                         └─ a liveness key of the grant is gone: stale
                            whoever meets it ends it and serves the waiters, then asks for itself

The order of service is strict: nobody is served before an earlier waiter of the same pool, not
even if it would fit and the earlier one does not; so a big request is never starved.
A dead waiter is no waiter, and whoever meets one drops it.

One request may be for several things.  It queues in all of their pools with one commit, and gets
all of them with one commit, or nothing.  Because it enters all queues at the same moment, any two
requests stand in the same order wherever they meet, and so never wait for each other.  A pool may
then have room and waiters: its first waiter waits for something else as well, and keeps its place.

A grant lives as long as *all* of its liveness keys: that of its session, or one of its own when
it has a ttl, and one more that is never renewed when it has a maximum hold.  A grant never
disappears by itself, and a lapsed one is never revived: its holder may only come again.

The identity of a caller is the grant it carries, not its name.  Two tasks of one session are two
callers; so a grant is extended only by a call that carries it (its token) or that speaks for its
whole session (a shell).

The token of a grant is the base of the store plus the revision that wrote the grant.  Nobody
knows that revision before the commit, so a fresh grant is stored without its token and has that
of its item; the next writer of the item fills it in (``seen``).  The place of a waiter in the
order of the whole store is known in the same way.  Several grants of one commit share a token, so
no commit gives an agent two grants of one pool: a token under its holder's name means one grant.
Rejected: serving one waiter a commit.  Then a waiter that sleeps holds up all behind it.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

CAPACITY = 1_000_000
"""The largest that a semaphore may be."""
GRANTS = 1000
WAITERS = 1000


class Grant(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Who holds, how much, since when, and what keeps it alive.

    ``together`` are all pools of its request, if there are several.
    ``listed`` says that the process which began the session does not know of it: while it lives by
    the session, its pool is listed there (``held/{session}/{pool}``).
    """

    id: str
    agent: str
    session: str
    live: tuple[str, ...]
    since: float
    ttl: float | None = None
    max_hold: float | None = None
    metadata: Any = None
    token: int | None = None
    reclaimed_from: str = ""
    weight: int = 1
    caller: str = ""
    together: tuple[str, ...] = ()
    listed: bool = False


class Waiter(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Who is next, and on what terms; ``id`` becomes the id of its grant.

    ``into`` is the grant that is to become larger, if it waits for that; ``indexed`` says that
    others find the wait by its caller, and ``also`` by which other names (``core/wait.py``).
    """

    id: str
    agent: str
    session: str
    live: str
    since: float
    ttl: float | None = None
    max_hold: float | None = None
    metadata: Any = None
    order: int | None = None
    weight: int = 1
    caller: str = ""
    together: tuple[str, ...] = ()
    into: str = ""
    indexed: bool = False
    also: tuple[str, ...] = ()
    listed: bool = False


class Pool(Struct, frozen=True, omit_defaults=True, gc=False):
    """A lock or a semaphore as it is stored."""

    grants: tuple[Grant, ...] = ()
    waiters: tuple[Waiter, ...] = ()
    capacity: int = 1

    @property
    def free(self) -> int:
        """How much is not taken; less than nothing after the capacity was lowered."""
        return self.capacity - sum([grant.weight for grant in self.grants])

    def grant(self, id_: str) -> Grant | None:
        """The grant of this id."""
        return next((grant for grant in self.grants if grant.id == id_), None)

    def position(self, id_: str) -> int | None:
        """How many wait before the waiter of this id."""
        return next((i for i, waiter in enumerate(self.waiters) if waiter.id == id_), None)

    def fits(self, weight: int, *, more: bool = False) -> bool:
        """Whether so much can be given now: a grant of its own, or ``more`` for one of these."""
        return weight <= self.free and (more or len(self.grants) < GRANTS)

    def never_fits(self, waiter: Waiter) -> bool:
        """Whether a waiter wants more than there is in all, with what it would be added to."""
        into = self.grant(waiter.into) if waiter.into else None
        return waiter.weight + (0 if into is None else into.weight) > self.capacity

    def with_grant(self, grant: Grant) -> Pool:
        """The same with this grant in the place of the one with its id."""
        grants = tuple([grant if each.id == grant.id else each for each in self.grants])
        return Pool(grants, self.waiters, self.capacity)


def listed_sessions(pool: Pool | None) -> set[str]:
    """The sessions that a pool is listed under."""
    if pool is None:
        return set()
    held = {grant.session for grant in pool.grants if grant.listed and grant.ttl is None}
    return held | {waiter.session for waiter in pool.waiters if waiter.listed}


class BreakNote(Struct, frozen=True, kw_only=True):
    """A grant that an operator ended, as it is noted for its holder."""

    grant: str
    holder: str
    session: str
    token: int | None
    by: str
    at: float
    reason: str


def with_token(pool: Pool, token: int) -> Pool:
    """The pool as a reader knows it: what the last write brought has the token of the item."""
    grants, waiters = pool.grants, pool.waiters
    if None in [grant.token for grant in grants]:
        grants = tuple([g if g.token is not None else replace(g, token=token) for g in grants])
    if waiters and None in [waiter.order for waiter in waiters]:
        waiters = tuple([w if w.order is not None else replace(w, order=token) for w in waiters])
    if grants is pool.grants and waiters is pool.waiters:
        return pool
    return Pool(grants, waiters, pool.capacity)
