"""Housekeeping of tasks: bounded steps of any client, and the whole pass of ``maintain``.

Lost claims, due tasks, dependents of complete needs that did not fit into a commit, stale entries
of the ``ready`` index, gates that a client left to others (``recheck``): all of it is found through
an index, in bounded steps.  A worker that finds
no task does a step, so nothing depends on a janitor being alive.  A pass does all of it at once,
for a fleet without a waiting worker.  Ended tasks have no entries in these indexes and cost
nothing.  Each step stands by itself: any number of clients may do it at once, and the second one
finds nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from msgspec import Struct

from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.errors import InterlockError, StoreDamaged, TooLarge
from interlock.nouns.tasks import claim_rules, progress_rules
from interlock.nouns.tasks.progress_rules import Moved
from interlock.nouns.tasks.ready_index import (
    SETS_AT_ONCE,
    delete_idle_sets,
    due_now,
    rest_keys,
    restore_set,
)
from interlock.nouns.tasks.task_change import TaskChanges, TaskFacts
from interlock.nouns.tasks.task_reader import (
    TaskReader,
    change,
    decode_names,
    decode_ready,
    decode_spec,
    decode_status,
)
from interlock.runtime.attempt import DecideOp
from interlock.runtime.housekeeping import HousekeepingPart
from interlock.runtime.identity import Actor
from interlock.runtime.reads import Pages, every, life_or, looked_up, readable
from interlock.runtime.runner import Decided, Runner
from interlock.steps import Op, Read
from interlock.store import Item, Range, Snapshot

CLAIMS_AT_ONCE = 100
RECLAIMED_AT_ONCE = 16
DRAINED_AT_ONCE = 8
DUE_AT_ONCE = 12
EXPIRED_AT_ONCE = 16
NOTES_AT_ONCE = 4
GATES_AT_ONCE = 16
ANCHORED = 60.0
"""Seconds for which the engine's wall clock counts that was behind ours."""
READY_AT_ONCE = 16
"""Ready tasks of which a step checks that their sets of requirements are listed."""


