"""A task as the target of a wait: the blockers are the workers on all that it needs.

A running task has one blocker, its worker.  A blocked task needs all of its needs that are not
complete, each of which runs or is blocked in turn; so its resources are all running tasks below it.
Any other task blocks no wait for good: a worker may claim a ready task, a pause ends by itself, and
a failed task may be retried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from interlock.core import keys
from interlock.core.wait import caller_name
from interlock.errors import StoreDamaged
from interlock.nouns.tasks.task import BATCH, Spec, TaskOwner, TaskStatus
from interlock.runtime.decide import ReadOp
from interlock.runtime.reads import decoded
from interlock.runtime.wait_graph.target import (
    Blocker,
    SharedResource,
    WaitTarget,
    WaitTargets,
    glanced,
)
from interlock.store import Item

FOLLOWED = 1000
"""So many tasks below one are followed; what is further down is taken for a way that is open."""

_STATUS = msgspec.json.Decoder(TaskStatus)
_CLAIM = msgspec.json.Decoder(TaskOwner)
_SPEC = msgspec.json.Decoder(Spec)


def read(wanted: tuple[str, ...], _base: int) -> ReadOp[WaitTargets]:
    """These tasks, with all that runs below them."""
    found: WaitTargets = {}
    for key in wanted:
        try:
            found[key] = yield from _task(keys.task_of(key))
        except StoreDamaged:  # who knows what runs below it: the way is open
            found[key] = WaitTarget()
    return found


def _task(first: str) -> ReadOp[WaitTarget]:
    above: dict[str, str] = {first: ""}
    """The task that needs each of them, by which we came there."""
    born: dict[str, int] = {}
    spots: list[SharedResource] = []
    level = [first]
    while level:
        both = tuple([key(task) for task in level for key in (keys.status, keys.owner)])
        items = yield from glanced(both)
        level = [task for task in level if _meant(task, items, above, born)]
        spots.extend(_running(level, items, above))
        blocked = {task: status for task, status in _statuses(level, items) if _hangs(status)}
        data = yield from glanced(tuple(map(keys.data, blocked)))
        level = []
        for task, status in blocked.items():
            for need in _needs(data[keys.data(task)])[status.place :]:
                if need not in above and len(above) < FOLLOWED:
                    above[need] = task
                    level.append(need)
    return WaitTarget(tuple(spots))


def _meant(
    task: str, items: Mapping[str, Item | None], above: Mapping[str, str], born: dict[str, int]
) -> bool:
    """Whether the need is older than its dependent; else it only has the same name."""
    item = items[keys.status(task)]
    born[task] = 0 if item is None else item.created
    return not above[task] or born[task] <= born[above[task]]


def _running(
    level: list[str], items: Mapping[str, Item | None], above: Mapping[str, str]
) -> Iterator[SharedResource]:
    for task, status in _statuses(level, items):
        owner = items[keys.owner(task)]
        if status.state == "running" and owner is not None:
            claim = decoded(_CLAIM, owner)
            who = caller_name(claim.agent, claim.session, claim.caller)
            met = Blocker(who, 1, claim.id, claim.live, agent=claim.agent)
            stands = (owner.key, *map(keys.status, _way(task, above)))
            yield SharedResource(owner.key, (met,), 1, stands)


def _statuses(
    level: list[str], items: Mapping[str, Item | None]
) -> Iterator[tuple[str, TaskStatus]]:
    for task in level:
        if (item := items[keys.status(task)]) is not None:
            yield task, decoded(_STATUS, item)


def _hangs(status: TaskStatus) -> bool:
    """Whether it waits for what it needs; one that is still being published does not."""
    return status.state == "blocked" and not status.on.startswith(BATCH)


def _needs(item: Item | None) -> tuple[str, ...]:
    return () if item is None else decoded(_SPEC, item).needs


def _way(task: str, above: Mapping[str, str]) -> Iterator[str]:
    """The task, and all between it and the one that is waited for."""
    while task:
        yield task
        task = above[task]
