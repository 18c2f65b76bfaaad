"""The calls of planners: publish a task or a plan, change it, drop it, add a note."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from interlock.client_context import Moment
from interlock.core import validate
from interlock.core.outcomes import GivenFenced
from interlock.errors import BadInput
from interlock.nouns.tasks import task as task_types
from interlock.nouns.tasks import task_outcomes
from interlock.runtime.calls import Calls, D, call
from interlock.runtime.given import Given
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.nouns.tasks.edit_rules import ListEdit
    from interlock.nouns.tasks.plan import Plan
    from interlock.nouns.tasks.plan import PlanEntry as Draft
    from interlock.nouns.tasks.task_outcomes import (
        Checked,
        Imported,
        PlanChanges,
        PlanExists,
        PlanUpdated,
    )


class TaskPublishCalls(Calls[D]):
    """Tasks, for planners."""

    @call
    def publish(
        self,
        task: str | None = None,
        data: object = None,
        *,
        priority: int = task_types.PRIORITY,
        requires: Iterable[str] = (),
        needs: Iterable[str] = (),
        title: str = "",
        text: str = "",
        labels: Iterable[str] = (),
        guard: str | Iterable[str] = (),
        evidence: str | Iterable[str] = (),
        not_before: Moment | None = None,
        deadline: Moment | None = None,
        retries: int = task_types.RETRIES,
        backoff: float | str = task_types.BACKOFF,
        backoff_most: float | str = task_types.BACKOFF_MOST,
        again: bool = False,
        given: Given = (),
    ) -> Op[task_outcomes.PublishOutcome]:
        """Publish a task; without an id it gets a fresh one.

        Its ``title`` is one line, its ``text`` as much as a person wants to say (up to 64 KiB);
        ``data`` are for the program that does it.
        A lower ``priority`` comes first.  ``next`` gives it only to workers that can do all that it
        ``requires``, and it is blocked until all its ``needs`` are complete and each ``guard``
        passes.  It can be completed while all guards of its ``evidence`` pass.  It does not begin
        ``not_before`` a moment, and is a dead letter if no worker began it by its ``deadline``
        (a duration from now, or a time).  An attempt that fails is repeated up to ``retries``
        times, after a rest of ``backoff``, twice that, and so on, up to ``backoff_most``.

        An id that is taken is refused.  With ``again`` the id of a task that failed, was cancelled
        or dropped, or is a dead letter, may be used again: tasks that need it wait for the new one,
        which keeps the notes and the history of the old one, and nothing else.

        ``given`` are grants that this relies on: proofs (``held.check()``), or tokens
        (``"lock/deploy=12"``).  If one of them is over when it is committed, nothing happens, and
        the answer is ``GivenFenced``.  All calls that change something take it.
        """
        id_ = self.context.runner.new_id("tsk") if task is None else validate.task_id(task)
        now = self.context.runner.clock.wall()
        wanted = validate.names(needs, "needs", task_types.NEEDS_LIMIT)
        if id_ in wanted:
            raise BadInput(f"task {id_!r} needs itself; drop that need")
        begins = (
            None if not_before is None else validate.future_moment(not_before, now, "not-before")
        )
        spec = task_types.Spec(
            at=self.context.tasks.moment(),
            by=self.context.me().actor.agent,
            data=Raw(validate.payload(data, "data", task_types.DATA_LIMIT, task_types.ELSEWHERE)),
            priority=validate.integer(priority, "priority", *task_types.PRIORITIES),
            requires=tuple(sorted(validate.names(requires, "requires", task_types.REQUIRES_LIMIT))),
            needs=wanted,
            labels=validate.names(labels, "label", task_types.LABELS_LIMIT),
            title=validate.title(title),
            text=validate.lines(text),
            guards=_guards(guard, "guard"),
            evidence=_guards(evidence, "evidence"),
            not_before=begins,
            deadline=_deadline(deadline, now, begins),
            retries=_retries(retries),
            backoff=validate.duration(backoff, "backoff"),
            backoff_most=validate.duration(backoff_most, "longest backoff"),
            trace=self.context.purpose,
        )
        identity = self._identity(given)
        tasks = self.context.tasks
        publish = tasks.publish_again if validate.flag(again, "again") else tasks.publish
        return self._fenced(identity, publish(identity.actor, id_, spec))

    add = publish

    @call
    def edit(
        self,
        task: str,
        *,
        priority: int | None = None,
        title: str | None = None,
        text: str | None = None,
        data: object = UNSET,
        labels: Iterable[str] | None = None,
        add_labels: Iterable[str] = (),
        remove_labels: Iterable[str] = (),
        requires: Iterable[str] | None = None,
        add_requires: Iterable[str] = (),
        remove_requires: Iterable[str] = (),
        needs: Iterable[str] | None = None,
        add_needs: Iterable[str] = (),
        remove_needs: Iterable[str] = (),
        guard: str | Iterable[str] | None = None,
        add_guard: str | Iterable[str] = (),
        remove_guard: str | Iterable[str] = (),
        evidence: str | Iterable[str] | None = None,
        add_evidence: str | Iterable[str] = (),
        remove_evidence: str | Iterable[str] = (),
        not_before: Moment | UnsetType | None = UNSET,
        deadline: Moment | UnsetType | None = UNSET,
        retries: int | None = None,
        backoff: float | str | None = None,
        backoff_most: float | str | None = None,
        given: Given = (),
    ) -> Op[task_outcomes.EditOutcome]:
        """Change a task that no worker has; what is not given stays as it is.

        ``labels``, ``requires``, ``needs``, ``guard`` and ``evidence`` replace the whole list;
        ``add_...`` and ``remove_...`` change some of its names.  ``None`` removes ``data``,
        ``not_before`` and ``deadline``; a duration counts from now.  It is one commit: if a worker
        claims the task first, nothing changes, and the answer is ``Unchanged``; if the edit comes
        first, the worker gets the task as it is now.  Needs that lead back to the task are refused.
        The answer has the old and the new values, and so has the record.

        A task that waits for a guard goes on if it loses that guard, and one in the queue that gets
        a guard is checked first.  A moment that is yet to come takes the place of a rest after a
        failed attempt; else the rest goes on.
        """
        from interlock.nouns.tasks.edit_rules import SpecEdit

        id_ = validate.task_id(task)
        wanted = SpecEdit(
            priority=UNSET
            if priority is None
            else validate.integer(priority, "priority", *task_types.PRIORITIES),
            title=UNSET if title is None else validate.title(title),
            text=UNSET if text is None else validate.lines(text),
            data=UNSET
            if data is UNSET
            else Raw(validate.payload(data, "data", task_types.DATA_LIMIT)),
            labels=_list_edit("labels", labels, add_labels, remove_labels, task_types.LABELS_LIMIT),
            requires=_list_edit(
                "requires", requires, add_requires, remove_requires, task_types.REQUIRES_LIMIT
            ),
            needs=_list_edit("needs", needs, add_needs, remove_needs, task_types.NEEDS_LIMIT),
            guards=_guard_edit("guards", guard, add_guard, remove_guard),
            evidence=_guard_edit("evidence", evidence, add_evidence, remove_evidence),
            not_before=self._moment(not_before, "not-before"),
            deadline=self._moment(deadline, "deadline"),
            retries=UNSET if retries is None else _retries(retries),
            backoff=UNSET if backoff is None else validate.duration(backoff, "backoff"),
            backoff_most=UNSET
            if backoff_most is None
            else validate.duration(backoff_most, "longest backoff"),
        )
        if wanted == SpecEdit():
            raise BadInput(
                f"say what to change of task {id_!r}: its priority, title, text, data, labels,"
                " requires, needs, guards, evidence, times or retries"
            )
        if id_ in (*wanted.needs.add, *(wanted.needs.exactly or ())):
            raise BadInput(f"task {id_!r} needs itself; drop that need")
        identity = self._identity(given)
        return self._fenced(identity, self.context.tasks.edits.edit(identity.actor, id_, wanted))

    def _moment(self, given: Moment | UnsetType | None, what: str) -> float | UnsetType | None:
        """A validated moment of an edit; a deadline must be ahead."""
        if given is UNSET or given is None:
            return given
        now = self.context.runner.clock.wall()
        if what == "deadline":
            return _deadline(given, now, None)
        return validate.future_moment(given, now, what)

    @call
    def drop(
        self, *tasks: str, reason: str = "", given: Given = ()
    ) -> Op[task_outcomes.DropOutcome]:
        """Drop tasks that never began: all of these with one commit, or none.

        A task that needs one of them stays blocked until its needs are edited, or until the id is
        published again; ``blocked`` of the answer names such tasks.
        """
        ids = validate.names(tasks, "tasks", task_types.DROPPED_AT_ONCE)
        if not ids:
            raise BadInput("name the tasks to drop")
        identity = self._identity(given)
        why = reason_text(reason)
        return self._fenced(identity, self.context.tasks.edits.drop(identity.actor, ids, why))

    @call
    def publish_all(
        self,
        specs: Iterable[Mapping[str, object] | Draft],
        *,
        id: str | None = None,  # noqa: A002 - the word that people use
        dry_run: bool = False,
        given: Given = (),
    ) -> Op[Imported | Checked | PlanExists | GivenFenced]:
        """Publish a whole plan: all of its tasks, or none.

        Each is a mapping with an ``id`` and what ``publish`` takes; it may need any other one of
        the plan.  All mistakes are reported at once, before anything is written.  If it is killed,
        its tasks stay hidden, and the same call continues.  The plan is known by its digest
        unless it gets an ``id``; a ``dry_run`` only checks it.
        """
        plan, service = (yield from self._plan(specs, id)), self.context.tasks.plans
        if validate.flag(dry_run, "dry_run"):
            return (yield from service.check(plan))
        identity = self._identity(given)
        return (yield from self._fenced(identity, service.publish(identity.actor, plan)))

    import_ = publish_all

    @call
    def update_all(
        self,
        specs: Iterable[Mapping[str, object] | Draft],
        *,
        id: str | None = None,  # noqa: A002 - the word that people use
        dry_run: bool = False,
        given: Given = (),
    ) -> Op[Imported | PlanChanges | PlanUpdated | PlanExists | GivenFenced]:
        """Change a plan that ``publish_all`` published under this ``id`` into this one.

        New tasks are published, tasks that wait are edited, or dropped if the plan has them no
        more and they never began; tasks that run or have ended are left alone, and named if they
        differ.  Of a plan without an ``id`` nothing is dropped, since its tasks are not known.  It
        is one commit if it fits into one, else several; if it is killed, the same call continues,
        and a second call changes nothing.  A ``dry_run`` says what would change.
        """
        plan, service = (yield from self._plan(specs, id)), self.context.tasks.plans
        if validate.flag(dry_run, "dry_run"):
            return (yield from service.changes(plan))
        identity = self._identity(given)
        return (yield from self._fenced(identity, service.update(identity.actor, plan)))

    def _plan(self, specs: Iterable[Mapping[str, object] | Draft], id_: str | None) -> Op[Plan]:
        """The plan of these tasks; all mistakes are reported at once."""
        from interlock.nouns.tasks import plan as plans

        found = plans.parse(plans.entries(specs))
        if found.wrong:  # then needs that do not exist are said with the rest
            raise found.refused((yield from self.context.tasks.plans.missing_needs(found.outside)))
        return replace(plans.plan_of(found, id_), trace=self.context.purpose)

    @call
    def note(self, task: str, text: str, *, given: Given = ()) -> Op[task_outcomes.NoteOutcome]:
        """Add a note to a task, for all who look at it: up to 16 KiB, and 1,000 notes a task.

        Any agent may, in any state of the task; a note is never changed, and is deleted with
        the task.
        """
        from interlock.nouns.tasks import notes  # a worker needs none

        said = validate.lines(text, "note", notes.NOTE_LIMIT)
        if not said.strip():
            raise BadInput("the note is empty; say something")
        identity, id_ = self._identity(given), validate.task_id(task)
        return self._fenced(
            identity, notes.add_note(self.context.runner, identity.actor, id_, said)
        )


def _guards(given: str | Iterable[str], what: str) -> tuple[str, ...]:
    """The names of guards: one, or several."""
    several = (given,) if isinstance(given, str) else given
    return validate.names(several, what, task_types.GUARDS_LIMIT)


def _guard_edit(
    what: str,
    exactly: str | Iterable[str] | None,
    add: str | Iterable[str],
    remove: str | Iterable[str],
) -> ListEdit:
    """How the guards of a task change."""
    names = [(each,) if isinstance(each, str) else each for each in (add, remove)]
    whole = (exactly,) if isinstance(exactly, str) else exactly
    return _list_edit(what, whole, names[0], names[1], task_types.GUARDS_LIMIT)


def _retries(number: int) -> int:
    return validate.integer(number, "number of retries", 0, task_types.MOST_RETRIES)


def _list_edit(
    what: str,
    exactly: Iterable[str] | None,
    add: Iterable[str],
    remove: Iterable[str],
    most: int,
) -> ListEdit:
    """How a list of a task changes."""
    from interlock.nouns.tasks.edit_rules import ListEdit

    found = ListEdit(
        exactly=None if exactly is None else validate.names(exactly, what, most),
        add=validate.names(add, f"add_{what}", most),
        remove=validate.names(remove, f"remove_{what}", most),
    )
    if found.exactly is not None and (found.add or found.remove):
        raise BadInput(f"give either all {what}, or those to add and to remove, and not both")
    if both := [name for name in found.add if name in found.remove]:
        raise BadInput(f"{both[0]!r} is both added to {what} and removed; do one of them")
    return found


def _deadline(moment: Moment | None, now: float, begins: float | None) -> float | None:
    """A validated deadline."""
    if moment is None:
        return None
    deadline = validate.future_moment(moment, now, "deadline")
    if deadline <= now:
        raise BadInput("the deadline is over already; name a later one, or leave it out")
    if begins is not None and deadline <= begins:
        raise BadInput("the deadline is not after 'not-before'; no worker could begin it in time")
    return deadline


def reason_text(text: str) -> str:
    """A validated reason; longer texts belong into the error."""
    return validate.text(text, "reason", task_types.REASON_LIMIT)
