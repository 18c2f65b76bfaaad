"""A decision: what a pure function returns.

It has an outcome, the writes that make it true, and how to record it.  A decision without writes
and without a verb changes nothing and needs no commit.

A pure decision does not know in advance which items it needs: a release depends on the waiters, a
completed task on its dependents.  It asks its ``Facts``, which raise ``Missing`` for an item that
was not read yet.  The driver (``runtime/attempt.py``) reads the missing items and decides again
from the start, so a decision must have no effect but the ``Changes`` that it returns.

The commit checks only the keys that a decision *relies* on.  Other facts were only looked at and
cannot become wrong: a liveness key that is gone never comes back, data that are written once stay.

A commit is bounded by ``Facts.max_operations``.  A decision that could do more compares that with
``Changes.size`` and leaves the rest to a later commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar

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

    ``thing`` and ``trace`` are left out where they are those of the whole entry.  ``details`` are
    facts that an auditor needs and that no item keeps for long enough; most events have none.
    """

    name: str
    agent: str
    thing: str = ""
    trace: str = ""
    details: dict[str, Any] = {}


class ObservedFact(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A fact from outside that a decision relies on: the condition, and which host saw it.

    ``at`` is when the host looked, ``max_age`` how many seconds that counts, and ``digest`` the
    SHA-256 of what it saw.
    """

    condition: str
    host: str
    at: float
    max_age: float
    digest: str = ""


class Write(Struct, frozen=True, gc=False):
    """A value to stand under a key; with a ttl the key is a liveness key."""

    key: str
    value: object
    ttl: float | None = None


_ENDINGS = """
    ack beat block bounce break cancel checkpoint clear complete decline deny drop expire extend
    fail forget forgive leave mend pause ready reclaim refuse release remove reply requeue resolve
    retire revoke seal survey suspect tidy unblock unsubscribe withdraw
"""
ENDINGS = frozenset(_ENDINGS.split())
"""The last words of verbs that end, renew, keep or delete something: a full store takes these.

Everything else begins something: a grant, a wait, a task, a message, a session.
"""


@cache
def is_ending(verb: str) -> bool:
    """Whether a verb ends or renews something; there are few verbs."""
    return verb.rpartition(".")[2] in ENDINGS


REFUSALS = ("fenced", "not_owner", "not_holder", "deadlock")
"""Outcomes by which a call that names a grant, or a wait, is refused."""
REFUSAL_WINDOW = 60.0
"""Seconds in which one refusal for a grant, or of a sender, is recorded; the others are counted."""


class Decision(Struct, Generic[T_co], frozen=True, kw_only=True, gc=False):
    """An outcome with the writes that make it true, committed together or not at all.

    ``reads`` are keys that the commit is to bring back; only engines across a network do.
    ``trace`` is that of what it is about, if that has one; else the caller's own is recorded.
    ``via`` and ``took`` say which component asked, and for how many milliseconds, where that is
    recorded.
    ``reason`` is the reason that an operator gave, for the record.
    ``observed`` are the facts from outside that it relies on, for the record.
    ``awaited`` are the facts that it changes and that gates wait for (``lock/merge``): the runner
    checks these gates again, in the same transaction or right after it.  ``created`` are things
    that did not exist before, which gates may wait for.
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
    observed: tuple[ObservedFact, ...] = ()
    awaited: tuple[str, ...] = ()
    created: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self.verb or self.puts or self.deletes)

    @property
    def ends(self) -> bool:
        """Whether it ends or renews something, so that a full store takes it."""
        return self.quiet or is_ending(self.verb)


class Proof(Struct, frozen=True, kw_only=True):
    """Ownership as a value: a commit that carries it happens only while the grant lives.

    ``thing`` names the grant: ``lock/merge``, or several at once, ``lock/a+sem/b``.
    """

    thing: str
    grant: str
    token: int


T = TypeVar("T")

MANY = 1_000_000


class Missing(Exception):
    """A decision needs these keys, which were not read yet."""

    def __init__(self, refs: tuple[str, ...]) -> None:
        super().__init__(refs)
        self.refs = refs


