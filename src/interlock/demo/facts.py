"""What came out of it: measured and counted by the demo, then compared with what was promised."""

from __future__ import annotations

from itertools import pairwise

from msgspec import Struct

from interlock.core.log import Line
from interlock.demo.ledger import Written
from interlock.demo.plan import CAPACITY, TRAP, Step
from interlock.demo.play import Seen
from interlock.demo.post import Post
from interlock.demo.tally import Tally

GRACE = 10.0
"""Seconds after the end of a TTL in which somebody notices, on a machine with much else to do."""


class Killed(Struct, frozen=True, kw_only=True):
    """Who died, in the middle of what."""

    agent: str
    pid: int
    task: str
    token: int
    slots: int


class MovedOn(Struct, frozen=True, kw_only=True):
    """Who got its task and its slots, and how long after the kill."""

    agent: str
    attempt: int
    token: int
    seconds: float
    slots_seconds: float
    meanwhile: int


class Slots(Struct, frozen=True, kw_only=True):
    """How many builds there were, and how many slots were at work at most."""

    capacity: int
    builds: int
    most_at_once: int


class Alerted(Struct, frozen=True, kw_only=True):
    """Who told everybody that a phase is complete, how many heard it, and when the last of them."""

    agent: str
    heard_by: int
    seconds: float


class Asked(Struct, frozen=True, kw_only=True):
    """Who asked, who answered what, and how long that took."""

    agent: str
    answered_by: str
    answer: str
    seconds: float


class Stopped(Struct, frozen=True, kw_only=True):
    """Who asked others to stop, how many were asked, and how many went because of that."""

    by: tuple[str, ...]
    asked: int
    went: int


class Told(Struct, frozen=True, kw_only=True):
    """One entry of the record, in words."""

    revision: int
    at: float
    agent: str
    verb: str
    outcome: str
    text: str


class Facts(Struct, frozen=True, kw_only=True):
    """The result of a run; ``promises`` says which held."""

    outcome: str
    workers: int
    ttl: float
    seconds: float
    tasks: int
    completed: int
    done_by: dict[str, int]
    killed: Killed
    moved_on: MovedOn
    late_done: str
    slots: Slots
    merges: int
    alert: Alerted
    query: Asked
    stop: Stopped
    verdicts: dict[str, str]
    promises: dict[str, bool]
    entries: int
    story: tuple[Told, ...]


def gather(
    seen: Seen,
    writes: list[Written],
    lines: tuple[Line, ...],
    steps: tuple[Step, ...],
    *,
    can: dict[str, tuple[str, ...]],
    ttl: float,
    seconds: float,
    verdicts: dict[str, str],
    grain: float = 0.0,
) -> Facts:
    """Everything that a run showed; ``grain`` is how exactly the store measures a TTL."""
    tally = Tally().read(lines)
    slots, done_by, post = _slots(seen), tally.done_by(), Post().read(lines)
    promises = {
        **_of_tasks(tally, steps, can),
        **_of_the_kill(tally, seen, ttl + grain + GRACE),
        "never_above_the_capacity": 0 < slots.most_at_once <= CAPACITY,
        "one_merge_at_a_time": _merged(writes, steps),
        **_of_messages(post, seen, can),
        "record_not_refuted": "bad" not in verdicts.values(),
    }
    return Facts(
        outcome="done" if all(promises.values()) else "failed",
        workers=len(can),
        ttl=ttl,
        seconds=round(seconds, 2),
        tasks=len(steps),
        completed=len(tally.completed),
        done_by={agent: done_by[agent] for agent in can},
        killed=_killed(seen),
        moved_on=_moved_on(seen),
        late_done=seen.late,
        slots=slots,
        merges=len(writes),
        alert=_alerted(post, seen),
        query=_asked(post, seen),
        stop=_stopped(post, seen),
        verdicts=verdicts,
        promises=promises,
        entries=len(lines),
        story=tuple(_told(line) for line in lines if line.thing == f"task/{TRAP}"),
    )


def _of_tasks(
    tally: Tally, steps: tuple[Step, ...], can: dict[str, tuple[str, ...]]
) -> dict[str, bool]:
    return {
        "all_done_and_none_twice": tally.done_once(steps),
        "needs_came_first": tally.in_order(steps),
        "only_by_those_who_can": _able(tally, steps, can),
    }


