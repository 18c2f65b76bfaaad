"""What makes tasks go on by themselves, done by whoever comes along.

Claims whose worker is lost, tasks whose time has come, tasks that were left hanging on a need that
is complete, and places that nobody took away: all of it is found through an index, in bounded
steps, so nothing depends on a janitor being alive.

The part of a pass of maintenance that concerns tasks.

Whoever waits for a task does all of this anyway as it comes along (``progress.py``); a pass does it
for a fleet in which nobody waits.  All of it is found through the indexes, so what is over costs
nothing however much of it there is, and each step stands by itself: any number of passes may run
at once, and whichever comes second finds nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.drivers import Op
from interlock.errors import InterlockError, StoreDamaged, TooLarge
from interlock.nouns.tasks import decode, progress_rules, rules
from interlock.nouns.tasks.progress_rules import Moved
from interlock.nouns.tasks.ready_index import (
    SETS_AT_ONCE,
    delete_idle_sets,
    due_now,
    rest_keys,
    restore_set,
)
from interlock.nouns.tasks.task_change import TaskChanges, TaskFacts
from interlock.nouns.tasks.task_reader import TaskReader, change
from interlock.runtime.decode import readable
from interlock.runtime.gather import every, looked_up
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Decided, DecideOp, Runner
from interlock.runtime.steps import Read
from interlock.store import Item, Range, Snapshot

CLAIMS_AT_ONCE = 100
RECLAIMED_AT_ONCE = 16
DRAINED_AT_ONCE = 8
DUE_AT_ONCE = 12
EXPIRED_AT_ONCE = 16
PLACES_AT_ONCE = 16
"""Of tasks that are ready: a step sees whether workers look for the sets of these."""


class Housekeeping:
    """Bounded steps, as generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._after = ""
        self._passed = ""
        self._sets_seen = ""
        self._look_at: float | None = None
        """The monotonic moment at which, as far as we know, a claim may lapse or a task begin."""

    def soon(self) -> float | None:
        """How long until something may happen that is no change in the store; None if unknown."""
        if self._look_at is None:
            return None
        return max(0.0, self._look_at - self._runner.clock.monotonic())

    def expect(self, due: Sequence[str]) -> None:
        """Know of tasks that must not begin yet: look again no later than they may."""
        if due:
            first = progress_rules.due_moment(due[0]) - self._runner.clock.wall()
            moment = self._runner.clock.monotonic() + max(first, 0.0)
            self._look_at = moment if self._look_at is None else min(self._look_at, moment)

    def step(self, actor: Actor) -> Op[bool]:
        """Do a bounded part of what is due; whether there was anything."""
        todo, claims = Range(keys.TODO, limit=1), Range(keys.CLAIMS, self._after, CLAIMS_AT_ONCE)
        due = Range(keys.DUE, limit=DUE_AT_ONCE)
        ready = Range(keys.READY, self._sets_seen, PLACES_AT_ONCE)
        snapshot: Snapshot = yield Read(todo, claims, due, ready)
        page = snapshot.ranges[claims]
        self._after = page[-1].key if len(page) == claims.limit else ""
        done = 0
        for item in snapshot.ranges[todo]:
            done += yield from self.drain(actor, keys.task_in_index(item.key))
        done += yield from self._hidden(actor, snapshot.ranges[due])
        done += yield from self._unlisted(actor, snapshot.ranges[ready])
        stale = yield from self._stale(page, snapshot.ranges[due])
        for entry in stale[:RECLAIMED_AT_ONCE]:
            done += yield from self.reclaim(actor, keys.task_in_index(entry), entry)
        if stale:  # what was lost rests now
            found = (yield Read(due)).ranges[due]
            self.expect([item.key for item in found])
        return done > 0

    def _hidden(self, actor: Actor, first: Sequence[Item]) -> Op[int]:
        """Wake what rested enough, but stands behind many that wait.

        Its place is by the wall clock of actor put it there, which may have been wrong.
        """
        if len(first) < DUE_AT_ONCE:
            return 0
        page = Range(keys.DUE, self._passed or first[-1].key, CLAIMS_AT_ONCE)
        found = (yield Read(page)).ranges[page]
        self._passed = found[-1].key if len(found) == page.limit else ""
        rests = rest_keys(found)
        live = yield from looked_up(rests.values())
        over = [key for key, rest in rests.items() if live[rest] is None]
        return (yield from self.wake(actor, over[:DUE_AT_ONCE])) if over else 0

    def _unlisted(self, actor: Actor, places: Sequence[Item]) -> Op[int]:
        """List sets of requirements that an older client missed when it made a task ready."""
        used = {keys.ready_set(item.key): item.key for item in places}
        full = len(places) == PLACES_AT_ONCE  # then go on behind the last set, else from the first
        self._sets_seen = f"{keys.ready(list(used)[-1])[:-1]}0" if full else ""
        used.pop(keys.NO_REQUIREMENTS, None)
        known = yield from looked_up(map(keys.requirement_set, used))
        done = 0
        for name, place in used.items():
            if known[keys.requirement_set(name)] is None:
                done += yield from restore_set(self._runner, actor, place)
        return done

    def _stale(self, claims: Sequence[Item], due: Sequence[Item]) -> Op[list[str]]:
        """The entries of claims whose worker is lost; and remember when to look again."""
        rests = rest_keys(due)
        live = yield from looked_up([*liveness_keys(claims), *rests.values()], times=True)
        left = [item.expires_in for item in live.values() if item and item.expires_in is not None]
        now = self._runner.clock.wall()
        moments = [
            progress_rules.due_moment(item.key) - now for item in due if item.key not in rests
        ]
        soonest = min([*left, *moments], default=None)
        here = self._runner.clock.monotonic()
        self._look_at = None if soonest is None else here + max(soonest, 0.0)
        return lost_claims(claims, live)

    def reclaim(self, actor: Actor, task: str, entry: str = "") -> Op[bool]:
        """Put a task back in the queue whose worker is lost.

        If it was found by an ``entry`` that stands for nothing, that is taken away.
        """
        chance = self._runner.random_below(1000) / 1000
        done = yield from change(
            self._runner,
            actor,
            (keys.status(task), keys.owner(task), *([entry] if entry else ())),
            lambda changes: rules.reclaim(changes, task, chance, entry=entry),
        )
        return done.outcome in ("reclaimed", "tidied")

    def wake(self, actor: Actor, dues: Sequence[str]) -> Op[int]:
        """Give tasks whose time has come their place among those that are ready."""
        done: Decided[Moved] = yield from change(
            self._runner,
            actor,
            tuple(keys.status(keys.task_in_index(due)) for due in dues),
            lambda changes: progress_rules.wake_due(changes, dues),
        )
        return done.outcome.tasks

    def expire(self, actor: Actor, tasks: Sequence[str]) -> Op[int]:
        """Make dead letters of tasks that nobody began before their deadline."""
        done: Decided[Moved] = yield from change(
            self._runner,
            actor,
            tuple(keys.status(task) for task in tasks),
            lambda changes: progress_rules.expire(changes, tasks),
        )
        return done.outcome.tasks

    def expire_around(self, actor: Actor, place: str) -> Op[int]:
        """The same for those of the best tasks with the same requirements for which it is time."""
        page = Range(keys.ready(keys.ready_set(place)), limit=EXPIRED_AT_ONCE)
        found: Snapshot = yield Read(page)
        timed = [item for item in found.ranges[page] if decode.ready(item).deadline is not None]
        if not timed:
            return 0
        return (yield from self.expire(actor, [keys.task_in_index(item.key) for item in timed]))

    def tidy(self, actor: Actor, place: str) -> Op[bool]:
        """Take away the place of a task that is not ready, as of one that somebody works on."""
        task = keys.task_in_index(place)
        status, owner = keys.status(task), keys.owner(task)

        def deciding() -> DecideOp[str]:
            items = (yield (place, owner, status)).items
            stands = decode.status(items[status])
            ready = stands is not None and stands.state == "pending" and not stands.due
            if items[place] is None or (ready and items[owner] is None):
                return Decision(outcome="gone")
            return Decision(
                outcome="tidied", verb="task.tidy", thing=f"task/{task}", deletes=(place,)
            )

        done = yield from self._runner.change(deciding, actor)
        return done.outcome == "tidied"

    def tidy_all(self, actor: Actor, places: Sequence[str]) -> Op[int]:
        """The same for several; how many were taken away."""
        tidied = 0
        for place in places:
            tidied += yield from self.tidy(actor, place)
        return tidied

    def drain(self, actor: Actor, need: str) -> Op[int]:
        """Move on what was left hanging on a need that is complete, a bounded number."""
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

    def go_on(self, actor: Actor, need: str) -> Op[None]:
        """Move on all that is left; if that cannot be now, whoever comes next does it."""
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
        now, more = self._runner.clock.wall(), len(found) == page.limit
        return (
            yield from reader.decide(
                lambda facts: progress_rules.unblock_rest(
                    TaskChanges(facts, now), need, tasks, more=more
                )
            )
        )


