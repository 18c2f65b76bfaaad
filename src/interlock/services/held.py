"""What a holder relies on while it works: the leases behind a grant, and the proof of it.

Shared by the blocking and the async ``with`` blocks, which differ only in how they wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from interlock.core import keys
from interlock.core import lock as core
from interlock.core.decision import Write
from interlock.errors import Lost, Unavailable
from interlock.services.calls import Desk, LockCalls
from interlock.services.keeper import Lease
from interlock.services.steps import Op


class Holding:
    """A grant in our hands."""

    def __init__(self, desk: Desk, grant: core.Granted, leases: tuple[Lease, ...]) -> None:
        self.desk = desk
        self.grant = grant
        self.leases = leases

    @property
    def proof(self) -> core.Proof:
        """Ownership as a value that another commit can carry."""
        grant = self.grant
        return core.Proof(lock=grant.lock, grant=grant.grant, token=grant.token or 0)

    def lost(self) -> bool:
        """Whether we may no longer rely on it, as far as we can tell without asking."""
        return not all(lease.alive() for lease in self.leases)

    def check(self) -> Op[core.Proof]:
        """The proof, if the store agrees that we still hold."""
        if self.lost() or not (yield from self.desk.locks.check(self.desk.seat.who, self.proof)):
            raise self.over()
        return self.proof

    def release(self) -> Op[core.ReleaseOutcome]:
        """Give it back and stop relying on it."""
        for lease in self.leases:
            if lease is not self.desk.session_lease:
                self.desk.keeper.drop(lease)
        calls = LockCalls(self.desk)
        return (yield from calls.release(self.grant.lock, token=self.grant.token))

    def over(self) -> Lost:
        """The error that says so."""
        return Lost(
            f"lock {self.grant.lock!r} (token {self.grant.token}) is no longer ours;"
            " stop what relied on it and acquire again"
        )


def take(desk: Desk, name: str, on_lost: Callable[[], None], **terms: Any) -> Op[Holding]:
    """Acquire for a ``with`` block, which cannot return a no: it raises."""
    clock = desk.runner.clock
    sent = clock.monotonic()
    outcome = yield from LockCalls(desk).acquire(name, **terms)
    if not isinstance(outcome, core.Granted):
        raise Unavailable(_no(outcome), outcome)
    times = {}
    if clock.monotonic() - sent > 0.05:  # noqa: PLR2004 - we waited: it began at some later time
        sent = clock.monotonic()
        times = yield from desk.locks.lifetimes(name, outcome.grant)
    leases = tuple(_leases(desk, outcome, terms, sent, times, on_lost))
    return Holding(desk, outcome, leases)


def _leases(
    desk: Desk,
    grant: core.Granted,
    terms: dict[str, Any],
    sent: float,
    times: dict[str, float],
    on_lost: Callable[[], None],
) -> Any:
    from interlock.core import words

    tag = {"agent": grant.holder, "lock": grant.lock}
    if terms.get("ttl") is None:
        yield desk.session_lease
    for key, term, renewable in (
        (keys.live(grant.grant), "ttl", True),
        (keys.limit(grant.grant), "max_hold", False),
    ):
        if terms.get(term) is not None:
            ttl = words.duration(terms[term])
            began = sent + times.get(key, ttl) - ttl
            yield desk.keeper.keep(Write(key, tag, ttl), began, on_lost, renewable=renewable)


def _no(outcome: core.Busy | core.Fenced) -> str:
    if isinstance(outcome, core.Fenced):
        return f"lock {outcome.lock!r}, which this relies on, is no longer ours; acquire it again"
    return f"lock {outcome.lock!r} is held by {outcome.holder}; wait longer or try later"
