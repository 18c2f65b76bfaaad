"""Decisions that change a plan: edit a task, drop one, publish one again under its id.

**An edit** changes what a task is about, its place in the queue, its needs, its guards and its
times, while no worker has it.  It is one commit, which writes the data and the status: a claim that
relied on the old status conflicts, reads again, and gets the task as it is after the edit; an edit
that comes after a claim is refused, and names the worker.  The old and the new values are in the
entry of the record.

**A cycle** can come from new needs alone, since these may be younger than the task.  The needs are
followed from the new ones on, before the commit (``edit_service.py``): only edits and tasks that
are published again add needs to a task that exists, and each of these commits checks and rewrites
``meta/edited-needs``.  So nothing that was followed has got more needs since.

**A need is a task, not a name**: the task that existed when the data were last written.  So an edit
leaves out a need that was complete and deleted, if another task has its id by now; only an edit
that names it means that one.

**A dropped task** never began, and never will.  It leaves its status and a small part of its data:
others may need it, and a need that does not exist counts as complete.  It is deleted as a failed
task is, when no task needs it (``retention_rules.py``).

**An id may be published again**, if the task failed, died or was dropped.  Its status is replaced
and not deleted, so that its dependents still mean it, and its tokens keep rising.  Its notes stay,
since they may say why there is a new task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.decision import Decision
from interlock.core.safe_text import foreign
from interlock.core.validate import quote, span
from interlock.errors import BadInput, TooLarge
from interlock.nouns.tasks import progress_rules, rules, task, task_outcomes
from interlock.nouns.tasks.task import UNSUCCESSFUL, Spec, TaskStatus
from interlock.nouns.tasks.task_change import TaskChanges
from interlock.nouns.tasks.task_outcomes import FieldChange

KEPT = 4096
"""The most characters of a value in the record, as JSON; two of them are in an entry."""
_NAMES_KEPT = 20
_LIMITS = {
    "labels": task.LABELS_LIMIT,
    "requires": task.REQUIRES_LIMIT,
    "needs": task.NEEDS_LIMIT,
    "guards": task.GUARDS_LIMIT,
    "evidence": task.GUARDS_LIMIT,
}


class ListEdit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a list of names changes: ``exactly`` these, or some more and some less."""

    exactly: tuple[str, ...] | None = None
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()

    def applied(self, before: tuple[str, ...]) -> tuple[str, ...]:
        """The list after the edit, in the order of the list before."""
        if self.exactly is not None:
            return self.exactly
        kept = [name for name in before if name not in self.remove]
        return tuple(dict.fromkeys((*kept, *self.add)))


