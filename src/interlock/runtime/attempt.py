"""One attempt at a commit: a decision gets what it reads, and becomes a transaction with its entry.

A ``DecideOp`` yields the refs that it needs, receives them as one snapshot, and returns a Decision.
Inside a transaction of a local engine every ref is read when the decision needs it.  Across a
network a ref is taken, in this order, from what is known, from hope, or from a read:

    known  items that a conflict brought back, or a guess of the caller
    hope   a liveness key is taken for alive, which it nearly always is
    read   everything else

The result is an ``Attempt``: the decision, and every item that the commit has to check.
``FactReader`` is the generator for a pure decision that asks for its facts one by one
(``core/decision.py``).

One commit may carry out two decisions, one after the other: the second one reads through the writes
of the first (``reading_through``).

``draft_transaction`` makes the transaction.  Its entry in the record names its writer, the outcome,
the hashes of the entries it follows, and the digest of every value that it puts; a client with a
key signs it.  A refusal changes nothing that stays, so no later item would carry the hash of its
entry, and the last entry of a process could disappear unnoticed.  Such an entry also writes one of
a few slots: the next entry in that slot links it.

Entries form a chain.  Every entry links the committed entries of its writer that no other entry
links yet: usually one, several when commits were in flight together.  If an entry is not committed,
its links become unlinked again, once: drafts that were made together may have the same links.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from itertools import count, starmap
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeGuard, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import codec
from interlock.core.decision import (
    REFUSALS,
    Decision,
    Event,
    Facts,
    Missing,
    Write,
    is_ending,
)
from interlock.core.entry import Entry, sign
from interlock.errors import TooLarge
from interlock.runtime.identity import Actor
from interlock.runtime.reads import KEYS_AT_ONCE
from interlock.steps import Op, Read
from interlock.store import LIVE, Check, Item, Log, Put, Range, Ref, Snapshot, Txn, View

if TYPE_CHECKING:
    from interlock.runtime.runner import Runner


T = TypeVar("T")
ReadOp: TypeAlias = Generator[tuple[Ref, ...], Snapshot, T]
"""Yields the refs that it needs, receives them as one snapshot, and returns its result."""
DecideOp: TypeAlias = ReadOp[Decision[T]]

F = TypeVar("F", bound=Facts)

UNCOMMITTED = -1
"""The revision of an item that is written by the same commit; no committed item has it."""
ALIVE = Item("", b"", 0, 0)
"""A liveness key that is taken for alive: nothing else of it matters."""


class Unchecked(tuple[Ref, ...]):
    """Refs that a decision reads without relying on them: the commit does not check them.

    Correct for facts that stay true, such as an expired liveness key: it never comes back.
    """

    __slots__ = ()


class BoundedRefs(tuple[Ref, ...]):  # noqa: SLOT001 - it has an attribute
    """Refs of a decision about what others wrote: values above ``longest`` bytes are left out.

    With 0 it reads no value at all, but whether the items are there, and their revisions.
    """

    longest: int = 0

    @classmethod
    def of(cls, refs: Iterable[Ref], longest: int = 0) -> BoundedRefs:
        """These refs with their limit."""
        limited = cls(refs)
        limited.longest = longest
        return limited


class Attempt(Struct, frozen=True, gc=False):
    """A decision with the items that it relies on, and those of them that were only hoped for.

    ``longest`` is the limit of a decision all of whose refs have one.
    """

    decision: Decision[Any]
    seen: Mapping[str, Item | None]
    on: int
    hoped: tuple[str, ...] = ()
    longest: int | None = None


def decide_inside(op: DecideOp[T], view: View) -> Attempt:
    """Decide inside a transaction, where everything can be read and nothing changes."""
    seen: dict[str, Item | None] = {}
    on = 0
    try:
        refs = next(op)
        while True:
            kind = type(refs)
            if kind is BoundedRefs:
                snapshot = view.read(*refs, longest=refs.longest)  # type: ignore[attr-defined]
            else:
                snapshot = view.read(*refs)
            on = snapshot.revision
            if kind is not Unchecked:
                seen.update(snapshot.items)
            refs = op.send(snapshot)
    except StopIteration as done:
        return Attempt(done.value, seen, on)


def decide_remotely(
    op: DecideOp[T], known: Mapping[str, Item | None], *, hopeful: bool
) -> Op[Attempt]:
    """Decide on items that are known, hoped for or read, in this order."""
    found: dict[Any, Item | None] = {**known}
    hoped: list[str] = []
    seen: dict[str, Item | None] = {}
    on, longest, all_limited = 0, -1, True
    try:
        refs = next(op)
        while True:
            if type(refs) is BoundedRefs:
                limit: int | None = refs.longest
                longest = max(longest, refs.longest)
            else:
                limit, all_limited = None, False
            missing = [ref for ref in refs if ref not in found]
            if missing and hopeful and _only_liveness(missing):
                hoped += missing
                found.update(dict.fromkeys(missing, ALIVE))
                missing = []
            if not missing:
                snapshot = Snapshot(0, {ref: found[ref] for ref in refs})  # type: ignore[misc]  # keys
            else:  # an item that an earlier step saw must not change under it
                times = _only_liveness(missing)
                read: Snapshot = yield Read(*missing, times=times, longest=limit)
                found.update(read.items)
                on = max(on, read.revision)
                items = {ref: found[ref] for ref in refs if isinstance(ref, str)}
                snapshot = Snapshot(read.revision, items, read.ranges)
            if type(refs) is not Unchecked:
                seen.update(snapshot.items)
            refs = op.send(snapshot)
    except StopIteration as done:
        limited = all_limited and longest >= 0
        return Attempt(done.value, seen, on, tuple(hoped), longest if limited else None)


def _only_liveness(refs: list[Ref]) -> TypeGuard[list[str]]:
    """Whether the read is of liveness alone: the reader may then need the remaining times."""
    return False not in [isinstance(ref, str) and ref.startswith(LIVE) for ref in refs]


def reading_through(op: ReadOp[T], earlier: Decision[Any]) -> ReadOp[T]:
    """A further decision of the same commit: it reads what an earlier one writes.

    The commit checks what stands in the store, so that is what the driver sees.
    """
    writes = _Writes(earlier)
    try:
        refs = next(op)
        while True:
            if not any(map(writes.touch, refs)):
                refs = op.send((yield refs))
                continue
            wider = {ref: writes.widened(ref) for ref in refs}
            found = yield type(refs)(wider.values())
            items = {key: writes.over(key, item) for key, item in found.items.items()}
            ranges = {
                ref: writes.within(ref, found.ranges[wide])
                for ref, wide in wider.items()
                if not isinstance(ref, str) and not isinstance(wide, str)
            }
            refs = op.send(Snapshot(found.revision, items, ranges))
    except StopIteration as done:
        return cast("T", done.value)


class _Writes:
    """The writes of a decision, as a later one of the same commit sees them."""

    def __init__(self, decision: Decision[Any]) -> None:
        self._puts = {write.key: write for write in decision.puts}
        self._gone = frozenset(decision.deletes)
        self._folders = {key.partition("/")[0] for key in (*self._puts, *self._gone)}

    def touch(self, ref: Ref) -> bool:
        """Whether they may change what this reads."""
        if isinstance(ref, str):
            return ref in self._puts or ref in self._gone
        return isinstance(ref, Range) and ref.prefix.partition("/")[0] in self._folders

    def widened(self, ref: Ref) -> Ref:
        """What to read instead: as many more keys as may be deleted."""
        if isinstance(ref, Range):
            return replace(ref, limit=ref.limit + len(self._gone))
        return ref

    def over(self, key: str, item: Item | None) -> Item | None:
        """The item after the writes."""
        if (write := self._puts.get(key)) is None:
            return None if key in self._gone else item
        created = 0 if item is None else item.created
        return Item(key, codec.encode(write.value), UNCOMMITTED, created, expires_in=write.ttl)

    def within(self, ref: Range | Log, found: tuple[Item, ...]) -> tuple[Item, ...]:
        """The page of keys after the writes."""
        if isinstance(ref, Log):
            return found
        stored = {item.key: item for item in found}
        new = [key for key in self._puts if key.startswith(ref.prefix) and key > ref.after]
        left = [self.over(key, stored.get(key)) for key in sorted({*stored, *new})]
        return tuple([item for item in left if item is not None][: ref.limit])


class FactReader(Generic[F]):
    """Reads the facts for one attempt at a decision, as the decision asks for them.

    A subclass decodes the items of its noun (``learn``).  A missing key under ``glances`` is read
    without a check; the commit checks it only if the decision relies on it.
    """

    glances = ""

    def __init__(self, runner: Runner, base: int, facts: F) -> None:
        self.facts = facts
        self.base = base
        self._local = runner.capabilities.transacts
        self._checked: set[str] = set()

    def learn(self, items: Mapping[str, Item | None], *, checked: bool = True) -> None:
        """Add items to the facts; ``checked`` says that the commit checks them anyway."""
        raise NotImplementedError

    def decide(self, decide: Callable[[F], Decision[T]]) -> DecideOp[T]:
        """Decide, read what is missing and decide again; then read what the commit has to check.

        A local engine checks nothing; what it reads again is named in the entry, which never names
        liveness keys.
        """
        facts, unneeded = self.facts, LIVE if self._local else ()
        while True:
            facts.relied.clear()
            try:
                decision = decide(facts)
            except Missing as missing:
                yield from self._read(missing.refs)
                continue
            if not facts.relied.keys() <= self._checked and decision.changes:
                unread = [key for key in facts.relied if key not in self._checked]
                unread = [key for key in unread if not key.startswith(unneeded)]
                for start in range(0, len(unread), KEYS_AT_ONCE):
                    yield tuple(unread[start : start + KEYS_AT_ONCE])
            return decision

    def _read(self, refs: tuple[str, ...]) -> ReadOp[None]:
        for start in range(0, len(refs), KEYS_AT_ONCE):
            some = refs[start : start + KEYS_AT_ONCE]
            glance = some[0].startswith(self.glances)
            self.learn((yield Unchecked(some) if glance else some).items, checked=not glance)


SLOTS = 16
"""Slots that link entries which change nothing else: two such entries rarely meet in one."""


def draft_transaction(
    runner: Runner, attempt: Attempt, actor: Actor, *, checked: bool, behind: str = ""
) -> Draft:
    """The transaction that carries a decision out, with its entry.

    ``behind`` is the hash of the entry before it, if that is committed together with this one.
    """
    decision, limits = attempt.decision, runner.capabilities
    deletes, signals, reads = decision.deletes, decision.signals, decision.reads
    milliseconds = int(runner.clock.wall() * 1000)
    txn, size = runner.new_id("txn", milliseconds), 0
    puts, digests = [], {}
    for write in decision.puts:
        key, value, ttl = write.key, codec.encode(write.value), write.ttl
        length = len(value)
        size += len(key) + length
        if length > limits.max_value:
            raise TooLarge(f"{key} would have {length} bytes; this store takes {limits.max_value}")
        puts.append(Put(key, value, ttl))
        if ttl is None:
            digests[key] = codec.digest(value)
    checks = tuple(starmap(_check, attempt.seen.items())) if checked else ()
    operations = len(checks) + len(puts) + len(deletes) + len(signals) + len(reads)
    if operations > limits.max_operations:
        raise TooLarge(
            f"this takes {operations} operations in one transaction and this store takes"
            f" {limits.max_operations}; ask for less at once"
        )
    if decision.quiet:
        quiet = Txn(id=txn, checks=checks, puts=tuple(puts), deletes=deletes, quiet=True, ends=True)
        return Draft(quiet, ())
    after = (behind,) if behind else runner.chain.take()
    # With more than 15 keywords Python would make a dict of them, which takes four times as long.
    made = Entry(
        id=txn,
        at=milliseconds / 1000,
        writer=runner.chain.writer,
        agent=actor.agent,
        session=actor.session,
        verb=decision.verb,
        outcome=_tags[type(decision.outcome)] or str(decision.outcome),
        thing=decision.thing,
        trace=decision.trace or actor.trace,
        on=attempt.on,
        after=after,
        saw=_saw(attempt.seen),
        put=digests,
        deleted=_recorded(deletes) if deletes else (),
        events=decision.events,
    )
    rare = decision.via or decision.reason or decision.observed or runner.signer is not None
    if rare or decision.took is not None:
        made = replace(
            made,
            via=decision.via,
            took=decision.took,
            reason=decision.reason,
            observed=decision.observed,
            store=runner.signed_store,
        )
    entry = codec.encode(made)
    if runner.signer is not None or size + len(entry) > limits.max_bytes:
        try:
            entry = _finished(runner, entry, size)
        except BaseException:
            if not behind:  # the entry before this is not committed yet, so no other may link it
                runner.chain.give_back(Draft(Txn(id=txn), after))
            raise
    return Draft(
        Txn(
            id=txn,
            entry=entry,
            hash=codec.digest(entry),
            checks=checks,
            puts=tuple(puts),
            deletes=deletes,
            reads=reads,
            signals=signals,
            ends=is_ending(decision.verb),
            longest=attempt.longest,
        ),
        after,
    )


def _saw(seen: Mapping[str, Item | None]) -> dict[str, str | None]:
    """For each key that was read, the hash of the entry that wrote it; liveness is no state."""
    saw: dict[str, str | None] = {}
    for key, item in seen.items():
        if not key.startswith(LIVE):
            saw[key] = None if item is None else item.hash or "blind"
    return saw


def _recorded(deletes: tuple[str, ...]) -> tuple[str, ...]:
    """The deleted keys that the record names."""
    return tuple([key for key in deletes if not key.startswith(LIVE)])


def _finished(runner: Runner, entry: bytes, size: int) -> bytes:
    """The entry with the signature of its writer, if it has a key, and not too large with the rest.

    ``size`` is that of all puts.
    """
    if runner.signer is not None:
        entry = sign(entry, runner.signer)
    if size + len(entry) > runner.capabilities.max_bytes:
        raise TooLarge(
            f"this takes {size + len(entry)} bytes in one transaction and this store takes"
            f" {runner.capabilities.max_bytes}; ask for less at once"
        )
    return entry


def needs_link(decision: Decision[Any]) -> bool:
    """Whether a recorded decision changes nothing that stays, as a refusal does."""
    for put in decision.puts:  # nearly always the first one decides: this runs at every commit
        if put.ttl is None:
            return False
    if not decision.verb or decision.quiet:
        return False
    return all(key.startswith(LIVE) for key in decision.deletes)


def with_link(attempt: Attempt, snapshot: Snapshot, key: str, actor: Actor) -> Attempt:
    """The attempt with a write into a slot, so that the next entry there links this one.

    A refusal is also an event: watchers learn of a caller that names a grant it does not have.
    """
    bare, word = attempt.decision, outcome_word(attempt.decision.outcome)
    if not bare.events and word in REFUSALS:
        noun = bare.thing.partition("/")[0]
        event = Event(f"{_EVENT_NOUNS.get(noun, noun)}:{word}", actor.agent)
        bare = replace(bare, events=(event,))
    put = Write(key, {"verb": bare.verb, "thing": bare.thing, "outcome": word})
    seen = {**attempt.seen, key: snapshot.items[key]}
    on = max(attempt.on, snapshot.revision)
    return Attempt(replace(bare, puts=(*bare.puts, put)), seen, on, attempt.hoped)


def outcome_word(outcome: object) -> str:
    """The word for an outcome in the record: its tag, or the outcome itself."""
    return _tags[type(outcome)] or str(outcome)


class _Tags(dict[type, str]):
    """The tags of outcomes by their class; empty for those that have none."""

    def __missing__(self, kind: type) -> str:
        config = getattr(kind, "__struct_config__", None)
        self[kind] = "" if config is None else str(config.tag or "")
        return self[kind]


_tags = _Tags()


def _check(key: str, item: Item | None) -> Check:
    if item is None:
        return Check(key, "absent")
    if key.startswith(LIVE):
        return Check(key, "exists")
    if not item.revision:  # a guess has no revision: the value must be equal
        return Check(key, "has", value=item.value)
    return Check(key, "at", revision=item.revision, created=item.created)


_EVENT_NOUNS = {"sem": "semaphore"}
"""The names of nouns in events, where they differ from the record."""


ENTRIES_BETWEEN_CHECKS = 1000
"""After this many recorded commits the size of the log is checked."""


class Draft(Struct, frozen=True, gc=False):
    """A transaction that is ready, and the heads of the chain that it links.

    ``last`` is the hash of the last entry, if others are committed together with this one.
    """

    txn: Txn
    after: tuple[str, ...]
    last: str = ""


class Chain:
    """The entries of this process that no later one links yet.

    ``phase`` is the number of commits that count as made at the beginning: else writers that begin
    together would check the size of the log at the same moment.

    Several threads use it without a lock: each change of the unlinked hashes is one operation on a
    dict.  Two threads that take them at the same moment both link them, which does no harm.
    """

    def __init__(self, writer: str, phase: int = 0) -> None:
        self.writer = writer
        self._unlinked: dict[str, None] = {}
        self._latest = ""
        self._commits = count(phase + 1)
        self.on_many: Callable[[], None] | None = None

    def take(self) -> tuple[str, ...]:
        """The hashes that the next entry links: all unlinked ones, else the latest."""
        unlinked = self._unlinked
        taken = tuple(unlinked)
        for each in taken:
            unlinked.pop(each, None)
        return taken or ((self._latest,) if self._latest else ())

    def advance(self, draft: Draft) -> None:
        """An entry is committed; called twice if an interrupt came in between."""
        if draft.txn.quiet:
            return
        self._latest = latest = draft.last or draft.txn.hash
        self._unlinked[latest] = None
        if not next(self._commits) % ENTRIES_BETWEEN_CHECKS and self.on_many is not None:
            self.on_many()

    def give_back(self, draft: Draft | None) -> None:
        """An entry was not committed: its links are unlinked again."""
        if draft is not None:
            self._unlinked.update(dict.fromkeys(draft.after))
