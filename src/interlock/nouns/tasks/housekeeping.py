"""The part of a pass of maintenance that concerns tasks.

Whoever waits for a task does all of this anyway as it comes along (``progress.py``); a pass does it
for a fleet in which nobody waits.  All of it is found through the indexes, so what is over costs
nothing however much of it there is, and each step stands by itself: any number of passes may run
at once, and whichever comes second finds nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from interlock.core import keys
from interlock.driving import Op
from interlock.errors import StoreDamaged, TooLarge
from interlock.nouns.tasks import decode
from interlock.nouns.tasks.progress import DUE_AT_ONCE, Progress, lives_of, lost
from interlock.nouns.tasks.ready_window import awake, resting
from interlock.nouns.tasks.requirement_sets import SETS_AT_ONCE, let_go, list_again
from interlock.runtime.gather import every, looked_up
from interlock.runtime.runner import Actor, Runner
from interlock.runtime.steps import Read
from interlock.store import Item, Range

T = TypeVar("T")

INDEXES = (keys.CLAIMS, keys.READY, keys.DUE, keys.TODO)
LOOKED_AT = 10_000
"""Items of each index that a pass reads."""


class Kept(Struct, frozen=True, kw_only=True):
    """What a pass did: claims and places taken back, tasks that went on, and what is left."""

    reclaimed: int = 0
    moved: int = 0
    left: int = 0


class Upkeep:
    """The pass, as a generator for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._progress = Progress(runner)

    def run(self, actor: Actor, bound: int) -> Op[Kept]:
        """Put back what the lost have left, and move on what may; ``bound`` of each at most."""
        first = [Range(prefix, limit=1) for prefix in (*INDEXES, keys.SETS)]
        if not any((yield Read(*first)).ranges.values()):
            return Kept()
        claims = yield from every(keys.CLAIMS, most=LOOKED_AT)
        places = yield from every(keys.READY, most=LOOKED_AT)
        stale = lost(claims, (yield from looked_up(lives_of(claims))))
        running = {keys.listed(item.key) for item in claims}.difference(map(keys.listed, stale))
        left_standing = [item.key for item in places if keys.listed(item.key) in running]
        timed = _timed(places, running)
        lives = yield from looked_up(map(keys.deadline, timed))
        late = [task for task in timed if lives[keys.deadline(task)] is None]
        progress, taken, moved = self._progress, _Count(bound), _Count(bound)
        yield from _each(taken, stale, lambda key: progress.reclaim(actor, keys.listed(key), key))
        yield from _each(taken, left_standing, lambda place: progress.tidy(actor, place))
        yield from _each(moved, late, lambda task: progress.expire(actor, (task,)))
        yield from self._wake(actor, moved)
        yield from self._drain(actor, moved)
        yield from self._sets(actor, places, bound)
        return Kept(reclaimed=taken.done, moved=moved.done, left=taken.left + moved.left)

    def _wake(self, actor: Actor, count: _Count) -> Op[None]:
        """Tasks whose time has come, some with each commit."""
        due = yield from every(keys.DUE, most=LOOKED_AT)
        lives = yield from looked_up(resting(due).values())
        ready = awake(due, lives, self._runner.clock.wall())
        for start in range(0, len(ready), DUE_AT_ONCE):
            some = ready[start : start + DUE_AT_ONCE]
            yield from _one(count, len(some), self._woken(actor, some))

    def _woken(self, actor: Actor, dues: Sequence[str]) -> Op[int]:
        """Wake these; if one of them cannot be read, each by itself."""
        try:
            return (yield from self._progress.wake(actor, dues))
        except StoreDamaged:
            alone = _Count(len(dues))
        yield from _each(alone, dues, lambda due: self._progress.wake(actor, (due,)))
        return alone.done

    def _sets(self, actor: Actor, places: Sequence[Item], bound: int) -> Op[None]:
        """Let sets of requirements go of which no task is ready, and list those that are missed."""
        known = yield from every(keys.SETS, most=LOOKED_AT)
        sets = {item.key.removeprefix(keys.SETS) for item in known}
        used = {keys.set_in(item.key): item.key for item in places}
        for name in used.keys() - sets - {keys.NO_REQUIREMENTS}:
            yield from list_again(self._runner, actor, used[name])
        idle = sorted(sets - used.keys())[:bound]
        for start in range(0, len(idle), SETS_AT_ONCE):
            yield from let_go(self._runner, actor, idle[start : start + SETS_AT_ONCE])

    def _drain(self, actor: Actor, count: _Count) -> Op[None]:
        """What was left hanging on needs that are complete."""
        for item in (yield from every(keys.TODO, most=LOOKED_AT)):
            need = keys.listed(item.key)
            while (yield from _one(count, 1, self._progress.drain(actor, need))):
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
    return [task for item in timed if (task := keys.listed(item.key)) not in running]