def _of_the_kill(tally: Tally, seen: Seen, most: float) -> dict[str, bool]:
    return {
        "moved_on_in_time": 0 < seen.task_moved <= most and 0 < seen.slots_moved <= most,
        "attempt_counted": _counted(tally, seen),
        "late_done_refused": seen.late == "fenced",
    }


def _of_messages(post: Post, seen: Seen, can: dict[str, tuple[str, ...]]) -> dict[str, bool]:
    alive = set(can) - {seen.victim}
    went = post.readers(post.stops)
    return {
        "alert_heard_by_all": alive <= post.readers(post.alerts) and alive <= set(seen.heard),
        "question_answered": bool(post.answered and seen.answer),
        "went_when_asked": bool(went) and all(_was_asked(seen, agent) for agent in went),
    }


def _was_asked(seen: Seen, agent: str) -> bool:
    """Whether it says itself that it went because of a message."""
    return " asked: " in seen.stopped.get(agent, "")


def _alerted(post: Post, seen: Seen) -> Alerted:
    return Alerted(
        agent=post.alerts[0].sender if post.alerts else "",
        heard_by=len(post.readers(post.alerts)),
        seconds=round(max(seen.heard.values(), default=0.0), 4),
    )


def _asked(post: Post, seen: Seen) -> Asked:
    question, by = next(iter(post.answered.items()), ("", ""))
    return Asked(
        agent=post.asked.get(question, ""),
        answered_by=by,
        answer=seen.answer,
        seconds=round(seen.answered, 4),
    )


def _stopped(post: Post, seen: Seen) -> Stopped:
    return Stopped(
        by=tuple(dict.fromkeys(each.sender for each in post.stops)),
        asked=len(post.stops),
        went=sum(_was_asked(seen, agent) for agent in post.readers(post.stops)),
    )


def _killed(seen: Seen) -> Killed:
    return Killed(agent=seen.victim, pid=seen.pid, task=TRAP, token=seen.token, slots=seen.slots)


def _moved_on(seen: Seen) -> MovedOn:
    return MovedOn(
        agent=seen.heir,
        attempt=seen.attempt,
        token=seen.heir_token,
        seconds=round(seen.task_moved, 3),
        slots_seconds=round(seen.slots_moved, 3),
        meanwhile=seen.meanwhile,
    )


def _slots(seen: Seen) -> Slots:
    """Slots at work, counted at each moment when somebody began."""
    return Slots(
        capacity=CAPACITY,
        builds=sum(build.done is not None for build in seen.builds),
        most_at_once=max((seen.at_work(build.took) for build in seen.builds), default=0),
    )


def _able(tally: Tally, steps: tuple[Step, ...], can: dict[str, tuple[str, ...]]) -> bool:
    requires = {step.task: set(step.requires) for step in steps}
    return all(requires[deed.task] <= set(can[deed.agent]) for deed in tally.claimed)


def _counted(tally: Tally, seen: Seen) -> bool:
    """Whether the record has the lost attempt, and the next one knew of it."""
    lost, failed = (
        [deed for deed in deeds if deed.task == TRAP] for deeds in (tally.reclaimed, tally.failed)
    )
    by_victim = any(deed.agent == seen.victim for deed in lost)
    return by_victim and 1 < seen.attempt <= len(lost) + len(failed) + 1


def _merged(writes: list[Written], steps: tuple[Step, ...]) -> bool:
    """Whether every merge is in the file once, numbered without a gap, under rising tokens."""
    merges = {step.task for step in steps if step.work.stage == "merge"}
    return (
        [w.count for w in writes] == list(range(1, len(merges) + 1))
        and {w.task for w in writes} == merges
        and all(a.token < b.token for a, b in pairwise(writes))
    )


def _told(line: Line) -> Told:
    return Told(
        revision=line.revision,
        at=line.at,
        agent=line.agent,
        verb=line.verb,
        outcome=line.outcome,
        text=_text(line),
    )


def _text(line: Line) -> str:
    events = {event.name: event.agent for event in line.events if not event.thing}
    if "task:reclaimed" in events:
        return f"found {events['task:reclaimed']} gone; back in the queue"
    if line.outcome == "fenced":
        return "refused: its claim is over"
    return line.outcome
