"""Several locks and slots at once: all of them with one commit, or none.

Two callers that take the same things one after the other, in another order, can deadlock: each
holds its first thing while it waits for the second.  A request for all of them at once holds
nothing until it has everything.  ``pool.py`` says how it queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar, TypeAlias, cast

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import outcomes, validate
from interlock.core.decision import Outcome
from interlock.core.thing_names import key_of
from interlock.core.validate import CAPACITY
from interlock.errors import BadInput
from interlock.nouns.grants import lock, semaphore
from interlock.nouns.grants.pool import Grant, Pool
from interlock.nouns.grants.request import Demand, GrantTarget, RequestStatus, single_name

if TYPE_CHECKING:
    from interlock.settings import Settings

AT_ONCE = 16
"""The most things in one request: every engine can commit their pools and waiters at once."""


class ThingRequest(Struct, frozen=True, omit_defaults=True):
    """One of the things: ``lock/merge``, or a number of slots of ``sem/builds``."""

    thing: str
    weight: int = 1
    capacity: int | None = None

    def __str__(self) -> str:
        return self.thing if self.weight == 1 else f"{self.thing}={self.weight}"


class SeveralAcquired(outcomes.Acquired, frozen=True, kw_only=True, tag="acquired"):
    """All of it is yours, under one token."""

    things: tuple[str, ...]
    holder: str
    token: int | None = None
    expires_in: float | None = None
    grant: str = ""


class SeveralBusy(outcomes.Busy, frozen=True, kw_only=True, tag="busy"):
    """Some of the things are not available now, so you got none of them."""

    things: tuple[str, ...]
    blocked: tuple[lock.LockBusy | semaphore.SlotsFull, ...]


class SeveralWaiting(outcomes.Waiting, frozen=True, kw_only=True, tag="waiting"):
    """In all the queues; ``before`` is the longest of them before you."""

    things: tuple[str, ...]
    before: int


class SeveralGone(outcomes.Gone, frozen=True, kw_only=True, tag="gone"):
    """Not in the queues any more."""

    things: tuple[str, ...]


class SeveralDeadlock(outcomes.Deadlock, frozen=True, kw_only=True, tag="deadlock"):
    """The wait would never end: these wait for each other in a cycle that starts with you."""

    things: tuple[str, ...]
    cycle: tuple[str, ...]


class SeveralReleased(outcomes.Released, frozen=True, kw_only=True, tag="released"):
    """You released these; ``next`` are the waiters that have some of them now."""

    things: tuple[str, ...]
    next: tuple[str, ...] = ()


class SeveralNotOwner(outcomes.NotOwner, frozen=True, kw_only=True, tag="not_owner"):
    """You hold none of them, and never did."""

    things: tuple[str, ...]


class SeveralFenced(outcomes.Fenced, frozen=True, kw_only=True, tag="fenced"):
    """Your grant is over, or a given grant that the request relies on is."""

    things: tuple[str, ...]
    token: int | None = None
    by: str = ""
    reason: str = ""


AcquireOutcome: TypeAlias = (
    SeveralAcquired
    | SeveralBusy
    | SeveralDeadlock
    | SeveralFenced
    | outcomes.GuardBlocked
    | outcomes.NoGuard
)
ReleaseOutcome: TypeAlias = SeveralReleased | SeveralNotOwner | SeveralFenced


class SeveralTarget(GrantTarget, frozen=True, gc=False):
    """Several things at once."""

    about: ClassVar[str] = "a wait for several things"

    parts: tuple[ThingRequest, ...]

    @property
    def demands(self) -> tuple[Demand, ...]:
        """A weight of each pool."""
        parts = self.parts
        return tuple([Demand(key_of(part.thing), part.weight, part.capacity) for part in parts])

    @property
    def things(self) -> tuple[str, ...]:
        """All of them, without their weights."""
        return tuple([part.thing for part in self.parts])

    @property
    def named(self) -> tuple[str, ...]:
        """All of them, as users write them."""
        return tuple([str(part) for part in self.parts])

    def configured(
        self, settings: Settings, least: float
    ) -> tuple[SeveralTarget, Mapping[str, float]]:
        """The things with their capacities; the settings of each thing may have other terms."""
        parts = []
        for part in self.parts:
            kind, _, name = part.thing.partition("/")
            capacity = settings.semaphore(name, least).get("capacity") if kind == "sem" else None
            parts.append(part if capacity is None else replace(part, capacity=int(capacity)))
        return SeveralTarget(tuple(parts)), {}

    def outcome(self, status: RequestStatus) -> Outcome:
        """The outcome for a status."""
        match status.kind:
            case "granted" | "extended" | "increased":
                return self._acquired(status, cast("Grant", status.grant))
            case "queued":
                return SeveralWaiting(things=self.named, before=status.before)
            case "refused":
                return SeveralBusy(things=self.named, blocked=self._blocked(status.pools))
            case "deadlock":
                return SeveralDeadlock(things=self.named, cycle=status.cycle)
            case "gone":
                return SeveralGone(things=self.named)

    def fenced(self, token: int | None = None, by: str = "", reason: str = "") -> Outcome:
        """The grant is over."""
        return SeveralFenced(things=self.things, token=token, by=by, reason=reason)

    def given_fenced(self, thing: str) -> Outcome:
        """A given grant is over."""
        return SeveralFenced(things=(thing,))

    def not_held(self, pool: Pool | None, *, stale: bool) -> Outcome:
        """The caller holds none."""
        del pool, stale
        return SeveralNotOwner(things=self.things)

    def released(self, things: tuple[str, ...], served: tuple[str, ...]) -> Outcome:
        """The waiters that fit have them now."""
        return SeveralReleased(things=things, next=served)

    def _acquired(self, status: RequestStatus, grant: Grant) -> SeveralAcquired:
        return SeveralAcquired(
            things=self.named,
            holder=grant.agent,
            token=grant.token,
            expires_in=status.expires_in,
            grant=grant.id,
        )

    def _blocked(self, pools: tuple[Pool, ...]) -> tuple[lock.LockBusy | semaphore.SlotsFull, ...]:
        pairs = zip(self.parts, pools, strict=True)
        short = [(p.thing, pool) for p, pool in pairs if pool.waiters or p.weight > pool.free]
        return tuple([_unavailable(thing, pool) for thing, pool in short])


def _unavailable(thing: str, pool: Pool) -> lock.LockBusy | semaphore.SlotsFull:
    kind, _, name = thing.partition("/")
    return semaphore.full(name, pool) if kind == "sem" else lock.busy(name, pool)


def target_of(things: Iterable[str]) -> SeveralTarget:
    """The target for things as people write them; each at most once, and not too many."""
    parts = tuple(_part(thing) for thing in things)
    if not parts:
        raise BadInput("which things? name some, such as lock/merge and sem/builds=2")
    if len(parts) > AT_ONCE:
        raise BadInput(f"{len(parts)} things at once; {AT_ONCE} are allowed")
    names = [part.thing for part in parts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise BadInput(f"{twice} is named twice; name it once, with all that you want of it")
    return SeveralTarget(parts)


def _part(text: str) -> ThingRequest:
    if not isinstance(text, str):
        raise BadInput(f"a thing is text such as lock/merge, not {text!r:.40}")
    kind, slash, name = text.partition("/")
    if not slash:
        like = f"write lock/{text:.40} or sem/{text:.40}"
        raise BadInput(f"{text!r:.60} does not say what it is; {like}")
    weighted = is_weighted(text)
    if kind not in ("lock", "sem") or not name or (weighted and kind == "lock"):
        raise BadInput(f"{text!r:.60} is not like lock/merge, sem/builds or sem/builds=2")
    said, weight = "lock" if kind == "lock" else "semaphore", "1"
    if kind == "sem" and "=" in name:
        if not weighted:
            raise BadInput(
                f"the weight in {text!r:.60} is no whole number; write sem/builds=2,"
                f" or {text:.40}=1 if '=' belongs to the name"
            )
        name, _, weight = name.rpartition("=")
    name = single_name(validate.name(name, f"{said} name"), said)
    return ThingRequest(f"{kind}/{name}", validate.count(int(weight), "weight", CAPACITY))


def is_weighted(text: str) -> bool:
    """Whether a thing comes with its weight, as in ``sem/builds=2``."""
    _, equals, weight = text.rpartition("=")
    return bool(equals) and validate.digits(weight)
