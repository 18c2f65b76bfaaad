"""The loop: read, decide, commit, and repeat on conflict.  The only caller of commit.

On a local engine a decision runs inside one transaction and cannot conflict.  Elsewhere the items
that it read become the checks of the commit, and a conflict brings back the fresh items, so that
the next attempt needs no further read.

Round trips are the cost of an engine across a network, so the loop reads as little as it can:
    guess  what the caller believes (the lock is free; the lock is as this client left it; the task
           is as every task without an attempt, in an item without a revision): no read at all
    hope   a liveness key that was not read yet is taken for alive, which it nearly always is
The commit checks both, so a wrong one costs a conflict, which brings the fresh items.  A decision
that changes nothing has no commit to check it, so it stands only on items that were really read.

Every attempt has a fresh transaction id.  ``attempt.py`` feeds a decision and makes its
transaction; ``settling.py`` finds out what happened to an attempt whose answer was lost.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from interlock.clock import Clock, SystemClock
from interlock.core import codec, keys
from interlock.core.decision import Decision, Write
from interlock.errors import InterlockError, OutcomeUnknown, StoreAway, StoreBusy, StoreTrouble
from interlock.runtime.attempt import (
    ALIVE,
    ENTRIES_BETWEEN_CHECKS,
    SLOTS,
    Attempt,
    Chain,
    DecideOp,
    Draft,
    decide_inside,
    decide_remotely,
    draft_transaction,
    needs_link,
    outcome_word,
    with_link,
)
from interlock.runtime.identity import TRACE, Actor
from interlock.runtime.settling import Settling
from interlock.steps import Commit, Op, Pause, Read, Renew, Transact
from interlock.store import (
    Committed,
    Conflict,
    Item,
    Put,
    Range,
    Store,
    Txn,
    View,
)

if TYPE_CHECKING:
    from interlock.core.signing import Signer
    from interlock.runtime.gates import GateCheck, Recheck
    from interlock.settings import Settings

T = TypeVar("T")

ATTEMPTS = 1000
PATIENCE = 10.0
"""Seconds for a change to get through between others that change the same thing."""
EAGER_ATTEMPTS = 4
"""Conflicts before a caller steps back: one that does is overtaken by the others."""
LONGEST_PAUSE = 3
"""The pause doubles this many times, from 1 ms on."""
BUDGET_LOOK = 60.0
"""Seconds after which a client looks again whether the fleet has a budget."""
MEMORY = 2048
"""Items that a client remembers for its guesses."""
REMEMBERED_BYTES = 4096
"""The largest value that it remembers."""
TAILS = 31
"""Random parts of ids that are made at once."""


WrittenItem: TypeAlias = tuple[Put, int, int, str, str]
"""What a client wrote: the put, its revision, that of the key's creation, and the transaction."""


_STORE_ID = codec.Decoder(str)


class Decided(Struct, Generic[T], frozen=True, gc=False):
    """A decision that stands: its outcome, and the revision if something was committed.

    ``items`` came back with the commit, as the decision asked; a ``quiet`` commit left
    no entry.  ``recheck`` are the gates that it may have opened and that are still to be checked.
    """

    outcome: T
    revision: int | None
    items: Mapping[str, Item | None] = {}
    quiet: bool = False
    recheck: Recheck | None = None


