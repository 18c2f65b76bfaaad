"""Requests for and about grants, and the targets that they name.

A *target* (``LockTarget``, ``SlotsTarget``, ``SeveralTarget``) is what a request is about: it names
the pools, and makes the outcomes of its kind.  ``rules.py`` decides requests of all kinds alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from msgspec import Struct

from interlock.core import validate
from interlock.core.decision import Outcome, Proof
from interlock.core.thing_names import join_things, names_several
from interlock.errors import BadInput, BadName, TooLarge
from interlock.nouns.grants.pool import Grant, Pool

if TYPE_CHECKING:
    from interlock.settings import Settings

GUARDS = 16
"""The most guards of one request: every engine can check their definitions in its commit."""


class Demand(Struct, frozen=True, gc=False):
    """A weight of one pool; a capacity makes a new pool, and must agree with an existing one."""

    key: str
    weight: int = 1
    capacity: int | None = None


class RequestStatus(Struct, frozen=True, gc=False):
    """The state of a request after a decision, from which its target makes the outcome."""

    kind: Literal["granted", "extended", "increased", "queued", "refused", "gone", "deadlock"]
    pools: tuple[Pool, ...] = ()
    grant: Grant | None = None
    before: int = 0
    expires_in: float | None = None
    cycle: tuple[str, ...] = ()


class GrantTarget(Struct, frozen=True, gc=False):
    """The pools of a request, and the outcomes of its kind."""

    noun: ClassVar[str] = ""
    """Verbs in the record begin with it."""
    about: ClassVar[str] = ""
    """A wait for it, in log lines."""

    @property
    def demands(self) -> tuple[Demand, ...]:
        """The pools, with the weight of each."""
        raise NotImplementedError

    @property
    def keys(self) -> tuple[str, ...]:
        """The pools."""
        return tuple([demand.key for demand in self.demands])

    @property
    def things(self) -> tuple[str, ...]:
        """The pools as users name them."""
        raise NotImplementedError

    @property
    def thing(self) -> str:
        """The name of the pools in the record."""
        return join_things(self.things)

    def verb(self, word: str) -> str:
        """The verb in the record."""
        noun = self.noun
        return f"{noun}.{word}" if noun else word

    def configured(self, settings: Settings, least: float) -> tuple[Self, Mapping[str, float]]:
        """The target with the capacities of the settings, and the terms that these give it.

        ``least`` is the shortest ttl that the store can measure.
        """
        raise NotImplementedError

    def outcome(self, status: RequestStatus) -> Outcome:
        """The outcome of a request for a grant, or of its renewal."""
        raise NotImplementedError

    def granted(self, kind: str, pool: Pool, grant: Grant, expires_in: float | None) -> Outcome:
        """The outcome of a request that has its grant: ``granted``, ``extended``, ``increased``."""
        return self.outcome(RequestStatus(kind, (pool,), grant, 0, expires_in))  # type: ignore[arg-type]

    def fenced(self, token: int | None = None, by: str = "", reason: str = "") -> Outcome:
        """The grant is over: a later token exists, or an operator ended it."""
        raise NotImplementedError

    def given_fenced(self, thing: str) -> Outcome:
        """A given grant that the request relies on is over."""
        raise NotImplementedError

    def outdated(self, token: int | None, pool: Pool | None, newest: int) -> Outcome | None:
        """Fenced, if this token is older than the last change and of no grant that is left.

        ``newest`` is the token of the last write of the pool.
        """
        current = () if pool is None else [grant.token for grant in pool.grants]
        if token is None or token in current or token >= newest:
            return None
        return self.fenced(token=newest)

    def not_held(self, pool: Pool | None, *, stale: bool) -> Outcome:
        """The caller has no grant, and never had; ``stale`` if that of the first holder expired."""
        raise NotImplementedError

    def expired(self, token: int | None, grant: Grant | None) -> Outcome:
        """The grant of a holder expired, or (None) the pool has no grant at all."""
        del token, grant
        return self.fenced()

    def released(self, things: tuple[str, ...], served: tuple[str, ...]) -> Outcome:
        """These things were released, and these agents served."""
        raise NotImplementedError

    def broken(self, grant: Grant, served: tuple[str, ...], reason: str) -> Outcome:
        """An operator ended the grant, and these agents were served."""
        raise NotImplementedError

    def not_found(self, pool: Pool | None) -> Outcome:
        """An operator named a grant that does not exist."""
        raise NotImplementedError


class GrantTerms(Struct, frozen=True, kw_only=True, gc=False):
    """The terms of a call or a block, as its caller writes them."""

    wait: float | str = 0
    ttl: float | str | None = None
    max_hold: float | str | None = None
    metadata: object = None
    token: int | None = None
    given: Sequence[Proof | str] = ()
    guard: str | Sequence[str] = ()


class GrantRequest(Struct, frozen=True, kw_only=True, gc=False):
    """A request for a grant: its target, its caller, and the terms of the caller."""

    target: GrantTarget
    grant: str
    agent: str
    session: str
    caller: str = ""
    ttl: float | None = None
    max_hold: float | None = None
    metadata: Any = None
    token: int | None = None
    whole_session: bool = False
    session_ttl: float = 0.0
    wait: bool = False
    indexed: bool = False
    also: tuple[str, ...] = ()
    listed: bool = False

    @property
    def id(self) -> str:
        """The id of the requested grant."""
        return self.grant

    @property
    def keys(self) -> tuple[str, ...]:
        """The pools."""
        return self.target.keys


class HolderRequest(Struct, frozen=True, kw_only=True, gc=False):
    """A request of a holder about its grant: by its id, by token and agent, or by session.

    ``weights`` are the weights that the holder named, by their things.
    """

    target: GrantTarget
    agent: str
    session: str
    token: int | None = None
    grant: str = ""
    weights: tuple[tuple[str, int], ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The pools."""
        return self.target.keys


class BreakRequest(Struct, frozen=True, kw_only=True, gc=False):
    """A request of an operator to end a grant: of a holder, with a token, or the only one."""

    target: GrantTarget
    by: str
    reason: str
    holder: str = ""
    token: int | None = None

    def matches(self, grant: Grant) -> bool:
        """Whether the request may mean this grant."""
        return self.holder in ("", grant.agent) and self.token in (None, grant.token)


def guard_names(guards: str | Sequence[str]) -> tuple[str, ...]:
    """The names of the guards of a request, each once; a caller may give one or several."""
    if not isinstance(guards, str | Iterable):
        raise BadInput(f"a guard is a name, or several names, not {guards!r:.40}")
    several = (guards,) if isinstance(guards, str) else guards
    names = tuple(dict.fromkeys([validate.name(name, "guard name") for name in several]))
    if len(names) > GUARDS:
        raise TooLarge(f"these are {len(names)} guards; one request may name {GUARDS}")
    return names


def pool_name(name: str, kind: str) -> str:
    """The name of a lock or a semaphore, as callers write it that have said which of them it is."""
    name = validate.name(name, "lock name" if kind == "lock" else "semaphore name")
    if "/" not in name:
        return name
    prefix = "lock/" if kind == "lock" else "sem/"
    if name.startswith(prefix):
        raise BadName(f"a {kind} goes by its name alone here; drop {prefix!r} from {name!r}")
    return single_name(name, kind)


def single_name(name: str, kind: str) -> str:
    """Return the name if it cannot be taken for several things, which are joined by ``+``."""
    if "+" in name and names_several(name):
        raise BadName(f"the {kind} name {name!r} reads as several things; drop '+lock/' or '+sem/'")
    return name
