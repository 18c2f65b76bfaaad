"""Changes a plan on a store: edits tasks, drops them, publishes ended ones again.

New needs are followed before the commit, outside of a transaction, however many tasks they lead to.
The commit checks that no other edit has added needs since (``edit_rules.py``); else they are
followed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.errors import StoreBusy
from interlock.nouns.tasks import edit_rules, task_outcomes
from interlock.nouns.tasks import task as task_types
from interlock.nouns.tasks.edit_rules import FollowNeeds, SpecEdit
from interlock.nouns.tasks.task_change import TaskChanges
from interlock.nouns.tasks.task_reader import TaskReader, change, decode_spec, decode_status
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.identity import Actor
from interlock.runtime.reads import looked_up
from interlock.runtime.runner import Runner
from interlock.steps import Op, Read
from interlock.store import Item, Range

_ATTEMPTS = 64
"""How often needs are followed again, since others add needs at the same time."""
_WAITING = 5
"""The most dependents that are named for a dropped task."""
_ANY = float("inf")


class EditService:
    """Every change of a plan, as generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def edit(
        self, actor: Actor, task: str, wanted: SpecEdit
    ) -> Op[task_outcomes.TaskEdited | task_outcomes.Unchanged]:
        """Edit a task that no worker has."""

        def decide(
            changes: TaskChanges, *, followed: bool
        ) -> Decision[task_outcomes.TaskEdited | task_outcomes.Unchanged | FollowNeeds]:
            return edit_rules.edit(changes, task, wanted, actor.agent, followed=followed)

        done = yield from self._following(actor, task, decide)
        if not isinstance(done, task_outcomes.TaskEdited) or done.state != "blocked":
            return cast("task_outcomes.TaskEdited | task_outcomes.Unchanged", done)
        key = keys.status(task)
        status = decode_status((yield Read(key))[key])  # its guards may have passed since
        return done if status is None else replace(done, state=status.state)

    def publish_again(
        self, actor: Actor, task: str, spec: task_types.Spec
    ) -> Op[task_outcomes.Published | task_outcomes.TaskExists]:
        """Publish a task, also under the id of one that ended without being complete."""

        def decide(
            changes: TaskChanges, *, followed: bool
        ) -> Decision[task_outcomes.Published | task_outcomes.TaskExists | FollowNeeds]:
            return edit_rules.publish_again(changes, task, spec, followed=followed)

        done = yield from self._following(actor, task, decide)
        return cast("task_outcomes.Published | task_outcomes.TaskExists", done)

    def drop(
        self, actor: Actor, tasks: Sequence[str], reason: str
    ) -> Op[task_outcomes.TasksDropped | task_outcomes.Unchanged]:
        """Drop tasks that never began: all of these, or none."""
        wanted = tuple([keys.status(task) for task in tasks])
        decide = partial(edit_rules.drop, ids=tasks, agent=actor.agent, reason=reason)
        outcome = (yield from change(self._runner, actor, wanted, decide)).outcome
        if not isinstance(outcome, task_outcomes.TasksDropped):
            return outcome
        pages = [Range(keys.hangs(task), limit=_WAITING) for task in tasks]
        found = (yield Read(*pages)).ranges
        names = [keys.task_in_index(item.key) for page in pages for item in found[page]]
        blocked = tuple([name for name in names if name not in tasks][:_WAITING])
        return task_outcomes.TasksDropped(tasks=outcome.tasks, blocked=blocked)

    def _following(
        self, actor: Actor, task: str, decide: Callable[..., Decision[Any]]
    ) -> Op[object]:
        """Decide about a task; follow the needs that it gets first, as often as it takes."""
        base, followed = (yield from self._runner.base()), Followed()

        def deciding() -> DecideOp[Any]:
            reader = TaskReader(self._runner, base)
            reader.learn((yield (keys.status(task),)).items)
            sure = yield from followed.stands()
            return (yield from reader.change(partial(decide, followed=sure)))

        for _ in range(_ATTEMPTS):
            outcome = (yield from self._runner.change(deciding, actor)).outcome
            if not isinstance(outcome, FollowNeeds):
                return outcome
            yield from followed.follow({task: outcome.needs})
        raise StoreBusy("others change the needs of tasks at this moment; retry later")


class Followed:
    """What is known of the needs of tasks as of a revision of ``meta/edited-needs``."""

    def __init__(self) -> None:
        self._mark: int | None = None

    def stands(self) -> ReadOp[bool]:
        """Whether no commit has added needs since they were followed; the commit checks that."""
        if self._mark is None:
            return False
        item = (yield (keys.EDITED_NEEDS,)).items[keys.EDITED_NEEDS]
        return self._mark == _revision(item)

    def move_to(self, revision: int | None) -> None:
        """Note that this commit of our own added needs that were followed."""
        self._mark = revision

    def follow(self, wanted: Mapping[str, Sequence[str]]) -> Op[None]:
        """Follow the needs that these tasks are to have; raises if they lead back to one."""
        mark = _revision((yield Read(keys.EDITED_NEEDS))[keys.EDITED_NEEDS])
        graph = yield from needs_graph(wanted)
        edit_rules.require_no_cycle(graph, list(wanted))
        self._mark = mark


def needs_graph(wanted: Mapping[str, Sequence[str]]) -> Op[dict[str, list[str]]]:
    """The tasks that these needs lead to, each with its needs; complete tasks end the way.

    A task that is no longer done, since it was dropped, needs nothing.
    """
    graph: dict[str, list[str]] = {task: [] for task in wanted}
    created: dict[str, float] = {}
    edges = [(task, _ANY, need) for task, needs in wanted.items() for need in needs]
    unread = dict.fromkeys((*wanted, *[need for _, _, need in edges]))
    while edges:
        items = yield from looked_up(
            key for task in unread for key in (keys.status(task), keys.data(task))
        )
        later: list[tuple[str, float, str]] = []
        for task in unread:
            item, data = items[keys.status(task)], items[keys.data(task)]
            status, spec = decode_status(item), decode_spec(data)
            created[task] = _ANY if item is None else item.created
            if item is None or data is None or status is None or task in wanted:
                continue
            if status.state not in ("complete", "dropped"):
                graph[task] = []
                needs = () if spec is None else spec.needs
                later += [(task, float(data.revision), need) for need in needs]
        for task, bound, need in edges:
            if need in graph and (bound == _ANY or created[need] <= bound):
                graph[task].append(need)
        edges = later
        unread = dict.fromkeys(need for _, _, need in edges if need not in created)
    return graph


def _revision(item: Item | None) -> int:
    return 0 if item is None else item.revision
