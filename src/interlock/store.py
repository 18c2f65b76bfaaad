"""The waist: everything above it decides, everything below it commits.

A store keeps items under string keys, and a log with one entry for each recorded commit.
It knows nothing of locks or agents.
Adding an engine means writing these few methods and calling the conformance suite.

The contract
  read      A consistent snapshot at one revision.
  commit    All or nothing, linearizable, and durable (to the declared grade) when it returns.
            Every recorded Txn also checks that ``log/{id}`` is absent, and writes it.
            A yes brings back the keys that it was asked to read, a no the checked ones too.
  transact  Local engines only: read, decide and commit inside one transaction, so nothing can
            conflict.  Each has its own revision even if many share one durable commit; an
            exception ends only its own.  The work may be called again: it must be pure.
  watch     Every change in a scope, in order, from a revision on; or Resync when history is gone.
            A scope is a whole key, a folder (it ends in ``/``), everything (empty), or several
            of those at once: then a change is told once, though two of them cover it, and
            what one commit changed in several scopes may come in several takes.
            Never a silent gap, never a double.  A watch is a wake-up: whoever wakes reads again.
            An engine that is not ``ordered`` keeps order within each scope only: what arrived
            together is sorted by revision, but a lower one may follow.  There, whoever opens
            another watch goes on from where it read the state, not from the last change.
            Opening one does no I/O; it listens from its revision on, however late it is asked.
  trim      Forgets the oldest entries of the log up to a revision, a bounded number for each call.
            That is no change that a watch would see, and takes no revision back; whoever asks
            sees to it that nobody may still want to settle them.
  wall      What time it is by the engine's own clock, for what must not rest on a client's clock.
  close

Every method that may wait comes twice: plain for callers that may block, and with ``_async`` for
event loops.  Both work on one and the same store object.

Revisions are integers that strictly increase with each commit.  Liveness keys are those under
``live/``, and only their puts have a ``ttl``; such a key reads as absent once it lapsed, judged by
the engine's own clock.  A quiet Txn (renewals, cursors) writes no entry and wakes nobody; the stamp
of an item names the last *recorded* write.  A signal wakes the watchers of a key without storing
anything under it; several may arrive as one.  Keys under ``wake/`` are only ever signalled.  The
end of a liveness key, lapsed or deleted, is no change that a watch would see, nor is the deletion
of a key that is not there.

A store that is nearly full refuses what begins something (StoreFull) and takes what ends or renews
something (``Txn.ends``), as long as its engine can: what is held can always be given back.

The values here are frozen and can form no cycles, so the garbage collector need not look at them
(``gc=False``): with many commits in flight that is a tenth of the time.

Unknown outcomes: a commit may raise OutcomeUnknown.  To settle it, commit ``void(id)``: success
means that it never happened and never can; a conflict brings back what stands in the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

LOG = "log/"
LIVE = "live/"
WAKE = "wake/"
VOID = b'{"verb":"void"}'

CheckKind: TypeAlias = Literal["absent", "exists", "at", "has"]
Durability: TypeAlias = Literal["none", "process", "power loss"]


class Item(Struct, frozen=True, gc=False):
    """What stands under a key: the payload, and beside it the stamp of who wrote it.

    ``expires_in`` says how long a liveness key lives at least, if nobody renews it; an engine
    that has to ask once more for it gives it only to a read with ``times``.
    """

    key: str
    value: bytes
    revision: int
    created: int
    entry: str = ""
    hash: str = ""
    expires_in: float | None = None


class Range(Struct, frozen=True, gc=False):
    """The keys under a prefix (not an empty one), in order, after a key, up to a limit."""

    prefix: str
    after: str = ""
    limit: int = 1000


class Log(Struct, frozen=True, gc=False):
    """Log entries in the order of their revisions: the first ones after a revision, or the last.

    ``before`` leaves out those at a revision and above it; 0 leaves out none.
    """

    after: int = 0
    limit: int = 1000
    last: bool = False
    before: int = 0


Ref: TypeAlias = str | Range | Log


class Snapshot(Struct, frozen=True, gc=False):
    """One moment of the store: what was asked for, as it stood at ``revision``."""

    revision: int
    items: Mapping[str, Item | None]
    ranges: Mapping[Range | Log, tuple[Item, ...]] = {}

    def __getitem__(self, key: str) -> Item | None:
        return self.items[key]


class Check(Struct, frozen=True, gc=False):
    """A condition of a commit: absent, exists, at this revision, or has this value."""

    key: str
    kind: CheckKind
    revision: int = 0
    value: bytes = b""

    def holds(self, item: Item | None) -> bool:
        """Whether the item that stands under the key meets the condition."""
        if item is None:
            return self.kind == "absent"
        match self.kind:
            case "absent":
                return False
            case "exists":
                return True
            case "at":
                return item.revision == self.revision
            case "has":
                return item.value == self.value


class Put(Struct, frozen=True, gc=False):
    """A value to write; with a ttl the key is a liveness key and lapses unless it is put again."""

    key: str
    value: bytes
    ttl: float | None = None


class Txn(Struct, frozen=True, kw_only=True, gc=False):
    """One atomic change.  ``id`` is fresh for each attempt; ``entry`` is what goes to log/{id}.

    ``ends`` says that it ends or renews something, so that a store which is nearly full takes it.
    """

    id: str
    entry: bytes = b""
    hash: str = ""
    checks: tuple[Check, ...] = ()
    puts: tuple[Put, ...] = ()
    deletes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    quiet: bool = False
    ends: bool = False

    @property
    def makes_room(self) -> bool:
        """Whether a full store takes it all the same: it ends, renews or only deletes."""
        return self.ends or (bool(self.deletes) and not self.puts)

    @property
    def asked(self) -> tuple[str, ...]:
        """The keys that a no brings back, its own entry first; a yes need only bring the reads."""
        own = () if self.quiet else (LOG + self.id,)
        return (*own, *(check.key for check in self.checks), *self.reads)


Scope: TypeAlias = str | tuple[str, ...]
"""What a watch sees: a whole key, a folder, everything, or several of those."""


def scopes(scope: Scope) -> tuple[str, ...]:
    """The scopes as a watch keeps them: sorted, and none within another, so no key is in two."""
    found: list[str] = []
    for each in (scope,) if isinstance(scope, str) else sorted(scope):
        # What a folder covers follows it at once, so only the last one can cover the next.
        if not covers(tuple(found[-1:]), each):
            found.append(each)
    if not found:
        raise ValueError("a watch of no scope would never wake; name a key or a folder")
    return tuple(found)


def covers(scopes: tuple[str, ...], key: str) -> bool:
    """Whether a watch of these scopes, as it keeps them, sees the changes of this key."""
    place = bisect_right(scopes, key)
    if not place:
        return False
    scope = scopes[place - 1]
    return key == scope or not scope or (scope[-1] == "/" and key.startswith(scope))


def void(txn: str) -> Txn:
    """The transaction that settles an unknown outcome by taking its place in the log."""
    return Txn(id=txn, entry=VOID, ends=True)


class Committed(Struct, frozen=True, gc=False):
    """It happened, at this revision; the keys to be read as they stand right after it."""

    revision: int
    items: Mapping[str, Item | None]


class Conflict(Struct, frozen=True, gc=False):
    """A check failed and nothing happened; the asked keys as they stand."""

    items: Mapping[str, Item | None]


Answer: TypeAlias = Committed | Conflict


class Change(Struct, frozen=True, gc=False):
    """A key changed.  For log entries ``value`` is the entry; for other keys, read the state."""

    revision: int
    key: str
    deleted: bool = False
    value: bytes = b""


class Resync(Struct, frozen=True, gc=False):
    """History up to ``revision`` is gone: read the state, then go on from there."""

    revision: int


class Extent(Struct, frozen=True, gc=False):
    """How many entries the log has, and up to which revision they were forgotten.

    ``trimmed`` stays 0 where the engine forgets nothing unless ``trim`` is called: then whoever
    called it knows how far.
    """

    entries: int
    trimmed: int = 0


class Capabilities(Struct, frozen=True, kw_only=True):
    """What an engine declares; the conformance suite holds it to that.

    durability      what an acknowledged commit survives: nothing, the death of the engine's
                    process, or a power cut
    max_operations  of all kinds (checks, puts, deletes, reads, signals) in one transaction
    grain           by how much ``expires_in`` may be short of the truth, in seconds
    max_items       items that it can hold as it is set up by default; 0 if only the disk or the
                    memory that it was given bounds that
    ordered         whether a watch of several scopes tells its changes in the order of revisions
    max_log         entries of the log above which the engine forgets the oldest by itself; 0 if
                    it never does
    forgets_after   revisions by which the newest entry is above one that the engine forgets by
                    itself, at least
    """

    engine: str
    durability: Durability
    clock: str
    push: bool
    local: bool
    min_ttl: float
    max_operations: int
    max_value: int
    grain: float = 0.0
    ordered: bool = True
    max_log: int = 0
    forgets_after: int = 0
    max_items: int = 0

    def may_forget(self, upto: int, newest: int) -> bool:
        """Whether the engine itself can have forgotten entries up to a revision, unsealed."""
        return self.max_log > 0 and upto + self.forgets_after <= newest


class Finding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One look at one thing that a store stands on, for ``doctor``."""

    verdict: Literal["ok", "warn", "bad"]
    name: str
    fact: str
    remedy: str = ""


