"""The tasks of a phase: published with the commit that enters it, and complete before it is left.

Each id begins with the id of the pipeline (``r1.build.a``), so that two pipelines of one definition
have tasks of their own.  A task may need other tasks of its phase or of earlier phases, and tasks
that exist outside of the pipeline.

A task that does not exist any more may have been complete, or may have failed: so it is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from interlock.core.safe_text import foreign
from interlock.errors import BadInput, TooLarge
from interlock.nouns.guards import condition as c
from interlock.nouns.guards.gates import GateFact, Hindrance
from interlock.nouns.guards.guard import Guard, GuardResult, check
from interlock.nouns.pipelines.definition import PhaseDefinition, PhaseTask, PipelineDefinition
from interlock.nouns.tasks import progress_rules
from interlock.nouns.tasks.progress_rules import ENTRY_TEXT
from interlock.nouns.tasks.task import Spec, TaskOwner, TaskStatus
from interlock.nouns.tasks.task_change import TaskChanges, TaskFacts
from interlock.runtime.gates import NEW_TASKS, GatedEntry

NAMED = 5
TASK_OPERATIONS = 10
"""The most operations that publishing one task takes."""
HOLD_OPERATIONS = 8
OWN_OPERATIONS = 8
_STEP = 0.000_001
"""Seconds between the times of two tasks, which order them."""


def task_id(pipeline: str, task: str) -> str:
    """The id of a task of a pipeline."""
    return f"{pipeline}.{task}"


def tasks_condition(pipeline: str) -> c.TasksComplete:
    """What a phase with tasks waits for, as a condition that a person can check."""
    return c.TasksComplete(filter=c.TaskFilter(prefix=f"{pipeline}."))


def tasks_guard(pipeline: str, name: str) -> Guard:
    """What a phase with tasks waits for, as a guard that blocks."""
    return Guard(name=name, condition=tasks_condition(pipeline))


def check_complete(
    guard: Guard,
    pipeline: str,
    statuses: Mapping[str, TaskStatus | None],
    owners: Mapping[str, TaskOwner | None],
    now: float,
) -> GuardResult:
    """Whether the tasks of a phase are complete."""
    need = c.TasksNeed(tasks_condition(pipeline).filter)
    return check(guard, {need: _fact(statuses, owners)}, now)


def _fact(
    statuses: Mapping[str, TaskStatus | None], owners: Mapping[str, TaskOwner | None]
) -> c.Fact:
    known = {id_: status for id_, status in statuses.items() if status is not None}
    unfinished = [id_ for id_, status in known.items() if status.state != "complete"]
    gone = next((id_ for id_ in statuses if id_ not in known), None)
    if gone is not None and not unfinished:
        return c.NoFact(
            says=f"task {foreign(gone)} does not exist any more; publish it again and complete it"
        )
    return c.TasksFact(
        states=dict(Counter(status.state for status in known.values())),
        open=tuple(
            (id_, known[id_].state, owner.agent if (owner := owners.get(id_)) else "")
            for id_ in unfinished[:NAMED]
        ),
        last={status.state: id_ for id_, status in known.items()},
    )


def specs_of(
    pipeline: str,
    definition: PipelineDefinition,
    phase: PhaseDefinition,
    *,
    at: float,
    by: str,
    trace: str,
) -> dict[str, Spec]:
    """The tasks that a phase publishes, each after the tasks of the phase that it needs."""
    own = {task.id for each in definition.phases for task in each.tasks}
    return {
        task_id(pipeline, task.id): Spec(
            at=round(at + place * _STEP, 6),
            by=by,
            data=task.data,
            priority=task.priority,
            requires=tuple(sorted(task.requires)),
            needs=tuple([task_id(pipeline, need) if need in own else need for need in task.needs]),
            labels=task.labels,
            title=task.title,
            text=task.text,
            guards=task.guard,
            evidence=task.evidence,
            trace=trace,
        )
        for place, task in enumerate(_in_order(phase.tasks))
    }


def _in_order(tasks: Sequence[PhaseTask]) -> list[PhaseTask]:
    """The tasks in their order, but each after those that it needs."""
    if not any(task.needs for task in tasks):
        return list(tasks)
    from graphlib import TopologicalSorter

    named = {task.id: task for task in tasks}
    graph = {task.id: [need for need in task.needs if need in named] for task in tasks}
    return [named[id_] for id_ in TopologicalSorter(graph).static_order()]


def publish(
    changes: TaskChanges, pipeline: str, guard: str, specs: Mapping[str, Spec]
) -> Hindrance | None:
    """Publish these tasks; or what prevents it."""
    outside = tuple(
        dict.fromkeys(need for spec in specs.values() for need in spec.needs if need not in specs)
    )
    progress_rules.read_needs(changes, outside, specs)
    if (taken := next((id_ for id_ in specs if changes.status(id_) is not None), None)) is not None:
        return Hindrance(
            guard=guard,
            leaf=f"task={taken}",
            reason=f"there is a task {foreign(taken)} already, which this pipeline did not publish",
            acts=(f"start the pipeline again under another id than {foreign(pipeline)}",),
            facts=(GateFact(fact=f"task/{taken}"),),
        )
    changes.facts.need_all(changes.exists, outside)
    # A task of an earlier phase was complete, even if it does not exist any more.
    earlier = f"{pipeline}."
    missing = [id_ for id_ in outside if not changes.exists(id_) and not id_.startswith(earlier)]
    if missing:
        return Hindrance(
            guard=guard,
            leaf=f"task={missing[0]}",
            reason=f"a task of the phase needs {foreign(missing[0])}, which does not exist",
            acts=(f"publish task {foreign(missing[0])}",),
            facts=(GateFact(fact=NEW_TASKS, entry=GatedEntry(prefix=missing[0])),),
        )
    progress_rules.read_requirement_sets(changes, specs.values())
    for id_, spec in specs.items():
        progress_rules.create(changes, id_, spec)
    return None


def most_cancelled(facts: TaskFacts, grants: int) -> int:
    """How many tasks can be cancelled with the commit that cancels a pipeline with these grants."""
    room = facts.max_operations - OWN_OPERATIONS - HOLD_OPERATIONS * grants
    return max(min(room // TASK_OPERATIONS, facts.max_entry_bytes // ENTRY_TEXT), 0)


def check_definition(definition: PipelineDefinition, operations: int, size: int) -> None:
    """Refuse a definition whose phases cannot be entered with one commit each."""
    earlier: set[str] = set()
    own = {task.id for phase in definition.phases for task in phase.tasks}
    for phase in definition.phases:
        room = operations - OWN_OPERATIONS - HOLD_OPERATIONS * len(phase.hold)
        labels = sum(len(task.labels) for task in phase.tasks)
        if len(phase.tasks) * TASK_OPERATIONS + labels > room:
            raise TooLarge(
                f"phase {phase.name!r} of {definition.name!r} publishes {len(phase.tasks)} tasks;"
                f" this store takes {max(room, 0) // TASK_OPERATIONS} in one commit:"
                " divide them among phases, or publish them as a plan and wait for"
                " tasks_complete"
            )
        if sum(len(bytes(task.data)) + 4 * len(task.text) for task in phase.tasks) > size // 2:
            raise TooLarge(
                f"the tasks of phase {phase.name!r} of {definition.name!r} have more than"
                f" {size // 2} bytes of data and text; put them elsewhere, and name it in the task"
            )
        earlier |= {task.id for task in phase.tasks}
        for task in phase.tasks:
            late = next((need for need in task.needs if need in own - earlier), None)
            if late is not None:
                raise BadInput(
                    f"task {task.id!r} of phase {phase.name!r} needs {late!r}, which a later phase"
                    " publishes; move one of them"
                )
