"""The result of the demo: read from the record, and compared with what Interlock guarantees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec import Struct

import interlock
from interlock.core.entry import RecordLine
from interlock.demo.worker import CAPACITY, TRAP, LedgerLine, PlannedTask

if TYPE_CHECKING:
    from interlock.demo.scenario import Observations

GRACE, GRACE_COMMITS = 10.0, 100
"""Seconds after a TTL in which another agent takes over, on a machine with much else to do; on a
slow store, where these are few commits, the time of so many commits of this run."""
STATES = {
    "task:published": "waiting",
    "task:claimed": "running",
    "task:released": "waiting",
    "task:reclaimed": "waiting",
    "task:failed": "waiting",
    "task:completed": "complete",
}


class DemoTaskEvent(Struct, frozen=True):
    """An event of a task, and the agent that had it."""

    task: str
    agent: str
    revision: int


@dataclass(slots=True)
class DemoTaskHistory:
    """The tasks, as far as the record was read."""

    states: dict[str, str] = field(default_factory=dict)
    current: dict[str, str] = field(default_factory=dict)
    """The task of each agent that works on one."""
    events: dict[str, list[DemoTaskEvent]] = field(
        default_factory=lambda: {name: [] for name in STATES}
    )

    def read(self, lines: Iterable[RecordLine]) -> DemoTaskHistory:
        """Add these entries of the record."""
        for line in lines:
            for event in line.events:
                if event.name in STATES:
                    task = (event.thing or line.thing).removeprefix("task/")
                    self._add(event.name, DemoTaskEvent(task, event.agent, line.revision))
        return self

    @property
    def completed(self) -> list[DemoTaskEvent]:
        """Every completion; one for each task, if all is well."""
        return self.events["task:completed"]

    def count(self, state: str) -> int:
        """How many tasks are in this state."""
        return sum(each == state for each in self.states.values())

    def done_by(self) -> Counter[str]:
        """How many tasks each agent completed."""
        return Counter(event.agent for event in self.completed)

    def done_once(self, tasks: Iterable[PlannedTask]) -> bool:
        """Whether each task was completed, and none twice."""
        return sorted(event.task for event in self.completed) == sorted(t.task for t in tasks)

    def in_order(self, tasks: Iterable[PlannedTask]) -> bool:
        """Whether each claim came after the completion of everything that its task needs.

        One commit may do both.
        """
        needs = {task.task: task.needs for task in tasks}
        done = {event.task: event.revision for event in self.completed}
        return all(
            need in done and done[need] <= event.revision
            for event in self.events["task:claimed"]
            for need in needs[event.task]
        )

    def by_the_able(self, tasks: Iterable[PlannedTask], can: dict[str, tuple[str, ...]]) -> bool:
        """Whether each claim was by an agent with the abilities that its task requires."""
        requires = {task.task: set(task.requires) for task in tasks}
        claims = self.events["task:claimed"]
        return all(requires[event.task] <= set(can[event.agent]) for event in claims)

    def attempt_counted(self, observed: Observations) -> bool:
        """Whether the record has the victim's lost attempt, and the next attempt counted it."""
        lost = [event for event in self.events["task:reclaimed"] if event.task == TRAP]
        failed = [event for event in self.events["task:failed"] if event.task == TRAP]
        by_victim = any(event.agent == observed.victim for event in lost)
        return by_victim and 1 < observed.attempt <= len(lost) + len(failed) + 1

    def _add(self, name: str, event: DemoTaskEvent) -> None:
        self.events[name].append(event)
        self.states[event.task] = STATES[name]
        if name == "task:claimed":
            self.current[event.agent] = event.task
        elif self.current.get(event.agent) == event.task:
            del self.current[event.agent]


