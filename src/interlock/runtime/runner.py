"""The loop: read, decide, commit, and again on conflict.  The only caller of commit.

A deciding is a generator that yields the refs it needs and returns a Decision.  On a local engine
it runs inside one transaction and cannot conflict.  Elsewhere what it read becomes the checks of
the commit, and a conflict brings back the fresh items, so that the next attempt needs no further
read.  What it only glanced at is not checked.

Round trips are what an engine across a network costs, so the loop reads as little as it can:
    guess  what the caller believes (the lock is free; the lock is as we left it; the task is as
           all are that nobody tried yet, in an item without a revision): no read at all
    hope   a liveness key that was not asked for yet is taken for alive, which it nearly always is
Both are checked by the commit, so a wrong one costs a conflict, which brings the truth along.  A
decision that changes nothing is not checked by anything: it stands only on what was really read.

Every attempt has a fresh transaction id.  If its outcome is unknown, the runner takes the place of
the entry in the log with a void: if that succeeds the commit never happened and never can, and
the loop goes on; if it conflicts, the entry that stands there says what happened.

A store that stays away cannot take the void.  Then the caller gets OutcomeUnknown and the
transaction stays on the list ``unsettled``: its request may still arrive and commit.  The keeper
places the void as soon as the store answers, and no later change of this client is sent before
that.  So what the caller does after OutcomeUnknown, and what the keeper takes back, happens when
the old request can no longer commit.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeAlias, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from interlock.clock import Clock, SystemClock
from interlock.core import codec, keys
from interlock.core.decision import REFUSALS, Decision, Event, Write
from interlock.core.log import Entry
from interlock.drivers import Op, Pause
from interlock.errors import InterlockError, OutcomeUnknown, StoreAway, StoreBusy, TooLarge
from interlock.runtime.chain import MANY, Chain, Draft
from interlock.runtime.identity import TRACE, Actor
from interlock.runtime.steps import Commit, Read, Transact
from interlock.store import (
    LIVE,
    LOG,
    VOID,
    Check,
    Committed,
    Conflict,
    Item,
    Put,
    Ref,
    Snapshot,
    Store,
    Txn,
    View,
    void,
)

T = TypeVar("T")
ReadOp: TypeAlias = Generator[tuple[Ref, ...], Snapshot, T]
"""Yields the refs that it needs, gets them as one snapshot, and returns what it made of them."""
DecideOp: TypeAlias = ReadOp[Decision[T]]

ATTEMPTS = 1000
PATIENCE = 10.0
"""Seconds for a change to get through between others that change the same thing."""
EAGER_ATTEMPTS = 4
"""Conflicts before anybody steps back: whoever does is overtaken by who has the lock already."""
LONGEST_PAUSE = 3
SETTLE_ATTEMPTS = 8
SETTLE_PATIENCE = 10.0
SETTLE_LATEST = 120.0
"""Seconds after sending within which every store still knows what became of it; we may have been
suspended in between."""
MEMORY = 512
SLOTS = 16
"""Places at which entries that change nothing are linked: two at once seldom meet."""
ALIVE = Item("", b"", 0, 0)
"""A liveness key that we take for alive: nothing else of it matters."""


class Decided(Struct, Generic[T], frozen=True, gc=False):
    """A decision that stands: its outcome, and the revision if something was committed.

    ``items`` are those that the decision asked its commit to bring back; a ``quiet`` commit left
    no entry.
    """

    outcome: T
    revision: int | None
    items: Mapping[str, Item | None] = {}
    quiet: bool = False


class Unchecked(tuple[Ref, ...]):
    """Refs that a deciding looks at without relying on them: the commit does not check them.

    Right for what cannot become wrong, such as a liveness key that is gone: it never comes back.
    """

    __slots__ = ()


class Attempt(Struct, frozen=True, gc=False):
    """A decision with everything that it relies on, and what of that was only hoped for."""

    decision: Decision[Any]
    seen: Mapping[str, Item | None]
    on: int
    hoped: tuple[str, ...] = ()


class Runner:
    """Drives decisions to commits on one store, as one writer of the record."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock | None = None,
        randomness: Callable[[int], bytes] | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self.capabilities = store.capabilities
        self._randomness = randomness or pooled
        self.chain = Chain(self.new_id("wtr"), self.random_below(MANY))
        self.unsettled: dict[str, Draft] = {}
        """Transactions whose outcome is unknown, by id: each may happen until its void stands."""
        self.on_unsettled: Callable[[], None] = lambda: None
        """Called when there is one more."""
        self._base: int | None = None
        self.via = "python"
        """The component that writes, as the entries of claims name it."""
        self._memory: dict[str, tuple[Put, int, Txn] | Item] = {}

    def new_id(self, prefix: str) -> str:
        """A fresh id."""
        moment = int(self.clock.wall() * 1000)
        return codec.make_id(prefix, moment, self._randomness(codec.RANDOM_BYTES))

    def random_below(self, number: int) -> int:
        """A whole number from 0 up to this one, by chance."""
        return int.from_bytes(self._randomness(4), "big") % number

    def base(self) -> Op[int]:
        """What is added to a revision to make a token."""
        if self._base is None:
            item = (yield Read(keys.BASE)).items[keys.BASE]
            self._base = 0 if item is None else int(item.value)
        return self._base

    def change(
        self,
        deciding: Callable[[], DecideOp[T]],
        actor: Actor,
        guess: Mapping[str, Item | None] | None = None,
        *,
        urgent: bool = False,
        hopeful: bool = True,
    ) -> Op[Decided[T]]:
        """Carry a decision through; returns when it stands, durably.

        What is ``urgent`` (others wait for it) hardly ever steps back.
        What is ``hopeful`` may take somebody for alive who is not, unless it relies on that.
        """
        if trace := TRACE.get():  # asked here: the work itself may run in another task's context
            actor = Actor(actor.agent, actor.session, trace, actor.given)
        if actor.given:
            deciding = yield from self._relying(deciding, actor)
        if self.capabilities.transacts:
            done = yield from self._inside(deciding, actor)
        else:
            known = dict(guess or {})
            done = yield from self._optimistic(
                deciding, actor, known, urgent=urgent, hopeful=hopeful
            )
        if done.revision is None or done.quiet:
            yield from self.counted(done.outcome, actor)
        return done

    def counted(self, outcome: object, actor: Actor) -> Op[None]:
        """Count a refusal that leaves no entry."""
        if actor.agent and getattr(outcome, "counted", False):
            from interlock.runtime.refusals import count

            yield from count(self, actor, _word(outcome))

    def _relying(
        self, deciding: Callable[[], DecideOp[T]], actor: Actor
    ) -> Op[Callable[[], DecideOp[T]]]:
        from interlock.runtime.given import relying

        base = yield from self.base()
        return lambda: relying(deciding(), actor.given, base, actor.agent)

    def remember(self, key: str, known: Item | tuple[Put, int, Txn]) -> None:
        """Keep an item as we know it for a later guess; the oldest are forgotten."""
        memory = self._memory
        memory.pop(key, None)
        memory[key] = known
        if len(memory) > MEMORY:
            with suppress(RuntimeError, StopIteration):  # another thread was quicker
                memory.pop(next(iter(memory)), None)

    def _learn(self, txn: Txn, revision: int) -> None:
        """What we wrote is what we know best."""
        for put in txn.puts:
            if put.ttl is None:
                self.remember(put.key, (put, revision, txn))

    def recall(self, key: str) -> dict[str, Item | None]:
        """A guess: what stood there when we last knew."""
        known = self._memory.pop(key, None)
        if known is None:
            return {}
        if isinstance(known, tuple):
            put, revision, txn = known
            known = Item(key, put.value, revision, revision, txn.id, txn.hash)
        return {key: known}

    def _inside(self, deciding: Callable[[], DecideOp[T]], actor: Actor) -> Op[Decided[T]]:
        """One transaction of a local engine."""
        work = LocalTransaction(self, deciding, actor)
        for _ in range(ATTEMPTS):
            sent = self.clock.monotonic()
            try:
                committed: Committed | None = yield Transact(work)
                if work.draft is not None and committed is not None:
                    self.chain.advance(work.draft)  # in here: an interrupt must not keep us from it
            except OutcomeUnknown:
                committed = yield from self._settle(cast("Draft", work.draft), sent)
                if committed is None:
                    work.draft = None  # given back already
                    continue
            except Exception:
                self.chain.give_back(work.draft)
                raise
            except BaseException as error:
                if (draft := work.call_off()) is None:
                    raise
                if isinstance(error, GeneratorExit):  # no step can be taken any more
                    self._leave_open(draft)
                else:
                    yield from self._settle(draft, sent)
                raise
            decision = cast("Attempt", work.attempt).decision
            revision = None if committed is None else committed.revision
            return Decided(decision.outcome, revision, quiet=decision.quiet)
        raise StoreBusy("the store keeps failing while it commits; run 'interlock doctor'")

    def _optimistic(
        self,
        deciding: Callable[[], DecideOp[T]],
        actor: Actor,
        known: dict[str, Item | None],
        *,
        urgent: bool,
        hopeful: bool,
    ) -> Op[Decided[T]]:
        """Read, decide, commit what was checked; start over with the fresh items on conflict."""
        ends = self.clock.monotonic() + self.capabilities.allow(PATIENCE)
        guessed, hope = bool(known), hopeful
        for number in range(ATTEMPTS):
            try:
                attempt = yield from _decide(deciding(), known, hopeful=hope)
                if _bare(attempt.decision):
                    key = keys.refusal_slot(self.random_below(SLOTS))
                    attempt = linked(attempt, (yield Read(key)), key, actor)
            except InterlockError:
                if not guessed and not hope:
                    raise
                # A guess or a hope may be wrong: look before you complain.
                known, guessed, hope = {} if guessed else known, False, False
                continue
            if not attempt.decision.changes:
                if not guessed and not attempt.hoped:
                    return Decided(attempt.decision.outcome, None)
                # A wrong guess says nothing about what was hoped for.
                known, guessed, hope = {} if guessed else known, False, hope and guessed
                continue
            draft = self.draft(attempt, actor, checked=True)
            answer = yield from self._commit(draft)
            if isinstance(answer, Committed):
                self._learn(draft.txn, answer.revision)
                decision = attempt.decision
                return Decided(decision.outcome, answer.revision, answer.items, decision.quiet)
            known, guessed = {} if answer is None else dict(answer.items), False
            hope = hopeful and all(known.get(key, ALIVE) is not None for key in attempt.hoped)
            if self.clock.monotonic() > ends:
                break
            if number >= EAGER_ATTEMPTS:
                yield Pause(self._jitter(0 if urgent else number - EAGER_ATTEMPTS))
                known = {}  # as old as the pause
        raise StoreBusy("too many others change the same thing; try again")

    def _commit(self, draft: Draft) -> Op[Committed | Conflict | None]:
        """The answer to a commit; None if it certainly did not happen and nothing else is known."""
        if self.unsettled and not draft.txn.quiet:  # no renewal waits for it
            yield from self._settled_before(draft)
        sent = self.clock.monotonic()
        try:
            answer: Committed | Conflict = yield Commit(draft.txn)
            if isinstance(answer, Committed):
                self.chain.advance(draft)  # in here, likewise
        except OutcomeUnknown:
            return (yield from self._settle(draft, sent))
        except GeneratorExit:  # it is dropped with the request on its way
            self._leave_open(draft)
            raise
        except Exception:
            self.chain.give_back(draft)
            raise
        except BaseException:
            yield from self._settle(draft, sent)
            raise
        if not isinstance(answer, Committed):
            self.chain.give_back(draft)
        return answer

    def _settle(self, draft: Draft, sent: float) -> Op[Committed | None]:
        """Find out what became of a transaction, and make sure that it stays that way.

        It may have happened or may happen yet, so an interrupt has to wait: the door is closed
        first.
        """
        if draft.txn.quiet:
            return None
        settled = False
        try:
            answer, interrupt = yield from self._closing(draft.txn.id, sent)
            settled = True
        finally:  # whatever ended it
            if not settled:
                self._leave_open(draft)
        item = answer.items.get(LOG + draft.txn.id)
        happened = _happened(answer, item)
        (self.chain.advance if happened else self.chain.give_back)(draft)
        if interrupt is not None:
            raise interrupt
        return Committed(item.revision, answer.items) if happened and item else None

    def _closing(
        self, txn: str, sent: float
    ) -> Op[tuple[Committed | Conflict, BaseException | None]]:
        """Take the place of an entry; the answer, and what interrupted us meanwhile."""
        patience = self.capabilities.allow(SETTLE_PATIENCE)
        ends = min(self.clock.monotonic() + patience, sent + SETTLE_LATEST)
        interrupt: BaseException | None = None
        for number in range(SETTLE_ATTEMPTS):
            if self.clock.monotonic() > ends:
                break
            try:
                answer: Committed | Conflict = yield Commit(void(txn))
            except OutcomeUnknown:
                interrupt = (yield from self._pause(number + 1)) or interrupt
                continue
            except StoreAway:
                break
            except (Exception, GeneratorExit):
                raise
            except BaseException as error:  # noqa: BLE001 - raised again when all is settled
                interrupt = error
                continue
            if isinstance(answer, Committed) or answer.items.get(LOG + txn) is not None:
                return answer, interrupt
            # Refused though nothing stood there: the door is still open.
        raise interrupt or OutcomeUnknown(
            "the store stopped answering; look before you repeat this", txn
        )

    def _leave_open(self, draft: Draft) -> None:
        """Nobody knows what became of it: its void is placed later, before anything else."""
        self.chain.give_back(draft)
        if not draft.txn.quiet:
            self.unsettled[draft.txn.id] = draft
            self.on_unsettled()

    def settle_unsettled(self) -> Op[None]:
        """Place the void of every transaction whose outcome is unknown.

        After this none of them can happen any more; StoreTrouble if that cannot be said yet.
        """
        for txn, draft in tuple(self.unsettled.items()):
            answer: Committed | Conflict = yield Commit(void(txn))
            item = answer.items.get(LOG + txn)
            if isinstance(answer, Conflict) and item is None:
                raise StoreBusy("the store refused to settle an earlier request; try again")
            if self.unsettled.pop(txn, None) is not None and _happened(answer, item):
                self.chain.advance(draft)

    def _settled_before(self, draft: Draft) -> Op[None]:
        """Settle what is unknown before this is sent; if that cannot be, it never is."""
        try:
            yield from self.settle_unsettled()
        except BaseException as error:
            self.chain.give_back(draft)
            if not isinstance(error, OutcomeUnknown):
                raise
            raise StoreAway(
                "the store stopped answering, and an earlier request may still arrive;"
                " try again when it answers"
            ) from error

    def _pause(self, number: int) -> Op[BaseException | None]:
        """Step back for a moment; an interrupt is returned, not raised."""
        try:
            yield Pause(self._jitter(number))
        except (Exception, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - whoever asked raises it in time
            return error
        return None

    def draft(self, attempt: Attempt, actor: Actor, *, checked: bool) -> Draft:
        """The transaction that carries a decision out, with its entry."""
        decision = attempt.decision
        txn = self.new_id("txn")
        puts = tuple([Put(w.key, codec.encode(w.value), w.ttl) for w in decision.puts])
        size = 0
        for put in puts:
            size += len(put.key) + len(put.value)
            if len(put.value) > self.capabilities.max_value:
                raise TooLarge(
                    f"{put.key} would have {len(put.value)} bytes;"
                    f" this store takes {self.capabilities.max_value}"
                )
        checks: tuple[Check, ...] = ()
        if checked:
            checks = tuple(_check(key, item) for key, item in attempt.seen.items())
        lists = (checks, puts, decision.deletes, decision.signals, decision.reads)
        if (operations := sum(map(len, lists))) > self.capabilities.max_operations:
            raise TooLarge(
                f"this takes {operations} operations in one transaction and this store takes"
                f" {self.capabilities.max_operations}; ask for less at once"
            )
        if decision.quiet:
            return Draft(Txn(id=txn, checks=checks, puts=puts, quiet=True, ends=True), ())
        after = self.chain.take()
        entry = codec.encode(
            Entry(
                id=txn,
                at=round(self.clock.wall(), 3),
                writer=self.chain.writer,
                agent=actor.agent,
                session=actor.session,
                verb=decision.verb,
                outcome=_word(decision.outcome),
                thing=decision.thing,
                trace=decision.trace or actor.trace,
                on=attempt.on,
                after=after,
                saw={k: _stamp(i) for k, i in attempt.seen.items() if not k.startswith(LIVE)},
                put={p.key: codec.digest(p.value) for p in puts if p.ttl is None},
                deleted=tuple([k for k in decision.deletes if not k.startswith(LIVE)]),
                events=decision.events,
                via=decision.via,
                took=decision.took,
                reason=decision.reason,
            )
        )
        if size + len(entry) > self.capabilities.max_bytes:
            self.chain.give_back(Draft(Txn(id=txn), after))
            raise TooLarge(
                f"this takes {size + len(entry)} bytes in one transaction and this store takes"
                f" {self.capabilities.max_bytes}; ask for less at once"
            )
        return Draft(
            Txn(
                id=txn,
                entry=entry,
                hash=codec.digest(entry),
                checks=checks,
                puts=puts,
                deletes=decision.deletes,
                reads=decision.reads,
                signals=decision.signals,
                ends=decision.ends,
            ),
            after,
        )

    def _jitter(self, number: int) -> float:
        """Up to 1, 2, 4, 8 ms, and no more: who steps back for long is overtaken by everybody."""
        longest = (1 << min(number, LONGEST_PAUSE)) / 1000
        return self._randomness(1)[0] / 255 * self.capabilities.allow(longest)


def pooled(size: int, pieces: int = 32) -> bytes:
    """Random bytes, fetched in larger portions: asking the system takes longer than using them."""
    pool = _pools.setdefault(size, deque())
    try:
        return pool.pop()
    except IndexError:
        data = os.urandom(size * pieces)
        pool.extend(data[i : i + size] for i in range(size, len(data), size))
        return data[:size]


_pools: dict[int, deque[bytes]] = {}
os.register_at_fork(after_in_child=_pools.clear)  # parent and child must not make the same ids


class LocalTransaction:
    """The work of one transaction: it may run again, and in a thread of the engine."""

    def __init__(self, runner: Runner, deciding: Callable[[], DecideOp[Any]], actor: Actor) -> None:
        self.attempt: Attempt | None = None
        self.draft: Draft | None = None
        self._runner = runner
        self._deciding = deciding
        self._who = actor
        self._off = False
        self._guard = threading.Lock()

    def __call__(self, view: View) -> Txn | None:
        """Decide on what the transaction sees."""
        with self._guard:
            if self._off:
                return None
            self._runner.chain.give_back(self.draft)
            self.attempt, self.draft = _decide_with(self._deciding(), view), None
            if _bare(self.attempt.decision):
                key = keys.refusal_slot(self._runner.random_below(SLOTS))
                self.attempt = linked(self.attempt, view.read(key), key, self._who)
            if not self.attempt.decision.changes:
                return None
            self.draft = self._runner.draft(self.attempt, self._who, checked=False)
            return self.draft.txn

    def call_off(self) -> Draft | None:
        """Do nothing from now on; what was drafted by then may happen all the same."""
        with self._guard:
            self._off = True
            return self.draft


def _bare(decision: Decision[Any]) -> bool:
    """Whether a recorded decision changes nothing that stays, as a refusal does.

    Nothing would carry the hash of its entry, and the last one of a process could vanish unseen.
    """
    for put in decision.puts:  # the first one says it nearly always: this is asked at every commit
        if put.ttl is None:
            return False
    if not decision.verb or decision.quiet:
        return False
    return all(key.startswith(LIVE) for key in decision.deletes)


def linked(attempt: Attempt, snapshot: Snapshot, key: str, actor: Actor) -> Attempt:
    """The attempt with a write of its own: the next entry that is linked there saw this one.

    A refusal is an event: what speaks of a grant that it does not have is told to watchers.
    """
    bare, word = attempt.decision, _word(attempt.decision.outcome)
    if not bare.events and word in REFUSALS:
        noun = bare.thing.partition("/")[0]
        told = Event(f"{_SPOKEN.get(noun, noun)}:{word}", actor.agent)
        bare = replace(bare, events=(told,))
    put = Write(key, {"verb": bare.verb, "thing": bare.thing, "outcome": word})
    seen = {**attempt.seen, key: snapshot.items[key]}
    on = max(attempt.on, snapshot.revision)
    return Attempt(replace(bare, puts=(*bare.puts, put)), seen, on, attempt.hoped)


def _decide_with(deciding: DecideOp[T], view: View) -> Attempt:
    """Decide inside a transaction: everything can be read, and nothing changes meanwhile."""
    seen: dict[str, Item | None] = {}
    on = 0
    try:
        refs = next(deciding)
        while True:
            snapshot = view.read(*refs)
            on = snapshot.revision
            if type(refs) is not Unchecked:
                seen.update(snapshot.items)
            refs = deciding.send(snapshot)
    except StopIteration as done:
        return Attempt(done.value, seen, on)


def _decide(
    deciding: DecideOp[T], known: Mapping[str, Item | None], *, hopeful: bool
) -> Op[Attempt]:
    """Decide on what is known, hoped for or read, in this order."""
    found = cast("dict[Ref, Item | None]", dict(known))
    hoped: set[str] = set()
    seen: dict[str, Item | None] = {}
    on = 0
    try:
        refs = next(deciding)
        while True:
            snapshot = _at_hand(refs, found, hoped if hopeful else None)
            if snapshot is None:  # what a step relied on before must not change under it
                missing = tuple(ref for ref in refs if ref not in found)
                read: Snapshot = yield Read(*missing, times=_only_liveness(missing))
                found.update(read.items)
                on = max(on, read.revision)
                items = {ref: found[ref] for ref in refs if isinstance(ref, str)}
                snapshot = Snapshot(read.revision, items, read.ranges)
            if type(refs) is not Unchecked:
                seen.update(snapshot.items)
            refs = deciding.send(snapshot)
    except StopIteration as done:
        return Attempt(done.value, seen, on, tuple(hoped))


def _at_hand(
    refs: tuple[Ref, ...], found: dict[Ref, Item | None], hoped: set[str] | None
) -> Snapshot | None:
    """What needs no read: it is known, or liveness for which we may hope."""
    try:
        return Snapshot(0, {str(ref): found[ref] for ref in refs})
    except KeyError:
        missing = tuple(ref for ref in refs if ref not in found)
    if hoped is None or not _only_liveness(missing):
        return None
    hoped.update(map(str, missing))
    found.update(dict.fromkeys(missing, ALIVE))
    return Snapshot(0, {str(ref): found[ref] for ref in refs})


def _only_liveness(refs: tuple[Ref, ...]) -> bool:
    """Whether somebody may want to know how long: that is why liveness is read by itself."""
    return all(isinstance(ref, str) and ref.startswith(LIVE) for ref in refs)


def _check(key: str, item: Item | None) -> Check:
    if item is None:
        return Check(key, "absent")
    if key.startswith(LIVE):
        return Check(key, "exists")
    if not item.revision:  # a guess: what it would say, whoever wrote it
        return Check(key, "has", value=item.value)
    return Check(key, "at", revision=item.revision)


def _happened(answer: Committed | Conflict, item: Item | None) -> bool:
    """Whether the answer to a void shows the transaction that it was to keep out."""
    return isinstance(answer, Conflict) and item is not None and item.value != VOID


def _stamp(item: Item | None) -> str | None:
    if item is None:
        return None
    return item.hash or "blind"


def _word(outcome: object) -> str:
    """The word for an outcome in the record: its tag, or itself."""
    kind = type(outcome)
    if kind not in _tags:
        config = getattr(kind, "__struct_config__", None)
        _tags[kind] = None if config is None else config.tag
    return str(_tags[kind] or outcome)


_tags: dict[type, object] = {}
_SPOKEN = {"sem": "semaphore"}
"""What events call a noun."""
