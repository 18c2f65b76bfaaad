"""What a holder relies on while it works: the leases behind a grant, and the proof of it.

Shared by the blocking and the async ``with`` blocks, which differ only in how they wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys, words
from interlock.core import lock as core
from interlock.core.decision import Write
from interlock.driving import Op
from interlock.errors import Lost, StoreTrouble, Unavailable
from interlock.services.calls import Desk, LockCalls
from interlock.services.keeper import Lease, Stake

WAITED = 0.05
"""An acquire that took longer may have waited: its grant began at some unknown moment meanwhile."""


class Terms(Struct, frozen=True, kw_only=True):
    """On what terms a block wants its lock."""

    wait: float | str
    ttl: float | str | None
    max_hold: float | str | None
    metadata: object
    given: Sequence[core.Proof]


class Holding:
    """A grant in our hands."""

    def __init__(
        self,
        desk: Desk,
        grant: core.Granted,
        leases: Sequence[Lease],
        on_lost: Callable[[], None] | None,
    ) -> None:
        self.desk = desk
        self.grant = grant
        self.leases = leases
        self.released = False
        self._gone = False
        self._on_lost = on_lost
        self._stake = Stake(grant.lock, grant.grant, self._lose)
        desk.keeper.rely(self._stake)
        for lease in leases:
            if on_lost is not None:
                lease.listeners.append(on_lost)

    @property
    def proof(self) -> core.Proof:
        """Ownership as a value that another commit can carry."""
        grant = self.grant
        return core.Proof(lock=grant.lock, grant=grant.grant, token=grant.token or 0)

    def lost(self) -> bool:
        """Whether we may no longer rely on it, as far as we can tell without asking."""
        return self.released or self._gone or not all(lease.alive() for lease in self.leases)

    def insist(self) -> None:
        """Raise if we may not rely on it."""
        if self.lost():
            raise self.over()

    def check(self) -> Op[core.Proof]:
        """The proof, if the store agrees that we still hold."""
        if self.lost() or not (yield from self.desk.locks.check(self.proof)):
            raise self.over()
        return self.proof

    def release(self) -> Op[core.ReleaseOutcome]:
        """Give it back and stop relying on it."""
        self._let_go()
        owed = (self.desk.seat, self.grant.lock, self.grant.grant)
        calls = LockCalls(self.desk)
        try:
            return (yield from calls.release(self.grant.lock, token=self.grant.token))
        except (StoreTrouble, GeneratorExit):
            self.desk.locks.owe(*owed)  # the keeper gives it back as soon as it can
            raise
        except BaseException:
            yield from self.desk.locks.give_up(*owed)
            raise

    def end(self) -> Op[bool]:
        """The end of a block: give it back if that was not done yet; whether it had been lost."""
        if self.released:
            return False
        lost = self.lost()
        if trouble := self.desk.store.trouble:  # whoever ends need not wait for it, too
            self._let_go()
            self.desk.locks.owe(self.desk.seat, self.grant.lock, self.grant.grant)
            self._later(trouble)
            return lost
        try:
            outcome = yield from self.release()
        except StoreTrouble as error:
            self._later(str(error))
            return lost
        return lost or not isinstance(outcome, core.Released)

    def _later(self, trouble: str) -> None:
        import logging

        logging.getLogger("interlock").warning(
            "lock %r will be given back later: %s", self.grant.lock, trouble
        )

    def _let_go(self) -> None:
        """Rely on it no more."""
        for lease in self.leases:
            if self._on_lost in lease.listeners:
                lease.listeners.remove(self._on_lost)
            if lease is not self.desk.session_lease:
                self.desk.keeper.drop(lease)
        self.desk.keeper.leave(self._stake)
        self.released = True

    def _lose(self) -> None:
        """The store no longer has it."""
        self._gone = True
        if self._on_lost is not None:
            self._on_lost()

    def over(self) -> Lost:
        """The error that says so."""
        return Lost(
            f"lock {self.grant.lock!r} (token {self.grant.token}) is no longer ours;"
            " stop what relied on it and acquire again"
        )


class HeldLock:
    """A lock in our hands, as far as it can be looked at without asking the store."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding

    @property
    def token(self) -> int:
        """The fencing token: pass it on to whatever the lock protects."""
        return self._holding.grant.token or 0

    @property
    def outcome(self) -> core.Granted:
        """How we got it: Acquired or Reclaimed."""
        return self._holding.grant

    @property
    def lost(self) -> bool:
        """Whether we may no longer rely on it; costs nothing, ask often."""
        return self._holding.lost()

    def over(self) -> Lost:
        """The error that says that it is no longer ours."""
        return self._holding.over()


def take(desk: Desk, name: str, on_lost: Callable[[], None] | None, terms: Terms) -> Op[Holding]:
    """Acquire for a ``with`` block, which cannot return a no: it raises.

    A grant that was lost before the block could begin is none: it is given back, and we queue
    again, as long as we have a session and patience.
    """
    clock = desk.runner.clock
    ttl, max_hold = desk.terms(name, terms.ttl, terms.max_hold)
    ends = clock.monotonic() + words.patience(terms.wait)
    while True:
        left = max(0.0, ends - clock.monotonic())
        now = replace(terms, ttl=ttl, max_hold=max_hold, wait=left)
        holding = yield from _take_once(desk, name, on_lost, now)
        if not holding.lost():
            return holding
        yield from holding.end()
        if clock.monotonic() >= ends:
            raise holding.over()


def _take_once(
    desk: Desk, name: str, on_lost: Callable[[], None] | None, terms: Terms
) -> Op[Holding]:
    clock = desk.runner.clock
    sent = clock.monotonic()
    outcome = yield from LockCalls(desk).acquire(
        name,
        ttl=terms.ttl,
        wait=terms.wait,
        max_hold=terms.max_hold,
        metadata=terms.metadata,
        given=terms.given,
    )
    if not isinstance(outcome, core.Granted):
        raise Unavailable(_no(outcome), outcome)
    times: dict[str, float] | None = None
    waited = clock.monotonic() - sent > WAITED
    if waited and (terms.ttl is not None or terms.max_hold is not None):
        sent = clock.monotonic()
        try:
            times = yield from desk.locks.lifetimes(name, outcome.grant)
        except BaseException as error:
            desk.locks.owe(desk.seat, name, outcome.grant)
            if not isinstance(error, StoreTrouble | GeneratorExit):
                yield from desk.locks.pay()
            raise
    return Holding(desk, outcome, list(_leases(desk, outcome, terms, sent, times)), on_lost)


def _leases(
    desk: Desk, grant: core.Granted, terms: Terms, sent: float, times: Mapping[str, float] | None
) -> Iterator[Lease]:
    """What the holder relies on: its session or a lease of its own, and the maximum hold."""
    if terms.ttl is None and desk.session_lease is not None:
        yield desk.session_lease
    tag = {"agent": grant.holder, "lock": grant.lock}
    for key, term, renewable in (
        (keys.live(grant.grant), terms.ttl, True),
        (keys.limit(grant.grant), terms.max_hold, False),
    ):
        if term is not None:
            ttl = words.duration(term)
            left = ttl if times is None else times.get(key, 0.0)
            began = sent + left - ttl
            yield desk.keeper.keep(Write(key, tag, ttl), began, renewable=renewable)


def _no(outcome: core.Busy | core.Fenced) -> str:
    if isinstance(outcome, core.Fenced):
        return f"lock {outcome.lock!r}, which this relies on, is no longer ours; acquire it again"
    return f"lock {outcome.lock!r} is held by {outcome.holder}; wait longer or try later"