def liveness_keys(claims: Sequence[Item]) -> list[str]:
    """What keeps these claims alive; of those that cannot be read, nothing is known."""
    return [name for item in claims for name in readable(decode.names, item) or ()]


def lost_claims(claims: Sequence[Item], live: Mapping[str, Item | None]) -> list[str]:
    """The entries of claims that are not alive any more."""
    return [
        item.key for item in claims if any(live[name] is None for name in liveness_keys([item]))
    ]


def dependents(need: str, facts: TaskFacts) -> Range:
    """So many of the tasks that hang on a need as one commit may move on."""
    most = min(
        facts.max_operations // progress_rules.DEPENDENT_SIZE,
        facts.max_entry_bytes // progress_rules.ENTRY_TEXT,
    )
    return Range(keys.hangs(need), limit=max(1, most))


T = TypeVar("T")

INDEXES = (keys.CLAIMS, keys.READY, keys.DUE, keys.TODO)
LOOKED_AT = 10_000
"""Items of each index that a pass reads."""


class TasksMaintained(Struct, frozen=True, kw_only=True):
    """What a pass did: claims and places taken back, tasks that went on, and what is left."""

    reclaimed: int = 0
    moved: int = 0
    left: int = 0


class TaskMaintenance:
    """The pass, as a generator for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._housekeeping = Housekeeping(runner)

    def run(self, actor: Actor, bound: int) -> Op[TasksMaintained]:
        """Put back what the lost have left, and move on what may; ``bound`` of each at most."""
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
        yield from _each(taken, left_standing, lambda place: progress.tidy(actor, place))
        yield from _each(moved, late, lambda task: progress.expire(actor, (task,)))
        yield from self._wake(actor, moved)
        yield from self._drain(actor, moved)
        yield from self._sets(actor, places, bound)
        return TasksMaintained(reclaimed=taken.done, moved=moved.done, left=taken.left + moved.left)

    def _wake(self, actor: Actor, count: _Count) -> Op[None]:
        """Tasks whose time has come, some with each commit."""
        due = yield from every(keys.DUE, most=LOOKED_AT)
        lives = yield from looked_up(rest_keys(due).values())
        ready = due_now(due, lives, self._runner.clock.wall())
        for start in range(0, len(ready), DUE_AT_ONCE):
            some = ready[start : start + DUE_AT_ONCE]
            yield from _one(count, len(some), self._woken(actor, some))

    def _woken(self, actor: Actor, dues: Sequence[str]) -> Op[int]:
        """Wake these; if one of them cannot be read, each by itself."""
        try:
            return (yield from self._housekeeping.wake(actor, dues))
        except StoreDamaged:
            alone = _Count(len(dues))
        yield from _each(alone, dues, lambda due: self._housekeeping.wake(actor, (due,)))
        return alone.done

    def _sets(self, actor: Actor, places: Sequence[Item], bound: int) -> Op[None]:
        """Let sets of requirements go of which no task is ready, and list those that are missed."""
        known = yield from every(keys.SETS, most=LOOKED_AT)
        sets = {item.key.removeprefix(keys.SETS) for item in known}
        used = {keys.ready_set(item.key): item.key for item in places}
        for name in used.keys() - sets - {keys.NO_REQUIREMENTS}:
            yield from restore_set(self._runner, actor, used[name])
        idle = sorted(sets - used.keys())[:bound]
        for start in range(0, len(idle), SETS_AT_ONCE):
            yield from delete_idle_sets(self._runner, actor, idle[start : start + SETS_AT_ONCE])

    def _drain(self, actor: Actor, count: _Count) -> Op[None]:
        """What was left hanging on needs that are complete."""
        for item in (yield from every(keys.TODO, most=LOOKED_AT)):
            need = keys.task_in_index(item.key)
            while (yield from _one(count, 1, self._housekeeping.drain(actor, need))):
                pass


class _Count:
    """What was done of what may be done, and what is left."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.done = 0
        self.left = 0


def _each(count: _Count, wanted: Sequence[T], act: Callable[[T], Op[int]]) -> Op[None]:
    for one in wanted:
        yield from _one(count, 1, act(one))


def _one(count: _Count, size: int, act: Op[int]) -> Op[int]:
    """One step, if there is room for it; what cannot be read is left: doctor names it."""
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
    """Tasks that are ready, and have a deadline."""
    timed = [item for item in places if decode.ready(item).deadline is not None]
    return [task for item in timed if (task := keys.task_in_index(item.key)) not in running]
