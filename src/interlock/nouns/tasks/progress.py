"""What makes tasks go on by themselves, done by whoever comes along.

Claims whose worker is lost, tasks whose time has come, tasks that were left hanging on a need that
is complete, and places that nobody took away: all of it is found through an index, in bounded
steps, so nothing depends on a janitor being alive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.driving import Op
from interlock.errors import InterlockError
from interlock.nouns.tasks import decode, progress_rules, rules
from interlock.nouns.tasks.progress_rules import Moved
from interlock.nouns.tasks.ready_window import resting
from interlock.nouns.tasks.requirement_sets import list_again
from interlock.nouns.tasks.task_change import TaskChanges, TaskFacts
from interlock.nouns.tasks.task_reader import TaskReader, change
from interlock.runtime.decode import readable
from interlock.runtime.gather import looked_up
from interlock.runtime.runner import Actor, Deciding, Done, Runner
from interlock.runtime.steps import Read
from interlock.store import Item, Range, Snapshot

CLAIMS_AT_ONCE = 100
RECLAIMED_AT_ONCE = 16
DRAINED_AT_ONCE = 8
DUE_AT_ONCE = 12
EXPIRED_AT_ONCE = 16
PLACES_AT_ONCE = 16
"""Of tasks that are ready: a step sees whether workers look for the sets of these."""


class Progress:
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
            first = progress_rules.moment(due[0]) - self._runner.clock.wall()
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
            done += yield from self.drain(actor, keys.listed(item.key))
        done += yield from self._hidden(actor, snapshot.ranges[due])
        done += yield from self._unlisted(actor, snapshot.ranges[ready])
        stale = yield from self._stale(page, snapshot.ranges[due])
        for entry in stale[:RECLAIMED_AT_ONCE]:
            done += yield from self.reclaim(actor, keys.listed(entry), entry)
        if stale:  # what was lost rests now
            found = (yield Read(due)).ranges[due]
            self.expect([item.key for item in found])
        return done > 0

    def _hidden(self, actor: Actor, first: Sequence[Item]) -> Op[int]:
        """Wake what rested enough, but stands behind many that wait.

        Its place is by the wall clock of who put it there, which may have been wrong.
        """
        if len(first) < DUE_AT_ONCE:
            return 0
        page = Range(keys.DUE, self._passed or first[-1].key, CLAIMS_AT_ONCE)
        found = (yield Read(page)).ranges[page]
        self._passed = found[-1].key if len(found) == page.limit else ""
        rests = resting(found)
        live = yield from looked_up(rests.values())
        over = [key for key, rest in rests.items() if live[rest] is None]
        return (yield from self.wake(actor, over[:DUE_AT_ONCE])) if over else 0

    def _unlisted(self, actor: Actor, places: Sequence[Item]) -> Op[int]:
        """List sets of requirements that an older client missed when it made a task ready."""
        used = {keys.set_in(item.key): item.key for item in places}
        full = len(places) == PLACES_AT_ONCE  # then go on behind the last set, else from the first
        self._sets_seen = f"{keys.ready(list(used)[-1])[:-1]}0" if full else ""
        used.pop(keys.NO_REQUIREMENTS, None)
        known = yield from looked_up(map(keys.set_of, used))
        done = 0
        for name, place in used.items():
            if known[keys.set_of(name)] is None:
                done += yield from list_again(self._runner, actor, place)
        return done

    def _stale(self, claims: Sequence[Item], due: Sequence[Item]) -> Op[list[str]]:
        """The entries of claims whose worker is lost; and remember when to look again."""
        rests = resting(due)
        live = yield from looked_up([*lives_of(claims), *rests.values()], times=True)
        left = [item.expires_in for item in live.values() if item and item.expires_in is not None]
        now = self._runner.clock.wall()
        moments = [progress_rules.moment(item.key) - now for item in due if item.key not in rests]
        soonest = min([*left, *moments], default=None)
        here = self._runner.clock.monotonic()
        self._look_at = None if soonest is None else here + max(soonest, 0.0)
        return lost(claims, live)

    def reclaim(self, actor: Actor, task: str, entry: str = "") -> Op[bool]:
        """Put a task back in the queue whose worker is lost.

        If it was found by an ``entry`` that stands for nothing, that is taken away.
        """
        chance = self._runner.random_below(1000) / 1000
        done = yield from change(
            self._runner,
            actor,
            (keys.status(task), keys.owner(task), *([entry] if entry else ())),
            lambda board: rules.reclaim(board, task, chance, entry=entry),
        )
        return done.outcome in ("reclaimed", "tidied")

    def wake(self, actor: Actor, dues: Sequence[str]) -> Op[int]:
        """Give tasks whose time has come their place among those that are ready."""
        done: Done[Moved] = yield from change(
            self._runner,
            actor,
            tuple(keys.status(keys.listed(due)) for due in dues),
            lambda board: progress_rules.wake(board, dues),
        )
        return done.outcome.tasks

    def expire(self, actor: Actor, tasks: Sequence[str]) -> Op[int]:
        """Make dead letters of tasks that nobody began before their deadline."""
        done: Done[Moved] = yield from change(
            self._runner,
            actor,
            tuple(keys.status(task) for task in tasks),
            lambda board: progress_rules.expire(board, tasks),
        )
        return done.outcome.tasks

    def expire_around(self, actor: Actor, place: str) -> Op[int]:
        """The same for those of the best tasks with the same requirements for which it is time."""
        page = Range(keys.ready(keys.set_in(place)), limit=EXPIRED_AT_ONCE)
        found: Snapshot = yield Read(page)
        timed = [item for item in found.ranges[page] if decode.ready(item).deadline is not None]
        if not timed:
            return 0
        return (yield from self.expire(actor, [keys.listed(item.key) for item in timed]))

    def tidy(self, actor: Actor, place: str) -> Op[bool]:
        """Take away the place of a task that is not ready, as of one that somebody works on."""
        task = keys.listed(place)
        status, owner = keys.status(task), keys.owner(task)

        def deciding() -> Deciding[str]:
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
            done: Done[Moved] = yield from self._runner.change(
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

    def _draining(self, need: str, base: int) -> Deciding[Moved]:
        todo = keys.todo(need)
        reader = TaskReader(self._runner, base)
        reader.learn((yield (todo,)).items)
        if not reader.facts.exists[todo]:
            return Decision(outcome=Moved())
        page = hangers(need, reader.facts)
        found = (yield (page,)).ranges[page]
        tasks = [keys.listed(item.key) for item in found]
        now, more = self._runner.clock.wall(), len(found) == page.limit
        return (
            yield from reader.decide(
                lambda facts: progress_rules.drain(TaskChanges(facts, now), need, tasks, more=more)
            )
        )


def lives_of(claims: Sequence[Item]) -> list[str]:
    """What keeps these claims alive; of those that cannot be read, nothing is known."""
    return [name for item in claims for name in readable(decode.names, item) or ()]


def lost(claims: Sequence[Item], live: Mapping[str, Item | None]) -> list[str]:
    """The entries of claims that are not alive any more."""
    return [item.key for item in claims if any(live[name] is None for name in lives_of([item]))]


def hangers(need: str, facts: TaskFacts) -> Range:
    """So many of the tasks that hang on a need as one commit may move on."""
    most = min(
        facts.max_operations // progress_rules.HANGER_SIZE,
        facts.max_entry_bytes // progress_rules.ENTRY_TEXT,
    )
    return Range(keys.hangs(need), limit=max(1, most))
