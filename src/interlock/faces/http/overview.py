"""The first view of a fleet, made of declared operations: what needs a person comes first.

It reads much, so it is made once for each revision, and at most a few times a second.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from interlock.faces.json_output import complete, encoded, iso
from interlock.nouns.agents.noun import AgentsList
from interlock.nouns.fleet.noun import HealthRequest
from interlock.nouns.grants.lock_operator_noun import LocksList
from interlock.nouns.grants.semaphore_noun import SemaphoresList
from interlock.nouns.messages.decision_noun import DecisionsList
from interlock.nouns.pipelines.noun import PipelinesList
from interlock.nouns.requests.quarantine_noun import QuarantinedList
from interlock.nouns.tasks.view_noun import TasksList

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.nouns.messages.decision import DecisionView
    from interlock.nouns.requests.outcomes import QuarantineView
    from interlock.runtime.health import Problem
    from interlock.runtime.operation import Request

AT_MOST_EVERY = 0.25
"""Seconds for which an overview is used again, even if something changed."""
OLDEST = 5.0
"""Seconds after which it is made again though nothing was committed: sessions expire silently."""
MOST_TASKS = 20_000
"""Tasks that are counted; ``tasks_partial`` says whether there are more."""
_PAGE = 1000
_BY_PERSON = frozenset(
    (
        "dead", "stuck", "overdue", "deadlock", "dead_letter", "failed", "paused", "damaged",
        "record", "full",
    )
)  # fmt: skip
"""Kinds of problems that do not end by themselves."""


class OverviewCache:
    """The last overview, as JSON."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made = float("-inf")
        self._revision = -1
        self._body = b""

    def get(self, fleet: Fleet, parts: list[dict[str, Any]]) -> bytes:
        """The overview, made now or a moment ago."""
        with self._lock:
            now = time.monotonic()
            if now - self._made < AT_MOST_EVERY:
                return self._body
            revision = fleet.store.read().revision
            if revision != self._revision or now - self._made > OLDEST:
                self._body = encoded({**overview(fleet), "parts": parts})
                self._revision = revision
            self._made = time.monotonic()
            return self._body


def overview(fleet: Fleet) -> dict[str, Any]:
    """What the page and the terminal show first."""

    def act(request: Request) -> Any:  # noqa: ANN401 - as the operation answers
        return fleet.act(request, remote=True)

    revision = fleet.store.read().revision
    health = act(HealthRequest())
    counts, partial = _counts(act)
    person = [
        *map(_decision, act(DecisionsList()).decisions),
        *map(_quarantined, act(QuarantinedList()).messages),
        *(_problem(each) for each in health.problems if each.kind in _BY_PERSON),
    ]
    return {
        "revision": revision,
        "needs_person": person,
        "agents": complete(act(AgentsList()).agents),
        "tasks": counts,
        "tasks_partial": partial,
        "locks": complete(act(LocksList()).locks),
        "semaphores": complete(act(SemaphoresList()).semaphores),
        "pipelines": complete(act(PipelinesList()).pipelines),
        "problems": complete(health.problems),
    }


def _counts(act: Callable[[Request], Any]) -> tuple[dict[str, int], bool]:
    """How many tasks have each state, and whether there are more than were counted."""
    counts: Counter[str] = Counter()
    after: str | None = None
    while sum(counts.values()) < MOST_TASKS:
        page = act(TasksList(all=True, limit=_PAGE, after=after))
        counts.update(each.state for each in page.tasks)
        if not page.more:
            return dict(counts), False
        after = page.more
    return dict(counts), True


def _entry(kind: str, id_: str, text: str, since: float | None, **more: object) -> dict[str, Any]:
    return {"kind": kind, "id": id_, "text": text, "since": since, "since_iso": iso(since), **more}


def _action(operation: str, **fields: object) -> dict[str, object]:
    """An operation that helps, with the fields that are known."""
    return {"operation": operation, "fields": fields}


def _decision(decision: DecisionView) -> dict[str, Any]:
    question = decision.question
    said = question if isinstance(question, str) else encoded(question).decode()
    resolve = _action("decision resolve", id=decision.decision)
    return _entry(
        "decision",
        decision.decision,
        said,
        decision.at,
        about=decision.about,
        agent=decision.agent,
        actions=[resolve],
    )


def _quarantined(message: QuarantineView) -> dict[str, Any]:
    actions = [_action("quarantine release", id=message.id)] if message.releasable else []
    actions.append(_action("quarantine drop", ids=[message.id]))
    said = f"{message.reason}: {message.detail}"
    return _entry("quarantine", message.id, said, message.at, swarm=message.swarm, actions=actions)


def _problem(problem: Problem) -> dict[str, Any]:
    kind, _, name = problem.thing.partition("/")
    actions = []
    if kind == "task" and problem.kind in ("dead_letter", "failed"):
        actions = [_action("task retry", task=name), _action("task drop", tasks=[name])]
    elif kind == "task":
        actions = [_action("task requeue", task=name), _action("task cancel", task=name)]
        if problem.agent:
            actions.append(_action("stop", who=problem.agent))
    elif problem.kind == "dead" and problem.agent:
        actions = [_action("agent ack", name=problem.agent)]
    elif problem.kind == "paused" and problem.agent:
        actions = [_action("agent resume", name=problem.agent)]
    elif kind == "budget":
        actions = [_action("budget drop", thing=name)]
    elif kind == "lock":
        actions = [_action("lock break", lock=name)]
    elif kind == "sem":
        actions = [_action("sem break", semaphore=name)]
    return _entry(
        problem.kind,
        problem.thing,
        problem.says,
        problem.since,
        agent=problem.agent,
        remedy=problem.remedy,
        actions=actions,
    )
