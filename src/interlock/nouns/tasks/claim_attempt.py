"""One attempt at a claim of a task: what is read, decided and committed.

A claim by name takes one round trip if it is uncontended.  Nothing is read first: the commit checks
that the status is that of a task without an attempt, and returns its data; a conflict returns the
winner.

If a call raises while its claim may be committed, the claim is released, at once or as soon as the
store answers: the caller either learns of its claim, or has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.decision import Decision
from interlock.errors import InterlockError, Lapsed, StoreTrouble, note_pending
from interlock.nouns.grants import handover
from interlock.nouns.grants.handover import PendingRelease
from interlock.nouns.grants.service import GrantService
from interlock.nouns.tasks import claim_rules, end_rules, task_outcomes
from interlock.nouns.tasks import task as task_types
from interlock.nouns.tasks.task_reader import TaskReader, change, decode_ready, decode_spec
from interlock.runtime import callers
from interlock.runtime.attempt import ALIVE, DecideOp
from interlock.runtime.identity import Identity
from interlock.runtime.reads import every
from interlock.runtime.runner import Decided, Runner
from interlock.steps import Op, Read
from interlock.store import Item

if TYPE_CHECKING:
    from interlock.nouns.tasks.claim_wait import TaskWait
    from interlock.nouns.tasks.ready_index import ReadyWindow


T = TypeVar("T")
_SPECS = 512
_FRESH = codec.encode(task_types.FRESH)


class ClaimAttempt(Struct, eq=False):
    """One call that claims: its terms, and what it may have committed so far, a claim or a wait."""

    identity: Identity
    ttl: float | None
    caller: callers.LocalCaller | None
    terms: callers.CallerTerms
    began: float
    limit: int = 1
    """How many tasks it claims at most."""
    asleep: Callable[[], None] | None = None
    """Called before each sleep of a wait."""
    looked: bool = False
    """Whether this host has looked at the outside for a guard; it does so once in a call."""
    over_budget: frozenset[str] = frozenset()
    """Ready tasks that it passed over, since their budgets are used up."""
    unsettled: tuple[task_types.ClaimRequest, ...] = ()
    """The claims that it may have committed."""
    task_wait: TaskWait | None = None
    window: ReadyWindow | None = None
    """The ready tasks that a waiter read when it woke, for the next choice only."""


class ClaimAttempts:
    """Attempts of one client, as generators for a driver."""

    def __init__(self, runner: Runner, grants: GrantService) -> None:
        self.runner = runner
        self._grants = grants
        self.specs: dict[str, task_types.Spec] = {}
        """Tasks that this client claimed blindly, without their data."""

    def new_attempt(self, identity: Identity, ttl: float | None) -> ClaimAttempt:
        """A call that claims, from now on."""
        caller = None if identity.caller else self._grants.current_caller()
        terms = callers.caller_terms(identity.caller, caller)
        return ClaimAttempt(identity, ttl, caller, terms, self.runner.clock.monotonic())

    def guarded(
        self,
        attempt: ClaimAttempt,
        op: Op[T],
        made: Callable[[T], tuple[task_outcomes.Claimed, ...]],
    ) -> Op[T]:
        """Run a call; if it raises, release the claims that it may have made.

        The listed wait is deleted however the call ends; the commit of a claim or of a refused
        wait deletes it, too.
        """
        call_handover = handover.current(self._grants)
        call_handover.add(attempt, partial(self._pending_releases, attempt))
        try:
            outcome = yield from op
            if claims := made(outcome):
                if attempt.caller is not None:
                    for claimed in claims:
                        owner, token = (keys.owner(claimed.task),), claimed.token or 0
                        self._grants.holders.add(attempt.caller, owner, token)
                return outcome  # an interrupt up to here releases it
            if not isinstance(outcome, task_outcomes.TaskDeadlock):
                for release in self._pending_releases(attempt, claim=False):
                    yield from self._grants.release_or_queue(release)
            call_handover.remove(attempt)
            return outcome  # noqa: TRY300 - so does one here
        except (StoreTrouble, GeneratorExit) as error:
            for release in self._pending_releases(attempt):
                self._grants.add_pending(release)
                note_pending(error)
            call_handover.remove(attempt)
            raise
        except BaseException as error:
            refused = isinstance(error, InterlockError)  # only the wait was committed
            for release in self._pending_releases(attempt, claim=not refused):
                yield from self._grants.release_or_queue(release)
            call_handover.remove(attempt)
            raise

    def _pending_releases(
        self, attempt: ClaimAttempt, *, claim: bool = True
    ) -> Iterator[PendingRelease]:
        """The releases of the claims (``claim``) and of the wait that a call may have committed."""
        for request in attempt.unsettled if claim else ():
            identity = replace(attempt.identity, actor=attempt.identity.actor.plain)
            release = partial(self.take_back, identity, request.task, request.claim)
            yield PendingRelease(request.claim, f"task/{request.task}", release)
        if attempt.task_wait is not None and (listed := attempt.task_wait.withdrawal) is not None:
            yield listed

    def blind_guess(self, attempt: ClaimAttempt, task: str, place: Item) -> dict[str, Item | None]:
        """The guess for a claim that knows the entry of its task; none if it has to read more."""
        return self._guess(attempt, task, place) if is_plain(place) else {}

    def _guess(
        self, attempt: ClaimAttempt, task: str, place: Item | None
    ) -> dict[str, Item | None]:
        status, actor = keys.status(task), attempt.identity.actor
        guess: dict[str, Item | None] = {
            status: Item(status, _fresh(place), 0, 0),
            keys.owner(task): None,
        }
        if place is not None:
            guess[place.key] = place
        if attempt.identity.joined:
            guess[keys.live(actor.session)] = ALIVE
        return guess

    def deciding(
        self,
        attempt: ClaimAttempt,
        request: task_types.ClaimRequest,
        base: int,
        place: str,
        *,
        blind: bool,
        guarded: bool = True,
    ) -> DecideOp[task_outcomes.ClaimOutcome | str]:
        """One attempt at a claim."""
        identity = attempt.identity
        own = keys.live(identity.actor.session) if identity.joined else ""
        id_, data = request.task, keys.data(request.task)
        wanted = (keys.status(id_), keys.owner(id_), own, place, "" if blind else data)
        items = (yield tuple(filter(None, wanted))).items
        if own and items[own] is None:
            raise session_expired(identity)
        if place and items[place] is None:
            return Decision(outcome="gone")
        reader = TaskReader(self.runner, base)
        reader.learn(items)
        spec = None if blind else reader.facts.specs[request.task]
        decide = partial(claim_rules.claim, request=request, spec=spec, place=place)
        decision = yield from reader.change(decide)
        if isinstance(decision.outcome, task_outcomes.Taken):
            return Decision(outcome=reader.timed(decision.outcome))
        if not decision.changes:
            return decision
        status = reader.facts.statuses[request.task]
        if status is not None and status.guards and decision.outcome != "expired":
            if not guarded:
                return Decision(outcome="guarded")
            from interlock.nouns.tasks import gates

            decision = yield from gates.claimed(self.runner, base, reader, decision)
            if not isinstance(decision.outcome, task_outcomes.Claimed):
                return decision
        return self.timed(attempt, decision, (data,) if blind else ())

    def timed(
        self, attempt: ClaimAttempt, decision: Decision[T], reads: tuple[str, ...] = ()
    ) -> Decision[T]:
        """A decision to claim with the component that asked, and the time that it took so far."""
        role = attempt.identity.role
        via = f"{self.runner.via}/{role}" if role else self.runner.via
        took = round((self.runner.clock.monotonic() - attempt.began) * 1000, 3)
        return replace(decision, reads=reads, via=via, took=took)

    def take_back(self, identity: Identity, task: str, claim: str) -> Op[None]:
        """Release a claim that may be committed; without a task, find out which one it is."""
        tasks, actor = [task], identity.actor
        if not task:
            found = yield from every(keys.claims(actor.session))
            owners = {keys.owner(id_): id_ for id_ in [keys.task_in_index(i.key) for i in found]}
            standing = yield from self._grants.grants_in(owners)
            tasks = [id_ for owner, id_ in owners.items() if (owner, claim) in standing]
        for id_ in tasks:
            claimant = task_types.Claimant(
                task=id_, agent=actor.agent, session=actor.session, claim=claim
            )
            wanted = keys.status(id_), keys.owner(id_)
            decide = partial(end_rules.take_back, claimant=claimant)
            yield from change(self.runner, actor, wanted, decide)

    def with_token(
        self, outcome: task_outcomes.Claimed, done: Decided[Any], base: int
    ) -> Op[task_outcomes.Claimed]:
        """A claim with its token and its data, which are read if the reply was lost."""
        key = keys.data(outcome.task)
        item = done.items.get(key)
        if outcome.data is None and item is None:
            item = (yield Read(key))[key]
        if item is not None and (spec := decode_spec(item)) is not None:
            self._remember(outcome.task, spec)
            outcome = replace(
                outcome,
                data=spec.data,
                priority=spec.priority,
                requires=spec.requires,
                title=spec.title,
                text=spec.text,
                labels=spec.labels,
            )
        else:  # an earlier claim may have kept them, and an edit may have changed them since
            self.specs.pop(outcome.task, None)
        data = msgspec.json.decode(outcome.data)
        return replace(outcome, token=base + (done.revision or 0), data=data)

    def _remember(self, task: str, spec: task_types.Spec) -> None:
        """Keep what completing needs of a task that was claimed blindly."""
        self.specs[task] = replace(spec, data=Raw(b"null"), text="")
        if len(self.specs) > _SPECS:
            with suppress(RuntimeError, StopIteration):  # another thread was quicker
                self.specs.pop(next(iter(self.specs)), None)

    def request_for(
        self, attempt: ClaimAttempt, task: str, claim: str = "", caller: str = ""
    ) -> task_types.ClaimRequest:
        """A request of this call, with a fresh id for the claim unless it has one.

        Without a caller name of its own, the caller of this call works on the task.
        """
        identity = attempt.identity
        return task_types.ClaimRequest(
            task=task,
            claim=claim or self.runner.new_id("clm"),
            agent=identity.actor.agent,
            session=identity.actor.session,
            ttl=attempt.ttl,
            session_ttl=identity.session_ttl,
            caller=caller or attempt.terms.caller,
        )


def session_expired(identity: Identity) -> Lapsed:
    """The error of a caller whose session has expired."""
    return Lapsed(f"session {identity.actor.session} expired; join again")


def is_plain(place: Item) -> bool:
    """Whether the status of a task can be guessed from its entry."""
    entry = decode_ready(place)
    return entry.deadline is None and not entry.guarded


def _fresh(place: Item | None) -> bytes:
    """The stored status of a task without an attempt."""
    trace = "" if place is None else decode_ready(place).trace
    return codec.encode(replace(task_types.FRESH, trace=trace)) if trace else _FRESH