@dataclass(slots=True)
class DemoMessageHistory:
    """The messages of a run, as far as the record was read."""

    alerts: dict[str, str] = field(default_factory=dict)
    """The sender of each alert, by its id; of each stop; and of each query."""
    stops: dict[str, str] = field(default_factory=dict)
    queries: dict[str, str] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    """Who answered each query, in order."""
    received: dict[str, set[str]] = field(default_factory=dict)
    """Who acknowledged each message."""

    def read(self, lines: Iterable[RecordLine]) -> DemoMessageHistory:
        """Add these entries of the record."""
        sent = {"message.alert": self.alerts, "message.stop": self.stops}
        for line in lines:
            if line.verb == "query.ask":
                self.queries[line.thing] = line.agent
            elif line.verb == "query.reply":
                self.answers[line.thing] = line.agent
            for event in line.events:
                if event.name == "message:received":
                    self.received.setdefault(event.thing, set()).add(event.agent)
                elif event.name == "message:sent" and line.verb in sent:
                    sent[line.verb][event.thing] = event.agent
        return self

    def readers(self, messages: Iterable[str]) -> set[str]:
        """All agents that acknowledged one of these."""
        return {reader for message in messages for reader in self.received.get(message, ())}


class KilledAgent(Struct, frozen=True, kw_only=True):
    """The victim, and what it had."""

    agent: str
    pid: int
    task: str
    token: int
    slots: int


class Takeover(Struct, frozen=True, kw_only=True):
    """The agent that got the victim's task and slots, and how long after the kill."""

    agent: str
    attempt: int
    token: int
    seconds: float
    slots_seconds: float
    meanwhile: int


class SlotUse(Struct, frozen=True, kw_only=True):
    """How many builds there were, and how many slots were in use at most."""

    capacity: int
    builds: int
    most_at_once: int


class AlertResult(Struct, frozen=True, kw_only=True):
    """The sender of the alert, how many agents received it, and how long the last one took."""

    agent: str
    heard_by: int
    seconds: float


class QueryResult(Struct, frozen=True, kw_only=True):
    """The sender of the query, its answer, and how long that took."""

    agent: str
    answered_by: str
    answer: str
    seconds: float


class StopResult(Struct, frozen=True, kw_only=True):
    """The senders of stops, how many agents were asked, and how many left because of that."""

    by: tuple[str, ...]
    asked: int
    went: int


class RecordedStep(Struct, frozen=True, kw_only=True):
    """One entry of the record about the victim's task, in words."""

    revision: int
    at: float
    agent: str
    verb: str
    outcome: str
    text: str


class DemoResult(Struct, frozen=True, kw_only=True):
    """The result of a run; ``promises`` has the guarantees, and whether each of them held."""

    outcome: str
    workers: int
    ttl: float
    seconds: float
    tasks: int
    completed: int
    done_by: dict[str, int]
    killed: KilledAgent
    moved_on: Takeover
    late_done: str
    slots: SlotUse
    merges: int
    alert: AlertResult
    query: QueryResult
    stop: StopResult
    verdicts: dict[str, str]
    promises: dict[str, bool]
    entries: int
    story: tuple[RecordedStep, ...]


def gather(
    observed: Observations,
    merges: list[LedgerLine],
    lines: tuple[RecordLine, ...],
    tasks: tuple[PlannedTask, ...],
    *,
    can: dict[str, tuple[str, ...]],
    ttl: float,
    seconds: float,
    verdicts: dict[str, str],
    grain: float = 0.0,
) -> DemoResult:
    """The result of a run; ``grain`` is how exactly the store measures a TTL."""
    history, messages = DemoTaskHistory().read(lines), DemoMessageHistory().read(lines)
    slots, done_by = _slot_use(observed), history.done_by()
    left = [agent for agent in messages.readers(messages.stops) if _left(observed, agent)]
    latest = ttl + grain + max(GRACE, GRACE_COMMITS * seconds / max(1, len(lines)))
    promises = {
        "all_done_and_none_twice": history.done_once(tasks),
        "needs_came_first": history.in_order(tasks),
        "only_by_those_who_can": history.by_the_able(tasks, can),
        "moved_on_in_time": 0 < observed.task_moved <= latest
        and 0 < observed.slots_moved <= latest,
        "attempt_counted": history.attempt_counted(observed),
        "late_done_refused": observed.late_done == "fenced",
        "never_above_the_capacity": 0 < slots.most_at_once <= CAPACITY,
        "one_merge_at_a_time": _one_at_a_time(merges, tasks),
        **_message_promises(messages, observed, can),
        "record_not_refuted": "bad" not in verdicts.values(),
    }
    query, answered_by = next(iter(messages.answers.items()), ("", ""))
    return DemoResult(
        outcome="done" if all(promises.values()) else "failed",
        workers=len(can),
        ttl=ttl,
        seconds=round(seconds, 2),
        tasks=len(tasks),
        completed=len(history.completed),
        done_by={agent: done_by[agent] for agent in can},
        killed=KilledAgent(
            agent=observed.victim,
            pid=observed.pid,
            task=TRAP,
            token=observed.token,
            slots=observed.slots,
        ),
        moved_on=Takeover(
            agent=observed.successor,
            attempt=observed.attempt,
            token=observed.successor_token,
            seconds=round(observed.task_moved, 3),
            slots_seconds=round(observed.slots_moved, 3),
            meanwhile=observed.meanwhile,
        ),
        late_done=observed.late_done,
        slots=slots,
        merges=len(merges),
        alert=AlertResult(
            agent=next(iter(messages.alerts.values()), ""),
            heard_by=len(messages.readers(messages.alerts)),
            seconds=round(max(observed.alert_delays.values(), default=0.0), 4),
        ),
        query=QueryResult(
            agent=messages.queries.get(query, ""),
            answered_by=answered_by,
            answer=observed.answer,
            seconds=round(observed.answer_delay, 4),
        ),
        stop=StopResult(
            by=tuple(dict.fromkeys(messages.stops.values())),
            asked=len(messages.stops),
            went=len(left),
        ),
        verdicts=verdicts,
        promises=promises,
        entries=len(lines),
        story=tuple(
            _step(line, f"task/{TRAP}") for line in lines if _is_about(line, f"task/{TRAP}")
        ),
    )


