"""The waist: everything above it decides, everything below it commits.

A store keeps items under string keys, and a log with one entry for each recorded commit.
It knows nothing of locks or agents.  The contract is two protocols: ``Engine`` has the verbs of
every operation, ``Maintenance`` the rare ones.  Adding an engine means writing ``read``,
``commit``, ``watch``, ``close`` and the maintenance methods, and calling the conformance suite;
``stores/derived.py`` makes the other methods from those.

Engine
  read      A consistent snapshot at one revision.  A ``fresh`` read is linearizable.  One that need
            not be may come from a replica, but never from before a commit or a read of the same
            store object.  A read with ``longest`` leaves out values that are longer: a reader of
            what others wrote decides by itself how much memory that takes.
  commit    All or nothing, linearizable, and durable (to the declared grade) when it returns.
            Every recorded Txn also checks that ``log/{id}`` is absent, and writes it.
            Committed has the keys that the Txn asked to read, Conflict also the checked ones.
  transact  Only engines that declare ``transacts``: read, decide and commit inside one
            transaction, so nothing can conflict.  Each work has its own revision even if many
            share one durable commit; an exception ends only its own.  The engine may call a work
            again: it must be pure.  A work whose attribute ``more`` is true after its call has
            further transactions: the engine calls its ``again`` in the same transaction, until
            ``more`` is false.  All of them are committed together, each with its own revision;
            Committed has that of the first.
  renew     Extends liveness keys that are alive by their ttl, and returns which ones were.  It
            never revives an expired or deleted key.  It may be repeated, so its outcome is never
            unknown.  An engine may batch the renewals of many callers.
  watch     Every change in a scope, in order, from a revision on; or Resync when that history is
            gone.  A scope is a whole key, a folder (it ends in ``/``), everything (empty), or
            several of those: then a change that two of them cover comes once, and the changes of
            one commit in several scopes may come in several takes.  Never a silent gap, never a
            double.  A watch is a wake-up: its reader reads the state again.  So of a whole key the
            last change may stand for those before it.
            An engine that is not ``ordered`` keeps order within each scope only: changes that
            arrive together are sorted by revision, but a lower one may follow.  There, a second
            watch starts from the revision of the state that was read, not of the last change.
            Opening a watch waits for no server, but may do local I/O (SQLite makes a socket
            and reads the log since the revision).  It sees every change after its revision,
            however late ``take`` is called.  In a store that was moved it has what came before, and
            then raises StoreMoved.
  close

Maintenance
  info, examine   facts and findings for people
  sweep           deletes expired liveness keys, which read as absent already
  trim            deletes the oldest entries of the log up to a revision, a bounded number for each
                  call.  No watch sees that as a change, and no revision is taken back.  The caller
                  makes sure that no entry may still be needed to settle an unknown outcome.
  extent          the size of the log
  wall            the engine's own clock, for decisions that must not rest on a client's clock

Moving (``MovableStore``; docs/decisions/moving.md)
  mark, set_mark  why a store accepts no commits.  Once ``set_mark`` has returned, no commit and no
                  renewal of any client succeeds, not even one that was sent before; the client gets
                  the error of the mark.  Reads go on.  An engine finds the mark in something that
                  each of its commits reads anyway.
  load            writes items and entries as they are in another store: with their revisions and
                  stamps, without an entry and without a wake-up.  It may be repeated.
  erase           deletes the loaded items and entries

Methods that may wait come twice: plain for callers that may block, and with ``_async`` for event
loops.  Any number of threads and event loops may use one store object at the same time.

Revisions are integers that strictly increase with each commit.  Liveness keys are those under
``live/``, and only their puts have a ``ttl``; such a key reads as absent once it expired, judged by
the engine's own clock.  A quiet Txn (renewals, cursors) writes no entry and wakes no watch; the
stamp of an item names the last *recorded* write.  A signal wakes the watchers of a key without
storing anything under it; several may arrive as one.  Keys under ``wake/`` are only ever signalled.
A watch does not see the end of a liveness key, expired or deleted, nor the deletion of an absent
key.

A store that is nearly full refuses a Txn that begins something (StoreFull) and accepts one that
ends or renews something (``Txn.ends``), as long as its engine can: a holder can always release.

The values here are frozen and can form no cycles, so the garbage collector need not track them
(``gc=False``): with many commits in flight that saves a tenth of the time.

Unknown outcomes: a commit may raise OutcomeUnknown.  To settle it, commit ``void(id)``: success
means that the first one never happened and never can; a conflict has its entry from the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from typing import Protocol, TypeGuard
else:
    Protocol = object  # to make a class of a protocol takes a tenth of a millisecond

LOG = "log/"
LIVE = "live/"
WAKE = "wake/"
WAKE_SESSION = "wake/session/"
"""Signals to a waiter of one session: ``wake/session/{session}/{id}``."""
TOLD = (WAKE_SESSION, "unread/", "topics/")
"""Changes under these have what their commit wrote, if the engine sends it (``Change.written``)."""
VOID = b'{"verb":"void"}'
ALIVE = 1e-6
"""``expires_in`` of a key of which an engine knows that it lives, and not for how long."""
ENGINE_KEYS = frozenset({"meta/format", "meta/loaded", "meta/trimmed"})
"""Keys that engines use themselves: they are in no record, and no copy has them."""

Durability: TypeAlias = Literal["none", "process", "power loss"]


class Item(Struct, frozen=True, gc=False):
    """The payload under a key, and the stamp of the commit that wrote it.

    ``expires_in`` is how long a liveness key lives at least, unless it is renewed; an engine that
    needs another request for that gives it only to a read with ``times``.  ``omitted`` is the
    number of bytes of a value that a read with ``longest`` left out; ``value`` is empty then.
    """

    key: str
    value: bytes
    revision: int
    created: int
    entry: str = ""
    hash: str = ""
    expires_in: float | None = None
    omitted: int = 0

    @property
    def life(self) -> float | None:
        """``expires_in``, if the engine knows it."""
        return None if self.expires_in == ALIVE else self.expires_in

    @property
    def size(self) -> int:
        """The bytes of the value in the store."""
        return self.omitted or len(self.value)

    def at_most(self, longest: int | None) -> Item:
        """The item as a read with ``longest`` returns it."""
        if longest is None or len(self.value) <= longest:
            return self
        return replace(self, value=b"", omitted=len(self.value))


class Range(Struct, frozen=True, gc=False):
    """The keys under a prefix, in order, after a key, up to a limit.

    The empty prefix is for a copy of the whole store: it also covers the keys of the engine itself
    (``ENGINE_KEYS``), and in some engines those of the log.
    """

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
    """The items and ranges of one read, as they were at ``revision``."""

    revision: int
    items: Mapping[str, Item | None]
    ranges: Mapping[Range | Log, tuple[Item, ...]] = {}

    def __getitem__(self, key: str) -> Item | None:
        return self.items[key]


class Check(Struct, frozen=True, gc=False):
    """A condition of a commit: absent, exists, at this revision, or has this value.

    ``created`` is that of the item at this revision, if the caller knows it: it saves a read in an
    engine that cannot keep it by itself.
    """

    key: str
    kind: Literal["absent", "exists", "at", "has"]
    revision: int = 0
    value: bytes = b""
    created: int = 0

    def holds(self, item: Item | None) -> bool:
        """Whether the item under the key meets the condition."""
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
    """A value to write; with a ttl the key is a liveness key and expires unless it is renewed."""

    key: str
    value: bytes
    ttl: float | None = None


class Txn(Struct, frozen=True, kw_only=True, gc=False):
    """One atomic change.  ``id`` is fresh for each attempt; ``entry`` is what goes to log/{id}.

    ``ends`` says that it ends or renews something, so that a nearly full store accepts it.
    A Conflict leaves out values that are longer than ``longest``, as a read does.
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
    longest: int | None = None

    @property
    def makes_room(self) -> bool:
        """Whether a full store accepts it: it ends, renews or only deletes."""
        return self.ends or (bool(self.deletes) and not self.puts)

    @property
    def asked(self) -> tuple[str, ...]:
        """The keys in a Conflict, its own entry first; Committed need only have the reads."""
        own = () if self.quiet else (LOG + self.id,)
        return (*own, *(check.key for check in self.checks), *self.reads)