class View(Protocol):
    """What the work of a transaction reads through."""

    def read(self, *refs: Ref) -> Snapshot:
        """All the refs as the transaction sees them."""


Work: TypeAlias = Callable[[View], Txn | None]


class Watch(Protocol):
    """An ordered feed of changes; whoever opened it closes it."""

    def take(self, timeout: float | None) -> list[Change | Resync]:
        """Wait for changes, at most so long; an empty list means that the time is up."""

    def take_async(self, timeout: float | None) -> Awaitable[list[Change | Resync]]:
        """The same for an event loop."""

    def close(self) -> None:
        """Stop listening."""


class Store(Protocol):
    """An engine behind the waist."""

    @property
    def capabilities(self) -> Capabilities:
        """What it declares of itself."""

    @property
    def trouble(self) -> str:
        """Why the engine does not answer, and since when; empty while it does."""

    @property
    def missing(self) -> bool:
        """Whether what was opened no longer stands there: every call fails until it is reopened."""

    def read(self, *refs: Ref, times: bool = False) -> Snapshot:
        """All the refs at one revision; ``times`` if ``expires_in`` is wanted."""

    def read_async(self, *refs: Ref, times: bool = False) -> Awaitable[Snapshot]:
        """The same for an event loop."""

    def commit(self, txn: Txn) -> Answer:
        """Check and write, all or nothing."""

    def commit_async(self, txn: Txn) -> Awaitable[Answer]:
        """The same for an event loop."""

    def watch(self, scope: Scope, after: int) -> Watch:
        """Every change in a scope, or in one of several, after a revision."""

    def info(self) -> dict[str, object]:
        """Facts about this store for a person: place, size, format, versions."""

    def examine(self) -> list[Finding]:
        """What is well and what is not with the engine and its place; may take a while."""

    def sweep(self) -> int:
        """Forget liveness keys that lapsed, a bounded number; returns how many."""

    def trim(self, revision: int) -> int:
        """Forget the oldest entries up to a revision, a bounded number; returns how many.

        An engine that knows the age of an entry by its own clock keeps those that are too young.
        """

    def extent(self) -> Extent:
        """How large the log is: cheap enough to be asked now and then."""

    def wall(self) -> float | None:
        """Seconds since 1970 by the engine's own clock; None if it cannot tell."""

    def close(self) -> None:
        """Let go; what was acknowledged stays."""

    def close_async(self) -> Awaitable[None]:
        """The same for an event loop."""


@runtime_checkable
class LocalStore(Store, Protocol):
    """An engine in this process or on this machine: synchronous at heart, and without conflicts."""

    def transact(self, work: Work) -> Committed | None:
        """Run the work inside one transaction and commit what it returns, if anything."""

    def transact_async(self, work: Work) -> Awaitable[Committed | None]:
        """The same for an event loop: works that wait together share one durable commit."""