class TaskHousekeeping:
    """Bounded steps of one client, as generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._claims_after = ""
        self._due_after = ""
        self._sets_after = ""
        self._gates_after = ""
        self._next_look: float | None = None
        """The monotonic time at which the next known claim or rest expires."""
        self._many_due = False
        self._anchor: tuple[float, float] | None = None
        """A monotonic time and the engine's wall clock then, if that was behind ours."""

    def seconds_to_next_look(self) -> float | None:
        """Seconds until a known claim or rest expires, which no watch reports; None if none is."""
        if self._next_look is None:
            return None
        return max(0.0, self._next_look - self._runner.clock.monotonic())

    def wall(self) -> float:
        """Our wall clock, or the engine's while that was found to be behind ours.

        Else a client whose clock is ahead would find a schedule due again and again that is not.
        """
        now, here = self._runner.clock.wall(), self._runner.clock.monotonic()
        if self._anchor is None or here - self._anchor[0] > ANCHORED:
            return now
        return min(now, self._anchor[1] + here - self._anchor[0])

    def expect_due(self, due: Sequence[str]) -> None:
        """Plan the next look no later than the first of these tasks is due."""
        if due:
            first = keys.due_at(due[0]) - self.wall()
            moment = self._runner.clock.monotonic() + max(first, 0.0)
            self._next_look = moment if self._next_look is None else min(self._next_look, moment)

    def due_ranges(self) -> tuple[Range, ...]:
        """What a waiter reads of the ``due`` index: its head, and more of a long one in turns."""
        head = Range(keys.DUE, limit=DUE_AT_ONCE)
        behind = Range(keys.DUE, self._due_after, CLAIMS_AT_ONCE)
        return (head, behind) if self._many_due else (head,)

    def nothing_due(self, pages: Sequence[Sequence[Item]]) -> bool:
        """Whether these pages have nothing but later times of the wall clock.

        Then a waiter need not look before the first of them.  A rest is over by another clock.
        """
        head, behind = pages[0], pages[-1] if len(pages) > 1 else ()
        self._many_due = len(head) == DUE_AT_ONCE
        self._due_after = behind[-1].key if len(behind) == CLAIMS_AT_ONCE else ""
        if any(map(rest_keys, pages)):
            return False
        self.expect_due([item.key for item in head[:1]])
        return self.seconds_to_next_look() != 0.0

    def step(self, actor: Actor) -> Op[bool]:
        """Do a bounded part of the housekeeping; whether there was anything to do."""
        todo = Range(keys.TODO, limit=1)
        claims = Range(keys.CLAIMS, self._claims_after, CLAIMS_AT_ONCE)
        due = Range(keys.DUE, limit=DUE_AT_ONCE)
        ready = Range(keys.READY, self._sets_after, READY_AT_ONCE)
        notes = Range(keys.RECHECK, limit=NOTES_AT_ONCE)
        gates = Range(keys.BEHIND_GUARDS, self._gates_after, GATES_AT_ONCE)
        snapshot: Snapshot = yield Read(todo, claims, due, ready, notes, gates)
        page = snapshot.ranges[claims]
        self._claims_after = page[-1].key if len(page) == claims.limit else ""
        done = 0
        for item in snapshot.ranges[todo]:
            done += yield from self.drain(actor, keys.task_in_index(item.key))
        done += yield from self._wake_behind(actor, snapshot.ranges[due])
        done += yield from self._restore_sets(actor, snapshot.ranges[ready])
        stale = yield from self._lost_entries(page, snapshot.ranges[due])
        for entry in stale[:RECLAIMED_AT_ONCE]:
            done += yield from self.reclaim(actor, keys.task_in_index(entry), entry)
        if stale:  # the reclaimed tasks rest now
            found = (yield Read(due)).ranges[due]
            self.expect_due([item.key for item in found])
        if noted := snapshot.ranges[notes]:
            from interlock.nouns.guards.housekeeping import check_noted

            done += yield from check_noted(self._runner, actor, noted)
        done += yield from self._check_gates(actor, snapshot.ranges[gates])
        return done > 0

    def _check_gates(self, actor: Actor, entries: Sequence[Item]) -> Op[int]:
        """Check some gates again: a grant that expires is no commit, and a client may have died."""
        self._gates_after = entries[-1].key if len(entries) == GATES_AT_ONCE else ""
        if not entries:
            return 0
        from interlock.nouns.tasks.gates import check_some

        tasks = [keys.task_in_index(item.key) for item in entries]
        moved, soonest = yield from check_some(self._runner, actor, tasks)
        if soonest is not None:
            moment = self._runner.clock.monotonic() + max(soonest, 0.0)
            self._next_look = moment if self._next_look is None else min(self._next_look, moment)
        return moved

    def _wake_behind(self, actor: Actor, first: Sequence[Item]) -> Op[int]:
        """Make tasks ready whose rest is over, but whose entries are behind the first page.

        An entry is ordered by the wall clock of its writer, which may have been wrong.
        """
        if len(first) < DUE_AT_ONCE:
            return 0
        page = Range(keys.DUE, self._due_after or first[-1].key, CLAIMS_AT_ONCE)
        found = (yield Read(page)).ranges[page]
        self._due_after = found[-1].key if len(found) == page.limit else ""
        rests = rest_keys(found)
        live = yield from looked_up(rests.values())
        over = [key for key, rest in rests.items() if live[rest] is None]
        return (yield from self.wake(actor, over[:DUE_AT_ONCE])) if over else 0

    def _restore_sets(self, actor: Actor, places: Sequence[Item]) -> Op[int]:
        """List sets of requirements that an older client missed when it made a task ready."""
        used = {keys.ready_set(item.key): item.key for item in places}
        full = len(places) == READY_AT_ONCE  # then continue after the last set, else from the first
        self._sets_after = f"{keys.ready(list(used)[-1])[:-1]}0" if full else ""
        used.pop(keys.NO_REQUIREMENTS, None)
        known = yield from looked_up(map(keys.requirement_set, used))
        done = 0
        for name, place in used.items():
            if known[keys.requirement_set(name)] is None:
                done += yield from restore_set(self._runner, actor, place)
        return done

    def _lost_entries(self, claims: Sequence[Item], due: Sequence[Item]) -> Op[list[str]]:
        """The entries of claims whose worker is lost; also plans the next look."""
        rests = rest_keys(due)
        live = yield from looked_up([*liveness_keys(claims), *rests.values()], times=True)
        allow = self._runner.capabilities.allow
        left = [
            life_or(item, allow) for item in live.values() if item and item.expires_in is not None
        ]
        now = self.wall()
        moments = [keys.due_at(item.key) - now for item in due if item.key not in rests]
        soonest = min([*left, *moments], default=None)
        here = self._runner.clock.monotonic()
        self._next_look = None if soonest is None else here + max(soonest, 0.0)
        return lost_claims(claims, live)

    def reclaim(self, actor: Actor, task: str, entry: str = "") -> Op[bool]:
        """Put a task back in the queue whose worker is lost.

        An ``entry`` of the ``claims`` index that belongs to no claim is deleted.
        """
        chance = self._runner.random_below(1000) / 1000
        wanted = (keys.status(task), keys.owner(task), *([entry] if entry else ()))
        decide = partial(claim_rules.reclaim, id_=task, chance=chance, entry=entry)
        done = yield from change(self._runner, actor, wanted, decide)
        return done.outcome in ("reclaimed", "tidied")

    def wake(self, actor: Actor, dues: Sequence[str]) -> Op[int]:
        """Make due tasks ready, as many as fit into one commit, and publish those of schedules."""
        tasks = [due for due in dues if not keys.is_schedule_entry(due)]
        woken = (yield from self._wake_tasks(actor, tasks)) if tasks else 0
        if len(tasks) < len(dues):
            woken += yield from self._publish_due(actor, [due for due in dues if due not in tasks])
        return woken

    def _publish_due(self, actor: Actor, entries: Sequence[str]) -> Op[int]:
        """Publish the tasks of schedules that are due."""
        from interlock.nouns.schedules.service import publish_due

        found = yield from publish_due(self._runner, actor, entries)
        if not found.commits and found.now < self._runner.clock.wall():
            self._anchor = self._runner.clock.monotonic(), found.now
        return found.commits

    def _wake_tasks(self, actor: Actor, dues: Sequence[str]) -> Op[int]:
        room = TaskReader(self._runner, 0).facts.max_operations
        some = dues[: max(1, room // progress_rules.DUE_SIZE)]
        wanted = tuple([keys.status(keys.task_in_index(due)) for due in some])
        decide = partial(progress_rules.wake_due, dues=some)
        return (yield from change(self._runner, actor, wanted, decide)).outcome.tasks

    def expire(self, actor: Actor, tasks: Sequence[str]) -> Op[int]:
        """Make dead letters of tasks that no worker began before their deadline."""
        wanted = tuple([keys.status(task) for task in tasks])
        decide = partial(progress_rules.expire, ids=tasks)
        return (yield from change(self._runner, actor, wanted, decide)).outcome.tasks

    def expire_best(self, actor: Actor, place: str) -> Op[int]:
        """Expire the late ones of the best ready tasks with the same requirements."""
        page = Range(keys.ready(keys.ready_set(place)), limit=EXPIRED_AT_ONCE)
        found: Snapshot = yield Read(page)
        timed = [item for item in found.ranges[page] if decode_ready(item).deadline is not None]
        if not timed:
            return 0
        return (yield from self.expire(actor, [keys.task_in_index(item.key) for item in timed]))

    def delete_ready_entry(self, actor: Actor, place: str) -> Op[bool]:
        """Delete an entry of the ``ready`` index whose task is not ready, such as a running one."""
        task = keys.task_in_index(place)
        status, owner = keys.status(task), keys.owner(task)

        def deciding() -> DecideOp[str]:
            items = (yield (place, owner, status)).items
            stands = decode_status(items[status])
            ready = stands is not None and stands.state == "pending" and not stands.due
            if items[place] is None or (ready and items[owner] is None):
                return Decision(outcome="gone")
            return Decision(
                outcome="tidied", verb="task.tidy", thing=f"task/{task}", deletes=(place,)
            )

        done = yield from self._runner.change(deciding, actor)
        return done.outcome == "tidied"

    def delete_ready_entries(self, actor: Actor, places: Sequence[str]) -> Op[int]:
        """Delete the stale ones of these entries; returns how many."""
        tidied = 0
        for place in places:
            tidied += yield from self.delete_ready_entry(actor, place)
        return tidied

    def drain(self, actor: Actor, need: str) -> Op[int]:
        """Unblock dependents of a complete need, a bounded number; returns how many."""
        base = yield from self._runner.base()
        moved = 0
        for _ in range(DRAINED_AT_ONCE):
            done: Decided[Moved] = yield from self._runner.change(
                lambda: self._draining(need, base), actor
            )
            if done.revision is None:
                break
            moved += done.outcome.tasks
        return moved

    def drain_all(self, actor: Actor, need: str) -> Op[None]:
        """Unblock all dependents of a complete need; if that fails now, a later step does it."""
        try:
            while (yield from self.drain(actor, need)):
                pass
        except InterlockError:
            return

    def _draining(self, need: str, base: int) -> DecideOp[Moved]:
        todo = keys.todo(need)
        reader = TaskReader(self._runner, base)
        reader.learn((yield (todo,)).items)
        if not reader.facts.exists[todo]:
            return Decision(outcome=Moved())
        page = dependents(need, reader.facts)
        found = (yield (page,)).ranges[page]
        tasks = [keys.task_in_index(item.key) for item in found]
        more = len(found) == page.limit
        decide = partial(progress_rules.unblock_rest, need=need, hangers=tasks, more=more)
        return (yield from reader.change(decide))


def liveness_keys(claims: Sequence[Item]) -> list[str]:
    """The liveness keys of these claims, without unreadable ones."""
    return [name for item in claims for name in readable(decode_names, item) or ()]


def lost_claims(claims: Sequence[Item], live: Mapping[str, Item | None]) -> list[str]:
    """The entries of claims that are not alive."""
    return [
        item.key for item in claims if any(live[name] is None for name in liveness_keys([item]))
    ]


def dependents(need: str, facts: TaskFacts) -> Range:
    """The range of dependents of a need that fit into one commit."""
    most = min(
        facts.max_operations // progress_rules.DEPENDENT_SIZE,
        facts.max_entry_bytes // progress_rules.ENTRY_TEXT,
    )
    return Range(keys.hangs(need), limit=max(1, most))


T = TypeVar("T")

INDEXES = (keys.CLAIMS, keys.READY, keys.DUE, keys.TODO)
_MANY = 1_000
"""Items of tasks that are read again in each pass; more are read once."""
LOOKED_AT = 10_000
"""The most items that a pass reads of each index."""


class TasksMaintained(Struct, frozen=True, kw_only=True):
    """What a pass did: claims and entries removed, tasks that made progress, and the rest."""

    reclaimed: int = 0
    moved: int = 0
    left: int = 0


class TaskMaintenance:
    """The pass of ``maintain``, as a generator for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._housekeeping = TaskHousekeeping(runner)

    def run(self, actor: Actor, bound: int) -> Op[TasksMaintained]:
        """Reclaim lost tasks and let others progress, at most ``bound`` of each."""
        first = [Range(prefix, limit=1) for prefix in (*INDEXES, keys.SETS)]
        if not any((yield Read(*first)).ranges.values()):
            return TasksMaintained()
        claims = yield from every(keys.CLAIMS, most=LOOKED_AT)
        places = yield from every(keys.READY, most=LOOKED_AT)
        stale = lost_claims(claims, (yield from looked_up(liveness_keys(claims))))
        running = {keys.task_in_index(item.key) for item in claims}.difference(
            map(keys.task_in_index, stale)
        )
        left_standing = [item.key for item in places if keys.task_in_index(item.key) in running]
        timed = _timed(places, running)
        lives = yield from looked_up(map(keys.deadline, timed))
        late = [task for task in timed if lives[keys.deadline(task)] is None]
        progress, taken, moved = self._housekeeping, _Count(bound), _Count(bound)
        yield from _each(
            taken, stale, lambda key: progress.reclaim(actor, keys.task_in_index(key), key)
        )
        yield from _each(
            taken, left_standing, lambda place: progress.delete_ready_entry(actor, place)
        )
        yield from _each(moved, late, lambda task: progress.expire(actor, (task,)))
        yield from self._wake(actor, moved)
        yield from self._drain(actor, moved)
        yield from self._sets(actor, places, bound)
        return TasksMaintained(reclaimed=taken.done, moved=moved.done, left=taken.left + moved.left)

    def _wake(self, actor: Actor, count: _Count) -> Op[None]:
        """Make due tasks ready, some with each commit."""
        due = yield from every(keys.DUE, most=LOOKED_AT)
        lives = yield from looked_up(rest_keys(due).values())
        ready = due_now(due, lives, self._runner.clock.wall())
        for start in range(0, len(ready), DUE_AT_ONCE):
            some = ready[start : start + DUE_AT_ONCE]
            yield from _one(count, len(some), self._woken(actor, some))

    def _woken(self, actor: Actor, dues: Sequence[str]) -> Op[int]:
        """Make these ready; if one of them is damaged, each with a commit of its own."""
        try:
            return (yield from self._housekeeping.wake(actor, dues))
        except StoreDamaged:
            alone = _Count(len(dues))
        yield from _each(alone, dues, lambda due: self._housekeeping.wake(actor, (due,)))
        return alone.done

    def _sets(self, actor: Actor, places: Sequence[Item], bound: int) -> Op[None]:
        """Delete idle sets of requirements, and list missing ones."""
        known = yield from every(keys.SETS, most=LOOKED_AT)
        sets = {item.key.removeprefix(keys.SETS) for item in known}
        used = {keys.ready_set(item.key): item.key for item in places}
        for name in used.keys() - sets - {keys.NO_REQUIREMENTS}:
            yield from restore_set(self._runner, actor, used[name])
        idle = sorted(sets - used.keys())[:bound]
        for start in range(0, len(idle), SETS_AT_ONCE):
            yield from delete_idle_sets(self._runner, actor, idle[start : start + SETS_AT_ONCE])

    def _drain(self, actor: Actor, count: _Count) -> Op[None]:
        """Unblock dependents of complete needs."""
        for item in (yield from every(keys.TODO, most=LOOKED_AT)):
            need = keys.task_in_index(item.key)
            while (yield from _one(count, 1, self._housekeeping.drain(actor, need))):
                pass


def restore_labels(runner: Runner, actor: Actor, bound: int) -> Op[int]:
    """List tasks under their labels that a client of an older version published; how many are left.

    All tasks are read for that.  Where they are many, a mark says that it was done.
    """
    if (yield Read(keys.LABELLED))[keys.LABELLED] is not None:
        return 0
    pages, count = Pages(keys.TASKS), _Count(bound)
    while not pages.finished:
        items = [item for item in (yield from pages.read()) if item.key.endswith("/data")]
        specs = {keys.task_of(item.key): readable(decode_spec, item) for item in items}
        entries = {
            keys.label(label, task): task
            for task, spec in specs.items()
            for label in (() if spec is None else spec.labels)
        }
        known = yield from looked_up(entries)
        lost = dict.fromkeys(task for key, task in entries.items() if known[key] is None)
        yield from _each(count, list(lost), partial(_restore_labels, runner, actor))
    if pages.items > _MANY and not count.left:
        put = Write(keys.LABELLED, {})
        done = Decision(outcome=None, verb="task.tidy", thing="tasks", puts=(put,))
        yield from runner.change(lambda: _decided(done), actor)
    return count.left


def _restore_labels(runner: Runner, actor: Actor, task: str) -> Op[int]:
    def decide(changes: TaskChanges) -> Decision[int]:
        if changes.facts.status(task) is None:
            return Decision(outcome=0)
        changes.rely(keys.status(task), keys.data(task))
        changes.list_labels(task, changes.facts.labels(task))
        return changes.decision(1, "task.tidy", f"task/{task}")

    wanted = keys.status(task), keys.data(task)
    done: Decided[int] = yield from change(runner, actor, wanted, decide)
    return done.outcome


def _decided(decision: Decision[T]) -> DecideOp[T]:
    yield from ()
    return decision


class _Count:
    """A bound, with how much was done and how much is left."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.done = 0
        self.left = 0


def _each(count: _Count, wanted: Sequence[T], act: Callable[[T], Op[int]]) -> Op[None]:
    for one in wanted:
        yield from _one(count, 1, act(one))


def _one(count: _Count, size: int, act: Op[int]) -> Op[int]:
    """One step within the bound; a damaged item is left, and ``doctor`` names it."""
    if count.done >= count.bound:
        count.left += size
        return 0
    try:
        done = yield from act
    except (StoreDamaged, TooLarge):
        count.left += size
        return 0
    count.done += done
    return done


def _timed(places: Sequence[Item], running: set[str]) -> list[str]:
    """The ready tasks with a deadline."""
    timed = [item for item in places if decode_ready(item).deadline is not None]
    return [task for item in timed if (task := keys.task_in_index(item.key)) not in running]


class TaskHousekeepingPart(HousekeepingPart):
    """The part of a pass of ``maintain`` that is about tasks."""

    def reclaim(self) -> Op[None]:
        """Return tasks of lost workers to the queue, and move due and unblocked tasks on."""
        from interlock.nouns.tasks.retention import TaskRetention, retention_limits

        work = self.work
        self._retention = TaskRetention(work.runner, retention_limits(work.settings))
        self._facts = yield from self._retention.read_facts()  # before the pass writes
        done = yield from TaskMaintenance(work.runner).run(work.actor, work.bound)
        work.reclaimed += done.reclaimed
        work.moved += done.moved
        work.left += done.left

    def shrink(self) -> Op[None]:
        """Delete old tasks, and list others under their labels that an older client published."""
        self.work.left += yield from restore_labels(
            self.work.runner, self.work.actor, self.work.bound
        )
        done = yield from self._retention.run(self.work.actor, first=self._facts)
        self.work.deleted_tasks += done.forgotten
        self.work.left += done.left