def _is_about(line: RecordLine, thing: str) -> bool:
    """Whether an entry changed the state of a task, also as one of many."""
    changed = [event.thing for event in line.events if event.name in STATES]
    return thing in (line.thing, *changed)


def verdicts(fleet: interlock.Fleet) -> dict[str, str]:
    """The three verdicts of the record about itself."""
    found = fleet.record.verify()
    return {name: getattr(found, name) for name in ("integrity", "completeness", "truncation")}


def _message_promises(
    messages: DemoMessageHistory, observed: Observations, can: dict[str, tuple[str, ...]]
) -> dict[str, bool]:
    alive = set(can) - {observed.victim}
    stopped = messages.readers(messages.stops)
    return {
        "alert_heard_by_all": alive <= messages.readers(messages.alerts)
        and alive <= set(observed.alert_delays),
        "question_answered": bool(messages.answers and observed.answer),
        "went_when_asked": bool(stopped) and all(_left(observed, agent) for agent in stopped),
    }


def _left(observed: Observations, agent: str) -> bool:
    """Whether the agent reported that it left because of a message."""
    return " asked: " in observed.stop_reasons.get(agent, "")


def _slot_use(observed: Observations) -> SlotUse:
    """Slots in use, counted at each moment when a build began."""
    builds = observed.builds
    return SlotUse(
        capacity=CAPACITY,
        builds=sum(build.done is not None for build in builds),
        most_at_once=max((observed.busy_slots(build.began) for build in builds), default=0),
    )


def _one_at_a_time(merges: list[LedgerLine], tasks: tuple[PlannedTask, ...]) -> bool:
    """Whether every merge is in the ledger once, numbered without a gap, under rising tokens."""
    planned = {task.task for task in tasks if task.work.stage == "merge"}
    return (
        [merge.count for merge in merges] == list(range(1, len(planned) + 1))
        and {merge.task for merge in merges} == planned
        and all(a.token < b.token for a, b in pairwise(merges))
    )


def _step(line: RecordLine, thing: str) -> RecordedStep:
    text = "published, with the whole plan" if line.outcome == "imported" else line.outcome
    for event in line.events:
        if event.thing == thing and event.name == "task:claimed":  # with the end of another task
            text = "claimed"
    lost = {event.name: event.agent for event in line.events if not event.thing}
    if "task:reclaimed" in lost:
        text = f"found {lost['task:reclaimed']} gone; back in the queue"
    elif line.outcome == "fenced":
        text = "refused: its claim is over"
    return RecordedStep(
        revision=line.revision,
        at=line.at,
        agent=line.agent,
        verb=line.verb,
        outcome=line.outcome,
        text=text,
    )