if TYPE_CHECKING:

    class HasLiveness(Protocol):
        """A grant or a claim: it lives as long as all of its liveness keys exist."""

        @property
        def live(self) -> tuple[str, ...]:
            """Its liveness keys."""


class Facts:
    """The items that were read for a decision.

    ``exists`` has the keys of which only the existence matters: liveness keys and marks.
    ``relied`` are the keys that the commit must check.
    """

    def __init__(self, exists: dict[str, bool], max_operations: int = MANY) -> None:
        self.exists = exists
        self.max_operations = max_operations
        self.relied: dict[str, None] = {}

    def has(self, key: str) -> bool:
        """Whether this key exists."""
        try:
            return self.exists[key]
        except KeyError:
            raise Missing((key,)) from None

    def need(self, wanted: Iterable[str]) -> None:
        """Ask whether these keys exist, for all of them at once, so that one read is enough."""
        if unknown := tuple([key for key in dict.fromkeys(wanted) if key not in self.exists]):
            raise Missing(unknown)

    def alive(self, held: HasLiveness) -> bool:
        """Whether all liveness keys of a grant or a claim exist."""
        alive, exists = True, self.exists
        try:
            for key in held.live:
                alive &= exists[key]
        except KeyError:
            self.need(held.live)
            raise
        return alive

    def rely_on(self, wanted: Iterable[str]) -> None:
        """Have the commit check that these keys are as they were read."""
        self.relied.update(dict.fromkeys(wanted))


F = TypeVar("F", bound=Facts)


class Changes(Generic[F]):
    """The writes, deletes, signals and events of a decision in the making."""

    def __init__(self, facts: F, now: float) -> None:
        self.facts = facts
        self.now = now
        self._puts: dict[str, Write] = {}
        self._deletes: dict[str, None] = {}
        self._signals: dict[str, None] = {}
        self._events: list[tuple[str, str, str]] = []
        self._awaited: dict[str, None] = {}
        self._created: dict[str, None] = {}

    def put(self, key: str, value: object, ttl: float | None = None) -> None:
        """Write a value; this undoes a delete of its key."""
        self._deletes.pop(key, None)
        self._puts[key] = Write(key, value, ttl)

    def write(self, *writes: Write) -> None:
        """Add writes; each undoes a delete of its key."""
        for write in writes:
            self._deletes.pop(write.key, None)
            self._puts[write.key] = write

    def delete(self, *wanted: str) -> None:
        """Delete keys; this undoes writes of them."""
        for key in wanted:
            self._puts.pop(key, None)
            self._deletes[key] = None

    def signal(self, key: str) -> None:
        """Wake the watchers of a key that nothing is stored under."""
        self._signals[key] = None

    def event(self, name: str, agent: str, thing: str = "") -> None:
        """Add an event for watchers; without a thing, it is about that of the whole decision."""
        self._events.append((name, agent, thing))

    def awaits(self, fact: str) -> None:
        """Have the gates checked again that wait for this fact, which the decision changes."""
        self._awaited[fact] = None

    def creates(self, thing: str) -> None:
        """Have the gates checked that wait for this thing, which did not exist before."""
        self._created[thing] = None

    @property
    def size(self) -> int:
        """How many operations the commit has so far."""
        written = len(self._puts) + len(self._deletes) + len(self._signals)
        return written + len(self.facts.relied)

    @property
    def room(self) -> int:
        """How many more operations the commit may have."""
        return self.facts.max_operations - self.size

    def _decision(
        self,
        outcome: T,
        verb: str,
        thing: str,
        puts: Iterable[Write] = (),
        deletes: Iterable[str] = (),
        *,
        trace: str = "",
    ) -> Decision[T]:
        """The decision with all changes, after these puts and deletes."""
        return Decision(
            outcome=outcome,
            verb=verb,
            thing=thing,
            puts=(*puts, *self._puts.values()),
            deletes=(*deletes, *self._deletes),
            signals=tuple(self._signals),
            events=tuple([self._event(thing, *each) for each in self._events]),
            trace=trace,
            awaited=tuple(self._awaited),
            created=tuple(self._created),
        )

    def _event(self, whole: str, name: str, agent: str, thing: str) -> Event:
        """An event without the fields that repeat its entry."""
        return Event(name, agent, "" if thing == whole else thing)