Scope: TypeAlias = str | tuple[str, ...]
"""The keys that a watch covers: a whole key, a folder, everything, or several of those."""


def scopes(scope: Scope) -> tuple[str, ...]:
    """The scopes as a watch keeps them: sorted, and none within another, so no key is in two."""
    found: list[str] = []
    for each in (scope,) if isinstance(scope, str) else sorted(scope):
        # The keys of a folder directly follow it, so only the last scope can cover the next.
        if not covers(tuple(found[-1:]), each):
            found.append(each)
    if not found:
        raise ValueError("a watch of no scope would never wake; name a key or a folder")
    return tuple(found)


def covers(scopes: tuple[str, ...], key: str) -> bool:
    """Whether a watch of these scopes, as it keeps them, sees the changes of this key."""
    from bisect import bisect_right  # a command that watches nothing does without

    index = bisect_right(scopes, key)
    if not index:
        return False
    scope = scopes[index - 1]
    return key == scope or not scope or (scope[-1] == "/" and key.startswith(scope))


def void(txn: str) -> Txn:
    """The transaction that settles an unknown outcome by taking its place in the log."""
    return Txn(id=txn, entry=VOID, ends=True)


class Committed(Struct, frozen=True, gc=False):
    """The commit happened at this revision; ``items`` are the read keys right after it."""

    revision: int
    items: Mapping[str, Item | None]