class Runner:
    """Drives decisions to commits on one store, as one writer of the record."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock | None = None,
        randomness: Callable[[int], bytes] | None = None,
        signer: Signer | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self.capabilities = store.capabilities
        self._randomness = randomness or os.urandom
        self._tails: deque[str] = _tails if randomness is None else deque()
        self._moment = (0, "")
        self.chain = Chain(self.new_id("wtr"), self.random_below(ENTRIES_BETWEEN_CHECKS))
        self.settling = Settling(self.chain, self.clock, self.capabilities, self._jitter)
        self.token_base: int | None = None
        """What is added to a revision to make a token, once this client has read it (``base``)."""
        self._store_id = ""
        self.budgeted = False
        """Whether the fleet has a budget, as far as this client knows (``nouns/budgets/``)."""
        self._budget_look = 0.0
        self.settings: Settings | None = None
        """The settings of the client, for things that move on with a change of this client."""
        self.notes: set[str] = set()
        """The notes of gates that this client checks now, and leaves out in its housekeeping."""
        self.via = "python"
        """The component that writes, as the entries of claims name it."""
        self.signer = signer
        """The key that signs every entry of this writer, if it has one."""
        self._memory: dict[str, Item | WrittenItem] = {}

    draft = draft_transaction

    def new_id(self, prefix: str, milliseconds: int | None = None) -> str:
        """A fresh id, of this moment of the wall clock or of now."""
        if milliseconds is None:
            milliseconds = int(self.clock.wall() * 1000)
        moment, digits = self._moment
        if moment != milliseconds:
            digits = f"{milliseconds:012x}"
            self._moment = milliseconds, digits
        try:
            tail = self._tails.pop()
        except IndexError:
            tail = self._new_tail()
        return f"{prefix}_{digits}{tail}"

    def _new_tail(self) -> str:
        """The random part of an id; of the system's randomness several are made at once.

        The system call takes longer than their use.
        """
        size = codec.RANDOM_BYTES
        if self._tails is _tails:
            data = os.urandom(size * TAILS)
            _tails.extend([codec.id_tail(data[i : i + size]) for i in range(0, len(data), size)])
        return codec.id_tail(self._randomness(size))

    def random_below(self, number: int) -> int:
        """A random whole number from 0 up to, but not including, this one."""
        return int.from_bytes(self._randomness(4), "big") % number

    def base(self) -> Op[int]:
        """The number that is added to a revision to make a token."""
        if self.token_base is None:
            items = (yield Read(keys.BASE, keys.BUDGETS_MARK)).items
            item = items[keys.BASE]
            self.token_base = 0 if item is None else int(item.value)
            self._learn_budget(items[keys.BUDGETS_MARK])
        return self.token_base

    @property
    def knows_no_budget(self) -> bool:
        """Whether a look within the last minute found no budget, so that no read is needed."""
        known = self.token_base is not None and not self.budgeted
        return known and self.clock.monotonic() < self._budget_look

    def has_budget(self) -> Op[bool]:
        """Whether the fleet has a budget; looked up with the first read, and each minute."""
        yield from self.base()
        if self.clock.monotonic() >= self._budget_look:
            self._learn_budget((yield Read(keys.BUDGETS_MARK))[keys.BUDGETS_MARK])
        return self.budgeted

    def _learn_budget(self, mark: Item | None) -> None:
        self.budgeted = mark is not None
        self._budget_look = self.clock.monotonic() + self.capabilities.allow(BUDGET_LOOK)

    def store_id(self) -> Op[str]:
        """The random id of the store, ``sto_...``: the first writer that asks for it makes it.

        It names this store and no other on any machine.  It is an item, so a copy in another engine
        and a restored backup have the same one.
        """
        if not self._store_id:
            item = (yield Read(keys.STORE_ID))[keys.STORE_ID]
            if item is None:
                self._store_id = (yield from self._carry_out(self._naming, Actor())).outcome
            else:
                self._store_id = _STORE_ID.read(item)
        return self._store_id

    @property
    def signed_store(self) -> str:
        """The id that the entries of this client name; empty if it does not sign them."""
        return "" if self.signer is None else self._store_id

    def _naming(self) -> DecideOp[str]:
        item = (yield (keys.STORE_ID,))[keys.STORE_ID]
        if item is not None:
            return Decision(outcome=_STORE_ID.read(item))
        fresh = self.new_id("sto")
        return Decision(outcome=fresh, puts=(Write(keys.STORE_ID, fresh),), quiet=True)

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

        An ``urgent`` change (others wait for it) hardly ever steps back.  A ``hopeful`` one may
        take an expired session for alive, unless it relies on that.
        """
        if trace := TRACE.get():  # read here: the work itself may run in another task's context
            actor = Actor(actor.agent, actor.session, trace, actor.given)
        if self.capabilities.transacts and not actor.given and self.signer is None:
            return self._inside(deciding, actor)
        return self._change(deciding, actor, guess or {}, urgent=urgent, hopeful=hopeful)

    def _change(
        self,
        deciding: Callable[[], DecideOp[T]],
        actor: Actor,
        known: Mapping[str, Item | None],
        *,
        urgent: bool,
        hopeful: bool,
    ) -> Op[Decided[T]]:
        if actor.given:
            deciding = yield from self._relying(deciding, actor)
        if self.signer is not None and not self._store_id:
            yield from self.store_id()
        if self.capabilities.transacts:
            return (yield from self._inside(deciding, actor))
        done = yield from self._optimistic(deciding, actor, known, urgent=urgent, hopeful=hopeful)
        if done.recheck is not None or getattr(done.outcome, "counted", False):
            yield from self._follow_up(done, actor)
        return done

    def _follow_up(self, done: Decided[Any], actor: Actor) -> Op[None]:
        """Check the gates that a decision may have opened; count refusals."""
        if done.recheck is not None:
            from interlock.runtime.gates import check_gates

            yield from check_gates(self, actor.plain, done.recheck)
        yield from self.counted(done.outcome, actor)
        if self.capabilities.gathered and done.revision is not None:
            from interlock.runtime.refusals import write_gathered

            yield from write_gathered(self, actor)

    def change_alone(self, deciding: Callable[[], DecideOp[T]], actor: Actor) -> Op[Decided[T]]:
        """Carry a decision through, but leave the gates that it may have opened to the caller."""
        if self.signer is not None and not self._store_id:
            yield from self.store_id()
        return (yield from self._carry_out(deciding, actor))

    def _carry_out(self, deciding: Callable[[], DecideOp[T]], actor: Actor) -> Op[Decided[T]]:
        if self.capabilities.transacts:
            return self._inside(deciding, actor, alone=True)
        return self._optimistic(deciding, actor, {}, urgent=False, hopeful=True)

    def renew(self, writes: Sequence[Write]) -> Op[frozenset[str]]:
        """Renew liveness keys that are alive, without a decision; returns which ones were."""
        puts = tuple([Put(each.key, codec.encode(each.value), each.ttl) for each in writes])
        portion = self.capabilities.max_operations // 2  # a check and a put for each
        alive: frozenset[str] = frozenset()
        for start in range(0, len(puts), portion):
            alive |= yield Renew(puts[start : start + portion])
        return alive

    def counted(self, outcome: object, actor: Actor) -> Op[None]:
        """Count a refusal of a caller that may not do this."""
        if actor.agent and getattr(outcome, "counted", False):
            from interlock.runtime.refusals import count

            yield from count(self, actor, outcome_word(outcome))

    def _relying(
        self, deciding: Callable[[], DecideOp[T]], actor: Actor
    ) -> Op[Callable[[], DecideOp[T]]]:
        from interlock.runtime.given import relying

        base = yield from self.base()
        return lambda: relying(deciding(), actor.given, base, actor.agent)

    def remember(self, key: str, known: Item | WrittenItem) -> None:
        """Keep an item for a later guess; beyond a limit the oldest are dropped."""
        memory = self._memory
        memory.pop(key, None)
        memory[key] = known
        if len(memory) > MEMORY:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        with suppress(RuntimeError, StopIteration):  # another thread was quicker
            while len(self._memory) > MEMORY:
                self._memory.pop(next(iter(self._memory)), None)

    def _learn(self, txn: Txn, revision: int, seen: Mapping[str, Item | None]) -> None:
        """Remember what this client wrote: its best guess."""
        memory, by, hash_ = self._memory, txn.id, txn.hash
        for put in txn.puts:
            if put.ttl is None and len(put.value) <= REMEMBERED_BYTES:
                key, created = put.key, 0  # unknown: the key was not read
                if key in seen:
                    old = seen[key]
                    created = revision if old is None else old.created
                memory.pop(key, None)
                memory[key] = (put, revision, created, by, hash_)
        if len(memory) > MEMORY:
            self._drop_oldest()

    def recall(self, key: str) -> dict[str, Item | None]:
        """A guess: the item that this client last knew under a key."""
        known = self._memory.pop(key, None)
        if known is None:
            return {}
        if isinstance(known, tuple):
            put, revision, created, txn, hash_ = known
            known = Item(key, put.value, revision, created, txn, hash_)
        return {key: known}

    def _inside(
        self, deciding: Callable[[], DecideOp[T]], actor: Actor, *, alone: bool = False
    ) -> Op[Decided[T]]:
        """Decide inside one transaction of a local engine; ``alone`` leaves out what follows."""
        work, attempts = LocalTransaction(self, deciding, actor), ATTEMPTS
        while attempts:
            attempts -= 1
            sent = self.clock.monotonic()
            try:
                committed: Committed | None = yield Transact(work)
                if committed is not None and (draft := work.draft) is not None:
                    self.chain.advance(draft)  # inside: an interrupt must not prevent it
            except OutcomeUnknown:
                committed = yield from self.settling.settle(cast("Draft", work.draft), sent)
                if committed is None:
                    work.draft = None  # the settling returned its links
                    continue
            except Exception:
                self.chain.give_back(work.draft)
                raise
            except BaseException as error:
                if (draft := work.call_off()) is None:
                    raise
                if isinstance(error, GeneratorExit):  # no further step can be taken
                    self.settling.leave_unsettled(draft)
                else:
                    yield from self.settling.settle(draft, sent)
                raise
            decision = work.attempt.decision  # type: ignore[union-attr]  # it was run
            done: Decided[T] = (
                Decided(decision.outcome, None)
                if committed is None
                else Decided(decision.outcome, committed.revision, {}, decision.quiet, work.left)
            )
            counts = getattr(decision.outcome, "counted", False)
            if not alone and (counts or done.recheck is not None or self.capabilities.gathered):
                yield from self._follow_up(done, actor)
            return done
        raise StoreBusy("the store keeps failing while it commits; run 'interlock doctor'")

    def _optimistic(  # noqa: C901 - the one loop of all commits across a network
        self,
        deciding: Callable[[], DecideOp[T]],
        actor: Actor,
        known: Mapping[str, Item | None],
        *,
        urgent: bool,
        hopeful: bool,
    ) -> Op[Decided[T]]:
        """Read, decide, commit with checks; start over with the fresh items on conflict."""
        began, guessed, hope = self.clock.monotonic(), bool(known), hopeful
        lost: Draft | None = None
        for number in range(ATTEMPTS):
            try:
                attempt = yield from decide_remotely(deciding(), known, hopeful=hope)
                if needs_link(attempt.decision):
                    key = keys.refusal_slot(self.random_below(SLOTS))
                    attempt = with_link(attempt, (yield Read(key)), key, actor)
            except (StoreAway, OutcomeUnknown):
                raise
            except InterlockError:
                if not guessed and not hope:
                    raise
                # The guess or the hope may be wrong: read before raising.
                known, guessed, hope = {} if guessed else known, False, False
                continue
            decision = attempt.decision
            if not (decision.verb or decision.puts or decision.deletes):
                if not guessed and not attempt.hoped:
                    return Decided(decision.outcome, None)
                # A wrong guess does not disprove the hope.
                known, guessed, hope = {} if guessed else known, False, hope and guessed
                continue
            recheck: Recheck | None = None
            if decision.awaited or (decision.created and not guessed):
                attempt, recheck = yield from self._noted(attempt, guessed=guessed)
            draft = self.draft(attempt, actor, checked=True)
            answer = yield from self._commit(draft)
            if isinstance(answer, Committed):
                self._learn(draft.txn, answer.revision, attempt.seen)
                return Decided(
                    decision.outcome, answer.revision, answer.items, decision.quiet, recheck
                )
            if answer is None:
                lost = draft
            known, guessed = {} if answer is None else _whole(answer.items), False
            hope = hopeful and all(known.get(key, ALIVE) is not None for key in attempt.hoped)
            if self.clock.monotonic() > began + self.capabilities.allow(PATIENCE):
                break
            if number >= EAGER_ATTEMPTS:
                yield Pause(self._jitter(0 if urgent else number - EAGER_ATTEMPTS))
                known = {}  # as old as the pause
        raise _out_of_time(lost)

    def _noted(self, attempt: Attempt, *, guessed: bool) -> Op[tuple[Attempt, Recheck]]:
        """The attempt with a note of the facts that it changes, and the gates to be checked.

        A thing that it creates has no mark yet.  If gates wait for it now, the note has it, too;
        gates that come to wait before the commit are found by the check after it.  A guess saves
        a round trip, which must not be spent on that: housekeeping checks the gates of slots that
        were created by one.
        """
        decision = attempt.decision
        created = () if guessed else decision.created
        from interlock.runtime.gates import Recheck, note_of, with_gates

        recheck = Recheck(note=note_of((*decision.awaited, *created)))
        created = note_of(created).facts
        awaited = (*decision.awaited, *(yield from with_gates(created)))
        if awaited:
            own = keys.recheck(self.new_id("chk"))
            note = Write(own, note_of(awaited))
            recheck = replace(recheck, keys=(own,))
            attempt = replace(attempt, decision=replace(decision, puts=(*decision.puts, note)))
        return attempt, recheck

    def _commit(self, draft: Draft) -> Op[Committed | Conflict | None]:
        """The answer to a commit; None if it certainly did not happen and nothing else is known."""
        if self.settling.unsettled and not draft.txn.quiet:  # renewals do not wait for it
            yield from self.settling.settle_all_before(draft)
        sent = self.clock.monotonic()
        try:
            answer: Committed | Conflict = yield Commit(draft.txn)
            if isinstance(answer, Committed):
                self.chain.advance(draft)  # inside: an interrupt must not prevent it
        except OutcomeUnknown:
            return (yield from self.settling.settle(draft, sent))
        except GeneratorExit:  # the operation is dropped while its request is under way
            self.settling.leave_unsettled(draft)
            raise
        except Exception:
            self.chain.give_back(draft)
            raise
        except BaseException:
            yield from self.settling.settle(draft, sent)
            raise
        if not isinstance(answer, Committed):
            self.chain.give_back(draft)
        return answer

    def _jitter(self, number: int) -> float:
        """Up to 1, 2, 4, 8 ms, and no more: a caller that steps back for long is overtaken."""
        longest = (1 << min(number, LONGEST_PAUSE)) / 1000
        return self._randomness(1)[0] / 255 * self.capabilities.allow(longest)


