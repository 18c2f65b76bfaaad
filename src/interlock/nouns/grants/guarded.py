"""Grants behind guards: a lock, slots or several things, granted only while guards pass.

The commit that grants checks the guards, and so does one that queues.  A waiter that another
caller's release promotes has a grant from a commit that did not: so it confirms the grant with one
commit that checks them, or gives it back with that commit, which serves the next waiter.

While a guard does not pass, the caller holds nothing and does not queue (``guard_wait.py``): a
queued request would block all behind it, though it could not use what it waits for.  When the guard
passes, it enters the queue at its end.

More slots of a grant that the caller has are checked by the commit that gives them or queues for
them, not when they come: they cannot be given back alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Event, Refusal
from interlock.core.outcomes import Extended, Granted, GuardBlocked, NoGuard, Waiting
from interlock.core.safe_text import foreign
from interlock.core.thing_names import pool_kind
from interlock.core.wait import UnqueuedWait, before_thing, wait_keys, wait_writes
from interlock.errors import StoreTrouble, note_pending
from interlock.nouns.grants import handover, rules
from interlock.nouns.grants.handover import PendingRelease
from interlock.nouns.grants.pool_reader import PoolReader
from interlock.nouns.grants.request import GrantRequest, GrantTarget, RequestStatus
from interlock.nouns.grants.semaphore import AlreadyHeld
from interlock.nouns.grants.service import GrantService
from interlock.nouns.guards.guard_wait import GuardWait
from interlock.nouns.guards.request_gate import GateResult, RequestGate, Unobserved, is_final
from interlock.runtime import callers
from interlock.runtime.attempt import DecideOp
from interlock.runtime.deadlock import DeadlockResolver
from interlock.runtime.identity import Actor, Identity
from interlock.runtime.runner import Decided
from interlock.runtime.wait_graph import Start
from interlock.steps import Op
from interlock.store import Item

T = TypeVar("T")


class GrantGate(RequestGate):
    """The guards of one request for a grant."""

    def __init__(
        self, grants: GrantService, identity: Identity, target: GrantTarget, names: Sequence[str]
    ) -> None:
        wanted = target.keys
        warning = Event(f"{pool_kind(wanted[0])}:warned", identity.actor.agent)
        super().__init__(grants.runner, names, target.thing, warning, wanted)
        self.wait = ListedWait(grants, identity, target)
        """The wait of the current attempt."""

    def change(
        self,
        deciding: Callable[[], DecideOp[Any]],
        actor: Actor,
        guess: Mapping[str, Item | None] | None = None,
    ) -> Op[Decided[Any]]:
        """Carry through a decision that may grant or queue, if the guards pass."""
        done = yield from super().change(lambda: self._gated(deciding()), actor, guess)
        if done.revision is not None and isinstance(done.outcome, Granted | Waiting):
            self.wait.over()
        return done

    def _gated(self, deciding: DecideOp[Any]) -> DecideOp[Any]:
        defined = yield from self.defined()  # a mistake shows whether the thing is free or not
        if isinstance(defined, NoGuard):
            return Decision(outcome=defined)
        decision = yield from deciding
        match decision.outcome:
            case Extended() | AlreadyHeld():
                return decision
            case Granted() | Waiting():
                listed = self.wait.listed
                decision = replace(decision, deletes=(*decision.deletes, *listed))
                return (yield from self.decided(decision))
            case _:
                return decision

    def confirm(self, actor: Actor, request: GrantRequest, base: int) -> Op[Any]:
        """Keep a grant that came while its waiter slept, or release it if a guard does not pass.

        Returns None, or the outcome of the request.
        """
        confirming = partial(self._confirming, request, base)
        done = yield from super().change(confirming, actor)
        if done.outcome == "agreed":
            return None
        gone = request.target.outcome(RequestStatus("gone"))
        return gone if done.outcome == "gone" else done.outcome

    def _confirming(self, request: GrantRequest, base: int) -> DecideOp[Any]:
        reader = PoolReader(self.runner, base)
        reader.learn((yield request.keys).items)
        confirmed = yield from reader.decide(lambda facts: rules.confirm(request, facts))
        if confirmed.outcome == "gone":
            return confirmed
        found = yield from self.check()
        if isinstance(found, Unobserved):
            return replace(confirmed, outcome=found)  # it lives by its whole ttl during the look
        if (refused := self.refusal(found)) is not None:
            now = self.runner.clock.wall()
            back = yield from reader.decide(lambda facts: rules.abandon(request, facts, now))
            return replace(back, outcome=refused, reason=_reason(refused))
        assert isinstance(found, GateResult)  # noqa: S101 - for type checkers
        recorded = self.recorded(confirmed, found)
        if not recorded.events and not recorded.observed:
            return recorded
        target = request.target
        return replace(recorded, quiet=False, verb=target.verb("confirm"), thing=target.thing)


def _reason(refused: GuardBlocked | NoGuard) -> str:
    """Why a grant is given back, or not asked for yet, for the record."""
    if isinstance(refused, NoGuard):
        return f"the store has no guard {foreign(refused.guard)}"
    return (
        f"guard {foreign(refused.guard)} does not pass: {foreign(refused.leaf)}: {refused.reason}"
    )


class ListedWait:
    """The wait of one call for its guards, listed while it lasts so that others see it.

    The commit that grants or queues deletes it; if the wait ends otherwise, it is withdrawn.
    """

    def __init__(self, grants: GrantService, identity: Identity, target: GrantTarget) -> None:
        self.listed: tuple[str, ...] = ()
        """The keys that it may be listed under."""
        self._grants = grants
        self._runner = grants.runner
        self._identity = identity
        self._target = target
        self._start: Start | None = None

    def before_sleep(self, refused: GuardBlocked) -> Op[Refusal | None]:
        """List the wait, and look for a deadlock: the outcome, if the wait could never end."""
        start = self._start or (yield from self._list(refused))
        pending = self._grants.pending_grants() | callers.pending_grants()
        resolver, actor = DeadlockResolver(self._runner), self._identity.actor
        done = yield from resolver.resolve(actor, start, self._withdraw, pending=pending)
        if done.outcome is not None:
            self.over()
        return done.outcome

    def over(self) -> None:
        """It is not listed any more."""
        self.listed, self._start = (), None

    @property
    def withdrawals(self) -> tuple[PendingRelease, ...]:
        """The pending withdrawal of the wait, if it may be listed."""
        if not self.listed:
            return ()
        id_ = keys.id_of(self.listed[0])
        thing = self._target.thing
        return (PendingRelease(id_, thing, partial(self._take_back, self.listed)),)

    def _list(self, refused: GuardBlocked) -> Op[Start]:
        grants, identity = self._grants, self._identity
        local = None if identity.caller else grants.current_caller()
        terms = callers.caller_terms(identity.caller, local)
        asleep = UnqueuedWait(
            wants=keys.guard(refused.guard),
            agent=identity.actor.agent,
            session=identity.actor.session,
            live=keys.live(identity.actor.session),
            since=self._runner.clock.wall(),
            caller=terms.caller,
            indexed=terms.indexed,
            also=(*terms.also, *map(before_thing, self._target.things)),
        )
        id_ = self._runner.new_id("wai")
        self.listed = wait_keys(asleep, id_)

        def deciding() -> DecideOp[str]:
            yield from ()
            return Decision(
                outcome="waiting",
                verb=self._target.verb("await"),
                thing=self._target.thing,
                puts=wait_writes(asleep, id_),
                reason=_reason(refused),
            )

        done = yield from self._runner.change(deciding, identity.actor)
        self._start = Start(
            id=id_, wants=(asleep.wants,), asleep=asleep, revision=done.revision or 0
        )
        return self._start

    def _withdraw(self, cycle: tuple[str, ...]) -> DecideOp[Any]:
        yield from ()
        outcome = self._target.outcome(RequestStatus("deadlock", cycle=cycle))
        return self._withdrawal(outcome, self.listed)

    def _take_back(self, listed: tuple[str, ...]) -> Op[None]:
        def deciding() -> DecideOp[str]:
            items = (yield listed).items
            there = tuple([key for key, item in items.items() if item is not None])
            if not there:
                return Decision(outcome="gone")
            return self._withdrawal("withdrawn", there)

        yield from self._runner.change(deciding, self._identity.actor)

    def _withdrawal(self, outcome: T, listed: tuple[str, ...]) -> Decision[T]:
        verb, thing = self._target.verb("withdraw"), self._target.thing
        return Decision(outcome=outcome, verb=verb, thing=thing, deletes=listed)


def acquire(
    grants: GrantService,
    gate: GrantGate,
    identity: Identity,
    target: GrantTarget,
    **terms: Any,  # noqa: ANN401 - those of ``GrantService.acquire``
) -> Op[Any]:
    """Acquire while the guards pass; with a wait, for those and for the things, within its time."""
    own_handover = handover.current(grants)
    gate.wait = wait = ListedWait(grants, identity, target)
    own_handover.add(wait, lambda: wait.withdrawals)
    try:
        outcome = yield from _acquire(grants, gate, identity, target, **terms)
        if isinstance(outcome, Granted):
            return outcome  # its commit, or the one that queued for it, deleted the listed wait
        for withdrawal in wait.withdrawals:
            yield from grants.release_or_queue(withdrawal)
    except (StoreTrouble, GeneratorExit) as error:
        for withdrawal in wait.withdrawals:
            grants.add_pending(withdrawal)
            note_pending(error)
        own_handover.remove(wait)
        raise
    except BaseException:
        for withdrawal in wait.withdrawals:
            yield from grants.release_or_queue(withdrawal)
        own_handover.remove(wait)
        raise
    own_handover.remove(wait)
    return outcome


def _acquire(
    grants: GrantService,
    gate: GrantGate,
    identity: Identity,
    target: GrantTarget,
    *,
    wait: float,
    **terms: Any,  # noqa: ANN401 - those of ``GrantService.acquire``
) -> Op[Any]:
    clock = grants.runner.clock
    ends = clock.monotonic() + wait
    left = wait
    while True:
        outcome = yield from grants.acquire(identity, target, wait=left, gate=gate, **terms)
        if not isinstance(outcome, GuardBlocked) or not left or is_final(outcome):
            return outcome
        refused = yield from GuardWait(gate).run(ends, gate.wait.before_sleep)
        if refused is not None:
            return refused
        left = max(0.0, ends - clock.monotonic())
