"""A decision: what a pure function returns.

It has an outcome, the writes that make it true, and how to record it.  A decision without writes
and without a verb changes nothing and needs no commit.
"""

from __future__ import annotations

from typing import ClassVar, Generic, Literal, TypeVar

from msgspec import Struct

T_co = TypeVar("T_co", covariant=True)


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="outcome", gc=False):
    """An answer as the user sees it; the tag is the word in the JSON field "outcome".

    Each one is a ``Success`` or a ``Refusal``, so ``if fleet.locks.acquire("deploy"):`` is right:
    a grant is true, a refusal is false, and a type checker knows which classes are left.
    """

    exit_status: ClassVar[int]
    http_status: ClassVar[int]


class Success(Outcome, frozen=True, kw_only=True):
    """Done, or done before: exit status 0, and true in a condition."""

    exit_status = 0
    http_status = 200

    def __bool__(self) -> Literal[True]:
        """True."""
        return True


class Refusal(Outcome, frozen=True, kw_only=True):
    """Not done: exit status 1 for an ordinary no, 3 where it is not allowed; always false."""

    exit_status = 1
    http_status = 409
    counted: ClassVar[bool] = False
    """Whether each one is counted: it is not contention, but a caller that may not do this."""

    def __bool__(self) -> Literal[False]:
        """False."""
        return False


class Event(Struct, frozen=True, omit_defaults=True, gc=False):
    """Something that watchers care about, with a name that never changes.

    ``thing`` and ``trace`` are left out where they are those of the whole entry.
    """

    name: str
    agent: str
    thing: str = ""
    trace: str = ""


class Write(Struct, frozen=True, gc=False):
    """A value to stand under a key; with a ttl the key is a liveness key."""

    key: str
    value: object
    ttl: float | None = None


_ENDINGS = """
    ack beat break cancel checkpoint clear complete decline drop expire extend fail forget leave
    mend ready reclaim refuse release remove reply requeue resolve retire seal survey suspect tidy
    unblock unsubscribe withdraw
"""
ENDINGS = frozenset(_ENDINGS.split())
"""The last words of verbs that end, renew or delete something: a full store takes these.

Everything else begins something: a grant, a wait, a task, a message, a session.
"""


REFUSALS = ("fenced", "not_owner", "not_holder", "deadlock")
"""Outcomes by which a call that names a grant, or a wait, is refused."""


class Decision(Struct, Generic[T_co], frozen=True, kw_only=True, gc=False):
    """An outcome with the writes that make it true, committed together or not at all.

    ``reads`` are keys that the commit is to bring back; only engines across a network do.
    ``trace`` is that of what it is about, if that has one; else the caller's own is recorded.
    ``via`` and ``took`` say which component asked, and for how many milliseconds, where that is
    recorded.
    ``reason`` is the reason that an operator gave, for the record.
    """

    outcome: T_co
    verb: str = ""
    thing: str = ""
    puts: tuple[Write, ...] = ()
    deletes: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    quiet: bool = False
    reads: tuple[str, ...] = ()
    trace: str = ""
    via: str = ""
    took: float | None = None
    reason: str = ""

    @property
    def changes(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self.verb or self.puts or self.deletes)

    @property
    def ends(self) -> bool:
        """Whether it ends or renews something, so that a full store takes it."""
        return self.quiet or self.verb.rpartition(".")[2] in ENDINGS


class Proof(Struct, frozen=True, kw_only=True):
    """Ownership as a value: a commit that carries it happens only while the grant lives.

    ``thing`` names the grant: ``lock/merge``, or several at once, ``lock/a+sem/b``.
    """

    thing: str
    grant: str
    token: int
