"""Ends one task and claims the next in one commit.

A worker that goes on needs both, and a commit is what costs: the disk, or a round trip.  The
decision that ends the task comes first; the claim reads through its writes
(``runtime/attempt.py``), so a task that became ready by the end of the other one can be claimed
with it, and the best task is chosen as ``next`` would choose it right after.  There is nothing
between the two that a crash could leave, and an unknown outcome is settled for both.

The commit ends the task alone if
    the end is refused     a worker that lost its claim looks first
    nothing is ready       or only housekeeping makes it so: tasks that are due, late or left behind
    more comes with it     gates that the end may open, dependents that did not fit in
    the task has guards    its claim checks them in a commit of its own
    the entry is full      of dependents, on an engine whose commits are small
and the caller claims as always.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.errors import InterlockError
from interlock.nouns.tasks import claim_rules, end_rules, task_outcomes
from interlock.nouns.tasks import task as task_types
from interlock.nouns.tasks.task_change import TaskFacts, both
from interlock.runtime.attempt import DecideOp, ReadOp, reading_through
from interlock.runtime.identity import Identity
from interlock.runtime.reads import outside
from interlock.runtime.runner import Decided
from interlock.steps import Op
from interlock.store import Item

if TYPE_CHECKING:
    from interlock.nouns.tasks.claim_service import ClaimService
    from interlock.nouns.tasks.ready_index import Abilities
    from interlock.nouns.tasks.task_reader import TaskReader

T = TypeVar("T")


class NextClaim:
    """A claim that goes along with the end of another task; good for one call."""

    def __init__(
        self, claims: ClaimService, identity: Identity, can: Abilities, ttl: float | None
    ) -> None:
        self.caller = identity.caller
        self.sent = claims.runner.clock.monotonic()
        self._claims = claims
        self._attempt = claims.new_attempt(identity, ttl)
        self._request = claims.request_for(self._attempt, "")
        self._can = can
        self._base = 0
        self._place: Item | None = None
        """Across a network: the entry of the best ready task, as far as a read showed."""
        self._blind = False
        self._others_due = False
        """Whether a task or a schedule is due, and only housekeeping makes it ready."""

    def guarded(self, op: Op[T]) -> Op[T]:
        """The call that ends the task; if it raises, a claim that it may have made is released."""
        return self._claims.guarded(self._attempt, op, _claims_of)

    def prepare(self) -> Op[Mapping[str, Item | None]]:
        """What the commit may take for granted of the next task, as a guess."""
        self._base = yield from self._claims.runner.base()
        if self._claims.runner.capabilities.transacts:
            return {}
        window = yield from outside(self._claims.ready.read(self._can))
        self._others_due = bool(window.due)
        if window.due or not window.places:
            return {}
        self._place = self._claims.pick(list(window.places))
        self._request = replace(self._request, task=keys.task_in_index(self._place.key))
        guess = self._claims.blind_guess(self._attempt, self._request.task, self._place)
        self._blind = bool(guess)
        return guess

    def joined_at_once(
        self, reader: TaskReader, end: task_types.TaskEnd
    ) -> DecideOp[task_outcomes.TaskCompleted] | ReadOp[None]:
        """The end of a task that concerns no other one, with the claim of a task that is ready.

        Most commits of a worker are of this kind, and one decision is quicker than two.  None if
        this one is not: then the two are decided one after the other (``joined``), on any engine.
        """
        self._attempt.unsettled = ()
        if not self._claims.runner.capabilities.transacts or not end_rules.ends_simply(
            reader.facts, end
        ):
            return None
        window = yield from self._claims.ready.read(self._can)
        if window.due or not window.places:
            return None
        request = replace(self._request, task=keys.task_in_index(window.places[0].key))
        wanted = keys.status(request.task), keys.owner(request.task), keys.data(request.task)
        reader.learn((yield wanted).items)
        spec = reader.facts.specs[request.task]
        decision: Decision[Any] = yield from reader.change(
            lambda changes: end_rules.complete_and_claim(changes, end, request, spec)
        )
        if not decision.changes:
            return None
        self._request, self._attempt.unsettled = request, (request,)
        return self._claims.timed(self._attempt, decision)

    def joined(self, decision: Decision[Any], facts: TaskFacts) -> DecideOp[Any]:
        """The decision that ends a task, with the claim of the next one if that can be made."""
        self._attempt.unsettled = ()
        if decision.awaited or decision.created or not _has_room(decision, facts):
            return decision
        if any(write.key.startswith(keys.TODO) for write in decision.puts):
            return decision
        claiming = self._choosing(decision)
        if claiming is None:
            return decision
        try:
            claim = yield from reading_through(claiming, decision)
        except InterlockError:  # a damaged item, or our session: no reason not to end the task
            return decision
        if claim.outcome == "gone":
            self._claims.widen()
        if not isinstance(claim.outcome, task_outcomes.Claimed):
            return decision
        self._attempt.unsettled = (self._request,)
        return both(decision, claim, replace(decision.outcome, next=claim.outcome))

    def _choosing(self, decision: Decision[Any]) -> DecideOp[Any] | None:
        claims, attempt = self._claims, self._attempt
        if claims.runner.capabilities.transacts:
            return claims.choosing(
                attempt, self._request, self._base, self._can, [], enough=False, guarded=False
            )
        place = "" if self._place is None else self._place.key
        if place in decision.deletes:  # the entry of the task that ends, which was claimed blindly
            place = ""
        ready = [write.key for write in decision.puts if write.key.startswith(keys.READY)]
        best = min(filter(None, (place, *ready)), key=keys.ready_order, default="")
        if not best or self._others_due or not claims.ready.fits(self._can, best):
            return None
        self._request = replace(self._request, task=keys.task_in_index(best))
        blind, self._blind = self._blind and best == place, False
        return claims.deciding(attempt, self._request, self._base, best, blind=blind, guarded=False)

    def filled(self, outcome: T, done: Decided[Any]) -> Op[T]:
        """The outcome, with the token and the data of the claim."""
        claimed = _next_of(outcome)
        if claimed is None:
            return outcome
        self._claims.narrow()
        claimed = yield from self._claims.with_token(claimed, done, self._base)
        return cast("T", replace(cast("task_outcomes.TaskCompleted", outcome), next=claimed))


def _next_of(outcome: object) -> task_outcomes.Claimed | None:
    claimed = getattr(outcome, "next", None)
    return claimed if isinstance(claimed, task_outcomes.Claimed) else None


def _claims_of(outcome: object) -> tuple[task_outcomes.Claimed, ...]:
    claimed = _next_of(outcome)
    return () if claimed is None else (claimed,)


def _has_room(decision: Decision[Any], facts: TaskFacts) -> bool:
    written = len(decision.puts) + len(decision.deletes) + len(decision.signals)
    return written + len(facts.relied) + claim_rules.CLAIM_SIZE <= facts.max_operations
