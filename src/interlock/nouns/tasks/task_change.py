"""A decision about tasks in the making: the facts it has, and the changes it makes.

``core/decision.py`` has the theory.

The commit checks only the items that the decision relies on: the replaced ones, the need that
a task is left hanging on, and the session that a claim lives by.  The other facts cannot become
wrong: data change only with the status, a complete task stays complete, and a liveness key that is
gone never comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import (
    MANY,
    REFUSAL_WINDOW,
    Changes,
    Decision,
    Event,
    Facts,
    Missing,
    Write,
)
from interlock.nouns.tasks.task import (
    BATCH,
    FRESH,
    UNSUCCESSFUL,
    DueEntry,
    EndedEntry,
    ReadyEntry,
    Spec,
    State,
    TaskOwner,
    TaskStatus,
    mark_awaited,
    transition,
)

if TYPE_CHECKING:
    from interlock.nouns.guards.gates import Gate

T = TypeVar("T")

_NOTES_AT_ONCE = 400
"""The most notes that one commit deletes of a task."""
UNCHECKED = "its guards are checked next"
AT_ONCE = 1.0
"""A task that becomes ready within this many seconds counts as ready since its publishing."""


def _may_open_gates(before: State, after: State) -> bool:
    """Whether another state of a task may open a gate; a claim alone counts as none.

    Every task is claimed, so each claim would check the gates that wait for its completion.  The
    end of a claim does count: a guard may wait until no task is running.
    """
    return before != after and (before, after) != ("pending", "running")


def _fresh(spec: Spec) -> TaskStatus:
    """The status of a new task that is pending."""
    return replace(
        FRESH,
        deadline=spec.deadline,
        trace=spec.trace,
        guards=spec.guards,
        evidence=spec.evidence,
    )


class NoteNumbers(Struct, frozen=True, omit_defaults=True, gc=False):
    """How many notes a task has had; those before ``first`` are deleted."""

    count: int = 0
    first: int = 1

    @property
    def numbers(self) -> range:
        """The numbers of the notes that exist."""
        return range(self.first, self.count + 1)


class TaskFacts(Facts):
    """The items of tasks that were read for a decision."""

    def __init__(
        self, max_operations: int = MANY, min_ttl: float = 0.0, max_entry_bytes: int = MANY
    ) -> None:
        super().__init__({}, max_operations)
        self.max_entry_bytes = max_entry_bytes
        self.min_ttl = min_ttl
        """The shortest ttl that the store can measure."""
        self.specs: dict[str, Spec | None] = {}
        self.statuses: dict[str, TaskStatus | None] = {}
        self.claims: dict[str, TaskOwner | None] = {}
        self.tokens: dict[str, int] = {}
        """The token of each claim, by task."""
        self.newest: dict[str, int] = {}
        """The token that a claim has which was made with the last change of a task."""
        self.oldest: dict[str, int] = {}
        """The token of its publishing: every claim of the task has a higher one."""
        self.dues: dict[str, DueEntry | None] = {}
        self.gates: dict[str, Gate | None] = {}
        self.note_numbers: dict[str, NoteNumbers | None] = {}
        self.written: dict[str, int] = {}
        """The revision that wrote the data of a task, counted as tokens are."""
        self.clock = 0
        """The revision, counted as tokens are, since which the engine measures liveness without a
        break; 0 if it is unknown."""

    def spec(self, task: str) -> Spec:
        """The data of a task that exists."""
        try:
            spec = self.specs[task]
        except KeyError:
            raise Missing((keys.data(task),)) from None
        if spec is None:
            raise AssertionError(f"task {task} has no data")
        return spec

    def labels(self, task: str) -> tuple[str, ...]:
        """The labels of a task; none if its data are lost."""
        try:
            spec = self.specs[task]
        except KeyError:
            raise Missing((keys.data(task),)) from None
        return () if spec is None else spec.labels

    def status(self, task: str) -> TaskStatus | None:
        """The status of a task as it was read; None if it does not exist."""
        try:
            return self.statuses[task]
        except KeyError:
            raise Missing((keys.status(task),)) from None

    def claim(self, task: str) -> TaskOwner | None:
        """The claim of a task; None if it has no owner."""
        try:
            return self.claims[task]
        except KeyError:
            raise Missing((keys.owner(task),)) from None

    def due(self, key: str) -> DueEntry | None:
        """The value of an entry of the ``due`` index."""
        try:
            return self.dues[key]
        except KeyError:
            raise Missing((key,)) from None

    def numbers_of_notes(self, task: str) -> NoteNumbers | None:
        """How many notes a task has; None if it has none."""
        try:
            return self.note_numbers[task]
        except KeyError:
            raise Missing((keys.notes(task),)) from None

    def gate(self, task: str) -> Gate | None:
        """What a task waits for that a guard keeps."""
        try:
            return self.gates[task]
        except KeyError:
            raise Missing((keys.gate(f"task/{task}"),)) from None

    def need_statuses(self, tasks: Iterable[str]) -> None:
        """Ask for the statuses of all of these with one read."""
        missing = [keys.status(task) for task in tasks if task not in self.statuses]
        if missing:
            raise Missing(tuple(missing))

    def need_all(self, use: Callable[[T], object], wanted: Iterable[T]) -> None:
        """Use the facts of each of these, and ask once for all that are missing."""
        missing: dict[str, None] = {}
        for each in wanted:
            try:
                use(each)
            except Missing as unknown:
                missing.update(dict.fromkeys(unknown.refs))
        if missing:
            raise Missing(tuple(missing))


class TaskChanges(Changes[TaskFacts]):
    """The tasks as a decision leaves them, and the other changes that go with that."""

    def __init__(self, facts: TaskFacts, now: float) -> None:
        super().__init__(facts, now)
        self._statuses: dict[str, TaskStatus] = {}
        self._details: dict[str, dict[str, Any]] = {}
        """The details of events that have some, by name and task."""

    def status(self, task: str) -> TaskStatus | None:
        """The status of a task after the changes so far."""
        return self._statuses.get(task) or self.facts.status(task)

    def writes(self, key: str) -> bool:
        """Whether the decision writes this key, so far."""
        return key in self._puts

    def exists(self, task: str) -> bool:
        """Whether a task of this id exists and is not hidden."""
        status = self.status(task)
        return status is not None and not self.is_hidden(status)

    def is_hidden(self, status: TaskStatus) -> bool:
        """Whether a task belongs to a batch that is not complete, which hides it."""
        if not status.on.startswith(BATCH):
            return False
        batch = self.status(status.on)
        return batch is None or batch.state != "complete"

    def is_due(self, status: TaskStatus) -> bool:
        """Whether neither a rest nor a moment keeps a task from being begun."""
        if not status.due:
            return True
        due = self.facts.due(status.due)
        if due is None:
            return True
        return not self.facts.has(due.rest) if due.rest else keys.due_at(status.due) <= self.now

    def is_late(self, task: str, status: TaskStatus | None) -> bool:
        """Whether it is too late to begin a task; one that was begun in time may be retried."""
        if status is None or status.attempts or not (status.state == "pending" or status.guard):
            return False
        return status.deadline is not None and self.is_deadline_over(task, status.deadline)

    def is_deadline_over(self, task: str, deadline: float) -> bool:
        """Whether the deadline of a task is over, by the engine's clock.

        The deadline has a liveness key, so a wrong clock of a client does no harm.  An absent key
        proves nothing if the engine lost all liveness since the data were written (a reboot under
        SQLite), or if an older version put no key: then the wall clock of the client decides.
        """
        known = self.facts
        known.need((keys.deadline(task), keys.CLOCK))
        if known.has(keys.deadline(task)):
            self.rely(keys.deadline(task))
            return False
        spec = known.spec(task)
        measured_at = max(known.oldest.get(task, 0), known.written.get(task, 0))
        unbroken = 0 < known.clock <= measured_at
        return (unbroken and spec.measured) or deadline < self.now

    def move(self, task: str, act: str, state: State, **changes: object) -> TaskStatus:
        """Change the state of a task by an act, with its entries in the indexes."""
        known = self.facts.statuses
        before = self._statuses.get(task) or known.get(task) or self.facts.status(task)
        if before is None:
            raise AssertionError(f"there is no task {task}")
        status = transition(before, act, state, **changes)
        self.set_status(task, status)
        if before.due:
            self.delete(before.due)
        if before.on:
            self.delete(keys.hangs(before.on, task))
        if before.guard:
            self._leave_guard(task, before.guard, wholly=not status.guard)
        if before.state in UNSUCCESSFUL:
            self.delete(keys.ended(task))
        if state in UNSUCCESSFUL:
            self.put(keys.ended(task), EndedEntry(state=state, since=self.now))
        return status

    def _leave_guard(self, task: str, guard: str, *, wholly: bool) -> None:
        """Delete the entry of a task under a guard; if no guard keeps it now, also its gate."""
        self.delete(keys.behind_guard(guard, task))
        if wholly and (gate := self.facts.gate(task)) is not None:
            thing = f"task/{task}"
            self.delete(keys.gate(thing), *[keys.gated(fact, thing) for fact in gate.facts])

    def set_status(self, task: str, status: TaskStatus) -> None:
        """Replace the status of a task."""
        self._statuses[task] = status
        self.facts.relied[keys.status(task)] = None

    def rely(self, *wanted: str) -> None:
        """Have the commit check that these keys are as they were read."""
        relied = self.facts.relied
        for key in wanted:
            relied[key] = None

    def task_event(self, name: str, agent: str, task: str = "") -> None:
        """Add an event about the task of the whole decision, or about another task."""
        self._events.append((f"task:{name}", agent, f"task/{task}" if task else ""))

    def detailed_event(self, name: str, agent: str, task: str, details: dict[str, Any]) -> None:
        """Add an event about a task, with facts that only the record keeps."""
        self._details[f"task:{name} task/{task}"] = details
        self.task_event(name, agent, task)

    def make_ready(self, task: str, spec: Spec) -> None:
        """Put a task into the ``ready`` index, and wake waiting workers.

        A task with guards comes to its gate instead, which is checked right after this decision.
        """
        if spec.guards:
            self.bring_to_gate(task, spec.guards[0])
        else:
            self.enter_queue(task, spec)

    def enter_queue(self, task: str, spec: Spec) -> None:
        """Put a task into the ``ready`` index whose guards pass, and wake waiting workers."""
        since = self.now if self.now - spec.at > AT_ONCE else 0.0
        deadline, guarded = self._statuses[task].deadline, bool(spec.guards or spec.evidence)
        self.put(spec.ready_key(task), ReadyEntry(deadline, since, spec.trace, guarded))
        self._list_set(spec)
        self.wake_workers(spec)

    def bring_to_gate(self, task: str, guard: str) -> None:
        """Block a task until its guards were checked, which happens right after this decision."""
        status = self._statuses[task]
        self.set_status(
            task,
            transition(
                status,
                "gate",
                "blocked",
                since=self.now,
                guard=guard,
                reason=status.reason,
                by=status.by,
                token=status.token,
                session=status.session,
            ),
        )
        from interlock.nouns.guards.gates import Gate  # only guarded tasks have one

        self.put(keys.behind_guard(guard, task), {})
        self.put(
            keys.gate(f"task/{task}"),
            Gate(facts=(), guard=guard, leaf="unchecked", reason=UNCHECKED, since=self.now),
        )
        self.awaits(f"{keys.ITSELF}task/{task}")

    def check_gate_again(self, task: str) -> None:
        """Have the guards of a task checked again, after the delay of a guard that failed."""
        status = self.facts.status(task)
        assert status is not None  # noqa: S101 - the caller has read it
        self.set_status(task, replace(status, due=""))
        self.delete(status.due)
        self.awaits(f"{keys.ITSELF}task/{task}")

    def _list_set(self, spec: Spec) -> None:
        """See that the set of requirements of a task is listed, so that workers look there.

        An idle set may be deleted (``ready_index.py``), so a commit that makes a task ready relies
        on the set that exists, or writes it.
        """
        if spec.requires:
            known = keys.requirement_set(spec.requirement_set)
            self.rely(known)
            if not self.facts.has(known):
                self.put(known, tuple(dict.fromkeys(spec.requires)))
                self.put(keys.SETS_MARK, {})

    def wake_workers(self, spec: Spec) -> None:
        """Wake the workers that wait for tasks with these requirements."""
        self.signal(keys.wake_ready(spec.requirement_set))

    def list_labels(self, task: str, labels: Iterable[str], before: Iterable[str] = ()) -> None:
        """List a task under these labels, and no longer under those that it had before."""
        now, then = frozenset(labels), frozenset(before)
        for label in sorted(now - then):
            self.put(keys.label(label, task), {})
        self.delete(*[keys.label(label, task) for label in sorted(then - now)])

    def delete_notes(self, task: str, leave: int) -> bool:
        """Delete the notes of a task; whether none is left, since all of them fit.

        They ``leave`` so many operations of the commit for other changes.
        """
        self.rely(keys.notes(task))
        if (known := self.facts.numbers_of_notes(task)) is None:
            return True
        room = max(0, self.facts.max_operations - self.size - leave)
        some = known.numbers[: min(room, _NOTES_AT_ONCE)]
        self.delete(*[keys.note(task, number) for number in some])
        if len(some) < len(known.numbers):
            self.put(keys.notes(task), replace(known, first=some.stop))
            return False
        self.delete(keys.notes(task))
        return True

    def listed(self, task: str, verb: str) -> Decision[bool]:
        """List the set of requirements of a task again; whether it was missing."""
        spec = self.facts.specs.get(task)
        if (
            spec is None
            or not spec.requires
            or self.facts.has(keys.requirement_set(spec.requirement_set))
        ):
            return Decision(outcome=False)
        self._list_set(spec)
        self.wake_workers(spec)
        return self.decision(True, verb, "tasks")

    def make_pending(self, task: str, spec: Spec) -> TaskStatus:
        """Make a task ready whose needs are complete, or due at its moment."""
        status = self._statuses.get(task) or _fresh(spec)
        if spec.not_before is not None and spec.not_before > self.now:
            status = replace(status, due=keys.due(spec.not_before, task))
            self.put(status.due, DueEntry())
            self.wake_workers(spec)
            self.set_status(task, status)
        else:
            self.set_status(task, status)
            self.make_ready(task, spec)
        return self._statuses[task]

    def make_fresh(self, task: str, spec: Spec) -> TaskStatus:
        """Make a new task pending without a place in the queue: the same commit claims it."""
        self.set_status(task, _fresh(spec))
        return self._statuses[task]

    def block_on(self, task: str, need: str) -> None:
        """Make a task hang on a need, and mark the need as awaited."""
        status = self.status(need)
        if status is None:
            raise AssertionError(f"there is no task {need}")
        self.put(keys.hangs(need, task), {})
        if status.awaited:
            self.rely(keys.status(need))
        else:
            self.set_status(need, mark_awaited(status))

    def end_claim(self, task: str, claim: TaskOwner) -> None:
        """Delete the claim of a task, with its entries."""
        own, owner = (keys.live(claim.session),), keys.owner(task)
        self.facts.relied[owner] = None
        self.delete(owner, keys.claims(claim.session, task))
        if claim.live != own:
            self.delete(*[key for key in claim.live if key not in own])
        if claim.blind:
            self.delete(self.facts.spec(task).ready_key(task))

    @property
    def size(self) -> int:
        """How many operations the commit has so far."""
        return super().size + len(self._statuses)

    def decision(self, outcome: T, verb: str, thing: str) -> Decision[T]:
        """The decision with all changes."""
        statuses = [Write(keys.status(task), each) for task, each in self._statuses.items()]
        for task, each in self._statuses.items():
            before = self.facts.statuses[task]
            if before is not None and before.gated and _may_open_gates(before.state, each.state):
                self.awaits(f"task/{task}")
        return self._decision(outcome, verb, thing, statuses, trace=self._trace(thing))

    def _event(self, whole: str, name: str, agent: str, thing: str) -> Event:
        """An event without the fields that repeat its entry; the id of a task needs no trace."""
        details = self._details.get(f"{name} {thing}", {}) if self._details else {}
        if thing in ("", whole):
            return Event(name, agent, details=details)
        task = thing.removeprefix("task/")
        status = self._statuses.get(task) or self.facts.statuses.get(task)
        trace = "" if status is None or task.startswith(BATCH) else status.trace
        if trace and trace in (task, self._trace(whole) or trace):
            trace = ""
        return Event(name, agent, thing, trace, details)

    def _trace(self, thing: str) -> str:
        """The trace of a task: that of its publisher, else its id."""
        task = thing.removeprefix("task/")
        status = self._statuses.get(task) or self.facts.statuses.get(task)
        return "" if status is None or task.startswith(BATCH) else status.trace or task

    def refuse(self, outcome: T, verb: str, task: str, agent: str) -> Decision[T]:
        """Refuse; recorded once in a ``REFUSAL_WINDOW`` for each claim, caller and verb."""
        held = self.facts.claims.get(task)
        mark = keys.refusal_mark(f"task/{task}" if held is None else held.id, agent, verb)
        if self.facts.status(task) is None or self.facts.has(mark):
            return Decision(outcome=outcome)
        thing = f"task/{task}"
        write = Write(mark, {"for": thing}, REFUSAL_WINDOW)
        trace = self._trace(thing)
        return Decision(outcome=outcome, verb=verb, thing=thing, puts=(write,), trace=trace)


def both(first: Decision[Any], second: Decision[Any], outcome: T) -> Decision[T]:
    """Two decisions about tasks as one: the second one was made on what the first one writes.

    The entry is that of the first one, if it changes anything; the events name the other task.
    """
    if not first.changes:
        return replace(second, outcome=outcome)
    puts, deletes = {each.key: each for each in first.puts}, dict.fromkeys(first.deletes)
    for write in second.puts:
        deletes.pop(write.key, None)
        puts[write.key] = write
    for key in second.deletes:
        puts.pop(key, None)
        deletes[key] = None
    trace = second.trace if second.trace not in (first.trace, second.thing[len("task/") :]) else ""
    events = [
        each if each.thing else Event(each.name, each.agent, second.thing, trace, each.details)
        for each in second.events
    ]
    return replace(
        first,
        outcome=outcome,
        puts=tuple(puts.values()),
        deletes=tuple(deletes),
        signals=tuple(dict.fromkeys((*first.signals, *second.signals))),
        events=(*first.events, *events),
        reads=(*first.reads, *second.reads),
        awaited=tuple(dict.fromkeys((*first.awaited, *second.awaited))),
        created=tuple(dict.fromkeys((*first.created, *second.created))),
        via=second.via or first.via,
        took=first.took if second.took is None else second.took,
    )
