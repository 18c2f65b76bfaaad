"""How a plan that was imported becomes the plan of a changed file.

The file is compared with the store, task by task:

    not in the store    new
    dropped before      published again
    waits, differs      edited
    runs, or has ended  left alone, and named if it differs
    not in the file     dropped if it never began, else left alone and named

Tasks belong to a plan by its name (``Spec.plan``).  The tasks of a plan without a name are not
known, so nothing of it is dropped.

An update that fits into one commit is one commit: no worker sees half of it.  A larger one is
several, in an order that leaves no task with a need that does not exist: new tasks, each after its
needs, then edits, then drops.  Each commit compares its tasks again, so a task that a worker claims
in between is left alone; an update that was killed can be repeated, and does the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Literal, TypeAlias

from msgspec import Struct

from interlock.core import codec, keys, validate
from interlock.core.decision import Decision
from interlock.core.safe_text import foreign
from interlock.core.validate import quote
from interlock.nouns.tasks import edit_rules, plan_rules, progress_rules
from interlock.nouns.tasks import task as task_types
from interlock.nouns.tasks.edit_rules import FollowNeeds, ListEdit, SpecEdit
from interlock.nouns.tasks.plan import Plan, PlanTask
from interlock.nouns.tasks.plan_rules import BatchStart, CommitLimits
from interlock.nouns.tasks.task import Spec, TaskStatus
from interlock.nouns.tasks.task_change import TaskChanges
from interlock.nouns.tasks.task_outcomes import FieldChange, LeftTask, PlanExists

REASON = "its plan has it no more"
_OPERATIONS = 20
"""The most operations that a step on a task without labels takes."""
_SAME_MOMENT = 1.0
"""Seconds by which a moment that is written as a duration may differ, since tasks of a plan are
ordered by small parts of a second."""

KnownTask: TypeAlias = tuple[TaskStatus, Spec]
Moment: TypeAlias = str | float | datetime


class PlanStep(Struct, frozen=True, kw_only=True):
    """One change of an update; ``changed`` are the fields that an edit changes."""

    task: str
    kind: Literal["new", "again", "edit", "drop"]
    draft: PlanTask | None = None
    changed: dict[str, FieldChange] = {}
    labels: int = 0
    added_needs: tuple[str, ...] = ()


class PlanDifference(Struct, frozen=True, kw_only=True):
    """What an update would do, in this order, and what it leaves alone."""

    steps: tuple[PlanStep, ...]
    left: tuple[LeftTask, ...]
    same: int


class StepsDone(Struct, frozen=True, kw_only=True):
    """The steps that a commit took, and tasks that it found to be left alone."""

    steps: tuple[PlanStep, ...]
    left: tuple[LeftTask, ...]


def difference(wanted: Plan, known: Mapping[str, KnownTask]) -> PlanDifference:
    """Compare a plan with the tasks of its ids, and with those that are its own."""
    steps: list[PlanStep] = []
    left: list[LeftTask] = []
    same = 0
    for draft in wanted.drafts:
        found = compare(draft, known.get(draft.id))
        if isinstance(found, PlanStep):
            steps.append(found)
        elif found is not None:
            left.append(found)
        else:
            same += 1
    for id_, (status, spec) in known.items():
        if id_ in wanted.places:
            continue
        removed = _removed(id_, status, spec)
        if isinstance(removed, PlanStep):
            steps.append(removed)
        elif removed is not None:
            left.append(removed)
    order = {"new": 0, "again": 0, "edit": 1, "drop": 2}
    steps.sort(key=lambda step: order[step.kind])
    return PlanDifference(steps=tuple(steps), left=tuple(left), same=same)


def compare(draft: PlanTask, found: KnownTask | None) -> PlanStep | LeftTask | None:
    """What becomes of a task of the file; None if it is as the file wants it."""
    labels = len(draft.labels)
    if found is None:
        return PlanStep(task=draft.id, kind="new", draft=draft, labels=labels)
    status, spec = found
    if status.state == "dropped":
        needs = draft.needs
        return PlanStep(task=draft.id, kind="again", draft=draft, labels=labels, added_needs=needs)
    changed = edit_rules.field_changes(spec, _edit(draft, spec).applied(spec))
    if not changed:
        return None
    if status.state not in ("blocked", "pending"):
        why = f"{', '.join(changed)}: {_why(draft.id, status)}"
        return LeftTask(task=draft.id, state=status.state, reason=why)
    added = tuple([need for need in draft.needs if need not in spec.needs])
    return PlanStep(
        task=draft.id,
        kind="edit",
        draft=draft,
        changed=changed,
        labels=labels + len(spec.labels),
        added_needs=added,
    )


def _why(id_: str, status: TaskStatus) -> str:
    if status.state == "running":
        return "a worker has it"
    if status.state == "complete":
        return "it is complete"
    return f"it is {status.state}; to send it back: interlock task retry {quote(id_)}"


def _removed(id_: str, status: TaskStatus, spec: Spec) -> PlanStep | LeftTask | None:
    """What becomes of a task that the file has no more; None if it has ended."""
    if status.state not in ("blocked", "pending", "running"):
        return None
    if edit_rules.never_began(status):
        return PlanStep(task=id_, kind="drop", labels=len(spec.labels))
    why = "the file has it no more, and a worker has it"
    if status.state != "running":
        why = (
            f"the file has it no more, and {status.attempts} of its attempts failed;"
            f" to give it up: interlock task cancel {quote(id_)}"
        )
    return LeftTask(task=id_, state=status.state, reason=why)


def _edit(draft: PlanTask, spec: Spec) -> SpecEdit:
    """The edit that makes a task as the file wants it."""
    return SpecEdit(
        priority=draft.priority,
        title=draft.title,
        text=draft.text,
        data=draft.data,
        labels=ListEdit(exactly=draft.labels),
        requires=ListEdit(exactly=draft.requires),
        needs=ListEdit(exactly=draft.needs),
        guards=ListEdit(exactly=draft.guard),
        evidence=ListEdit(exactly=draft.evidence),
        not_before=_moment(draft.not_before, spec.not_before, spec.at),
        deadline=_moment(draft.deadline, spec.deadline, spec.at),
        retries=draft.retries,
        backoff=draft.backoff,
        backoff_most=draft.backoff_most,
    )


def _moment(said: Moment | None, stored: float | None, published: float) -> float | None:
    """A moment as the file wants it; a duration counts from the publishing of the task."""
    if said is None:
        return None
    wanted = validate.future_moment(said, published)
    if stored is not None and abs(wanted - stored) <= _SAME_MOMENT:
        return stored
    return wanted


def refusal(wanted: Plan, known: Mapping[str, KnownTask]) -> PlanExists | None:
    """Why the plan cannot be updated: a task of the file belongs to another plan."""
    for id_ in wanted.places:
        status, spec = known.get(id_, (None, None))
        if status is not None and spec is not None and (why := _foreign(wanted, id_, spec)):
            return PlanExists(plan=wanted.id, task=id_, state=status.state, reason=why)
    return None


def _foreign(wanted: Plan, id_: str, spec: Spec) -> str:
    """Why a task is not one of the plan; empty if it is."""
    if spec.plan == wanted.name:
        return ""
    if not spec.plan:
        return f"task {foreign(id_)} belongs to no plan; give yours another id, or leave out --id"
    return f"task {foreign(id_)} belongs to the plan {foreign(spec.plan)}; give yours another id"


def unknown_needs(steps: Sequence[PlanStep], wanted: Plan) -> dict[str, None]:
    """The needs outside of the file that new and edited tasks get; they must exist."""
    found: dict[str, None] = {}
    for step in steps:
        needs = step.added_needs
        if step.kind == "new" and step.draft is not None:
            needs = step.draft.needs
        found |= dict.fromkeys(need for need in needs if need not in wanted.places)
    return found


def needs_to_follow(steps: Sequence[PlanStep]) -> dict[str, tuple[str, ...]]:
    """The needs of all tasks that are new or edited, if one that exists gets another need."""
    if not any(step.added_needs for step in steps):
        return {}
    return {step.task: step.draft.needs for step in steps if step.draft is not None}


def portions(steps: Sequence[PlanStep], limits: CommitLimits) -> Iterator[Sequence[PlanStep]]:
    """The steps in portions, each for one commit."""
    first = operations = text = size = 0
    for number, step in enumerate(steps):
        more, needed = _entry_bytes(step), _OPERATIONS + step.labels
        heavy = more + (0 if step.draft is None else plan_rules.weight(step.draft))
        operations, text, size = operations + needed, text + more, size + heavy
        over = operations > limits.operations or text > limits.text or size > limits.size
        if over and number > first:
            yield steps[first:number]
            first, operations, text, size = number, needed, more, heavy
    yield steps[first:]


def _entry_bytes(step: PlanStep) -> int:
    """An upper estimate of the bytes that a step adds to an entry of the record."""
    each = progress_rules.ENTRY_TEXT + progress_rules.ENTRY_NAMES * len(step.task)
    return each + step.labels * plan_rules.LABEL_TEXT + len(codec.encode(step.changed))


def apply(
    changes: TaskChanges,
    wanted: Plan,
    steps: Sequence[PlanStep],
    begun: BatchStart,
    *,
    followed: bool,
    last: bool,
) -> Decision[StepsDone | FollowNeeds]:
    """Take some steps of an update, as far as the tasks are as they were read.

    The ``last`` of these commits makes the plan of the store that of the file.
    """
    _read(changes, wanted, steps, last=last)
    taken: list[PlanStep] = []
    left: list[LeftTask] = []
    for step in steps:
        now = _again(changes, wanted, step)
        if isinstance(now, LeftTask):
            left.append(now)
        elif now is not None:
            if now.added_needs and not followed:
                return Decision(outcome=FollowNeeds(now.added_needs))
            _take(changes, wanted, now, begun)
            taken.append(now)
    if last:
        plan_rules.write_label(changes, wanted, begun, "complete")
    outcome = StepsDone(steps=tuple(taken), left=tuple(left))
    if not taken and not last:
        return Decision(outcome=outcome)
    thing = progress_rules.record_name(wanted.batch)
    return changes.decision(outcome, plan_rules.VERB, thing)


def _read(changes: TaskChanges, wanted: Plan, steps: Sequence[PlanStep], *, last: bool) -> None:
    """Ask with few reads for all that the steps may need."""
    facts = changes.facts
    facts.need((keys.NEEDED, keys.SUSPECTED, keys.NEW_TASKS))
    drafts = [step.draft for step in steps if step.draft is not None]
    ids = [step.task for step in steps]
    batch = (wanted.batch,) if last else ()
    facts.need_statuses(dict.fromkeys((*batch, *ids, *[n for each in drafts for n in each.needs])))
    there = [id_ for id_ in ids if changes.status(id_) is not None]
    facts.need_all(facts.spec, there)
    facts.need_all(lambda id_: _hidden(changes, id_), there)
    held = [id_ for id_ in there if (each := changes.status(id_)) and each.guard]
    facts.need_all(facts.gate, held)
    progress_rules.read_requirement_sets(
        changes, [Spec(at=0.0, requires=draft.requires) for draft in drafts]
    )


def _hidden(changes: TaskChanges, id_: str) -> bool:
    status = changes.status(id_)
    return status is not None and changes.is_hidden(status)


def _again(changes: TaskChanges, wanted: Plan, step: PlanStep) -> PlanStep | LeftTask | None:
    """The step as of now, since the task was compared before this commit.

    A worker may have claimed it since, and another agent may have published one of its id.
    """
    status = changes.status(step.task)
    if status is None:
        return None if step.draft is None else compare(step.draft, None)
    spec = changes.facts.spec(step.task)
    why = task_types.HIDDEN_REASON if changes.is_hidden(status) else ""
    if why := why or _foreign(wanted, step.task, spec):
        return LeftTask(task=step.task, state=status.state, reason=why)
    if step.draft is not None:
        return compare(step.draft, (status, spec))
    return _removed(step.task, status, spec)


def _take(changes: TaskChanges, wanted: Plan, step: PlanStep, begun: BatchStart) -> None:
    id_, draft, status = step.task, step.draft, changes.status(step.task)
    if draft is None:
        edit_rules.drop_one(changes, id_, begun.by, REASON)
        return
    if step.kind == "edit":
        wanted_edit = _edit(draft, changes.facts.spec(id_))
        edit_rules.apply_edit(changes, id_, wanted_edit, begun.by, followed=True)
        return
    spec = wanted.spec(draft, begun.at, begun.by)
    progress_rules.read_needs(changes, spec.needs)
    edit_rules.require_needs(changes, id_, spec.needs)
    if status is None:
        progress_rules.create(changes, id_, spec)
    else:
        edit_rules.replace_ended(changes, id_, status, spec)


def is_labelled(wanted: Plan, label: Spec | None) -> bool:
    """Whether the store knows the plan as that of the file."""
    return label is not None and plan_rules.digest_of(label) == wanted.digest
