"""Pools: the state of locks and semaphores.  A pool has a capacity, grants, and a queue of waiters.

The state is one item for each lock or semaphore: its capacity (1 for a lock), the grants that use
some of it, and the waiters in their order.

    free ──acquire──> granted ──release──> free, and granted to the first living waiters that fit,
                         │                 in one commit
                         └─ a liveness key of the grant is gone: stale
                            the next caller that reads it ends it, serves the waiters, then acquires

The order of service is strict: no waiter is served before an earlier waiter of the same pool, even
if it would fit and the earlier one does not; so a large request is never starved.  A dead waiter
does not count, and the next decision that finds it removes it.

One request may be for several things.  It queues in all of their pools with one commit, and gets
all of them with one commit, or nothing.  Because it enters all queues at the same moment, any two
requests stand in the same order in every queue that they share, and never wait for each other.  A
pool may then have free capacity and waiters: its first waiter also waits for another pool, and
keeps its position.

A grant lives as long as *all* of its liveness keys: that of its session, or its own if it has a
ttl, and one more that is never renewed if it has a maximum hold.  A grant never disappears by
itself, and an expired one is never revived: its holder has to acquire again.

The identity of a caller is the grant that it carries, not its name.  Two tasks of one session are
two callers; so a grant is extended only by a call that carries its token, or that acts for the
whole session (a shell).

The token of a grant is the base of the store plus the revision that wrote the grant.  That revision
is unknown before the commit, so a new grant is stored without its token and has that of its item;
the next writer of the item fills it in (``with_token``).  The order of a waiter in the whole store
is known in the same way.  Several grants of one commit share a token, so no commit gives an agent
two grants of one pool: a token and the name of its holder mean one grant.
Rejected: one served waiter a commit.  Then a sleeping waiter holds up all behind it.
"""

# Annotations are no strings here: to read those of stored items would take a command 3 ms.
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

GRANTS = 1000
WAITERS = 1000
"""The most grants and waiters of one pool: its item must stay small, at about 200 KB."""


class Grant(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A grant: its holder, its weight, and its liveness keys.

    ``together`` are all pools of its request, if there are several.
    ``listed`` says that another process began the session: while the grant lives as long as the
    session, its pool is listed for that process (``held/{session}/{pool}``).
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
    """A waiter and its terms; ``id`` becomes the id of its grant.

    ``into`` is the grant to increase, if it waits for that; ``indexed`` says that the wait is
    listed under its caller, and ``also`` under which other names (``core/wait.py``).
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
    """A lock or a semaphore as it is stored.

    ``gated`` says that gates wait for a change of its grants, which checks them again; a free lock
    has an item only then.  ``PoolChanges`` keeps the mark.
    """

    grants: tuple[Grant, ...] = ()
    waiters: tuple[Waiter, ...] = ()
    capacity: int = 1
    gated: bool = False

    @property
    def free(self) -> int:
        """The capacity that no grant uses; negative after the capacity was lowered."""
        free = self.capacity
        for grant in self.grants:
            free -= grant.weight
        return free

    def grant(self, id_: str) -> Grant | None:
        """The grant of this id."""
        for grant in self.grants:
            if grant.id == id_:
                return grant
        return None

    def position(self, id_: str) -> int | None:
        """The number of waiters before the one with this id."""
        for number, waiter in enumerate(self.waiters):
            if waiter.id == id_:
                return number
        return None

    def fits(self, weight: int, *, more: bool = False) -> bool:
        """Whether this weight fits now: in a new grant, or as ``more`` of an existing one."""
        return weight <= self.free and (more or len(self.grants) < GRANTS)

    def never_fits(self, waiter: Waiter) -> bool:
        """Whether a waiter needs more than the capacity, with the grant that it would increase."""
        into = self.grant(waiter.into) if waiter.into else None
        return waiter.weight + (0 if into is None else into.weight) > self.capacity

    def with_grant(self, grant: Grant) -> "Pool":
        """A pool with this grant instead of the one with its id."""
        grants = tuple([grant if each.id == grant.id else each for each in self.grants])
        return Pool(grants, self.waiters, self.capacity)


def listed_sessions(pool: Pool | None) -> set[str]:
    """The sessions that a pool is listed under."""
    found = set[str]()
    for grant in () if pool is None else pool.grants:
        if grant.listed and grant.ttl is None:
            found.add(grant.session)
    for waiter in () if pool is None else pool.waiters:
        if waiter.listed:
            found.add(waiter.session)
    return found


class BreakNote(Struct, frozen=True, kw_only=True):
    """A note for the holder of a grant that an operator ended."""

    grant: str
    holder: str
    session: str
    token: int | None
    by: str
    at: float
    reason: str


def with_token(pool: Pool, token: int) -> Pool:
    """The pool as a reader knows it: the grants of the last write get the token of the item."""
    grants: list[Grant] | None = None
    waiters: list[Waiter] | None = None
    for number, grant in enumerate(pool.grants):
        if grant.token is None:
            grants = [*pool.grants] if grants is None else grants
            grants[number] = replace(grant, token=token)
    for number, waiter in enumerate(pool.waiters):
        if waiter.order is None:
            waiters = [*pool.waiters] if waiters is None else waiters
            waiters[number] = replace(waiter, order=token)
    if grants is None and waiters is None:
        return pool
    return Pool(
        pool.grants if grants is None else tuple(grants),
        pool.waiters if waiters is None else tuple(waiters),
        pool.capacity,
        pool.gated,
    )
