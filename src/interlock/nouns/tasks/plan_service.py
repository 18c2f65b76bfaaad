"""Whole plans on a store: published all or nothing, however large.

The way of a plan that needs more than one commit is in ``plan_rules.py``.  Every step here finds
out by itself how far the plan has come, so whoever was killed repeats it and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.drivers import Op
from interlock.errors import StoreBusy
from interlock.nouns.tasks import decode, plan_rules
from interlock.nouns.tasks import task as core
from interlock.nouns.tasks.housekeeping import Housekeeping, dependents
from interlock.nouns.tasks.plan import Plan, PlanTask
from interlock.nouns.tasks.plan_rules import (
    BatchStart,
    Checked,
    CommitLimits,
    Imported,
    PlanCheck,
    PlanExists,
    StaleBatch,
)
from interlock.nouns.tasks.task_change import TaskChanges
from interlock.nouns.tasks.task_reader import TaskReader, change
from interlock.runtime.gather import looked_up, outside
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Decided, DecideOp, Runner
from interlock.runtime.steps import Read
from interlock.store import Item, Range

T = TypeVar("T")

_BYTES = 1 << 20
_LOCAL_BYTES = 1 << 24
_ATTEMPTS = 16
"""Imports that were left behind, or given up while we looked, that one import clears away."""


class PlanService:
    """Every operation on whole plans, as generators for a driver."""

    def __init__(
        self, runner: Runner, housekeeping: Housekeeping, moments: Callable[[int], float]
    ) -> None:
        self._runner = runner
        self._housekeeping = housekeeping
        self._moments = moments

    def missing(self, needs: Sequence[str]) -> Op[tuple[str, ...]]:
        """Which of these tasks do not exist."""
        items = yield from looked_up(map(keys.status, needs))
        return tuple([need for need in needs if items[keys.status(need)] is None])

    def check(self, plan: Plan) -> Op[Checked | PlanExists]:
        """Whether a plan could be published; nothing is written."""
        plan_rules.check_sizes(plan, self._runner.capabilities.max_value)
        found = yield from self._survey(plan)
        if isinstance(found.refused, PlanExists):
            return found.refused
        return plan_rules.answer(Checked, plan, found)

    def publish(self, actor: Actor, plan: Plan) -> Op[Imported | PlanExists]:
        """Publish all of a plan, or nothing."""
        plan_rules.check_sizes(plan, self._runner.capabilities.max_value)
        for _ in range(_ATTEMPTS):
            outcome = yield from self._publish(actor, plan)
            if isinstance(outcome, PlanExists) and not outcome.task:
                yield from self._housekeeping.go_on(actor, plan.batch)
            if not isinstance(outcome, StaleBatch):
                return outcome
            yield from self._take_back(actor, outcome.batch)
        raise StoreBusy("others import tasks with the same ids at this moment; retry later")

    def freed(self, actor: Actor, task: str) -> Op[bool]:
        """Whether an id is free again, since whoever began to import it is dead."""
        key = keys.status(task)
        status = decode.status((yield Read(key))[key])
        if status is None or not status.on.startswith(core.BATCH):
            return False
        return (yield from self._take_back(actor, status.on))

    def _publish(self, actor: Actor, plan: Plan) -> Op[Imported | PlanExists | StaleBatch]:
        if plan_rules.fits(plan, self._room()):
            begun = self._begun(actor, plan)
            done: Decided[Imported | PlanExists | StaleBatch | None] = yield from self._change(
                actor, plan.batch, lambda changes: plan_rules.publish_whole(changes, plan, begun)
            )
            if done.outcome is not None:
                return done.outcome
        return (yield from self._portions(actor, plan))

    def _portions(self, actor: Actor, plan: Plan) -> Op[Imported | PlanExists | StaleBatch]:
        """Publish a plan that is too large for one commit: hidden, then for everybody."""
        found = yield from self._survey(plan)
        refused, begun = found.refused, found.begun or self._begun(actor, plan)
        if refused is None:
            refused = yield from self._add_all(actor, plan, begun)
        if isinstance(refused, PlanExists) and refused.task:
            yield from self._take_back(actor, plan.batch, own=plan.digest)
        if refused is not None:
            return refused
        stuck = yield from self._show(actor, plan, begun)
        return stuck or plan_rules.answer(Imported, plan, found)

    def _add_all(
        self, actor: Actor, plan: Plan, begun: BatchStart
    ) -> Op[PlanExists | StaleBatch | None]:
        """Write all tasks of a plan, hidden, in portions; stop where one cannot be written."""
        beaten: float | None = None
        for some in plan_rules.portions(plan, self._room()):
            now = self._runner.clock.monotonic()
            alive = beaten is None or now > beaten + plan_rules.TTL / 4
            refused = yield from self._add(
                actor, plan, some, begun, first=beaten is None, alive=alive
            )
            if refused is not None:
                return refused
            beaten = now if alive else beaten
        return None

    def _add(
        self,
        actor: Actor,
        plan: Plan,
        some: Sequence[PlanTask],
        begun: BatchStart,
        *,
        first: bool,
        alive: bool,
    ) -> Op[PlanExists | StaleBatch | None]:
        done: Decided[PlanExists | StaleBatch | None] = yield from self._change(
            actor,
            plan.batch,
            lambda changes: plan_rules.add_portion(
                changes, plan, some, begun, first=first, alive=alive
            ),
        )
        return done.outcome

    def _begun(self, actor: Actor, plan: Plan) -> BatchStart:
        return BatchStart(at=self._moments(len(plan.drafts)), by=actor.agent)

    def _show(self, actor: Actor, plan: Plan, begun: BatchStart) -> Op[StaleBatch | None]:
        """Let everybody see a plan of which every task is there."""
        apart = not self._runner.capabilities.transacts  # one may come after they were listed
        done = yield from self._with_hangers(
            actor,
            plan.batch,
            lambda reader: dependents(plan.batch, reader.facts).limit,
            lambda changes, tasks, more: plan_rules.complete_batch(
                changes, plan, begun, tasks, more=more or apart
            ),
        )
        if isinstance(done.outcome, StaleBatch):
            return done.outcome
        if done.outcome:
            yield from self._housekeeping.go_on(actor, plan.batch)
        return None

    def _take_back(self, actor: Actor, id_: str, own: str = "") -> Op[bool]:
        """Take a batch back that cannot be finished; one of somebody who lives stays."""
        done: Decided[bool] = yield from self._change(
            actor, id_, lambda changes: plan_rules.mark_failed(changes, id_, own)
        )
        going = done.outcome
        while going:
            going = (
                yield from self._with_hangers(
                    actor,
                    id_,
                    lambda reader: plan_rules.deletes_per_commit(reader.facts.max_operations),
                    lambda changes, tasks, more: plan_rules.delete_portion(
                        changes, id_, tasks, more=more
                    ),
                )
            ).outcome
        return done.outcome

    def _survey(self, plan: Plan) -> Op[PlanCheck]:
        def reading() -> DecideOp[PlanCheck]:
            reader = TaskReader(self._runner, 0)
            now = self._runner.clock.wall()
            return (
                yield from reader.decide(
                    lambda facts: Decision(
                        outcome=plan_rules.check_store(TaskChanges(facts, now), plan)
                    )
                )
            )

        decision: Decision[PlanCheck] = yield from outside(reading())
        return decision.outcome

    def _room(self) -> CommitLimits:
        """What one commit of a plan may take."""
        facts, local = TaskReader(self._runner, 0).facts, self._runner.capabilities.transacts
        return CommitLimits(
            operations=facts.max_operations,
            text=facts.max_entry_bytes,
            size=_LOCAL_BYTES if local else _BYTES,
        )

    def _change(
        self, actor: Actor, id_: str, decide: Callable[[TaskChanges], Decision[T]]
    ) -> Op[Decided[T]]:
        return change(self._runner, actor, (keys.status(id_),), decide)

    def _with_hangers(
        self,
        actor: Actor,
        id_: str,
        limit: Callable[[TaskReader], int],
        decide: Callable[[TaskChanges, Sequence[str], bool], Decision[T]],
    ) -> Op[Decided[T]]:
        """Decide about a batch, with so many of its tasks as one commit may touch."""

        def deciding() -> DecideOp[T]:
            reader = TaskReader(self._runner, 0)
            reader.learn((yield (keys.status(id_),)).items)
            page = Range(keys.hangs(id_), limit=limit(reader))
            found: Sequence[Item] = (yield (page,)).ranges[page]
            tasks, more = [keys.task_in_index(item.key) for item in found], len(found) == page.limit
            now = self._runner.clock.wall()
            return (
                yield from reader.decide(lambda facts: decide(TaskChanges(facts, now), tasks, more))
            )

        return (yield from self._runner.change(deciding, actor))
