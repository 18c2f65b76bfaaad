"""Tasks on a store: publish, complete, fail, release, cancel, retry.

The service of a noun reads what a decision needs, and commits what it decides.  Claims are in
``claim_service.py``, plans in ``plan_service.py``; what makes tasks progress without an act of
their workers is in ``housekeeping.py``, the deletion of old tasks in ``retention.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from msgspec import Raw
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.nouns.grants.service import GrantService, break_notes, recalled, session_ttl_of
from interlock.nouns.tasks import claim_rules, end_rules, rules, task_outcomes
from interlock.nouns.tasks import task as task_types
from interlock.nouns.tasks.claim_service import ClaimService
from interlock.nouns.tasks.housekeeping import TaskHousekeeping, dependents
from interlock.nouns.tasks.task_change import TaskChanges
from interlock.nouns.tasks.task_reader import TaskReader, change, decode_names, decode_status
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.identity import Actor
from interlock.runtime.reads import every, outside
from interlock.runtime.runner import Decided, Runner
from interlock.settings import Settings
from interlock.steps import Op, Read
from interlock.store import Item, Range

if TYPE_CHECKING:
    from interlock.nouns.guards.observations import Observed
    from interlock.nouns.tasks.edit_service import EditService
    from interlock.nouns.tasks.next_claim import NextClaim
    from interlock.nouns.tasks.plan_service import PlanService
    from interlock.nouns.tasks.retention import TaskRetention
    from interlock.nouns.tasks.several_claims import SeveralClaimed, SeveralClaims
    from interlock.nouns.tasks.waiting_workers import WaitingWorker

T = TypeVar("T")
Along: TypeAlias = Callable[[Decision[Any]], DecideOp[Any]]
"""Adds to a decision that ends a task."""


class TaskService:
    """Every operation on tasks, as generators for a driver."""

    def __init__(
        self, runner: Runner, grants: GrantService, settings: Settings | None = None
    ) -> None:
        self._runner = runner
        self._settings = settings
        self._grants = grants
        self.housekeeping = TaskHousekeeping(runner)
        self.claims = ClaimService(runner, grants, self.housekeeping)
        self.waiting: list[WaitingWorker] = []
        """The workers of this process that may get a task as it is created."""
        self._last_time = 0.0

    @cached_property
    def plans(self) -> PlanService:
        """Plans; imported when first used."""
        from interlock.nouns.tasks.plan_service import PlanService

        return PlanService(self._runner, self.housekeeping, self.moment)

    @cached_property
    def edits(self) -> EditService:
        """Changes of a plan; imported when first used."""
        from interlock.nouns.tasks.edit_service import EditService

        return EditService(self._runner)

    @cached_property
    def _retention(self) -> TaskRetention:
        """Retention; imported when first used."""
        from interlock.nouns.tasks.retention import TaskRetention, retention_limits

        return TaskRetention(self._runner, retention_limits(self._settings))

    def forget(self, actor: Actor) -> Op[bool]:
        """Delete some tasks that ended long ago; whether there is more to do at once."""
        return (yield from self._retention.some(actor))

    def moment(self, count: int = 1) -> float:
        """A time of publishing: now, and later than any returned before, so that the order is kept.

        With ``count``, that many times are used up, each a millionth of a second later.  They are
        whole millionths, as in the keys of the ``ready`` index, where none become equal.
        """
        first = round(max(self._runner.clock.wall(), self._last_time + 0.000_001), 6)
        self._last_time = first + (count - 1) * 0.000_001
        return first

    def publish_again(
        self, actor: Actor, task: str, spec: task_types.Spec
    ) -> Op[task_outcomes.Published | task_outcomes.TaskExists]:
        """Publish a task, also under the id of one that ended without being complete."""
        outcome = yield from self.publish(actor, task, spec)
        if outcome or outcome.state not in task_types.UNSUCCESSFUL:
            return outcome
        outcome = yield from self.edits.publish_again(actor, task, spec)
        if spec.guards and isinstance(outcome, task_outcomes.Published):
            return (yield from self._at_gate(outcome))
        return outcome

    def publish(
        self, actor: Actor, task: str, spec: task_types.Spec
    ) -> Op[task_outcomes.Published | task_outcomes.TaskExists]:
        """Publish a task."""
        sets = (keys.requirement_set(spec.requirement_set),) if spec.requires else ()
        wanted = (keys.status(task), *sets)
        guess: dict[str, Item | None] = {}
        if not self._runner.capabilities.transacts:
            guess = {wanted[0]: None}
            for key in sets:
                guess |= self._runner.recall(key)
        known = {**guess, keys.NEW_TASKS: None} if len(guess) == len(wanted) else None
        decide = partial(rules.publish, id_=task, spec=spec)
        done = yield from change(self._runner, actor, wanted, decide, known)
        for key in sets:
            if (item := done.items.get(key)) is not None:
                self._runner.remember(key, item)
        hidden = (
            isinstance(done.outcome, task_outcomes.TaskExists) and done.outcome.state == "blocked"
        )
        if hidden and (yield from self.plans.free_id(actor.plain, task)):
            return (yield from self.publish(actor, task, spec))
        if spec.guards and isinstance(done.outcome, task_outcomes.Published):
            return (yield from self._at_gate(done.outcome))
        return done.outcome

    def _at_gate(self, published: task_outcomes.Published) -> Op[task_outcomes.Published]:
        """The answer for a task with guards, which were checked after it was published."""
        from interlock.nouns.tasks.gates import gate_of

        key = keys.status(published.task)
        status = decode_status((yield Read(key))[key])
        if status is None or status.on:
            return published
        found = replace(published, state=status.state, reason=status.reason)
        gate = (yield from gate_of(published.task)) if status.guard else None
        if gate is None:
            return found
        return replace(found, guard=gate.guard, leaf=gate.leaf, reason=gate.reason)

    def complete(
        self,
        actor: Actor,
        claimant: task_types.Claimant,
        result: Raw | None,
        along: Along | None = None,
        known: Mapping[str, Item | None] | None = None,
        *,
        then: NextClaim | None = None,
    ) -> Op[task_outcomes.CompleteOutcome]:
        """Complete a task, and unblock its dependents.

        If its evidence needs facts from outside, this host looks first, and decides again.
        ``along`` adds to the commit that completes the task what belongs to its end; ``known`` are
        items that it reads, as a guess.  ``then`` claims the next task in the same commit.
        """
        completing = self._complete(actor, claimant, result, along=along, known=known, then=then)
        return (yield from (completing if then is None else then.guarded(completing)))

    def _complete(
        self,
        actor: Actor,
        claimant: task_types.Claimant,
        result: Raw | None,
        *,
        along: Along | None,
        known: Mapping[str, Item | None] | None,
        then: NextClaim | None,
    ) -> Op[task_outcomes.CompleteOutcome]:
        base = yield from self._runner.base()
        end = task_types.TaskEnd(claimant=claimant, result=result)
        left = False
        observed: Observed | None = None

        def deciding() -> DecideOp[task_outcomes.CompleteOutcome | task_types.LookFirst]:
            nonlocal left
            left = False
            reader, status = yield from self._read_claim(claimant, base)
            if (
                then
                and along is None
                and (both := (yield from then.joined_at_once(reader, end))) is not None
            ):
                return both
            decision = yield from self._completing(reader, claimant, result)
            completes = decision.changes and isinstance(
                decision.outcome, task_outcomes.TaskCompleted
            )
            if completes and status is not None and status.evidence:
                from interlock.nouns.tasks.gates import completed

                decision = yield from completed(self._runner, reader, claimant, decision, observed)
            left = any(write.key == keys.todo(claimant.task) for write in decision.puts)
            done_now = decision.changes and isinstance(
                decision.outcome, task_outcomes.TaskCompleted
            )
            if along is not None and done_now:  # not if its evidence is missing or failed
                decision = yield from along(decision)
            if then is not None and isinstance(decision.outcome, task_outcomes.TaskCompleted):
                decision = yield from then.joined(decision, reader.facts)
            return decision

        if then is not None:
            known = {**(known or {}), **(yield from then.prepare())}
        done = yield from self._end_claim(actor, claimant, deciding, known)
        if isinstance(done.outcome, task_types.LookFirst):
            from interlock.nouns.guards.observations import observations

            observed = yield from observations(
                self._runner, done.outcome.guards, self._runner.clock
            )
            done = yield from self._end_claim(actor, claimant, deciding)
        if left and done.revision is not None:
            yield from self.housekeeping.drain_all(actor.plain, claimant.task)
        outcome = cast("task_outcomes.CompleteOutcome", done.outcome)
        if then is not None:
            outcome = yield from then.filled(outcome, done)
        return (yield from self._with_break(claimant, outcome))

    def complete_several(
        self, actor: Actor, ends: Sequence[task_types.TaskEnd], then: SeveralClaims
    ) -> Op[SeveralClaimed]:
        """Complete tasks that concern no other one, and claim further ones, in one commit.

        The answer names the tasks that are complete; each of the others is to end by itself.
        """
        return (yield from then.guarded(self._complete_several(actor, ends, then)))

    def _complete_several(
        self, actor: Actor, ends: Sequence[task_types.TaskEnd], then: SeveralClaims
    ) -> Op[SeveralClaimed]:
        guess: dict[str, Item | None] = {}
        for end in () if self._runner.capabilities.transacts else ends:
            guess |= self._remembered(end.claimant.task)
        guess |= yield from then.prepare()
        done: Decided[SeveralClaimed] = yield from self._runner.change(
            partial(then.deciding, ends), actor, guess, urgent=True
        )
        outcome = yield from then.filled(done)
        ended = getattr(outcome, "ended", ())
        for end in ends:
            if end.claimant.task in ended:
                self._forget_claim(end.claimant)
        return outcome

    def _completing(
        self, reader: TaskReader, claimant: task_types.Claimant, result: Raw | None
    ) -> DecideOp[task_outcomes.CompleteOutcome | task_types.LookFirst]:
        """The decision that completes a task, without regard to its evidence."""
        status = reader.facts.statuses[claimant.task]
        found: tuple[Item, ...] = ()
        more = False
        if status is not None and status.awaited and status.state == "running":
            page: Range = dependents(claimant.task, reader.facts)
            found = (yield (page,)).ranges[page]
            more = len(found) == page.limit or not self._runner.capabilities.transacts
        tasks = [keys.task_in_index(item.key) for item in found]
        decide = partial(
            end_rules.complete, claimant=claimant, result=result, hangers=tasks, more=more
        )
        return (yield from reader.change(decide))

    def fail(
        self,
        actor: Actor,
        claimant: task_types.Claimant,
        reason: str,
        error: Raw | None,
        *,
        retry: bool,
        along: Along | None = None,
        known: Mapping[str, Item | None] | None = None,
        then: NextClaim | None = None,
    ) -> Op[task_outcomes.FailOutcome]:
        """Fail an attempt; ``along``, ``known`` and ``then`` as those of ``complete``."""
        chance = self._runner.random_below(1000) / 1000
        decide = partial(
            end_rules.fail,
            claimant=claimant,
            reason=reason,
            error=error,
            chance=chance,
            retry=retry,
        )
        failing: Op[task_outcomes.FailOutcome] = self._change_claim(
            actor, claimant, decide, along, known, then=then
        )
        return (yield from (failing if then is None else then.guarded(failing)))

    def release(
        self, actor: Actor, claimant: task_types.Claimant
    ) -> Op[task_outcomes.ReleaseOutcome]:
        """Release a task to the queue."""
        decide = partial(end_rules.release, claimant=claimant)
        return (yield from self._change_claim(actor, claimant, decide))

    def heartbeat(
        self, actor: Actor, claimant: task_types.Claimant, session_ttl: float
    ) -> Op[task_outcomes.BeatOutcome]:
        """Renew the liveness of a claim."""
        base = yield from self._runner.base()

        def deciding() -> DecideOp[task_outcomes.BeatOutcome]:
            reader, _ = yield from self._read_claim(claimant, base)
            held, ttl = reader.facts.claims[claimant.task], session_ttl
            if held is not None and held.ttl is None:
                ttl = yield from session_ttl_of(held.session, session_ttl)
            decide = partial(claim_rules.beat, claimant=claimant, session_ttl=ttl)
            return (yield from reader.change(decide))

        done: Decided[task_outcomes.BeatOutcome] = yield from self._runner.change(deciding, actor)
        return (yield from self._with_break(claimant, done.outcome))

    def progress(
        self, actor: Actor, claimant: task_types.Claimant, part: float, doing: str
    ) -> Op[task_outcomes.ProgressOutcome]:
        """Note how far the work on a claim is."""
        base = yield from self._runner.base()
        decide = partial(claim_rules.progress, claimant=claimant, part=part, doing=doing)

        def deciding() -> DecideOp[task_outcomes.ProgressOutcome]:
            reader, _ = yield from self._read_claim(claimant, base)
            return (yield from reader.change(decide))

        done: Decided[task_outcomes.ProgressOutcome] = yield from self._runner.change(
            deciding, actor
        )
        return (yield from self._with_break(claimant, done.outcome))

    def cancel(self, actor: Actor, task: str, reason: str) -> Op[task_outcomes.CancelOutcome]:
        """Cancel a task."""
        wanted = keys.status(task), keys.owner(task)
        decide = partial(rules.cancel, id_=task, agent=actor.agent, reason=reason)
        return (yield from change(self._runner, actor, wanted, decide)).outcome

    def requeue(
        self, actor: Actor, task: str, reason: str, token: int | None
    ) -> Op[task_outcomes.RequeueOutcome]:
        """End the claim of a worker, and put the task back in the queue."""
        wanted = keys.status(task), keys.owner(task)
        decide = partial(rules.requeue, id_=task, by=actor.agent, reason=reason, token=token)
        return (yield from change(self._runner, actor, wanted, decide)).outcome

    def retry(self, actor: Actor, task: str) -> Op[task_outcomes.RetryOutcome]:
        """Put a failed or dead task back in the queue."""
        decide, key = partial(rules.retry, id_=task, agent=actor.agent), keys.status(task)
        outcome = (yield from change(self._runner, actor, (key,), decide)).outcome
        if not isinstance(outcome, task_outcomes.Retried) or outcome.state == "pending":
            return outcome
        status = decode_status((yield Read(key))[key])  # its guards may have passed since
        return outcome if status is None else replace(outcome, state=status.state)

    def _with_break(
        self, claimant: task_types.Claimant, outcome: T
    ) -> Op[T | task_outcomes.TaskFenced]:
        """A refusal, with the operator that ended the claim and the reason, if one did."""
        if not isinstance(outcome, task_outcomes.TaskFenced | task_outcomes.TaskNotOwner):
            return outcome
        for note in (yield from outside(break_notes(f"task/{claimant.task}"))):
            own = (note.token, note.holder) == (claimant.token, claimant.agent)
            if own or (claimant.token is None and note.session == claimant.session):
                state: task_types.State = "pending" if outcome.state == "unknown" else outcome.state
                fenced = task_outcomes.TaskFenced(
                    task=claimant.task, state=state, holder=outcome.holder
                )
                return replace(fenced, by=note.by, reason=note.reason)
        return outcome

    def leave(self, actor: Actor) -> Op[tuple[str, ...]]:
        """Release all tasks whose claims live by this session."""
        released: list[str] = []
        for item in (yield from every(keys.claims(actor.session))):
            if keys.live(actor.session) in decode_names(item):
                task = keys.task_in_index(item.key)
                claimant = task_types.Claimant(task=task, agent=actor.agent, session=actor.session)
                outcome = yield from self.release(actor, claimant)
                if isinstance(outcome, task_outcomes.TaskReleased):
                    released.append(f"task/{task}")
        return tuple(released)

    def _read_claim(
        self, claimant: task_types.Claimant, base: int
    ) -> ReadOp[tuple[TaskReader, task_types.TaskStatus | None]]:
        """Read the status, the owner and the liveness of a claimed task."""
        reader = TaskReader(self._runner, base)
        wanted: tuple[str, ...] = (keys.status(claimant.task), keys.owner(claimant.task))
        if self._runner.capabilities.transacts:  # most claims live by their session: one question
            wanted = (*wanted, keys.live(claimant.session))
        reader.learn((yield wanted).items)
        held, token = reader.facts.claims[claimant.task], reader.facts.tokens[claimant.task]
        ours = held is not None and claimant.speaks_for(held, token)
        if held is not None and ours and not all(key in wanted for key in held.live):
            reader.learn((yield held.live).items)
        if (spec := self.claims.specs.get(claimant.task)) is not None:
            reader.facts.specs[claimant.task] = spec
        return reader, reader.facts.statuses[claimant.task]

    def _change_claim(
        self,
        actor: Actor,
        claimant: task_types.Claimant,
        decide: Callable[[TaskChanges], Decision[T]],
        along: Along | None = None,
        known: Mapping[str, Item | None] | None = None,
        *,
        then: NextClaim | None = None,
    ) -> Op[T | task_outcomes.TaskFenced]:
        base = yield from self._runner.base()

        def deciding() -> DecideOp[T]:
            reader, _ = yield from self._read_claim(claimant, base)
            decision: Decision[T] = yield from reader.change(decide)
            failed = isinstance(decision.outcome, task_outcomes.TaskFailed)
            if along is not None and failed and decision.changes:
                decision = yield from along(decision)
            if then is not None and failed:
                decision = yield from then.joined(decision, reader.facts)
            return decision

        if then is not None:
            known = {**(known or {}), **(yield from then.prepare())}
        done = yield from self._end_claim(actor, claimant, deciding, known)
        outcome = done.outcome
        if then is not None:
            outcome = yield from then.filled(outcome, done)
        return (yield from self._with_break(claimant, outcome))

    def _end_claim(
        self,
        actor: Actor,
        claimant: task_types.Claimant,
        deciding: Callable[[], DecideOp[T]],
        known: Mapping[str, Item | None] | None = None,
    ) -> Op[Decided[T]]:
        """Commit the end of a claim, with remembered items as a guess if this client made it.

        Items that were remembered at different revisions do not fit together, and are read.
        """
        guess = self._remembered(claimant.task)
        if guess and known:
            guess |= known
        done: Decided[T] = yield from self._runner.change(deciding, actor, guess, urgent=True)
        if done.revision is not None and not isinstance(
            done.outcome, task_outcomes.EvidenceMissing
        ):
            self._forget_claim(claimant)
        return done

    def _remembered(self, task: str) -> dict[str, Item | None]:
        """The status and the owner of a task that this client claimed, as a guess."""
        guess = recalled(self._runner, (keys.status(task), keys.owner(task)))
        same = len({item.revision for item in guess.values() if item is not None}) == 1
        return guess if same else {}

    def _forget_claim(self, claimant: task_types.Claimant) -> None:
        """A claim of this client has ended."""
        self.claims.specs.pop(claimant.task, None)
        self._grants.holders.remove((keys.owner(claimant.task),), claimant.token)