class SpecEdit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an edit changes; a field that is not set stays as it is."""

    priority: int | UnsetType = UNSET
    title: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    data: Raw | UnsetType = UNSET
    labels: ListEdit = ListEdit()
    requires: ListEdit = ListEdit()
    needs: ListEdit = ListEdit()
    guards: ListEdit = ListEdit()
    evidence: ListEdit = ListEdit()
    not_before: float | UnsetType | None = UNSET
    deadline: float | UnsetType | None = UNSET
    retries: int | UnsetType = UNSET
    backoff: float | UnsetType = UNSET
    backoff_most: float | UnsetType = UNSET

    def applied(self, spec: Spec) -> Spec:
        """The data of a task after the edit."""
        plain = {field: value for field in _PLAIN if (value := getattr(self, field)) is not UNSET}
        lists = {field: getattr(self, field).applied(getattr(spec, field)) for field in _LIMITS}
        lists["requires"] = tuple(sorted(lists["requires"]))
        for field, names in lists.items():
            if len(names) > _LIMITS[field] and len(names) > len(getattr(spec, field)):
                raise TooLarge(
                    f"it would have {len(names)} {field}; {_LIMITS[field]} are allowed: remove some"
                )
        return replace(spec, **plain, **lists)


_PLAIN = (
    "priority", "title", "text", "data", "not_before", "deadline", "retries", "backoff",
    "backoff_most",
)  # fmt: skip


class FollowNeeds(Struct, frozen=True):
    """The decision adds these needs: follow them first, since they may lead back to the task."""

    needs: tuple[str, ...]


def edit(
    changes: TaskChanges, id_: str, wanted: SpecEdit, agent: str, *, followed: bool
) -> Decision[task_outcomes.TaskEdited | task_outcomes.Unchanged | FollowNeeds]:
    """Edit a task that no worker has; ``followed`` says that its new needs lead to no cycle."""
    status = changes.facts.status(id_)
    if status is None or changes.is_hidden(status) or status.state not in ("blocked", "pending"):
        return Decision(outcome=_not_editable(changes, id_, status))
    _require_time_to_begin(wanted, changes.facts.spec(id_))
    done = apply_edit(changes, id_, wanted, agent, followed=followed)
    if isinstance(done, FollowNeeds) or not done.changed:
        return Decision(outcome=done)
    return changes.decision(done, "task.edit", f"task/{id_}")


def apply_edit(
    changes: TaskChanges, id_: str, wanted: SpecEdit, agent: str, *, followed: bool
) -> task_outcomes.TaskEdited | FollowNeeds:
    """Make the changes of an edit of a task that is blocked or pending."""
    status, spec = changes.status(id_), changes.facts.spec(id_)
    if status is None:
        raise AssertionError(f"there is no task {id_}")
    after = wanted.applied(spec)
    if after == spec:
        return task_outcomes.TaskEdited(task=id_, state=status.state)
    fresh = _new_needs(changes, id_, spec, after, wanted.needs)
    if fresh and not followed:
        return FollowNeeds(fresh)
    ended = _rely_on(changes, id_, fresh)
    kept = [need for need in after.needs if need in fresh or _stands(changes, id_, need)]
    after = replace(after, needs=tuple(kept))
    after = _measured(changes, id_, status, spec, after)
    changes.put(keys.data(id_), after)
    changes.list_labels(id_, after.labels, spec.labels)
    _move(changes, id_, status, spec, after)
    changed = field_changes(spec, after)
    details = {name: [each.old, each.new] for name, each in changed.items()}
    changes.detailed_event("edited", agent, id_, details)
    found = changes.status(id_)
    state = status.state if found is None else found.state
    return task_outcomes.TaskEdited(task=id_, state=state, changed=changed, ended=ended)


def _require_time_to_begin(wanted: SpecEdit, spec: Spec) -> None:
    after = wanted.applied(spec)
    if (after.not_before, after.deadline) == (spec.not_before, spec.deadline):
        return
    if after.deadline is not None and after.deadline <= (after.not_before or 0.0):
        raise BadInput(
            "the deadline would not be after 'not-before', and no worker could begin it in time;"
            " change both"
        )


def _measured(changes: TaskChanges, id_: str, status: TaskStatus, spec: Spec, after: Spec) -> Spec:
    """The data; the engine measures a new deadline, or the rest of one whose key it lost.

    An absent key means that the deadline is over, if the engine lost none since the data were
    written (``TaskChanges.is_deadline_over``), and the data are written now.
    """
    if after.deadline != spec.deadline:
        if after.deadline is None:
            changes.delete(keys.deadline(id_))
            return replace(after, measured=False)
        progress_rules.measure(changes, id_, after.deadline)
        return replace(after, measured=True)
    deadline = status.deadline
    if deadline is None or changes.is_deadline_over(id_, deadline):
        return after
    if changes.facts.has(keys.deadline(id_)):
        return after
    progress_rules.measure(changes, id_, deadline)
    return replace(after, measured=True)


def _not_editable(
    changes: TaskChanges, id_: str, status: TaskStatus | None
) -> task_outcomes.Unchanged:
    """Why a task cannot be edited, and what to do instead."""
    if status is None or changes.is_hidden(status):
        return rules.absent(id_, status)
    why = f"it is {status.state}, and a task can be edited until a worker claims it"
    if status.state == "running" and (held := changes.facts.claim(id_)) is not None:
        why = (
            f"{foreign(held.agent)} claimed it {span(max(changes.now - held.since, 0.0))} ago, and"
            " a task"
            " can be edited while no worker has it; to take it back first:"
            f" interlock task requeue {quote(id_)} --reason WHY"
        )
    elif status.state in UNSUCCESSFUL:
        why += f"; to publish it again: interlock task add {quote(id_)} --again"
    return task_outcomes.Unchanged(task=id_, state=status.state, reason=why)


def _new_needs(
    changes: TaskChanges, id_: str, spec: Spec, after: Spec, wanted: ListEdit
) -> tuple[str, ...]:
    """The needs that the task does not have yet.

    A need that was complete and deleted is new if a list names it, and another task has its id.
    """
    if not after.needs:
        return ()
    changes.facts.need((keys.NEEDED, keys.SUSPECTED))  # no later than the needs: ``read_needs``
    changes.facts.need_statuses(after.needs)
    changed = wanted.exactly is not None and after.needs != spec.needs
    return tuple(
        [
            need
            for need in after.needs
            if need not in spec.needs or (changed and not _stands(changes, id_, need))
        ]
    )


def _stands(changes: TaskChanges, id_: str, need: str) -> bool:
    """Whether the task of this id is the one that is needed, or was and is deleted."""
    return changes.status(need) is None or progress_rules.is_meant(changes, id_, need)


def _rely_on(changes: TaskChanges, id_: str, needs: tuple[str, ...]) -> tuple[str, ...]:
    """Check the needs that a task gets; returns those that ended without being complete."""
    if not needs:
        return ()
    ended = progress_rules.read_needs(changes, needs)
    require_needs(changes, id_, needs)
    changes.rely(keys.EDITED_NEEDS)
    changes.put(keys.EDITED_NEEDS, {})
    return ended


def require_needs(changes: TaskChanges, id_: str, needs: Sequence[str]) -> None:
    """Check that each of these is a task that exists."""
    changes.facts.need_all(changes.exists, needs)
    unknown = next((need for need in needs if not changes.exists(need)), None)
    if unknown is not None:
        raise BadInput(
            f"task {id_!r} needs {unknown!r}, which does not exist; publish that first,"
            " or leave it out if it was completed long ago"
        )


def _move(changes: TaskChanges, id_: str, status: TaskStatus, spec: Spec, after: Spec) -> None:
    """Bring a task where its new data want it: under a need, to its gate, to another place."""
    at = None if after.needs == spec.needs else _first_unmet(changes, id_, after)
    deadline = status.deadline if after.deadline == spec.deadline else after.deadline
    copied = replace(status, guards=after.guards, evidence=after.evidence, deadline=deadline)
    changes.set_status(id_, replace(copied, edits=status.edits + 1))
    queued = status.state == "pending" and not status.due
    if at is not None:
        on = after.needs[at]
        if queued:
            changes.delete(spec.ready_key(id_))
        since = status.since if status.on else changes.now
        last = rules.last_attempt(status)
        changes.move(id_, "edit", "blocked", since=since, on=on, place=at, **last)
        changes.block_on(id_, on)
    elif _comes_again(changes, status, spec, after):
        if queued:
            changes.delete(spec.ready_key(id_))
        elif status.due:
            changes.delete(*_rest_of(changes, status))
        changes.move(id_, "edit", "pending", **rules.last_attempt(status))
        now = changes.make_pending(id_, after)
        if now.state == "pending" and not now.due and not queued:
            changes.task_event("ready", "", id_)
    elif queued and _entry(spec, id_) != _entry(after, id_):
        changes.delete(spec.ready_key(id_))
        changes.enter_queue(id_, after)


def _comes_again(changes: TaskChanges, status: TaskStatus, spec: Spec, after: Spec) -> bool:
    """Whether a task without an unmet need is to come to its moment, its gate or the queue again.

    A moment that is yet to come takes the place of a rest after a failed attempt; else that goes
    on.
    """
    if status.on:
        return after.needs != spec.needs
    moved = after.not_before != spec.not_before
    if moved and (after.not_before or 0.0) > changes.now:
        return True
    if not status.due or status.guard:
        return after.guards != spec.guards
    return moved and not _rest_of(changes, status)


def _rest_of(changes: TaskChanges, status: TaskStatus) -> tuple[str, ...]:
    """The liveness key of the rest of a task that is due later; none of one with a moment."""
    entry = changes.facts.due(status.due)
    return (entry.rest,) if entry is not None and entry.rest else ()


def _entry(spec: Spec, id_: str) -> tuple[object, ...]:
    """What the entry of a task in the queue says."""
    return spec.ready_key(id_), spec.deadline, bool(spec.guards or spec.evidence)


def _first_unmet(changes: TaskChanges, id_: str, spec: Spec) -> int | None:
    return progress_rules.first_unmet_need(changes, id_, spec.needs, 0)


def field_changes(before: Spec, after: Spec) -> dict[str, FieldChange]:
    """The fields that differ, each with both values as the record keeps them."""
    found = {}
    for field in EDITABLE:
        old, new = getattr(before, field), getattr(after, field)
        if old != new:
            found[field] = FieldChange(old=recorded(old), new=recorded(new))
    return found


EDITABLE = (*_LIMITS, *_PLAIN)
"""The fields that an edit may change."""


def recorded(value: object) -> object:
    """A value as the record keeps it: whole, or cut with its length and its SHA-256."""
    if isinstance(value, Raw):
        value = msgspec.json.decode(value)
    whole = codec.encode(value)
    if len(whole) <= KEPT:
        return value
    if isinstance(value, tuple):
        left = len(value) - _NAMES_KEPT
        return [*value[:_NAMES_KEPT], f"... and {left} more"]
    text = value if isinstance(value, str) else whole.decode()
    head = text.encode()[: KEPT // 4].decode(errors="ignore")
    return f"{head}... ({len(text)} characters, SHA-256 {codec.digest(text.encode())})"


# Dropping.


def drop(
    changes: TaskChanges, ids: Sequence[str], agent: str, reason: str
) -> Decision[task_outcomes.TasksDropped | task_outcomes.Unchanged]:
    """Drop tasks that never began: all of these, or none."""
    changes.facts.need_statuses(ids)
    changes.facts.need_all(lambda id_: _not_droppable(changes, id_), ids)
    for id_ in ids:
        if (refused := _not_droppable(changes, id_)) is not None:
            return Decision(outcome=refused)
    left = [id_ for id_ in ids if (each := changes.status(id_)) and each.state != "dropped"]
    changes.facts.need_all(changes.facts.spec, left)
    for id_ in left:
        drop_one(changes, id_, agent, reason)
    outcome = task_outcomes.TasksDropped(tasks=tuple(ids))
    if not left:
        return Decision(outcome=outcome)
    thing = f"task/{left[0]}" if len(left) == 1 else "tasks"
    return replace(changes.decision(outcome, "task.drop", thing), reason=reason)


def _not_droppable(changes: TaskChanges, id_: str) -> task_outcomes.Unchanged | None:
    status = changes.facts.status(id_)
    if status is None or changes.is_hidden(status):
        return rules.absent(id_, status)
    if status.state == "dropped" or never_began(status):
        return None
    why = f"it is {status.state}; only a task that never began can be dropped"
    if status.state in rules.OPEN:
        if status.attempts:
            why = f"{status.attempts} of its attempts failed, so it did begin"
        why += f"; to give it up: interlock task cancel {quote(id_)}"
    return task_outcomes.Unchanged(task=id_, state=status.state, reason=why)


def never_began(status: TaskStatus) -> bool:
    """Whether a task waits, and no attempt at it counts."""
    return status.state in ("blocked", "pending") and not status.attempts


def drop_one(changes: TaskChanges, id_: str, agent: str, reason: str) -> None:
    """Drop a task that never began."""
    status, spec = changes.status(id_), changes.facts.spec(id_)
    if status is None:
        raise AssertionError(f"there is no task {id_}")
    if status.state == "pending" and not status.due:
        changes.delete(spec.ready_key(id_))
    said = f"dropped by {agent}" + (f": {reason}" if reason else "")
    changes.move(id_, "drop", "dropped", since=changes.now, by=agent, reason=said, deadline=None)
    kept = Spec(at=spec.at, by=spec.by, trace=spec.trace, title=spec.title, plan=spec.plan)
    changes.put(keys.data(id_), kept)
    changes.list_labels(id_, (), spec.labels)
    changes.delete(keys.result(id_))
    if status.deadline is not None:
        changes.delete(keys.deadline(id_))
    changes.task_event("dropped", agent, id_)


# Publishing again.


def publish_again(
    changes: TaskChanges, id_: str, spec: Spec, *, followed: bool
) -> Decision[task_outcomes.Published | task_outcomes.TaskExists | FollowNeeds]:
    """Publish a task, also under the id of one that ended without being complete."""
    status = changes.facts.status(id_)
    if status is None or changes.is_hidden(status) or status.state not in UNSUCCESSFUL:
        return rules.publish(changes, id_, spec)
    if spec.needs and not followed:
        return Decision(outcome=FollowNeeds(spec.needs))
    ended = progress_rules.read_needs(changes, spec.needs)
    require_needs(changes, id_, spec.needs)
    after = replace_ended(changes, id_, status, spec)
    outcome = task_outcomes.Published(task=id_, state=after.state, ended=ended)
    return changes.decision(outcome, "task.publish", f"task/{id_}")


def replace_ended(changes: TaskChanges, id_: str, status: TaskStatus, spec: Spec) -> TaskStatus:
    """Write a new task in the place of one that ended; its dependents wait for the new one."""
    if spec.needs:
        changes.rely(keys.EDITED_NEEDS)
        changes.put(keys.EDITED_NEEDS, {})
    changes.delete(keys.ended(id_), keys.result(id_))
    changes.list_labels(id_, spec.labels, changes.facts.spec(id_).labels)
    if status.deadline is not None:
        changes.delete(keys.deadline(id_))
    progress_rules.create(changes, id_, spec)
    created = changes.status(id_)
    if created is None:
        raise AssertionError(f"task {id_} was not written")
    kept = replace(created, awaited=status.awaited, gated=status.gated)
    changes.set_status(id_, kept)
    return kept


# Cycles.


def require_no_cycle(graph: Mapping[str, Sequence[str]], first: Sequence[str]) -> None:
    """Raise if tasks need each other; the cycle begins with one of the ``first``, if it can."""
    from graphlib import CycleError, TopologicalSorter

    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle = error.args[1][:0:-1]
        at = next((cycle.index(each) for each in first if each in cycle), 0)
        way = (*cycle[at:], *cycle[:at], cycle[at])
        refused = BadInput(
            f"task {way[0]!r} would wait for itself: {' -> '.join(way)}; drop one of these needs"
        )
        refused.cycles = (way,)
        raise refused from None
