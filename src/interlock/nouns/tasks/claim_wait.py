"""Waits for one task: listed while they last, and refused if they could never end.

A claim without a wait pays nothing for this.  The wait is listed before the first sleep, by a
commit of its own.  The commit of the claim deletes it; if the wait ends otherwise, it is withdrawn.

In the wait graph the blockers of a task are the workers on all that it needs.  A running task has
one blocker, its worker.  A blocked task needs all of its needs that are not complete, each of which
runs or is blocked in turn; so its resources are all running tasks below it.  A task that a guard
keeps has the resources of the guard: the locks that it wants free.  Any other task blocks no wait
for good: a worker may claim a ready task, a rest ends by itself, and a failed task may be retried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.core.wait import UnqueuedWait, caller_name, wait_keys, wait_writes
from interlock.errors import StoreDamaged
from interlock.nouns.grants.handover import PendingRelease
from interlock.nouns.grants.service import GrantService
from interlock.nouns.tasks import task as task_types
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.task_reader import decode_claim, decode_spec, decode_status
from interlock.runtime import callers
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.deadlock import DeadlockResolver
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Runner
from interlock.runtime.wait_graph import (
    Blocker,
    SharedResource,
    Start,
    WaitTarget,
    WaitTargets,
    glanced,
)
from interlock.steps import Op
from interlock.store import Item

FOLLOWED = 1000
"""The most tasks below one that are followed; a task further down counts as an open way."""

_WITHDRAW = "task.withdraw"


class TaskWait:
    """One wait for one task; ``request`` names the keys of the wait once it is listed."""

    def __init__(
        self,
        runner: Runner,
        grants: GrantService,
        actor: Actor,
        request: task_types.ClaimRequest,
        terms: callers.CallerTerms,
    ) -> None:
        self.request = request
        self._runner = runner
        self._grants = grants
        self._deadlocks = DeadlockResolver(runner)
        self._thing = f"task/{request.task}"
        self._who = actor
        self._terms = terms
        self._start: Start | None = None

    @property
    def withdrawal(self) -> PendingRelease | None:
        """The pending withdrawal of the wait, if it may be listed."""
        if not self.request.listed:
            return None
        return PendingRelease(self.request.claim, self._thing, self._take_back)

    def look(self) -> Op[task_outcomes.TaskDeadlock | None]:
        """Look for a deadlock; the wait is withdrawn if it is a part of one."""
        start = self._start or (yield from self._list())
        pending = self._grants.pending_grants() | callers.pending_grants()
        done = yield from self._deadlocks.resolve(self._who, start, self._withdraw, pending=pending)
        return done.outcome

    def _list(self) -> Op[Start]:
        asleep = UnqueuedWait(
            wants=keys.status(self.request.task),
            agent=self._who.agent,
            session=self._who.session,
            live=keys.live(self._who.session),
            since=self._runner.clock.wall(),
            caller=self._terms.caller,
            indexed=self._terms.indexed,
            also=self._terms.also,
        )
        id_ = self.request.claim
        self.request = replace(self.request, listed=wait_keys(asleep, id_))

        def deciding() -> DecideOp[str]:
            yield from ()
            puts = wait_writes(asleep, id_)
            return Decision(outcome="waiting", verb="task.wait", thing=self._thing, puts=puts)

        done = yield from self._runner.change(deciding, self._who)
        revision = done.revision or 0
        self._start = Start(id=id_, wants=(asleep.wants,), asleep=asleep, revision=revision)
        return self._start

    def _withdraw(self, cycle: tuple[str, ...]) -> DecideOp[task_outcomes.TaskDeadlock | None]:
        yield from ()
        outcome = task_outcomes.TaskDeadlock(task=self.request.task, cycle=cycle)
        return Decision(
            outcome=outcome, verb=_WITHDRAW, thing=self._thing, deletes=self.request.listed
        )

    def _take_back(self) -> Op[None]:
        def deciding() -> DecideOp[str | None]:
            items = (yield self.request.listed).items
            there = tuple([key for key, item in items.items() if item is not None])
            if not there:
                return Decision(outcome=None)
            return Decision(outcome="withdrawn", verb=_WITHDRAW, thing=self._thing, deletes=there)

        yield from self._runner.change(deciding, self._who)


def wait_targets(wanted: tuple[str, ...], base: int) -> ReadOp[WaitTargets]:
    """These tasks as targets of waits, with all that runs below them."""
    found: WaitTargets = {}
    for key in wanted:
        try:
            found[key] = yield from _target(keys.task_of(key), base)
        except StoreDamaged:  # nothing is known of what runs below it, so the way is open
            found[key] = WaitTarget()
    return found


def _target(first: str, base: int) -> ReadOp[WaitTarget]:
    above: dict[str, str] = {first: ""}
    """The task that needs each of them, by which we came there."""
    born: dict[str, int] = {}
    running: list[SharedResource] = []
    level = [first]
    while level:
        items = yield from glanced(
            tuple([key(task) for task in level for key in (keys.status, keys.owner)])
        )
        blocked: dict[str, task_types.TaskStatus] = {}
        for task in level:
            item, owner = items[keys.status(task)], items[keys.owner(task)]
            born[task] = 0 if item is None else item.created
            if above[task] and born[task] > born[above[task]]:
                continue  # it only has the name of the need, which was deleted
            status = decode_status(item)
            if status is None:
                continue
            if status.state == "running" and owner is not None:
                running.append(_resource(owner, _path(task, above)))
            if status.guard:
                running += yield from _behind(status.guards, base, _path(task, above))
            elif status.state == "blocked" and not status.on.startswith(task_types.BATCH):
                blocked[task] = status
        level = []
        for task, need in (yield from _needs(blocked)):
            if need not in above and len(above) < FOLLOWED:
                above[need] = task
                level.append(need)
    return WaitTarget(tuple(running))


def _needs(blocked: Mapping[str, task_types.TaskStatus]) -> ReadOp[list[tuple[str, str]]]:
    """The needs of blocked tasks that may not be complete, each behind its task."""
    data = yield from glanced(tuple(map(keys.data, blocked)))
    specs = {task: decode_spec(data[keys.data(task)]) for task in blocked}
    return [
        (task, need)
        for task, spec in specs.items()
        if spec is not None
        for need in spec.needs[blocked[task].place :]
    ]


def _behind(
    guards: tuple[str, ...], base: int, path: Iterator[str]
) -> ReadOp[list[SharedResource]]:
    """What the guards of a task want free; it blocks while the statuses on the path stay."""
    from interlock.nouns.guards.guard_wait import wait_targets as guard_targets

    found = yield from guard_targets(tuple(map(keys.guard, guards)), base)
    also = tuple(map(keys.status, path))
    each = [resource for target in found.values() for resource in target.resources]
    return [replace(resource, keys=(*resource.keys, *also)) for resource in each]


def _resource(owner: Item, path: Iterator[str]) -> SharedResource:
    """A running task with its worker; it blocks while the statuses on the path to it stay."""
    claim = decode_claim(owner)
    assert claim is not None  # noqa: S101 - the item exists
    worker = caller_name(claim.agent, claim.session, claim.caller)
    blocker = Blocker(worker, 1, claim.id, claim.live, agent=claim.agent)
    return SharedResource(owner.key, (blocker,), 1, (owner.key, *map(keys.status, path)))


def _path(task: str, above: Mapping[str, str]) -> Iterator[str]:
    """The task, and all between it and the one that is waited for."""
    while task:
        yield task
        task = above[task]