def _out_of_time(lost: Draft | None) -> StoreTrouble:
    """The error of a change that did not get through; ``lost`` is an attempt without an answer."""
    if lost is None:
        return StoreBusy("too many others change the same thing; try again")
    if lost.txn.quiet:
        return OutcomeUnknown(
            "the store stopped answering; look before you repeat this", lost.txn.id
        )
    return StoreAway(
        "the store loses requests: it answered none that makes this change; nothing happened"
    )


def _whole(items: Mapping[str, Item | None]) -> dict[str, Item | None]:
    """The items of a conflict that have their values; the others are read if they are needed."""
    return {key: item for key, item in items.items() if item is None or not item.omitted}


_tails: deque[str] = deque()
"""Random parts of ids that no id has yet; any thread takes one."""
os.register_at_fork(after_in_child=_tails.clear)  # parent and child must not make the same ids


def _gates_wait(facts: tuple[str, ...], view: View) -> bool:
    """Whether gates wait for one of these things, which have no mark since they are new.

    Where no gate ever waited for such a thing, one short read says so.
    """
    if view.read(keys.GATES_WAIT).items[keys.GATES_WAIT] is None:
        return False
    pages = [Range(keys.gated(fact), limit=1) for fact in facts]
    return any(view.read(*pages).ranges.values())


