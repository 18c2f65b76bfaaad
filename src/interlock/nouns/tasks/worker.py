"""What a worker does: claim the next task, again and again, until it is to stop.

``stop`` is the one place where that is said, by whomever: a signal, the program, a message.
A worker that is to stop claims nothing more, and finishes what it has begun.

Who claims is not always who works on it, so each claim goes by a name of its own.  Whoever enters
its block goes by that name as well until it is settled: what it waits for keeps the task from being
done, and so is part of any circle that leads over the task.

Messages are listened to beside the work, by a thread or a task of an event loop.  A thread that
waits for work cannot be woken by another one, so it listens to its inbox with the same watch.

Polite signals for workers: the first asks to stop, the second not to finish, either.

Only the main thread of a process can hear them.  Whoever listens is called in the order of
coming; when nobody listens any more, what was there before is put back.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple, Self, TypeAlias

from msgspec.structs import replace

from interlock.core import validate
from interlock.drivers import Op, Pause
from interlock.errors import InterlockError, Lapsed, StoreTrouble
from interlock.nouns.agents.report import State
from interlock.nouns.agents.reports import without_work
from interlock.nouns.messages.stops import StopNotice, Stops
from interlock.nouns.tasks.calls import able
from interlock.nouns.tasks.held_claim import HeldClaim, hold_claim
from interlock.nouns.tasks.task import Claimed
from interlock.runtime import callers
from interlock.runtime.context import Context
from interlock.runtime.identity import Identity
from interlock.runtime.keeper import Lease
from interlock.runtime.outage import AGAIN, PASSING, OutageLog
from interlock.runtime.steps import OpenWatch
from interlock.runtime.stoppable import stoppable
from interlock.store import Change, Resync, Watch

MOST_AT_ONCE = 1000


class WorkerLoop:
    """What a worker wants to do, and whether it is to stop."""

    def __init__(
        self,
        context: Context,
        can: Iterable[str],
        ttl: float | str | None,
        *,
        messages: bool = True,
    ) -> None:
        identity = context.me()
        self.can = able(can)
        self.reason = ""
        """Why it is to stop; empty while it is not."""
        self.stops = Stops(context.runner, identity.actor) if messages and identity.joined else None
        """Where somebody may ask it to, if it listens to messages."""
        self._asked = 0
        self._context = context
        self._ttl, _ = context.terms({}, ttl, None)
        self._complaints = OutageLog("a worker")

    def stop(self, reason: str) -> None:
        """Claim nothing more; the first reason is the one that counts."""
        self.reason = self.reason or reason or "it was asked to"

    def obey(self, stop: StopNotice) -> bool:
        """Do what a message asks for; the second one says not to finish, either."""
        self._asked += 1
        self.stop(str(stop))
        return self._asked > 1

    def obeyed(self) -> Op[None]:
        """No more work is taken: what asked for that is done with.

        If the store is in trouble, our next incarnation passes over it.
        """
        if self.stops is not None:
            with suppress(InterlockError):
                yield from self.stops.ack()

    def ask(self, wait: float = 0.0) -> Op[HeldClaim | None]:
        """Claim the next task, if there is one in time.

        A store that is away is waited for: it comes back, or we are to stop, which is heard all
        the same.  A session of ours that lapsed meanwhile is followed by a new one.
        """
        while not self.reason:
            identity = self._context.identity
            try:
                working = yield from self._ask(wait)
                self._complaints.over()
                return working  # noqa: TRY300 - whatever is raised here is looked at below
            except PASSING as trouble:
                if self._context.no_retry:
                    raise
                yield from self._rest(trouble)
            except Lapsed as lapsed:
                if self._context.no_retry or not self._context.rejoins(identity):
                    raise
                yield from self._rejoin(identity, lapsed)
        return None

    def _rejoin(self, identity: Identity, lapsed: Lapsed) -> Op[None]:
        """Go on under the same name, with another session."""
        try:
            yield from self._context.rejoin(identity)
        except PASSING as trouble:
            yield from self._rest(trouble)
            return
        import logging

        log = logging.getLogger("interlock")
        log.warning("%s; the worker goes on as %s", lapsed, self._context.identity.actor.session)
        self.say()

    def _rest(self, trouble: StoreTrouble) -> Op[None]:
        if not self._context.store.outage:  # else the store told it
            self._complaints.tell(trouble)
        if not self.reason:
            yield Pause(self._context.runner.capabilities.allow(AGAIN))

    def wait(self) -> Op[HeldClaim | None]:
        """The same for a thread: wait for ever, but not when it is to stop."""
        working = yield from self.ask()
        if working is None:
            self.say()
            extra = None if self.stops is None else _InboxListener(self.stops, self.obey)
            while working is None and not self.reason:
                waiting = stoppable(self.ask(validate.FOREVER), self._is_to_look, extra)
                working = yield from waiting
        return working

    def say(self, tasks: Collection[str] = ()) -> None:
        """Tell others what we work on, if we have a session that can say it."""
        if not self._context.identity.joined:
            return
        first = f"task/{next(iter(tasks))}" if tasks else ""
        doing = first if len(first) <= validate.NAME_LIMIT else ""
        note = f"{len(tasks)} tasks at once" if len(tasks) > 1 else ""
        state: State = "busy" if tasks else "idle"
        look = None if tasks else without_work
        self._context.pulse.be(state, doing, note, can=self.can, calmly=True, look=look)

    @property
    def lease(self) -> Lease | None:
        """What keeps our session alive."""
        return self._context.session_lease

    def _is_to_look(self) -> bool:
        """Whether a wait is to end: we are to stop, or our session is over."""
        lease = self._context.session_lease
        return bool(self.reason) or (lease is not None and not lease.alive())

    def _ask(self, wait: float) -> Op[HeldClaim | None]:
        context = self._context
        sent, patience = context.runner.clock.monotonic(), context.asking(wait)
        fresh = "" if context.identity.caller else callers.new_name()
        identity = replace(context.identity, caller=context.identity.caller or fresh, role="worker")
        outcome = yield from context.tasks.next(identity, self.can, ttl=self._ttl, wait=patience)
        if not isinstance(outcome, Claimed):
            return None
        return (yield from hold_claim(context, outcome, self._ttl, sent, fresh))


class _InboxListener(NamedTuple):
    """What else is heard on the watch of whoever waits for work."""

    stops: Stops
    obey: Callable[[StopNotice], object]

    def opened(self, step: OpenWatch) -> Op[Watch]:
        """The same watch, of our inbox, too."""
        scopes = (step.scope,) if isinstance(step.scope, str) else step.scope
        watch: Watch = yield OpenWatch((*scopes, self.stops.inbox), step.after)
        return watch

    def heard(self, changes: list[Change | Resync]) -> Op[list[Change | Resync]]:
        """Obey what came into our inbox; returns the rest."""
        inbox = self.stops.inbox
        ours = [each for each in changes if isinstance(each, Change) and each.key.startswith(inbox)]
        for stop in (yield from self.stops.among(ours)) if ours else ():
            self.obey(stop)
        return [each for each in changes if each not in ours]


SIGNALS = (signal.SIGINT, signal.SIGTERM)
SignalCallback: TypeAlias = Callable[[int], None]

_listeners: list[SignalCallback] = []
_before: dict[int, Any] = {}


class SignalListener:
    """``with Listening(callback):`` calls it with the number of each signal that comes."""

    def __init__(self, callback: SignalCallback, *, wanted: bool = True) -> None:
        self._callback = callback
        self._wanted = wanted and threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        self._wanted = self._wanted and self._callback not in _listeners
        if self._wanted:
            _listeners.append(self._callback)
            if not _before:
                _begin()
        return self

    def __exit__(self, *_: object) -> None:
        if self._wanted:
            _listeners.remove(self._callback)
            if not _listeners and threading.current_thread() is threading.main_thread():
                _end()


def interrupt_main(listener: SignalCallback) -> bool:
    """Have the main thread call a listener, whatever it waits for; False if it hears no signals."""
    main = threading.main_thread().ident
    if listener not in _listeners or signal.SIGTERM not in _before or main is None:
        return False
    signal.pthread_kill(main, signal.SIGTERM)
    return True


def _begin() -> None:
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            _before[number] = signal.signal(number, _heard)


def _end() -> None:
    for number, handler in _before.items():
        signal.signal(number, handler)
    _before.clear()


def _heard(number: int, _frame: FrameType | None) -> None:
    for listener in tuple(_listeners):
        listener(number)
    if not _listeners:  # whoever listened last left in another thread, which may not change this
        _end()
        signal.raise_signal(number)