class Conflict(Struct, frozen=True, gc=False):
    """A check failed and nothing happened; ``items`` are the checked and read keys."""

    items: Mapping[str, Item | None]


Answer: TypeAlias = Committed | Conflict


def conflict(txn: Txn, items: Mapping[str, Item | None]) -> Conflict:
    """The refusal of a transaction, with what it asked for of these items."""
    own = LOG + txn.id
    return Conflict(
        {
            key: item if (item := items[key]) is None or key == own else item.at_most(txn.longest)
            for key in txn.asked
        }
    )


class Change(Struct, frozen=True, gc=False):
    """A key changed.  For log entries ``value`` is the entry; for other keys, read the state.

    An engine that sends the changed item to the watch of a single key passes it on as ``item``.
    One that sends what a durable commit wrote passes that on as ``written``: items of this
    revision, a moment old, without the other stamps of their keys.
    """

    revision: int
    key: str
    deleted: bool = False
    value: bytes = b""
    item: Item | None = None
    written: tuple[Item, ...] = ()


class Resync(Struct, frozen=True, gc=False):
    """History up to ``revision`` is gone: read the state, then go on from there."""

    revision: int


class Extent(Struct, frozen=True, gc=False):
    """How many entries the log has, and up to which revision entries were trimmed.

    ``trimmed`` stays 0 in an engine that only trims when ``trim`` is called and keeps no mark.
    """

    entries: int
    trimmed: int = 0


