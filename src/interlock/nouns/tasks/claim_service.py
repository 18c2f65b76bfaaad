"""Claiming tasks: by name, or the next one that is ready.

By name it is one round trip when nobody is in the way.  Nothing is read first: the commit checks
that the task stands as one does that nobody tried yet, and brings its data along; a conflict brings
the winner.

The next one is chosen from a small window of those that are ready, best first.  On a local engine
the choice is part of the transaction, so the order is exact and nobody conflicts.  Across a network
others may take the same one; whoever loses chooses from twice as many at the next attempt, and
with every success from half as many again, so that one claimer alone keeps the exact order.

Whoever asked is told of its claim, or has none: if a call raises while a claim of it may stand,
that claim is given back, at once or as soon as the store answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.decision import Decision
from interlock.drivers import Op
from interlock.errors import InterlockError, Lapsed, StoreTrouble
from interlock.nouns.grants.service import Debt, Queues
from interlock.nouns.tasks import decode, rules
from interlock.nouns.tasks import task as core
from interlock.nouns.tasks.claim_wait import ClaimAttempt, TaskWait
from interlock.nouns.tasks.housekeeping import Housekeeping
from interlock.nouns.tasks.ready_index import (
    SETS_AT_ONCE,
    WIDTH,
    ReadyWindow,
    ReadyWindowReader,
    delete_idle_sets,
)
from interlock.nouns.tasks.task_change import TaskChanges
from interlock.nouns.tasks.task_reader import TaskReader
from interlock.runtime import handover
from interlock.runtime.gather import every, outside
from interlock.runtime.identity import Identity
from interlock.runtime.runner import ALIVE, Decided, DecideOp, Runner
from interlock.runtime.steps import NextChanges, OpenWatch, Read
from interlock.store import Item, Range, Snapshot, Watch

_TRIES = 8
_WAKES = 4
"""How many portions of those whose time has come are woken before one is claimed all the same."""
_SELFLESS = 32
"""Every so many claims of the next one somebody looks after what is stuck: a queue that is never
empty must not keep lost tasks from coming back."""
_IDLE_SETS = 32
"""Sets of requirements without a ready task that may stay: each costs a look, and coming back a
write."""
_NAP, _LONGEST_NAP = 5.0, 20.0
"""Who waits looks this often; less and less often while there is nothing that could lapse."""
_SPECS = 512
_FRESH = codec.encode(core.FRESH)


class ClaimService:
    """Every way to a claim, as generators for a driver."""

    def __init__(self, runner: Runner, queues: Queues, progress: Housekeeping) -> None:
        self._runner = runner
        self._queues = queues
        self._progress = progress
        self._windows = ReadyWindowReader(runner)
        self._spread = 1
        self._turns = 0
        self.specs: dict[str, core.Spec] = {}
        """What we claimed without knowing its place, but for the data."""

    def by_name(
        self, identity: Identity, task: str, *, ttl: float | None, wait: float
    ) -> Op[core.ClaimOutcome]:
        """Claim one task, or (``wait``) stand by until it can be claimed."""
        bid = self._bid(identity, ttl)
        ask, scope = self._ask(bid, task), f"{keys.TASKS}{keys.part(task)}/"
        if wait:
            bid.standby = TaskWait(self._runner, self._queues, identity.actor.plain, ask, bid.terms)
        waiting = self._waiting(bid, scope, wait, lambda: self._named(bid, bid.asked(ask)))
        return (yield from self._told(bid, waiting))

    def next(
        self,
        identity: Identity,
        can: Collection[str],
        *,
        ttl: float | None,
        wait: float,
        asleep: Callable[[], None] | None = None,
    ) -> Op[core.ClaimOutcome]:
        """Claim the best task that is ready and that we can do; call ``asleep`` before a sleep."""
        bid, able = self._bid(identity, ttl), frozenset(can)
        bid.asleep = asleep
        best = partial(self._best, bid, able)
        looks = partial(self._peek, able), partial(self._still, identity, able)
        waiting = self._waiting(bid, keys.WAKE_READY, wait, best, looks)
        return (yield from self._told(bid, waiting))

    def _bid(self, identity: Identity, ttl: float | None) -> ClaimAttempt:
        return ClaimAttempt(identity, ttl, self._queues.speaks(), self._runner.clock.monotonic())

    def _told(self, bid: ClaimAttempt, op: Op[core.ClaimOutcome]) -> Op[core.ClaimOutcome]:
        """Carry a call through; if it raises, leave no claim behind of which nobody was told.

        Nor a wait, however it ends.
        """
        ticket = handover.current(self._queues)
        ticket.asks(bid, lambda: (*self._open(bid), *bid.listed()))
        try:
            outcome = yield from op
            yield from self._ended(bid, outcome)
            if not isinstance(outcome, core.Claimed):
                ticket.remove(bid)
            return outcome  # noqa: TRY300 - whatever strikes up to here takes it back
        except (StoreTrouble, GeneratorExit):
            for debt in (*self._open(bid), *bid.listed()):
                self._queues.owe_this(debt)
            ticket.remove(bid)
            raise
        except BaseException as error:
            refused = isinstance(error, InterlockError)  # nothing was committed but the wait
            for debt in (*(() if refused else self._open(bid)), *bid.listed()):
                yield from self._queues.give_this_up(debt)
            ticket.remove(bid)
            raise

    def _ended(self, bid: ClaimAttempt, outcome: core.ClaimOutcome) -> Op[None]:
        """Remember who of us has the claim; a wait that brought none is over, too."""
        if isinstance(outcome, core.Claimed):
            if bid.someone is not None:
                self._queues.note(bid.someone, (keys.owner(outcome.task),), outcome.token or 0)
        elif not isinstance(outcome, core.TaskDeadlock):
            for debt in bid.listed():
                yield from self._queues.give_this_up(debt)

    def _open(self, bid: ClaimAttempt) -> Iterator[Debt]:
        """What takes back the claim that may stand."""
        if (ask := bid.open) is not None:
            identity = replace(bid.identity, actor=bid.identity.actor.plain)
            pay = partial(self.take_back, identity, ask.task, ask.claim)
            yield Debt(ask.claim, f"task/{ask.task}", pay)

    def _waiting(
        self,
        bid: ClaimAttempt,
        scope: str,
        wait: float,
        attempt: Callable[[], Op[core.ClaimOutcome]],
        looks: tuple[Callable[[], Op[bool]], Callable[[], Op[bool]]] | None = None,
    ) -> Op[core.ClaimOutcome]:
        """Try, and try again when something changed, until the wait is over.

        With ``looks`` a try has to be worth it: when woken, and when nothing was heard for a while.
        """
        ends = self._runner.clock.monotonic() + wait
        watch: Watch | None = None
        try:
            if wait:
                watch = yield OpenWatch(scope, (yield Read(keys.BASE)).revision)
            while True:
                outcome = yield from attempt()
                left = ends - self._runner.clock.monotonic()
                if not _may_change(outcome) or watch is None or left <= 0:
                    return outcome
                yield from self._insist(bid.identity)
                refused = (yield from bid.standby.look()) if bid.standby is not None else None
                if refused is not None:
                    return refused
                if bid.asleep is not None:
                    bid.asleep()
                nap = self._nap(outcome)
                woken = yield NextChanges(watch, min(left, nap))
                while looks is not None and (yield from _in_vain(looks, woken=bool(woken))):
                    nap = self._nap(outcome) if woken else min(2 * nap, _LONGEST_NAP)
                    if (left := ends - self._runner.clock.monotonic()) <= 0:
                        break
                    woken = yield NextChanges(watch, min(left, nap))
        finally:
            if watch is not None:
                watch.close()

    def _insist(self, identity: Identity) -> Op[None]:
        """Nobody waits for work whose session is over."""
        own = keys.live(identity.actor.session)
        if identity.joined and (yield Read(own))[own] is None:
            raise _lapsed(identity)

    def _nap(self, outcome: core.ClaimOutcome) -> float:
        """How long to sleep at most: until something may end that is no change in the store."""
        match outcome:
            case core.Taken(expires_in=left) | core.Blocked(retry_in=left):
                soon = left
            case _:
                soon = self._progress.soon()
        grain = self._runner.capabilities.grain
        return _NAP if soon is None else min(_NAP, max(soon, grain / 4) + 0.002)

    def _named(self, bid: ClaimAttempt, ask: core.ClaimRequest) -> Op[core.ClaimOutcome]:
        identity, blind = bid.identity, not self._runner.capabilities.local
        while True:
            outcome = yield from self._claim(bid, ask, None, blind=blind)
            if outcome == "stale":
                yield from self._progress.reclaim(identity.actor, ask.task)
            elif isinstance(outcome, core.Blocked) and (yield from self._freed(identity, outcome)):
                pass
            elif not isinstance(outcome, str):
                return outcome
            blind = False

    def _freed(self, identity: Identity, outcome: core.Blocked) -> Op[bool]:
        """Whether it was blocked only since nobody has moved on yet what its need held up."""
        if not outcome.on:
            return False
        return (yield from self._progress.drain(identity.actor, outcome.on)) > 0

    def _best(self, bid: ClaimAttempt, able: frozenset[str]) -> Op[core.ClaimOutcome]:
        """The best task at this moment; before saying that there is none, see what is stuck."""
        identity = bid.identity
        self._turns += 1
        if self._turns % _SELFLESS == 0:
            yield from self._progress.step(identity.actor)
        for last in (False, True):
            take = self._inside if self._runner.capabilities.local else self._optimistic
            outcome = yield from take(bid, able)
            if self._turns % _SELFLESS == 1 and len(self._windows.idle) > _IDLE_SETS:
                yield from self._let_go(identity)
            if outcome is not None:
                return outcome
            if last or not (yield from self._progress.step(identity.actor)):
                break
        return core.NoTask(reason="no task that is ready is one that you can do")

    def _let_go(self, identity: Identity) -> Op[None]:
        """Let some sets of requirements go; if that cannot be now, whoever comes next does it."""
        with suppress(InterlockError):
            yield from delete_idle_sets(
                self._runner, identity.actor, self._windows.idle[:SETS_AT_ONCE]
            )

    def _peek(self, able: frozenset[str]) -> Op[bool]:
        """Whether it is worth trying: looking disturbs nobody."""
        window = yield from outside(self._windows.read(able))
        self._progress.expect(window.later)
        return bool(window.places or window.due)

    def _still(self, identity: Identity, able: frozenset[str]) -> Op[bool]:
        """Whether there is nothing to claim or to see to: one look, so that waiting is cheap."""
        own = (keys.live(identity.actor.session),) if identity.joined else ()
        stuck = [Range(prefix, limit=1) for prefix in (keys.TODO, keys.CLAIMS, keys.DUE)]
        refs = self._windows.heads(able)
        snapshot: Snapshot = yield Read(*own, *stuck, *refs)
        if own and snapshot[own[0]] is None:
            raise _lapsed(identity)
        return not any(snapshot.ranges.values()) and self._windows.current(snapshot)

    def _inside(self, bid: ClaimAttempt, able: frozenset[str]) -> Op[core.ClaimOutcome | None]:
        """Choose and claim in one transaction."""
        base = yield from self._runner.base()
        identity, ask = bid.identity, self._ask(bid, "")
        found: list[ReadyWindow] = []
        woken = 0
        while True:
            bid.open = ask
            enough = woken >= _WAKES
            done = yield from self._runner.change(
                partial(self._choosing, bid, ask, base, able, found, enough=enough), identity.actor
            )
            if isinstance(done.outcome, core.Claimed):
                return (yield from self._stamped(done.outcome, done, base))
            bid.open = None
            if done.outcome == "due":
                woken += 1
                yield from self._progress.wake(identity.actor, found[-1].due)
            elif done.outcome == "expired":
                yield from self._progress.expire_around(identity.actor, found[-1].places[0].key)
            elif done.outcome == "left behind":
                places = [place.key for place in found[-1].places]
                if not (yield from self._progress.tidy_all(identity.actor, places)):
                    return None
            elif done.outcome == "nothing":
                return None

    def _choosing(
        self,
        bid: ClaimAttempt,
        ask: core.ClaimRequest,
        base: int,
        able: frozenset[str],
        found: list[ReadyWindow],
        *,
        enough: bool,
    ) -> DecideOp[core.ClaimOutcome | str]:
        """The first of a window that can be claimed; leaves the window."""
        window = yield from self._windows.read(able)
        found.append(window)
        if window.due and not (enough and window.places):
            return Decision(outcome="due")
        for place in window.places:
            one = replace(ask, task=keys.listed(place.key))
            decision = yield from self._deciding(bid, one, base, "", blind=False)
            if decision.changes:
                return decision
        return Decision(outcome="left behind" if window.places else "nothing")

    def _optimistic(self, bid: ClaimAttempt, able: frozenset[str]) -> Op[core.ClaimOutcome | None]:
        """Choose, then claim; choose again if somebody else was quicker."""
        woken = 0
        while True:
            window: ReadyWindow = yield from outside(self._windows.read(able))
            if window.due and not (woken >= _WAKES and window.places):
                woken += 1
                yield from self._progress.wake(bid.identity.actor, window.due)
                continue
            places = list(window.places)
            if not places:
                return None
            for _ in range(_TRIES):
                place = places.pop(self._chosen(len(places)))
                outcome = yield from self._try(bid, place)
                if isinstance(outcome, core.Claimed):
                    self._spread = max(1, self._spread // 2)
                    return outcome
                if outcome == "expired" or not places:
                    break

    def _try(self, bid: ClaimAttempt, place: Item) -> Op[core.ClaimOutcome | str]:
        """Claim the task that has this place; ``expired`` if others may have lost theirs."""
        identity, ask = bid.identity, self._ask(bid, keys.listed(place.key))
        deadline = decode.ready(place).deadline
        blind = deadline is None
        outcome = yield from self._claim(bid, ask, place, blind=blind)
        if isinstance(outcome, core.Claimed):
            return outcome
        if outcome == "gone":  # somebody else was quicker
            self._spread = min(2 * self._spread, WIDTH)
        elif outcome == "stale":
            yield from self._progress.reclaim(identity.actor, ask.task)
        elif outcome == "expired":
            yield from self._progress.expire_around(identity.actor, place.key)
        elif not isinstance(outcome, str):
            yield from self._progress.tidy(identity.actor, place.key)
        return outcome

    def _chosen(self, among: int) -> int:
        return self._runner.random_below(min(self._spread, among))

    def _claim(
        self, bid: ClaimAttempt, ask: core.ClaimRequest, place: Item | None, *, blind: bool
    ) -> Op[core.ClaimOutcome | str]:
        identity, base = bid.identity, (yield from self._runner.base())
        guess: dict[str, Item | None] = {}
        if blind:
            status = keys.status(ask.task)
            guess = {status: Item(status, _fresh(place), 0, 0), keys.owner(ask.task): None}
            if place is not None:
                guess[place.key] = place
            if identity.joined:
                guess[keys.live(identity.actor.session)] = ALIVE
        first = [blind]

        def deciding() -> DecideOp[core.ClaimOutcome | str]:
            key = "" if place is None else place.key
            return (
                yield from self._deciding(bid, ask, base, key, blind=bool(first and first.pop()))
            )

        bid.open = ask
        done = yield from self._runner.change(deciding, identity.actor, guess)
        if isinstance(done.outcome, core.Claimed):
            return (yield from self._stamped(done.outcome, done, base))
        bid.open = None
        return done.outcome

    def _deciding(
        self, bid: ClaimAttempt, ask: core.ClaimRequest, base: int, place: str, *, blind: bool
    ) -> DecideOp[core.ClaimOutcome | str]:
        """One attempt at a claim."""
        identity = bid.identity
        own = keys.live(identity.actor.session) if identity.joined else ""
        data = keys.data(ask.task)
        wanted = [keys.status(ask.task), keys.owner(ask.task)]
        wanted += [key for key in (own, place, "" if blind else data) if key]
        items = (yield tuple(wanted)).items
        if own and items[own] is None:
            raise _lapsed(identity)
        if place and items[place] is None:
            return Decision(outcome="gone")
        reader = TaskReader(self._runner, base)
        reader.learn(items)
        now = self._runner.clock.wall()
        spec = None if blind else reader.facts.specs[ask.task]
        decision = yield from reader.decide(
            lambda facts: rules.claim(TaskChanges(facts, now), ask, spec, place)
        )
        if isinstance(decision.outcome, core.Taken):
            return Decision(outcome=reader.timed(decision.outcome))
        return self._signed(bid, decision, (data,) if blind else ())

    def _signed(
        self, bid: ClaimAttempt, decision: Decision[core.ClaimOutcome | str], reads: tuple[str, ...]
    ) -> Decision[core.ClaimOutcome | str]:
        """A claim, with which component made it and how long that took so far."""
        if not decision.changes:
            return decision
        role, via = bid.identity.role, self._runner.via
        took = round((self._runner.clock.monotonic() - bid.began) * 1000, 3)
        return replace(decision, reads=reads, via=f"{via}/{role}" if role else via, took=took)

    def take_back(self, identity: Identity, task: str, claim: str) -> Op[None]:
        """Release what we may have claimed; without a task, find out which that was."""
        tasks = [task]
        if not task:
            places = yield from every(keys.claims(identity.actor.session))
            owners = {keys.owner(task): task for task in map(keys.listed, [p.key for p in places])}
            standing = yield from self._queues.standing(owners)
            tasks = [task for owner, task in owners.items() if (owner, claim) in standing]
        base = yield from self._runner.base()
        for each in tasks:
            worker = core.Claimant(
                task=each, agent=identity.actor.agent, session=identity.actor.session, claim=claim
            )

            def deciding(worker: core.Claimant = worker) -> DecideOp[object]:
                reader = TaskReader(self._runner, base)
                reader.learn((yield (keys.status(worker.task), keys.owner(worker.task))).items)
                held = reader.facts.claims[worker.task]
                if held is None or held.id != worker.claim:
                    return Decision(outcome=None)
                now = self._runner.clock.wall()
                return (
                    yield from reader.decide(
                        lambda facts: rules.release(TaskChanges(facts, now), worker)
                    )
                )

            yield from self._runner.change(deciding, identity.actor)

    def _stamped(self, outcome: core.Claimed, done: Decided[Any], base: int) -> Op[core.Claimed]:
        """A claim with its token and its data, which a lost reply did not bring along."""
        key = keys.data(outcome.task)
        item = done.items.get(key)
        if outcome.data is None and item is None:
            item = (yield Read(key))[key]
        if (spec := decode.spec(item)) is not None:
            self._remember(outcome.task, spec)
            outcome = replace(
                outcome, data=spec.data, priority=spec.priority, requires=spec.requires
            )
        data = msgspec.json.decode(outcome.data)
        return replace(outcome, token=base + (done.revision or 0), data=data)

    def _remember(self, task: str, spec: core.Spec) -> None:
        """What completing needs to know of a task that was claimed blindly."""
        self.specs[task] = replace(spec, data=Raw(b"null"))
        if len(self.specs) > _SPECS:
            with suppress(RuntimeError, StopIteration):  # another thread was quicker
                self.specs.pop(next(iter(self.specs)), None)

    def _ask(self, bid: ClaimAttempt, task: str) -> core.ClaimRequest:
        identity = bid.identity
        return core.ClaimRequest(
            task=task,
            claim=self._runner.new_id("clm"),
            agent=identity.actor.agent,
            session=identity.actor.session,
            ttl=bid.ttl,
            session_ttl=identity.session_ttl,
            caller=bid.terms.caller,
        )


def _in_vain(
    looks: tuple[Callable[[], Op[bool]], Callable[[], Op[bool]]], *, woken: bool
) -> Op[bool]:
    """Whether to sleep on: woken, but there is nothing for us; or not woken, and all is still."""
    peek, still = looks
    if woken:
        return not (yield from peek())
    return (yield from still())


def _may_change(outcome: core.ClaimOutcome) -> bool:
    """Whether waiting may help."""
    if isinstance(outcome, core.NoTask):
        return not outcome.task
    return not isinstance(outcome, core.Claimed)


def _fresh(place: Item | None) -> bytes:
    """The status of a task that nobody tried yet."""
    trace = "" if place is None else decode.ready(place).trace
    return codec.encode(replace(core.FRESH, trace=trace)) if trace else _FRESH


def _lapsed(identity: Identity) -> Lapsed:
    return Lapsed(f"session {identity.actor.session} lapsed; join again")