class LocalTransaction:
    """The work of one transaction: it may run again, and in a thread of the engine.

    ``more`` says that the decision may have opened gates: ``again`` checks one of them, in the same
    transaction of the engine.  Its entry links the one before it.  ``left`` are those that did not
    fit in, of which the transaction leaves a note.
    """

    __slots__ = (
        *("_actor", "_deciding", "_gates", "_guard", "_off", "_runner"),
        *("attempt", "draft", "left", "more"),
    )

    def __init__(self, runner: Runner, deciding: Callable[[], DecideOp[Any]], actor: Actor) -> None:
        self._runner = runner
        self._deciding = deciding
        self._actor = actor
        self._guard = threading.Lock()
        self._gates: GateCheck | None = None
        self._off = False
        self.attempt: Attempt | None = None
        self.draft: Draft | None = None
        self.more = False
        self.left: Recheck | None = None

    def __call__(self, view: View) -> Txn | None:
        """Decide on what the transaction sees."""
        with self._guard:
            if self._off:
                return None
            runner = self._runner
            if self.draft is not None:
                runner.chain.give_back(self.draft)
            attempt = decide_inside(self._deciding(), view)
            self.draft, self.more, self.left = None, False, None
            decision, puts = attempt.decision, attempt.decision.puts
            if not puts and not decision.deletes and not decision.verb:
                self.attempt = attempt
                return None
            # Most decisions first put something that stays; those need no link.
            if (not puts or puts[0].ttl is not None) and needs_link(decision):
                key = keys.refusal_slot(runner.random_below(SLOTS))
                attempt = with_link(attempt, view.read(key), key, self._actor)
            self.attempt = attempt
            self.draft = draft = runner.draft(attempt, self._actor, checked=False)
            if decision.awaited or (decision.created and _gates_wait(decision.created, view)):
                self._follow(decision, view)
            return draft.txn

    def again(self, view: View) -> Txn | None:
        """Check the next gate that the decision may have opened.

        A thing that cannot be decided about must not harm the decision, so it is skipped, also if
        the rules raise an unforeseen error.  Only an error of the engine ends the transaction.
        """
        with self._guard:
            gates = cast("GateCheck", self._gates)
            if self._off or not gates.goes_on:
                return self._leave(gates)
            from interlock.runtime.gates import WatchedView, changed_facts

            watched = WatchedView(view)
            try:
                attempt = decide_inside(gates.deciding(), watched)
                txn = self._drafted(attempt) if attempt.decision.changes else None
            except Exception as error:
                if error is watched.trouble:
                    raise
                gates.skip(error)
                txn = None
            else:
                gates.checked(changed_facts(attempt.decision))
            self.more = gates.left is not None
            return txn

    def _follow(self, decision: Decision[Any], view: View) -> None:
        from interlock.runtime.gates import (
            STEPS_INSIDE,
            GateCheck,
            Recheck,
            RecheckNote,
            changed_facts,
        )

        item = view.read(keys.BASE).items[keys.BASE]
        base = 0 if item is None else int(item.value)
        wanted = Recheck(note=RecheckNote(facts=changed_facts(decision)))
        self._gates = GateCheck(self._runner, base, wanted, STEPS_INSIDE)
        self.more = True

    def _leave(self, gates: GateCheck) -> Txn | None:
        """Leave a note of the gates that were not checked."""
        self.more = False
        if (left := gates.left) is None:
            return None
        from interlock.runtime.gates import Recheck, left_note

        decision = left_note(self._runner, left)
        self.left = Recheck(note=left, keys=(decision.puts[0].key,))
        return self._drafted(Attempt(decision, {}, 0))

    def _drafted(self, attempt: Attempt) -> Txn:
        first = cast("Draft", self.draft)
        behind = first.last or first.txn.hash
        draft = self._runner.draft(attempt, self._actor, checked=False, behind=behind)
        if not draft.txn.quiet:  # the first entry stands for all of them; a quiet one has none
            self.draft = draft if first.txn.quiet else replace(first, last=draft.txn.hash)
        return draft.txn

    def call_off(self) -> Draft | None:
        """Do nothing from now on; a draft that was made before may still be committed."""
        with self._guard:
            self._off = True
            return self.draft
