"""Requests for and about grants: the fields and outcomes that locks, slots and several share.

``lock.py``, ``semaphore.py`` and ``several.py`` have the kinds that users name: each says which
pools a request is about, and makes the outcomes of its kind.  ``rules.py`` decides.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Literal, TypeVar

from msgspec import Struct

from interlock.core.decision import Outcome
from interlock.nouns.grants.pool import BreakNote, Grant, Pool
from interlock.nouns.grants.pool_change import things

O_co = TypeVar("O_co", bound=Outcome, covariant=True)


class Demand(Struct, frozen=True, gc=False):
    """A weight of one pool; a capacity makes a new pool, and must agree with an existing one."""

    key: str
    weight: int = 1
    capacity: int | None = None


class RequestStatus(Struct, frozen=True, gc=False):
    """The state of a request after a decision, from which its kind makes the outcome."""

    kind: Literal["granted", "extended", "increased", "queued", "refused", "gone", "deadlock"]
    pools: tuple[Pool, ...] = ()
    grant: Grant | None = None
    before: int = 0
    expires_in: float | None = None
    cycle: tuple[str, ...] = ()


class GrantRequest(Struct, Generic[O_co], frozen=True, kw_only=True, gc=False):
    """A request for a grant: the caller and its terms; a subclass names the pools."""

    noun: ClassVar[str] = ""

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
    def demands(self) -> tuple[Demand, ...]:
        """The pools, with the weight of each."""
        raise NotImplementedError

    def outcome(self, status: RequestStatus) -> O_co:
        """The outcome of this kind for a status."""
        raise NotImplementedError

    def fenced(self, thing: str) -> O_co:
        """The outcome if a given grant that the request relies on is over."""
        raise NotImplementedError

    def outdated(self, pool: Pool | None, newest: int) -> O_co | None:
        """The outcome if a later grant fences the token that it carries; None if none does."""
        del pool, newest
        return None

    def broken_by(self, note: BreakNote) -> O_co:
        """The outcome if an operator ended the grant that it carries."""
        raise NotImplementedError

    @property
    def id(self) -> str:
        """The id of the requested grant."""
        return self.grant

    @property
    def keys(self) -> tuple[str, ...]:
        """The pools."""
        return tuple([want.key for want in self.demands])

    @property
    def thing(self) -> str:
        """The name of the pools in the record."""
        return things(self.keys)

    def verb(self, word: str) -> str:
        """The verb in the record."""
        return f"{self.noun}.{word}" if self.noun else word


class HolderRequest(Struct, Generic[O_co], frozen=True, kw_only=True, gc=False):
    """A request of a holder about its grant: by its id, by token and agent, or by session."""

    noun: ClassVar[str] = ""

    agent: str
    session: str
    token: int | None = None
    grant: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        """The pools."""
        raise NotImplementedError

    def check_weight(self, thing: str, grant: Grant) -> None:
        """Raise if the caller names another weight than the grant has."""

    def refused(self, pool: Pool | None, newest: int, *, stale: bool) -> O_co:
        """The outcome if the caller has no grant there.

        ``newest`` is the token of the last write; ``stale`` says that the first holder is dead.
        """
        raise NotImplementedError

    def released(self, things: tuple[str, ...], served: tuple[str, ...]) -> O_co:
        """The outcome of a release, with the agents that were served."""
        raise NotImplementedError

    def extended(self, pool: Pool, grant: Grant, expires_in: float | None) -> O_co:
        """The outcome of a renewal."""
        raise NotImplementedError

    def broken_by(self, note: BreakNote) -> O_co:
        """The outcome if an operator ended its grant."""
        raise NotImplementedError

    def expired(self, grant: Grant | None) -> O_co:
        """The outcome if its grant expired, or no grant is left."""
        raise NotImplementedError

    def verb(self, word: str) -> str:
        """The verb in the record."""
        return f"{self.noun}.{word}" if self.noun else word


class BreakRequest(Struct, Generic[O_co], frozen=True, kw_only=True, gc=False):
    """A request of an operator to end a grant: of a holder, with a token, or the only one."""

    noun: ClassVar[str] = ""

    by: str
    reason: str
    holder: str = ""
    token: int | None = None

    @property
    def key(self) -> str:
        """The pool."""
        raise NotImplementedError

    def matches(self, grant: Grant) -> bool:
        """Whether the request may mean this grant."""
        return self.holder in ("", grant.agent) and self.token in (None, grant.token)

    def broken(self, grant: Grant, served: tuple[str, ...]) -> O_co:
        """The outcome when the grant was ended, with the agents that were served."""
        raise NotImplementedError

    def not_found(self, pool: Pool | None) -> O_co:
        """The outcome if there is no such grant."""
        raise NotImplementedError
