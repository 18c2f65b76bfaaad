"""The calls of tasks: publish, claim, settle a claim, requeue, list, subscribe."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import UNSET, Raw
from msgspec.structs import replace

from interlock.client_context import Moment
from interlock.core import validate
from interlock.core.outcomes import GivenFenced
from interlock.errors import BadInput
from interlock.nouns.tasks import task as task_types
from interlock.nouns.tasks.task_view import DRAWN
from interlock.runtime.calls import Calls, D, call, grants, opened, patient
from interlock.runtime.given import Given
from interlock.runtime.identity import Identity
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.nouns.tasks.edit_rules import ListEdit
    from interlock.nouns.tasks.history import TaskEventFeed
    from interlock.nouns.tasks.plan import Plan
    from interlock.nouns.tasks.plan import PlanEntry as Draft
    from interlock.nouns.tasks.task import (
        Checked,
        Imported,
        PlanChanges,
        PlanExists,
        PlanUpdated,
    )
    from interlock.nouns.tasks.task_view import Format, TaskList, TaskNotes, TaskTree, TaskView


Ended = TypeVar("Ended", task_types.CompleteOutcome, task_types.FailOutcome)


class TaskCalls(Calls[D]):
    """Tasks, by name."""

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
    ) -> Op[task_types.PublishOutcome]:
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
            retries=validate.integer(retries, "number of retries", 0, task_types.MOST_RETRIES),
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
        given: Given = (),
    ) -> Op[task_types.EditOutcome]:
        """Change a task that no worker has; what is not given stays as it is.

        ``labels``, ``requires`` and ``needs`` replace the whole list; ``add_...`` and
        ``remove_...`` change some of its names.  It is one commit: if a worker claims the task
        first, nothing changes, and the answer is ``Unchanged``; if the edit comes first, the
        worker gets the task as it is now.  Needs that lead back to the task are refused.  The
        answer has the old and the new values, and so has the record.
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
        )
        if wanted == SpecEdit():
            raise BadInput(
                f"say what to change of task {id_!r}: its priority, title, text, data, labels,"
                " requires or needs"
            )
        if id_ in (*wanted.needs.add, *(wanted.needs.exactly or ())):
            raise BadInput(f"task {id_!r} needs itself; drop that need")
        identity = self._identity(given)
        return self._fenced(identity, self.context.tasks.edits.edit(identity.actor, id_, wanted))

    @call
    def drop(self, *tasks: str, reason: str = "", given: Given = ()) -> Op[task_types.DropOutcome]:
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

    @grants
    @patient("a wait for a task")
    def claim(
        self,
        task: str,
        *,
        ttl: float | str | None = None,
        wait: float | str = 0,
        given: Given = (),
    ) -> Op[task_types.ClaimOutcome]:
        """Claim one task: exactly one of all claimants gets it, and the others learn which.

        With ``wait`` stand by until it can be claimed: its needs are complete, its guards pass, its
        rest is over, or its worker released it.  A wait that could never end is answered with
        ``Deadlock`` at once: the worker of the task, or of a need of it, waits for this caller.
        """
        patience = self.context.checked_wait(wait)
        lives, _ = self.context.terms({}, ttl, None)
        identity = self._identity(given)
        claiming = self.context.tasks.claims.by_name(
            identity, validate.task_id(task), ttl=lives, wait=patience
        )
        return self._fenced(identity, claiming)

    @grants
    @patient("a wait for work")
    def next(
        self,
        *,
        can: Iterable[str] = (),
        limit: int = 1,
        ttl: float | str | None = None,
        wait: float | str = 0,
        given: Given = (),
    ) -> Op[task_types.ClaimOutcome]:
        """Claim the best task that is ready: lowest priority number, then oldest.

        Only tasks that require nothing but what you ``can`` do; ``["*"]`` is everything.  With a
        ``limit`` above one, the same commit claims the next best ones, too: they are in ``others``
        of the answer, each a claim of its own.  They may be fewer than the limit although more are
        ready: a task with guards, or with a deadline, is claimed by itself.
        With ``wait`` stand by until there is one; a wait that lasts is reported, as a worker
        reports it, and the report before it is reported again after it.
        """
        patience = self.context.checked_wait(wait)
        lives, _ = self.context.terms({}, ttl, None)
        identity = self._identity(given)
        this, asleep = object(), None
        if patience and self.context.session_lease is not None:
            asleep = lambda: self.context.pulse.waits(this)  # noqa: E731 - the pulse is made late
        claiming = self.context.tasks.claims.next(
            identity,
            validate.abilities(can),
            ttl=lives,
            wait=patience,
            limit=validate.count(limit, "limit", task_types.CLAIMED_AT_ONCE),
            asleep=asleep,
        )
        return self._fenced(identity, self._reported(this, claiming) if asleep else claiming)

    def _reported(
        self, wait: object, claiming: Op[task_types.ClaimOutcome]
    ) -> Op[task_types.ClaimOutcome]:
        """Restore the former report when the wait is over."""
        try:
            return (yield from claiming)
        finally:
            if "pulse" in self.context.__dict__:  # else it did not sleep
                self.context.pulse.waited(wait)

    @grants
    def complete(
        self,
        task: str,
        *,
        token: int | None = None,
        result: object = None,
        then_next: bool = False,
        can: Iterable[str] = (),
        ttl: float | str | None = None,
        given: Given = (),
    ) -> Op[task_types.CompleteOutcome]:
        """Complete a task; its dependents become ready in the same commit.

        If a guard of its evidence does not pass, it is not complete: the answer names the guard,
        and the claim stays as it is (``EvidenceMissing``), or the attempt failed
        (``EvidenceFailed``).  Done twice by the same claim, the second answer says that it was
        ``already`` done.

        With ``then_next`` the same commit claims the next task, as ``next`` would with this ``can``
        and ``ttl``: ``next`` of the answer is ``Claimed`` or ``NoTask``.  A refusal claims nothing.
        """
        kept, identity = payload(result, "result"), self._identity(given)
        worker, tasks = self._worker(task, token), self.context.tasks
        able, lives = self._terms_of_next(then_next, can, ttl)
        then = tasks.claims.following(identity, able, lives) if then_next else None
        done = tasks.complete(identity.actor, worker, kept, then=then)
        if then_next:
            done = self._with_next(done, identity, able, lives)
        return self._fenced(identity, done)

    done = complete

    @grants
    def fail(
        self,
        task: str,
        reason: str = "",
        *,
        token: int | None = None,
        error: object = None,
        retry: bool = True,
        then_next: bool = False,
        can: Iterable[str] = (),
        ttl: float | str | None = None,
        given: Given = (),
    ) -> Op[task_types.FailOutcome]:
        """Fail an attempt: the task rests and is retried, or is a dead letter.

        ``retry=False`` says that no attempt will ever succeed.  ``then_next``, ``can`` and ``ttl``
        are as those of ``complete``.
        """
        kept = payload(error, "error")
        worker, identity = self._worker(task, token), self._identity(given)
        why, again = reason_text(reason), validate.flag(retry, "retry")
        able, lives = self._terms_of_next(then_next, can, ttl)
        tasks = self.context.tasks
        then = tasks.claims.following(identity, able, lives) if then_next else None
        done = tasks.fail(identity.actor, worker, why, kept, retry=again, then=then)
        if then_next:
            done = self._with_next(done, identity, able, lives)
        return self._fenced(identity, done)

    def _terms_of_next(
        self, then_next: bool, can: Iterable[str], ttl: float | str | None
    ) -> tuple[tuple[str, ...], float | None]:
        """The validated terms of the next claim."""
        able, (lives, _) = validate.abilities(can), self.context.terms({}, ttl, None)
        if not validate.flag(then_next, "then_next") and (able or ttl is not None):
            raise BadInput(
                "'can' and 'ttl' are terms of the next task; ask for it: then_next=True, --next"
            )
        return able, lives

    def _with_next(
        self, done: Op[Ended], identity: Identity, can: tuple[str, ...], ttl: float | None
    ) -> Op[Ended]:
        """The outcome with the next task; if it did not come with the commit, it is claimed now."""
        outcome = yield from done
        if not isinstance(outcome, task_types.TaskCompleted | task_types.TaskFailed):
            return outcome
        if outcome.next is not None:
            return outcome
        found = yield from self.context.tasks.claims.next(identity, can, ttl=ttl, wait=0.0)
        return replace(outcome, next=found)

    @call
    def release(
        self, task: str, *, token: int | None = None, given: Given = ()
    ) -> Op[task_types.ReleaseOutcome]:
        """Release a task to the queue; no attempt is counted."""
        identity = self._identity(given)
        return self._fenced(
            identity, self.context.tasks.release(identity.actor, self._worker(task, token))
        )

    @call
    def heartbeat(
        self, task: str, *, token: int | None = None, given: Given = ()
    ) -> Op[task_types.BeatOutcome]:
        """Renew a claim; one that expired is not revived."""
        identity, worker = self._identity(given), self._worker(task, token)
        return self._fenced(
            identity, self.context.tasks.heartbeat(identity.actor, worker, identity.session_ttl)
        )

    beat = heartbeat

    @call
    def progress(
        self,
        task: str,
        part: float,
        doing: str = "",
        *,
        token: int | None = None,
        given: Given = (),
    ) -> Op[task_types.ProgressOutcome]:
        """Note how far the work on a claim is, from 0 to 1, and what is being done: one commit.

        A claim of a block or of a worker has ``claim.progress``, which commits now and then.
        """
        from interlock.nouns.tasks.claim_reports import work_report

        report = work_report(part, doing)
        identity, worker = self._identity(given), self._worker(task, token)
        return self._fenced(
            identity, self.context.tasks.progress(identity.actor, worker, report.part, report.doing)
        )

    @call
    def cancel(
        self, task: str, reason: str = "", *, given: Given = ()
    ) -> Op[task_types.CancelOutcome]:
        """Cancel a task; its worker learns that its claim has ended."""
        identity = self._identity(given)
        return self._fenced(
            identity,
            self.context.tasks.cancel(identity.actor, validate.task_id(task), reason_text(reason)),
        )

    @call
    def requeue(
        self, task: str, reason: str, *, token: int | None = None
    ) -> Op[task_types.RequeueOutcome]:
        """End the claim of a worker, and put the task back in the queue: for operators.

        No attempt is counted.  The worker's token is fenced, and it learns the ``reason``.  With a
        ``token`` only that claim is ended.
        """
        actor, why = self.context.me().actor, validate.reason(reason)
        return self.context.tasks.requeue(actor, validate.task_id(task), why, validate.token(token))

    @call
    def retry(self, task: str, *, given: Given = ()) -> Op[task_types.RetryOutcome]:
        """Send back a task that failed or is a dead letter, with all its attempts."""
        identity = self._identity(given)
        return self._fenced(
            identity, self.context.tasks.retry(identity.actor, validate.task_id(task))
        )

    @call
    def note(self, task: str, text: str, *, given: Given = ()) -> Op[task_types.NoteOutcome]:
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

    @call
    def notes(
        self, task: str, *, after: int = 0, limit: int = task_types.LISTED
    ) -> Op[TaskNotes | task_types.NoTask]:
        """The notes of a task, from the first on, or ``after`` a number."""
        from interlock.nouns.tasks import notes
        from interlock.nouns.tasks.task_view import MOST_NOTES

        most = validate.count(limit, "limit", MOST_NOTES)
        return notes.list_notes(validate.task_id(task), validate.after(after), most)

    @call
    def file(self, path: str | os.PathLike[str]) -> Op[dict[str, Any]]:
        """A value that refers to a file: for data and results that are too large for the store.

        ``publish("train", fleet.tasks.file("model.bin"))``, or a part of a larger value.  It has
        the path, the size and the SHA-256 of the file, which stays where it is.
        """
        from interlock.nouns.tasks import file_values  # few tasks have a file

        return file_values.reference(path)

    @call
    def read_file(self, value: object) -> Op[bytes]:
        """The bytes of the file that a value refers to, as they were; raises Changed if not."""
        from interlock.nouns.tasks import file_values

        return file_values.read(value)

    @call
    def show(self, task: str) -> Op[TaskView | task_types.NoTask]:
        """One task: its state, its worker, its text, its data, its result and its last notes."""
        from interlock.nouns.tasks import views  # a worker needs none

        return views.show(self.context.runner, validate.task_id(task))

    @call
    def list(
        self,
        *,
        state: Iterable[str] = (),
        all: bool = False,  # noqa: A002 - as the command line calls it
        label: Iterable[str] = (),
        title: str = "",
        needs: Iterable[str] = (),
        requires: Iterable[str] = (),
        holder: str | None = None,
        prefix: str | None = None,
        after: str | None = None,
        limit: int = task_types.LISTED,
    ) -> Op[TaskList]:
        """Tasks by id, without complete ones; ``all`` of them, or in these states.

        Only tasks that have each ``label``, that have all these words in their ``title``, in either
        case, that need each of ``needs``, that require each of ``requires``, that a ``holder``
        works on, whose id begins with ``prefix``.  ``more`` in the answer is what to give as
        ``after`` to go on.
        """
        from interlock.nouns.tasks.task_view import MOST
        from interlock.nouns.tasks.views import OPEN, TaskQuery, list_tasks

        wanted = _states(state) or (
            frozenset(task_types.STATES) if validate.flag(all, "all") else OPEN
        )
        query = TaskQuery(
            states=wanted & {"running"} if holder else wanted,
            labels=frozenset(validate.names(label, "label", task_types.LABELS_LIMIT)),
            requires=frozenset(validate.names(requires, "requires", task_types.REQUIRES_LIMIT)),
            needs=frozenset(validate.names(needs, "needs", task_types.NEEDS_LIMIT)),
            words=validate.title_words(title),
            agent="" if holder is None else validate.name(holder, "agent name"),
            prefix="" if prefix is None else _prefix(prefix),
            after="" if after is None else validate.task_id(after),
            limit=validate.count(limit, "limit", MOST),
        )
        return list_tasks(self.context.runner, query)

    @call
    def tree(
        self,
        task: str | None = None,
        *,
        format: Format = "tree",  # noqa: A002 - as the command line calls it
        all: bool = False,  # noqa: A002 - as the command line calls it
        label: Iterable[str] = (),
        prefix: str | None = None,
        limit: int = DRAWN,
    ) -> Op[TaskTree | task_types.NoTask]:
        """A task with all that it needs, as a tree; without one, the open tasks.

        ``drawing`` in the answer is text: a ``tree``, or a graph for ``mermaid`` or ``dot``.  Needs
        of complete tasks are left out, unless ``all`` are wanted.  Without a task, only open tasks
        that have each ``label``, whose id begins with ``prefix``, and what they need.
        """
        from interlock.nouns.tasks import tree
        from interlock.nouns.tasks.task_view import FORMATS, MOST
        from interlock.nouns.tasks.views import TaskQuery

        if format not in FORMATS:
            known = ", ".join(FORMATS)
            raise BadInput(f"there is no format {format!r:.40}; there are {known}")
        query = TaskQuery(
            labels=frozenset(validate.names(label, "label", task_types.LABELS_LIMIT)),
            prefix="" if prefix is None else _prefix(prefix),
            limit=validate.count(limit, "limit", MOST),
        )
        if task is not None and (query.labels or query.prefix):
            raise BadInput("a task has its own tree; leave out the task, or the label and prefix")
        return tree.read_tree(
            self.context.runner,
            "" if task is None else validate.task_id(task),
            query,
            drawn=format,
            whole=validate.flag(all, "all"),
        )

    @opened
    def subscribe(
        self,
        *,
        events: Iterable[str] = ("published",),
        prefix: str = "",
        can: Iterable[str] | None = None,
        after: int | None = None,
        callback: Callable[[task_types.TaskEvent], object] | None = None,
    ) -> Op[TaskEventFeed]:
        """Events of tasks as they happen, from now on or ``after`` a revision.

        Iterate over it, or ``take`` with a time limit; with a ``callback`` (in an event loop it may
        be a coroutine function) each event is passed to that until the stream is closed.  ``can``
        leaves out tasks that require anything else, and ``prefix`` selects ids by their beginning.
        """
        from interlock.nouns.tasks.history import TaskEventFeed

        able_to = None if can is None else validate.abilities(can)
        feed = TaskEventFeed(events, prefix, able_to, self.context.runner.clock)
        yield from feed.open(after)
        feed.callback = callback
        return feed

    watch = subscribe

    def _worker(self, task: str, token: int | None) -> task_types.Claimant:
        actor = self.context.me().actor
        return task_types.Claimant(
            task=validate.task_id(task),
            agent=actor.agent,
            session=actor.session,
            token=validate.token(token),
        )


def payload(value: object, what: str) -> Raw | None:
    """A validated result or error."""
    if value is None:
        return None
    return Raw(validate.payload(value, what, task_types.DATA_LIMIT, task_types.ELSEWHERE))


def _guards(given: str | Iterable[str], what: str) -> tuple[str, ...]:
    """The names of guards: one, or several."""
    several = (given,) if isinstance(given, str) else given
    return validate.names(several, what, task_types.GUARDS_LIMIT)


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


def _states(given: Iterable[str]) -> frozenset[task_types.State]:
    wanted = validate.names(given, "state", len(task_types.STATES))
    unknown = [each for each in wanted if each not in task_types.STATES]
    if unknown:
        raise BadInput(
            f"there is no state {unknown[0]!r}; there are {', '.join(task_types.STATES)}"
        )
    return frozenset(state for state in task_types.STATES if state in wanted)


def _prefix(text: str) -> str:
    """The beginning of an id, which may end in the middle of a segment."""
    found = validate.name(validate.require_text(text, "prefix").removesuffix("/"), "prefix")
    return found + "/" if text.endswith("/") else found


def reason_text(text: str) -> str:
    """A validated reason; longer texts belong into the error."""
    return validate.text(text, "reason", task_types.REASON_LIMIT)


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
