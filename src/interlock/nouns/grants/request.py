"""A request and who makes it, before any noun puts it into words.

An Ask is for one lock, for slots of one semaphore, or for several of these at once; its noun says
which pools that means, and puts how it stands into words.  A Caller speaks about a grant that it
has, or had.  What is decided about them is in ``rules.py``.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Literal, TypeVar

from msgspec import Struct

from interlock.core.decision import Outcome
from interlock.nouns.grants.pool import BreakNote, Grant, Pool
from interlock.nouns.grants.pool_change import things

O_co = TypeVar("O_co", bound=Outcome, covariant=True)


class Demand(Struct, frozen=True, gc=False):
    """So much of one pool; a capacity makes it if it is not there, and must agree if it is."""

    key: str
    weight: int = 1
    capacity: int | None = None


class RequestStatus(Struct, frozen=True, gc=False):
    """How a request stands after a decision, before its noun puts that into words."""

    kind: Literal["granted", "extended", "increased", "queued", "refused", "gone", "deadlock"]
    pools: tuple[Pool, ...] = ()
    grant: Grant | None = None
    before: int = 0
    expires_in: float | None = None
    cycle: tuple[str, ...] = ()


class GrantRequest(Struct, Generic[O_co], frozen=True, kw_only=True, gc=False):
    """What is asked for, by whom, and on what terms."""

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
        """How much of which pools."""
        raise NotImplementedError

    def answer(self, standing: RequestStatus) -> O_co:
        """The words of this noun for how the request stands."""
        raise NotImplementedError

    def fenced(self, thing: str) -> O_co:
        """The words of this noun for something that it relies on and that is gone."""
        raise NotImplementedError

    def moved_on(self, pool: Pool | None, newest: int) -> O_co | None:
        """What it is told if the token that it carries is of the past; None if that is not so."""
        del pool, newest
        return None

    def ended(self, note: BreakNote) -> O_co:
        """What it is told if an operator ended the grant that it carries."""
        raise NotImplementedError

    @property
    def id(self) -> str:
        """The id of the grant that is asked for."""
        return self.grant

    @property
    def keys(self) -> tuple[str, ...]:
        """The pools."""
        return tuple([want.key for want in self.demands])

    @property
    def thing(self) -> str:
        """What the record calls it."""
        return things(self.keys)

    def verb(self, word: str) -> str:
        """What the record calls an act of this request."""
        return f"{self.noun}.{word}" if self.noun else word


class HolderRequest(Struct, Generic[O_co], frozen=True, kw_only=True, gc=False):
    """Who speaks about a grant: its token under the holder's name, or the session that has it."""

    noun: ClassVar[str] = ""

    agent: str
    session: str
    token: int | None = None
    grant: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        """The pools."""
        raise NotImplementedError

    def agrees(self, thing: str, grant: Grant) -> None:
        """Raise if this cannot be the grant that is meant to be given back."""

    def refused(self, pool: Pool | None, newest: int, *, stale: bool) -> O_co:
        """What it is told if it has no grant there.

        ``newest`` is the token of the last write; ``stale`` says that the first holder is gone.
        """
        raise NotImplementedError

    def released(self, things: tuple[str, ...], served: tuple[str, ...]) -> O_co:
        """What it is told when it gave back these; who was served."""
        raise NotImplementedError

    def extended(self, pool: Pool, grant: Grant, expires_in: float | None) -> O_co:
        """What it is told when its grant lives on."""
        raise NotImplementedError

    def ended(self, note: BreakNote) -> O_co:
        """What it is told if an operator ended its grant."""
        raise NotImplementedError

    def lapsed(self, grant: Grant | None) -> O_co:
        """What it is told when its grant is stale, or nobody has one any more."""
        raise NotImplementedError

    def verb(self, word: str) -> str:
        """What the record calls an act of this caller."""
        return f"{self.noun}.{word}" if self.noun else word


class BreakRequest(Struct, Generic[O_co], frozen=True, kw_only=True, gc=False):
    """An operator who ends the grant of another: that of a holder, of a token, or the only one."""

    noun: ClassVar[str] = ""

    by: str
    reason: str
    holder: str = ""
    token: int | None = None

    @property
    def key(self) -> str:
        """The pool."""
        raise NotImplementedError

    def means(self, grant: Grant) -> bool:
        """Whether this may be the grant that is meant."""
        return self.holder in ("", grant.agent) and self.token in (None, grant.token)

    def broken(self, grant: Grant, served: tuple[str, ...]) -> O_co:
        """What it is told when the grant was ended; who was served."""
        raise NotImplementedError

    def missed(self, pool: Pool | None) -> O_co:
        """What it is told if there is no such grant."""
        raise NotImplementedError
