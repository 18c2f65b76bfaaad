"""Waits for one task: listed while they last, and refused if they could never end.

A claim without a wait pays nothing for this.  The wait is listed before the first sleep, by a
commit of its own.  The commit of the claim deletes it; if the wait ends otherwise, it is withdrawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.core.wait import UnqueuedWait, wait_keys, wait_writes
from interlock.drivers import Op, Read
from interlock.errors import Lapsed
from interlock.nouns.grants.service import GrantService, PendingRelease
from interlock.nouns.tasks import task as core
from interlock.runtime import callers
from interlock.runtime.deadlock import DeadlockDetector
from interlock.runtime.decide import DecideOp
from interlock.runtime.identity import Actor, Identity
from interlock.runtime.runner import Runner
from interlock.runtime.wait_graph import Start

_WITHDRAW = "task.withdraw"


class ClaimAttempt:
    """One call that claims: its terms, and what it may have committed so far, a claim or a wait."""

    __slots__ = ("asleep", "began", "caller", "identity", "task_wait", "terms", "ttl", "unsettled")

    def __init__(
        self,
        identity: Identity,
        ttl: float | None,
        caller: callers.LocalCaller | None,
        began: float,
    ) -> None:
        self.identity = identity
        self.began = began
        self.ttl = ttl
        self.caller = None if identity.caller else caller
        self.terms = callers.caller_terms(identity.caller, caller)
        self.asleep: Callable[[], None] | None = None
        """Called before each sleep of a wait."""
        self.unsettled: core.ClaimRequest | None = None
        self.task_wait: TaskWait | None = None

    def current_request(self, request: core.ClaimRequest) -> core.ClaimRequest:
        """The request, with the keys of the wait once that is listed."""
        return request if self.task_wait is None else self.task_wait.request

    def listed(self) -> Iterator[PendingRelease]:
        """The pending withdrawal of a wait that may be listed."""
        if self.task_wait is not None and (withdrawal := self.task_wait.withdrawal) is not None:
            yield withdrawal


class TaskWait:
    """One wait for one task; ``request`` names the keys of the wait once it is listed."""

    def __init__(
        self,
        runner: Runner,
        grants: GrantService,
        actor: Actor,
        request: core.ClaimRequest,
        terms: callers.CallerTerms,
    ) -> None:
        self.request = request
        self._runner = runner
        self._grants = grants
        self._deadlocks = DeadlockDetector(runner)
        self._thing = f"task/{request.task}"
        self._who = actor
        self._terms = terms
        self._start: Start | None = None

    @property
    def withdrawal(self) -> PendingRelease | None:
        """The pending withdrawal of the wait, if it may be listed."""
        if not self.request.listed:
            return None
        return PendingRelease(self.request.claim, self._thing, self._take_back)

    def look(self) -> Op[core.TaskDeadlock | None]:
        """Look for a deadlock; the wait is withdrawn if it is a part of one."""
        start = self._start or (yield from self._list())
        pending = self._grants.pending_grants() | callers.pending_grants()
        done = yield from self._deadlocks.resolve(self._who, start, self._withdraw, pending=pending)
        return done.outcome

    def _list(self) -> Op[Start]:
        asleep = UnqueuedWait(
            wants=keys.status(self.request.task),
            agent=self._who.agent,
            session=self._who.session,
            live=keys.live(self._who.session),
            since=self._runner.clock.wall(),
            caller=self._terms.caller,
            indexed=self._terms.indexed,
            also=self._terms.also,
        )
        id_ = self.request.claim
        self.request = replace(self.request, listed=wait_keys(asleep, id_))

        def deciding() -> DecideOp[str]:
            yield from ()
            puts = wait_writes(asleep, id_)
            return Decision(outcome="waiting", verb="task.wait", thing=self._thing, puts=puts)

        done = yield from self._runner.change(deciding, self._who)
        revision = done.revision or 0
        self._start = Start(id=id_, wants=(asleep.wants,), asleep=asleep, revision=revision)
        return self._start

    def _withdraw(self, cycle: tuple[str, ...]) -> DecideOp[core.TaskDeadlock | None]:
        yield from ()
        outcome = core.TaskDeadlock(task=self.request.task, cycle=cycle)
        return Decision(
            outcome=outcome, verb=_WITHDRAW, thing=self._thing, deletes=self.request.listed
        )

    def _take_back(self) -> Op[None]:
        def deciding() -> DecideOp[str | None]:
            items = (yield self.request.listed).items
            there = tuple([key for key, item in items.items() if item is not None])
            if not there:
                return Decision(outcome=None)
            return Decision(outcome="withdrawn", verb=_WITHDRAW, thing=self._thing, deletes=there)

        yield from self._runner.change(deciding, self._who)


def require_session(identity: Identity) -> Op[None]:
    """Raise if the session of a waiter has expired."""
    own = keys.live(identity.actor.session)
    if identity.joined and (yield Read(own))[own] is None:
        raise session_expired(identity)


def session_expired(identity: Identity) -> Lapsed:
    """The error of a caller whose session has expired."""
    return Lapsed(f"session {identity.actor.session} expired; join again")