class StoreMark(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a store accepts no commits.

    state     ``moving``: it is being copied to another store; ``moved``: the copy is complete;
              ``filling``: it is such a copy, and not complete; ``backup``: it is a backup file
    place     the other store, without a password
    move      the id of the move; both stores have it
    at        when it was set, by the clock of the client, for people
    revision  that of the store, or of the one that it is filled from if that is higher: the first
              commit after the mark is above it
    source    the id of the store that is moved: another machine may have one at the same place
    """

    state: Literal["moving", "moved", "filling", "backup"]
    place: str
    move: str
    at: float = 0.0
    revision: int = 0
    source: str = ""

    @property
    def words(self) -> str:
        """What it says of its store."""
        verb = {
            "moving": "is being copied to",
            "moved": "was moved to",
            "filling": "is being filled from",
            "backup": "is a backup of",
        }
        return f"{verb[self.state]} {self.place}"

    def same(self, other: StoreMark | None) -> bool:
        """Whether this is the same step of the same move."""
        return other is not None and (self.state, self.move) == (other.state, other.move)


FAST = 0.05
"""Seconds for a commit up to which an engine is fast: time limits were chosen for these."""


class Capabilities(Struct, frozen=True, kw_only=True):
    """What an engine declares; the conformance suite holds it to that.

    engine          its name, for people and for limits that depend on it
    durability      what an acknowledged commit survives: nothing, the death of the engine's
                    process, or a power cut
    clock           the clock that measures liveness, for people
    push            whether a watch is woken by the engine, and does not have to poll
    transacts       whether it runs the works of ``transact``
    one_machine     whether it shares this machine's clock, and stands still while that is suspended
    consecutive     whether revisions count commits one by one
    latency         seconds that a commit typically takes; time limits follow it (``allow``)
    min_ttl         the shortest ttl of a liveness key, in seconds
    max_operations  of all kinds (checks, puts, deletes, reads, signals) in one transaction
    max_value       bytes of one value
    max_bytes       bytes of one transaction: its entry, and the keys and values of its puts
    grain           by how much ``expires_in`` may be short of the truth, in seconds
    max_items       items that it can hold with its default settings; 0 if only the disk or the
                    memory bounds that
    ordered         whether a watch of several scopes has its changes in the order of revisions
    max_log         entries of the log above which the engine trims the oldest by itself; 0 if
                    it never does
    gathered        a file of this host where counts are gathered before a commit has them; empty
                    if each is committed by itself
    trims_after     revisions by which the newest entry is above one that the engine trims by
                    itself, at least
    """

    engine: str
    durability: Durability
    clock: str
    push: bool
    transacts: bool
    one_machine: bool
    consecutive: bool
    latency: float
    min_ttl: float
    max_operations: int
    max_value: int
    max_bytes: int
    grain: float = 0.0
    ordered: bool = True
    max_log: int = 0
    trims_after: int = 0
    gathered: str = ""
    max_items: int = 0

    def may_have_trimmed(self, upto: int, newest: int) -> bool:
        """Whether the engine itself may have trimmed entries up to a revision, unsealed."""
        return self.max_log > 0 and upto + self.trims_after <= newest

    def allow(self, seconds: float) -> float:
        """A time limit for this engine: as given for a fast one, longer in proportion otherwise.

        Every limit above the waist that assumes a fast engine goes through here: patience, pauses
        between attempts, intervals of polls and of periodic commits, safety margins.
        """
        return seconds * max(1.0, self.latency / FAST)


class Finding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fact about what a store depends on, for ``doctor``."""

    own_words = (
        "name",
        "fact",
    )

    verdict: Literal["ok", "warn", "bad"]
    name: str
    fact: str
    remedy: str = ""


FAILOVER = "failover"
"""The name of the finding that an engine goes on after a failover that may have lost commits."""


def finding(
    name: str, fact: str, remedy: str = "", *, wrong: Literal["warn", "bad"] = "warn"
) -> Finding:
    """A fact that is well if there is nothing to remedy, and ``wrong`` otherwise."""
    return Finding(verdict=wrong if remedy else "ok", name=name, fact=fact, remedy=remedy)


class View(Protocol):
    """The state that the work of a transaction reads."""

    def read(self, *refs: Ref, longest: int | None = None) -> Snapshot:
        """All the refs as the transaction sees them."""


Work: TypeAlias = Callable[[View], Txn | None]


class Watch(Protocol):
    """An ordered feed of changes; the caller that opened it closes it."""

    def take(self, timeout: float | None) -> list[Change | Resync]:
        """Wait for changes, at most so long; an empty list means that the time is up."""

    def take_async(self, timeout: float | None) -> Awaitable[list[Change | Resync]]:
        """Wait in an event loop."""

    def close(self) -> None:
        """Stop listening."""


class Engine(Protocol):
    """The verbs of every operation."""

    @property
    def capabilities(self) -> Capabilities:
        """What it declares of itself."""

    @property
    def outage(self) -> str:
        """Why the engine does not answer, and since when; empty while it does."""

    @property
    def missing(self) -> bool:
        """Whether the data that was opened is gone: every call fails until it is reopened."""

    def read(
        self, *refs: Ref, times: bool = False, fresh: bool = True, longest: int | None = None
    ) -> Snapshot:
        """All the refs at one revision; ``times`` if ``expires_in`` is wanted.

        Without ``fresh`` an engine with a replica may answer from there; the others ignore it.
        Values of items that have more than ``longest`` bytes are left out; entries never are.
        An engine does not even load them where it can avoid that.
        """

    def read_async(
        self, *refs: Ref, times: bool = False, fresh: bool = True, longest: int | None = None
    ) -> Awaitable[Snapshot]:
        """Read in an event loop."""

    def commit(self, txn: Txn) -> Answer:
        """Check and write, all or nothing."""

    def commit_async(self, txn: Txn) -> Awaitable[Answer]:
        """Commit in an event loop."""

    def renew(self, puts: tuple[Put, ...]) -> frozenset[str]:
        """Put liveness keys again that are alive; returns which ones were."""

    def renew_async(self, puts: tuple[Put, ...]) -> Awaitable[frozenset[str]]:
        """Renew in an event loop."""

    def watch(self, scope: Scope, after: int) -> Watch:
        """Every change in a scope, or in one of several, after a revision."""

    def close(self) -> None:
        """Release all resources; acknowledged commits stay."""

    def close_async(self) -> Awaitable[None]:
        """Close, and wait until nothing is left in this event loop."""


class Maintenance(Protocol):
    """The rare verbs: for people, and to keep a store in order.  They may take a while."""

    def info(self) -> dict[str, object]:
        """Facts about this store for a person: path, size, format, versions."""

    def examine(self) -> list[Finding]:
        """The condition of the engine and of the place where its data is."""

    def sweep(self) -> int:
        """Delete expired liveness keys, a bounded number; returns how many."""

    def trim(self, revision: int) -> int:
        """Delete the oldest entries up to a revision, a bounded number; returns how many.

        An engine that knows the age of an entry by its own clock keeps entries that are too young.
        """

    def extent(self) -> Extent:
        """How large the log is: cheap enough for every now and then."""

    def wall(self) -> float | None:
        """Seconds since 1970 by the engine's own clock; None if it has none."""


class Store(Engine, Maintenance, Protocol):
    """What ``connect`` opens: an engine with its maintenance."""


class TransactingStore(Store, Protocol):
    """A store whose engine runs works: without conflicts."""

    def transact(self, work: Work) -> Committed | None:
        """Run the work inside one transaction and commit what it returns, if anything."""

    def transact_async(self, work: Work) -> Awaitable[Committed | None]:
        """Transact in an event loop: works that wait together share one durable commit."""


class PreparingStore(Store, Protocol):
    """A store that can prepare a part of a commit in advance."""

    def prepare(self, ttls: Sequence[float]) -> None:
        """Begin to make what new liveness keys with these ttls need; does not wait."""


class MovableStore(Store, Protocol):
    """A store that can be copied to another engine, and filled from one."""

    @property
    def movable(self) -> bool:
        """Whether the following methods work: an engine may inherit them and not keep them."""

    def mark(self) -> StoreMark | None:
        """Why it accepts no commits; None if it does."""

    def set_mark(self, new: StoreMark | None, old: StoreMark | None) -> bool:
        """Replace the mark, if it still is the ``old`` one; whether it was.

        That is one transaction.  It does not set ``filling`` in a store that has entries, or items
        other than liveness keys: they would pass for a part of the copy.  Without a mark, the next
        revision is above that of the ``old`` one.
        """

    def load(self, move: str, items: Sequence[Item]) -> None:
        """Write items, or entries in order, as they are, while this move fills the store.

        ``expires_in`` of a liveness key counts from now.  Raises StoreMoving if another move, or
        none, fills the store.
        """

    def erase(self, move: str) -> int:
        """Delete what this move loaded, a bounded number; returns how many."""


def can_transact(store: object) -> TypeGuard[TransactingStore]:
    """Whether the engine of a store runs works."""
    return hasattr(store, "transact")


def can_prepare(store: object) -> TypeGuard[PreparingStore]:
    """Whether a store can prepare a part of a commit."""
    return hasattr(store, "prepare")


def can_be_moved(store: object) -> TypeGuard[MovableStore]:
    """Whether a store can be copied to another engine, and filled from one."""
    return getattr(store, "movable", False)
