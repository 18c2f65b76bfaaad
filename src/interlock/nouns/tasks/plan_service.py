"""Publishes whole plans, all or nothing, however large.

``plan_rules.py`` has the theory of plans that need more than one commit.  Each step here finds out
by itself how far the plan has come, so an import that was killed can be repeated, and continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from msgspec.structs import asdict

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.errors import StoreBusy
from interlock.nouns.tasks import plan as plans
from interlock.nouns.tasks import plan_rules
from interlock.nouns.tasks import plan_update_rules as update_rules
from interlock.nouns.tasks import task as task_types
from interlock.nouns.tasks.edit_rules import FollowNeeds
from interlock.nouns.tasks.edit_service import Followed
from interlock.nouns.tasks.housekeeping import TaskHousekeeping, dependents
from interlock.nouns.tasks.plan import Plan
from interlock.nouns.tasks.plan_rules import BatchStart, CommitLimits, PlanCheck, StaleBatch
from interlock.nouns.tasks.plan_update_rules import (
    KnownTask,
    PlanDifference,
    PlanStep,
    StepsDone,
)
from interlock.nouns.tasks.task_change import TaskChanges
from interlock.nouns.tasks.task_outcomes import (
    Checked,
    Imported,
    LeftTask,
    PlanChanges,
    PlanExists,
    PlannedEdit,
    PlanUpdated,
)
from interlock.nouns.tasks.task_reader import TaskReader, change, decode_spec, decode_status
from interlock.runtime.attempt import DecideOp
from interlock.runtime.identity import Actor
from interlock.runtime.progress import report
from interlock.runtime.reads import every, looked_up, outside
from interlock.runtime.runner import Runner
from interlock.steps import Op, Read
from interlock.store import Range

T = TypeVar("T")

_BYTES = 1 << 20
_LOCAL_BYTES = 1 << 24
_ATTEMPTS = 16
"""The most abandoned imports that an import deletes."""


class PlanService:
    """Every operation on whole plans, as generators for a driver."""

    def __init__(
        self, runner: Runner, housekeeping: TaskHousekeeping, new_times: Callable[[int], float]
    ) -> None:
        self._runner = runner
        self._housekeeping = housekeeping
        self._new_times = new_times

    def missing_needs(self, needs: Sequence[str]) -> Op[tuple[str, ...]]:
        """The ids of these that do not exist."""
        items = yield from looked_up(map(keys.status, needs))
        return tuple([need for need in needs if items[keys.status(need)] is None])

    def check(self, plan: Plan) -> Op[Checked | PlanExists]:
        """Whether a plan could be published; nothing is written."""
        plan_rules.check_sizes(plan, self._runner.capabilities.max_value)
        found = yield from self._check_store(plan)
        if isinstance(found, StaleBatch):  # nothing is known of the tasks before it is deleted
            return Checked(plan=plan.id, tasks=len(plan.drafts), ready=0, blocked=0)
        return found.checked if isinstance(found, PlanCheck) else found

    def publish(self, actor: Actor, plan: Plan) -> Op[Imported | PlanExists]:
        """Publish all of a plan, or nothing."""
        plan_rules.check_sizes(plan, self._runner.capabilities.max_value)
        for _ in range(_ATTEMPTS):
            outcome = yield from self._publish(actor, plan)
            if isinstance(outcome, PlanExists) and not outcome.task:
                yield from self._housekeeping.drain_all(actor, plan.batch)
            if not isinstance(outcome, StaleBatch):
                return outcome
            yield from self._delete_batch(actor, outcome.batch)
        raise StoreBusy("others import tasks with the same ids at this moment; retry later")

    def changes(self, plan: Plan) -> Op[PlanChanges | PlanExists]:
        """What an update of a plan would change; nothing is written."""
        plan_rules.check_sizes(plan, self._runner.capabilities.max_value)
        known = yield from self._known(plan)
        if (refused := update_rules.refusal(plan, known)) is not None:
            return refused
        found = yield from self._difference(plan, known, Followed())
        new, edited, dropped = _by_kind(found.steps)
        return PlanChanges(
            plan=plan.id,
            new=new,
            edited=edited,
            dropped=dropped,
            left=found.left,
            same=found.same,
            named=bool(plan.name),
        )

    def update(self, actor: Actor, plan: Plan) -> Op[Imported | PlanUpdated | PlanExists]:
        """Make a plan that was imported before that of a file; one that was not is imported."""
        plan_rules.check_sizes(plan, self._runner.capabilities.max_value)
        taken: dict[str, PlanStep] = {}
        for _ in range(_ATTEMPTS):
            known = yield from self._known(plan)
            if (refused := update_rules.refusal(plan, known)) is not None:
                return refused
            batch = yield from self._status(plan.batch)
            unfinished = batch is not None and batch.state != "complete"
            if unfinished:  # its import was killed, or is under way
                yield from self._delete_batch(actor, plan.batch)
            if unfinished or not known:
                return (yield from self.publish(actor, plan))
            followed = Followed()
            found = yield from self._difference(plan, known, followed)
            left = yield from self._take_steps(actor, plan, found, followed, taken)
            if left is not None:
                new, edited, dropped = _by_kind(taken.values())
                return PlanUpdated(
                    plan=plan.id,
                    new=new,
                    edited=edited,
                    dropped=dropped,
                    left=(*found.left, *left),
                    same=found.same,
                    named=bool(plan.name),
                )
        raise StoreBusy("others change the needs of tasks at this moment; retry later")

    def _take_steps(
        self,
        actor: Actor,
        plan: Plan,
        found: PlanDifference,
        followed: Followed,
        taken: dict[str, PlanStep],
    ) -> Op[list[LeftTask] | None]:
        """Take all steps in portions; None if the needs have to be followed again.

        Returns the tasks that could not be changed any more.
        """
        label = decode_spec((yield Read(keys.data(plan.batch)))[keys.data(plan.batch)])
        if not found.steps and update_rules.is_labelled(plan, label):
            return []
        base, begun = (yield from self._runner.base()), self._begun(actor, plan)
        portions = list(update_rules.portions(found.steps, self._limits()))
        left: list[LeftTask] = []
        for number, some in enumerate(portions, 1):

            def deciding(
                some: Sequence[PlanStep] = some, *, last: bool = number == len(portions)
            ) -> DecideOp[StepsDone | FollowNeeds]:
                reader = TaskReader(self._runner, base)
                sure = yield from followed.stands()
                decide = partial(
                    update_rules.apply,
                    wanted=plan,
                    steps=some,
                    begun=begun,
                    followed=sure,
                    last=last,
                )
                return (yield from reader.change(decide))

            done = yield from self._runner.change(deciding, actor)
            if isinstance(done.outcome, FollowNeeds):
                return None
            taken.update({step.task: step for step in done.outcome.steps})
            left += done.outcome.left
            if any(step.added_needs for step in done.outcome.steps):
                followed.move_to(done.revision)
        return left

    def _difference(
        self, plan: Plan, known: Mapping[str, KnownTask], followed: Followed
    ) -> Op[PlanDifference]:
        """Compare a plan with the store; raises for needs that do not exist or form a cycle."""
        found = update_rules.difference(plan, known)
        missing = yield from self.missing_needs(list(update_rules.unknown_needs(found.steps, plan)))
        if missing:
            raise plans.unknown(plan, missing)
        if graph := update_rules.needs_to_follow(found.steps):
            yield from followed.follow(graph)
        return found

    def _known(self, plan: Plan) -> Op[dict[str, KnownTask]]:
        """The tasks of the ids of a plan, and the unfinished tasks that belong to it by its name.

        The latter are found by the indexes of all tasks that are not finished.
        """
        names = dict.fromkeys(plan.places)
        if plan.name:
            for item in (yield from every(keys.HANGS, keys.DUE, keys.READY, keys.CLAIMS)):
                names[keys.task_in_index(item.key)] = None
        wanted = [name for name in names if not name.startswith(task_types.BATCH)]
        items = yield from looked_up(
            key for name in wanted for key in (keys.data(name), keys.status(name))
        )
        found = {}
        for name in wanted:
            status = decode_status(items[keys.status(name)])
            spec = decode_spec(items[keys.data(name)])
            if status is None or spec is None:
                continue
            if name in plan.places or spec.plan == plan.name:
                found[name] = (status, spec)
        return found

    def _status(self, id_: str) -> Op[task_types.TaskStatus | None]:
        key = keys.status(id_)
        return decode_status((yield Read(key))[key])

    def free_id(self, actor: Actor, task: str) -> Op[bool]:
        """Whether an id is free again, since the import that began to use it was abandoned."""
        key = keys.status(task)
        status = decode_status((yield Read(key))[key])
        if status is None or not status.on.startswith(task_types.BATCH):
            return False
        return (yield from self._delete_batch(actor, status.on))

    def _publish(self, actor: Actor, plan: Plan) -> Op[Imported | PlanExists | StaleBatch]:
        if plan_rules.fits(plan, self._limits()):
            whole = partial(plan_rules.publish_whole, wanted=plan, begun=self._begun(actor, plan))
            done = yield from change(self._runner, actor, (keys.status(plan.batch),), whole)
            if done.outcome is not None:
                return done.outcome
        return (yield from self._portions(actor, plan))

    def _portions(self, actor: Actor, plan: Plan) -> Op[Imported | PlanExists | StaleBatch]:
        """Publish a plan that is too large for one commit: hidden first, then visible."""
        found = yield from self._check_store(plan)
        if isinstance(found, PlanCheck):
            begun = found.begun or self._begun(actor, plan)
            refused = yield from self._add_all(actor, plan, begun)
            if refused is None:
                stale = yield from self._complete(actor, plan, begun)
                return stale or Imported(**asdict(found.checked))
        else:
            refused = found
        if isinstance(refused, PlanExists) and refused.task:
            yield from self._delete_batch(actor, plan.batch, own=plan.digest)
        return refused

    def _add_all(
        self, actor: Actor, plan: Plan, begun: BatchStart
    ) -> Op[PlanExists | StaleBatch | None]:
        """Write all tasks of a plan, hidden, in portions; stop where one cannot be written."""
        renewed_at: float | None = None
        written = 0
        for some in plan_rules.portions(plan, self._limits()):
            now = self._runner.clock.monotonic()
            first = renewed_at is None
            alive = renewed_at is None or now > renewed_at + plan_rules.TTL / 4
            add = partial(
                plan_rules.add_portion,
                wanted=plan,
                drafts=some,
                begun=begun,
                first=first,
                alive=alive,
            )
            done = yield from change(self._runner, actor, (keys.status(plan.batch),), add)
            if done.outcome is not None:
                return done.outcome
            renewed_at = now if alive else renewed_at
            written += len(some)
            report("publishing tasks", written, len(plan.drafts))
        return None

    def _begun(self, actor: Actor, plan: Plan) -> BatchStart:
        return BatchStart(at=self._new_times(len(plan.drafts)), by=actor.agent)

    def _complete(self, actor: Actor, plan: Plan, begun: BatchStart) -> Op[StaleBatch | None]:
        """Complete the batch of a plan whose tasks are all written."""
        apart = not self._runner.capabilities.transacts  # another may follow
        outcome = yield from self._with_dependents(
            actor,
            plan.batch,
            dependents(plan.batch, TaskReader(self._runner, 0).facts).limit,
            lambda changes, tasks, more: plan_rules.complete_batch(
                changes, plan, begun, tasks, more=more or apart
            ),
        )
        if isinstance(outcome, StaleBatch):
            return outcome
        if outcome:
            yield from self._housekeeping.drain_all(actor, plan.batch)
        return None

    def _delete_batch(self, actor: Actor, id_: str, own: str = "") -> Op[bool]:
        """Delete a batch that cannot be finished; one with a live client stays."""
        mark = partial(plan_rules.mark_failed, batch=id_, own=own)
        marked = (yield from change(self._runner, actor, (keys.status(id_),), mark)).outcome
        going, most = marked, plan_rules.deletes_per_commit(self._limits().operations)
        while going:
            going = yield from self._with_dependents(
                actor,
                id_,
                most,
                lambda changes, tasks, more: plan_rules.delete_portion(
                    changes, id_, tasks, more=more
                ),
            )
        return marked

    def _check_store(self, plan: Plan) -> Op[PlanCheck | PlanExists | StaleBatch]:
        def decide(changes: TaskChanges) -> Decision[PlanCheck | PlanExists | StaleBatch]:
            return Decision(outcome=plan_rules.check_store(changes, plan))

        return (yield from outside(TaskReader(self._runner, 0).change(decide))).outcome

    def _limits(self) -> CommitLimits:
        """The limits of one commit of a plan."""
        facts, local = TaskReader(self._runner, 0).facts, self._runner.capabilities.transacts
        return CommitLimits(
            operations=facts.max_operations,
            text=facts.max_entry_bytes,
            size=_LOCAL_BYTES if local else _BYTES,
        )

    def _with_dependents(
        self,
        actor: Actor,
        id_: str,
        limit: int,
        decide: Callable[[TaskChanges, Sequence[str], bool], Decision[T]],
    ) -> Op[T]:
        """Decide about a batch, with as many of its tasks as fit into one commit."""

        def deciding() -> DecideOp[T]:
            reader = TaskReader(self._runner, 0)
            reader.learn((yield (keys.status(id_),)).items)
            page = Range(keys.hangs(id_), limit=limit)
            found = (yield (page,)).ranges[page]
            tasks = [keys.task_in_index(item.key) for item in found]
            more = len(found) == limit
            return (yield from reader.change(lambda changes: decide(changes, tasks, more)))

        return (yield from self._runner.change(deciding, actor)).outcome


def _by_kind(
    steps: Iterable[PlanStep],
) -> tuple[tuple[str, ...], tuple[PlannedEdit, ...], tuple[str, ...]]:
    """The tasks that are new, edited and dropped."""
    some = list(steps)
    edited = [each for each in some if each.kind == "edit"]
    return (
        tuple([each.task for each in some if each.kind in ("new", "again")]),
        tuple([PlannedEdit(task=each.task, changed=each.changed) for each in edited]),
        tuple([each.task for each in some if each.kind == "drop"]),
    )
