"""The loop of a worker: claim the next task, again and again, until it is to stop.

``stop`` is the one place that ends the loop, for a signal, the program or a message.  A worker that
is to stop claims nothing more, and finishes the tasks that it has begun.

The commit that ends one task claims the next (``next_claim.py``), if the loop goes on: the claim
that came with it waits in ``_handed``.

The caller that claims may be another than the one that works on the task, so each claim has a
caller name of its own.  The caller that enters its block takes that name, too, until the claim is
settled: its waits keep the task from being done, and so are a part of each deadlock through the
task.

Another thread, or another task of an event loop, listens for messages during the work.  A thread
that waits for work cannot be woken by another thread, so it watches its inbox with the same watch.

The first signal asks a worker to stop, the second one also not to finish.  Only the main thread of
a process receives them.  Callbacks are called in the order in which they were added; after the last
one is removed, the former handlers are restored.
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

from msgspec.structs import replace

from interlock.client_context import Context
from interlock.core import validate
from interlock.core.validate import ALL_ABILITIES
from interlock.errors import InterlockError, Lapsed, StoreTrouble
from interlock.nouns.agents.report_rules import ReportState, ReportUpdate
from interlock.nouns.agents.report_service import state_without_work
from interlock.nouns.messages.stops import StopNotice, Stops
from interlock.nouns.tasks.held_claim import Ending, HeldClaim, hold_by_session, hold_claim
from interlock.nouns.tasks.ready_index import Abilities
from interlock.nouns.tasks.several_claims import SeveralEnded
from interlock.nouns.tasks.task import ONLY, TaskEnd
from interlock.nouns.tasks.task_outcomes import Claimed
from interlock.nouns.tasks.waiting_workers import ReservedSlot, WaitingWorker, reserved_slot
from interlock.runtime import callers
from interlock.runtime.identity import Identity
from interlock.runtime.keeper import Lease
from interlock.runtime.leader import Bell
from interlock.runtime.outage import AGAIN, PASSING, OutageLog
from interlock.runtime.stoppable import SLICE, stoppable
from interlock.steps import Op, OpenWatch, Pause
from interlock.store import Change, Resync, Watch

if TYPE_CHECKING:
    from interlock.nouns.tasks.next_claim import NextClaim

MOST_AT_ONCE = 1000


class WorkerLoop:
    """The abilities and terms of a worker, and whether it is to stop."""

    def __init__(
        self,
        context: Context,
        can: Iterable[str] | None,
        ttl: float | str | None,
        *,
        messages: bool = True,
    ) -> None:
        identity = context.me()
        self.can = () if can is None else validate.abilities(can)
        """What it can do; ``only`` adds marks for the tasks that it takes (``task.ONLY``)."""
        self.as_reported = can is None
        """Whether it can also do what its session reports."""
        self.reason = ""
        """Why it is to stop; empty while it is not."""
        self.stops = Stops(context.runner, identity.actor) if messages and identity.joined else None
        """The messages that ask it to stop, if it listens to them."""
        self._asked = 0
        self._handed: deque[HeldClaim] = deque()
        """Claims that the thread has not begun: made ahead, or of tasks created for us."""
        self._batch: tuple[HeldClaim, ...] = ()
        """The claims of the last commit that made some ahead."""
        self._reserved: set[ReservedSlot] = set()
        self._waits = False
        self._bell = Bell()
        self._context = context
        self._tasks = context.tasks  # made now, so that the first task waits for no import
        self._ttl, _ = context.terms({}, ttl, None)
        self._complaints = OutageLog("a worker")

    def twin(self, team: WorkerTeam) -> TeamLoop:
        """The loop of a further thread with the same terms."""
        return TeamLoop(self._context, self, self._ttl, team)

    def only(self, abilities: Iterable[str]) -> None:
        """Add the abilities of its handlers (``handlers.py``)."""
        self.can = tuple(dict.fromkeys((*self.can, *abilities)))

    def stop(self, reason: str) -> None:
        """Claim nothing more; the first reason is kept."""
        self.reason = self.reason or reason or "it was asked to"

    def handle_stop(self, stop: StopNotice) -> bool:
        """Stop for a message; returns whether it is the second one, which says not to finish."""
        self._asked += 1
        self.stop(str(stop))
        return self._asked > 1

    def acknowledge_stops(self) -> Op[None]:
        """Acknowledge the messages that asked to stop.

        If the store is in trouble, the next session of the agent skips them.
        """
        if self.stops is not None:
            with suppress(InterlockError):
                yield from self.stops.ack()

    def claim_next(self, wait: float = 0.0) -> Op[HeldClaim | None]:
        """Claim the next task, if there is one in time: see ``claim_some``."""
        found = yield from self.claim_some(1, wait)
        return found[0] if found else None

    def claim_some(self, limit: int, wait: float = 0.0) -> Op[list[HeldClaim]]:
        """Claim the next tasks, up to a limit, if there is one in time.

        While the store is away, this waits until it is back, or until the worker is to stop.  If
        our session has expired by then, it joins again.
        """
        while not self.reason:
            identity = self._context.identity
            try:
                found = yield from self._claim_some(limit, wait)
                self._complaints.over()
                return found  # noqa: TRY300 - errors of this line are handled below
            except PASSING as trouble:
                if self._context.no_retry:
                    raise
                yield from self._rest(trouble)
            except Lapsed as lapsed:
                if self._context.no_retry or not self._context.rejoins(identity):
                    raise
                yield from self._rejoin(identity, lapsed)
        return []

    def _claim_some(self, limit: int, wait: float) -> Op[list[HeldClaim]]:
        if limit > 1:
            _, held = yield from self.end_and_claim((), limit)
            if held:
                return held
        working = yield from self._claim_next(wait)
        return [] if working is None else [working]

    def end_and_claim(
        self, ends: Sequence[TaskEnd], limit: int, *, ahead: bool = False
    ) -> Op[tuple[frozenset[str], list[HeldClaim]]]:
        """Complete tasks together, and claim up to a limit of others with the same commit.

        Returns the tasks that are complete, each other one is to end by itself, and the claims.
        ``ahead`` says that the claims are begun one after the other.
        """
        context, identity = self._context, self._identity()
        limit = 0 if self.reason or self._reserved or self._handed else limit
        apart = not context.identity.caller
        then = self._tasks.claims.several(
            identity, self._abilities(identity), self._ttl, limit, apart=apart, ahead=ahead
        )
        if not ends and not then.limit:
            return frozenset(), []
        done = yield from self._tasks.complete_several(identity.actor, ends, then)
        held = []
        for claimed in done.claims:
            caller = then.callers[claimed.grant]
            if self._ttl is None:
                held.append(hold_by_session(context, claimed, caller))
            else:
                held.append((yield from hold_claim(context, claimed, self._ttl, then.sent, caller)))
        return done.ended if isinstance(done, SeveralEnded) else frozenset(), held

    def _rejoin(self, identity: Identity, lapsed: Lapsed) -> Op[None]:
        """Continue under the same agent name, with a new session."""
        try:
            yield from self._context.rejoin(identity)
        except PASSING as trouble:
            yield from self._rest(trouble)
            return
        import logging

        log = logging.getLogger("interlock")
        log.warning("%s; the worker goes on as %s", lapsed, self._context.identity.actor.session)
        self.report()

    def _rest(self, trouble: StoreTrouble) -> Op[None]:
        if not self._context.store.outage:  # else the store has logged it
            self._complaints.warn(trouble)
        if not self.reason:
            yield Pause(self._context.runner.capabilities.allow(AGAIN))

    def wait_next(self) -> Op[HeldClaim | None]:
        """Claim the next task for a thread: wait without limit, until the worker is to stop."""
        working = self.take_ahead() or (yield from self.claim_next())
        if working is None:
            self.report()
            extra = None if self.stops is None else _InboxListener(self.stops, self.handle_stop)
            self._waits = True
            self.waiting.append(self)
            try:
                while working is None and not self.reason:
                    if self._reserved:  # the commit has woken us, and its thread goes on
                        yield from self._bell.sleep(SLICE)
                    else:
                        claiming = self.claim_next(validate.FOREVER)
                        working = yield from stoppable(
                            claiming, self._wait_is_over, extra, drops=True
                        )
                    working = working or self.take_ahead()
            finally:
                self._waits = False
                self.waiting.remove(self)
            working = working or self.take_ahead()
            self.give_back()  # one at a time: another worker may be free
        return working

    def reserve(self) -> ReservedSlot | None:
        """The slot of a thread that waits, for a task that another thread creates."""
        if not self._waits or self.reason or self._reserved or self._handed:
            return None
        slot = self.slot(self, wakes=True)
        self._reserved.add(slot)
        return slot

    def give(self, slot: ReservedSlot, claim: HeldClaim | None) -> None:
        """The claim of a reserved slot, or the slot back."""
        if claim is not None:
            self._handed.append(claim)
        self._reserved.discard(slot)
        self._bell.ring()
        if self.reason or not self._waits:  # it has another one by now, or has left
            self.give_back()

    def give_back(self) -> None:
        """Have the keeper release the claims that the thread did not take."""
        while (claim := self.take_ahead()) is not None:
            claim.give_up()

    def ends_together(self, end: TaskEnd) -> Ending | None:
        """A thread ends one task after the other."""

    def next_claim(self) -> NextClaim | None:
        """The claim that goes along with the end of another task; none if we are to stop."""
        if self.reason or self._reserved or self._handed:
            return None
        identity = self._identity()
        return self._tasks.claims.following(identity, self._abilities(identity), self._ttl)

    def hold_next(self, then: NextClaim, claimed: Claimed) -> Op[HeldClaim]:
        """Hold a claim that came with the end of another."""
        caller = "" if self._context.identity.caller else then.caller
        return (yield from hold_claim(self._context, claimed, self._ttl, then.sent, caller))

    def keep_ahead(self, claims: Sequence[HeldClaim], loop: object) -> None:
        """The thread begins these one after the other; they are released if its loop is deleted."""
        self._batch = tuple(claims)
        for claim in claims[1:]:
            claim.belong_to(loop)
        if claims:
            claims[0].handover.held = claims[0]
        self._handed.extend(claims)

    @property
    def has_ahead(self) -> bool:
        """Whether there is a claim that the thread has not begun."""
        return bool(self._handed)

    def take_ahead(self) -> HeldClaim | None:
        """The next claim that the thread has not begun, if there is one; not one that is lost."""
        while self._handed:
            try:
                claim = self._handed.popleft()
            except IndexError:  # another thread was faster
                break
            if not claim.over_by_now():
                return claim
            claim.give_up()
        return None

    def release_ahead(self, kept: str) -> Op[None]:
        """The loop is over: release the claims that it has not begun, all but this grant.

        An interrupt may have kept one of them from the loop, and its exception keeps it alive.
        """
        claims = [each for each in (*self._handed, *self._batch) if each.claimed.grant != kept]
        self._handed.clear()
        self._batch = ()
        try:
            for claim in claims:
                yield from claim.end(GeneratorExit())
        finally:
            for claim in claims:
                claim.give_up()

    def take_next(self, then: NextClaim, claimed: Claimed) -> Op[None]:
        """The thread gets it at the next step of its loop."""
        self._handed.append((yield from self.hold_next(then, claimed)))

    def no_next(self, then: NextClaim) -> None:
        """The thread asks for it at the next step of its loop."""

    def report(self, tasks: Collection[str] = ()) -> None:
        """Report the tasks that we work on, if we have a session."""
        if not self._context.identity.joined:
            return
        first = f"task/{next(iter(tasks))}" if tasks else ""
        doing = first if len(first) <= validate.NAME_LIMIT else ""
        note = f"{len(tasks)} tasks at once" if len(tasks) > 1 else ""
        state: ReportState = "busy" if tasks else "idle"
        look = None if tasks else state_without_work
        can = tuple([each for each in self.can if not each.startswith(ONLY)])
        known = (ALL_ABILITIES,) if ALL_ABILITIES in can else can
        update = ReportUpdate(state=state, also=known, doing=doing, note=note)
        self._context.pulse.set_update(update, calmly=True, look=look)

    @property
    def waiting(self) -> list[WaitingWorker]:
        """The workers of this process that may get a task as it is created."""
        return self._tasks.waiting

    def slot(self, worker: WaitingWorker, *, wakes: bool = False) -> ReservedSlot:
        """A slot of a worker with our terms."""
        return reserved_slot(worker, self._context, self._ttl, wakes=wakes)

    @property
    def leased(self) -> bool:
        """Whether each claim has a lease of its own."""
        return self._ttl is not None

    @property
    def lease(self) -> Lease | None:
        """The lease of our session."""
        return self._context.session_lease

    @property
    def one_by_one(self) -> bool:
        """Whether it claims no task ahead.

        Each claim has a lease, or another thread works on it, or another process keeps the session
        alive: then all claims of a worker that is killed would stand until that process ends.
        """
        return self.leased or self._context.identity.listed

    def _wait_is_over(self) -> bool:
        """Whether a wait is to end: we are to stop, have a claim, or our session has expired."""
        lease = self._context.session_lease
        lapsed = lease is not None and not lease.alive()
        return lapsed or bool(self.reason or self._reserved or self._handed)

    def _claim_next(self, wait: float) -> Op[HeldClaim | None]:
        context = self._context
        sent, patience = context.runner.clock.monotonic(), context.checked_wait(wait)
        identity = self._identity()
        fresh = "" if context.identity.caller else identity.caller
        outcome = yield from self._tasks.claims.next(
            identity, self._abilities(identity), ttl=self._ttl, wait=patience
        )
        if not isinstance(outcome, Claimed):
            return None
        return (yield from hold_claim(context, outcome, self._ttl, sent, fresh))

    def _identity(self) -> Identity:
        """Who claims: each claim has a caller name of its own."""
        identity = self._context.identity
        return replace(identity, caller=identity.caller or callers.new_name(), role="worker")

    def _abilities(self, identity: Identity) -> Abilities:
        return Abilities(
            frozenset(self.can),
            identity.actor.session if self.as_reported and identity.joined else "",
        )


class WorkerTeam:
    """What the loops of several threads share: one of them waits for work, and one report."""

    def __init__(self) -> None:
        self.one_waits = threading.Lock()
        """Held by the loop that waits: a task wakes one of them, and not all."""
        self._doing: dict[object, tuple[str, ...]] = {}
        self._guard = threading.RLock()  # a signal handler may need it, too

    def doing(self, loop: object, tasks: Collection[str]) -> tuple[str, ...]:
        """A loop works on these tasks; returns those of all."""
        with self._guard:
            self._doing[loop] = tuple(tasks)
            return tuple(task for each in self._doing.values() for task in each)


class TeamLoop(WorkerLoop):
    """The loop of one thread of several."""

    def __init__(
        self, context: Context, first: WorkerLoop, ttl: float | None, team: WorkerTeam
    ) -> None:
        super().__init__(context, None, ttl, messages=False)
        self.can = first.can
        self.as_reported = first.as_reported
        self._team = team

    def wait_next(self) -> Op[HeldClaim | None]:
        """Claim the next task; if there is none, one thread of the team waits at a time."""
        working = self.take_ahead()
        if working is None:
            with self._team.one_waits:
                working = yield from super().wait_next()
        return working

    @property
    def one_by_one(self) -> bool:
        """The other threads are to get the tasks that this one does not work on."""
        return True

    def report(self, tasks: Collection[str] = ()) -> None:
        """Report what all threads do."""
        super().report(self._team.doing(self, tasks))


class _InboxListener(NamedTuple):
    """Adds the inbox to the watch of a worker that waits for work."""

    stops: Stops
    handle_stop: Callable[[StopNotice], object]

    def opened(self, step: OpenWatch) -> Op[Watch]:
        """Open the watch with our inbox as a further scope."""
        scopes = (step.scope,) if isinstance(step.scope, str) else step.scope
        watch: Watch = yield OpenWatch((*scopes, self.stops.inbox), step.after)
        return watch

    def heard(self, changes: list[Change | Resync]) -> Op[list[Change | Resync]]:
        """Handle the messages in our inbox; returns the other changes."""
        inbox = self.stops.inbox
        ours = [each for each in changes if isinstance(each, Change) and each.key.startswith(inbox)]
        for stop in (yield from self.stops.among(ours)) if ours else ():
            self.handle_stop(stop)
        return [each for each in changes if each not in ours]


SIGNALS = (signal.SIGINT, signal.SIGTERM)
SignalCallback: TypeAlias = Callable[[int], None]

_listeners: list[SignalCallback] = []
_before: dict[int, Any] = {}


class SignalListener:
    """``with SignalListener(callback):`` calls it with the number of each signal."""

    def __init__(self, callback: SignalCallback, *, wanted: bool = True) -> None:
        self._callback = callback
        self._wanted = wanted and threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        self._wanted = self._wanted and self._callback not in _listeners
        if self._wanted:
            try:
                _listeners.append(self._callback)
                if not _before:
                    _install()
            except BaseException:  # an interrupt: a later one must not come to us
                self._leave()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._wanted:
            self._leave()

    def _leave(self) -> None:
        try:
            self._remove()
        except BaseException:  # an interrupt: it must leave no handler behind
            self._remove()
            raise

    def _remove(self) -> None:
        if self._callback in _listeners:
            _listeners.remove(self._callback)
        if not _listeners and threading.current_thread() is threading.main_thread():
            _restore()


def interrupt_main(listener: SignalCallback) -> bool:
    """Have the main thread call a callback, even while it waits; False if it cannot."""
    main = threading.main_thread().ident
    if listener not in _listeners or signal.SIGTERM not in _before or main is None:
        return False
    signal.pthread_kill(main, signal.SIGTERM)
    return True


def _install() -> None:
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            _before[number] = signal.signal(number, _on_signal)


def _restore() -> None:
    try:
        _put_back()
    finally:  # an exception of one of these signals may have come in between
        _put_back()


def _put_back() -> None:
    for number, handler in _before.items():
        signal.signal(number, handler)
    _before.clear()


def _on_signal(number: int, _frame: FrameType | None) -> None:
    for listener in tuple(_listeners):
        listener(number)
    if not _listeners:  # the last one left in another thread, which may not set handlers
        _restore()
        signal.raise_signal(number)
