"""Tasks as they stand at this moment, with what that depends on, for whoever explains them.

How a task stands that waits for no other, in words: why, what clears it, and how bad that is.

Whether anybody can do what a task requires is known only from what agents report.  Where nobody
reports, workers may still come who can; so nothing is said about it then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias, TypeVar

from msgspec import Struct

from interlock.core import keys
from interlock.core.validate import EVERYTHING, shell, span
from interlock.drivers import Op
from interlock.errors import StoreDamaged
from interlock.nouns.tasks import decode, progress_rules
from interlock.nouns.tasks.task import BATCH, DueEntry, Spec, TaskClaim, TaskStatus
from interlock.runtime.gather import looked_up
from interlock.runtime.runner import Runner
from interlock.store import Item

T = TypeVar("T")

DAMAGED = "damaged"
_SPECIFIED = ("blocked", "pending")


class TaskSnapshot(Struct, frozen=True, kw_only=True):
    """A task, as far as its state makes it matter.

    ``left`` is how long its claim lives at least, or until it may begin.  ``damage`` says what of
    it cannot be read.
    """

    task: str
    status: TaskStatus | None
    spec: Spec | None = None
    claim: TaskClaim | None = None
    token: int = 0
    alive: bool = False
    left: float | None = None
    damage: str = ""

    @property
    def state(self) -> str:
        """How it stands."""
        if self.damage:
            return DAMAGED
        return "unknown" if self.status is None else self.status.state

    @property
    def how(self) -> TaskStatus:
        """How it stands; only of one that is there."""
        assert self.status is not None  # noqa: S101 - whoever asks has looked at the state
        return self.status

    @property
    def what(self) -> Spec:
        """What it is; only where that was asked for."""
        assert self.spec is not None  # noqa: S101 - written with the status, and never changed
        return self.spec

    @property
    def hangs(self) -> bool:
        """Whether it waits for another task."""
        return self.state == "blocked" and not self.batch

    @property
    def batch(self) -> bool:
        """Whether this is no task, but the batch of an import."""
        return self.task.startswith(BATCH)


def read_snapshots(
    runner: Runner, tasks: Iterable[str], *, states_of: tuple[str, ...] = _SPECIFIED
) -> Op[dict[str, TaskSnapshot]]:
    """These tasks; what they are only in the states where that is asked for."""
    base = yield from runner.base()
    named = list(dict.fromkeys(tasks))
    items = yield from looked_up(map(keys.status, named))
    damage: dict[str, str] = {}
    found = {
        task: _decoded(decode.status, items[keys.status(task)], task, damage) for task in named
    }
    more = yield from looked_up(_particulars(found, states_of))
    specs = {task: _decoded(decode.spec, more.get(keys.data(task)), task, damage) for task in named}
    claims = {
        task: _decoded(decode.claim, more.get(keys.owner(task)), task, damage) for task in named
    }
    dues = {
        task: _decoded(decode.due, more.get(each.due), task, damage)
        for task, each in found.items()
        if each is not None
    }
    wanted = [key for claim in claims.values() if claim for key in claim.live]
    wanted += [due.rest for due in dues.values() if due and due.rest]
    live = yield from looked_up(wanted, times=True)
    now = runner.clock.wall()
    return {
        task: TaskSnapshot(
            task=task,
            status=status,
            spec=specs[task],
            claim=claims[task],
            token=0 if (owner := more.get(keys.owner(task))) is None else base + owner.revision,
            alive=_is_alive(live, claims[task]),
            left=_left(live, status, claims[task], dues.get(task), now),
            damage=damage.get(task, ""),
        )
        for task, status in found.items()
    }


def _decoded(
    read: Callable[[Item | None], T | None], item: Item | None, task: str, damage: dict[str, str]
) -> T | None:
    """What an item says; of what cannot be read, that."""
    try:
        return read(item)
    except StoreDamaged as error:
        damage[task] = str(error)
        return None


def _particulars(found: Mapping[str, TaskStatus | None], states_of: tuple[str, ...]) -> list[str]:
    wanted = []
    for task, status in found.items():
        if status is None:
            continue
        if status.state == "running":
            wanted.append(keys.owner(task))
        if status.state in states_of:
            wanted.append(keys.data(task))
        if status.due:
            wanted.append(status.due)
    return wanted


def _is_alive(live: Mapping[str, Item | None], claim: TaskClaim | None) -> bool:
    return claim is not None and all(live[key] is not None for key in claim.live)


def _left(
    live: Mapping[str, Item | None],
    status: TaskStatus | None,
    claim: TaskClaim | None,
    due: DueEntry | None,
    now: float,
) -> float | None:
    if status is not None and status.due:
        if due is None or not due.rest:
            return max(0.0, progress_rules.due_moment(status.due) - now)
        return _shortest_life(live, (due.rest,)) or 0.0
    return None if claim is None else _shortest_life(live, claim.live)


def _shortest_life(live: Mapping[str, Item | None], names: Iterable[str]) -> float | None:
    found = [live[name] for name in names]
    return min([i.expires_in for i in found if i and i.expires_in is not None], default=None)


Able: TypeAlias = Mapping[str, frozenset[str]]
"""What everybody who is here and reports can do, by session."""


class Explanation(Struct, frozen=True, kw_only=True):
    """What is in the way of a task, and who can clear it.

    The higher its ``rank``, the less it will clear by itself.
    """

    says: str
    clear: str
    by: str = ""
    since: float | None = None
    expires_in: float | None = None
    blocked: bool = True
    rank: int = 0


def able_sessions(able: Able, requires: Iterable[str]) -> list[str]:
    """The sessions that can do all of this."""
    return [
        session for session, can in able.items() if EVERYTHING in can or can.issuperset(requires)
    ]


def is_beyond_all(able: Able, requires: Iterable[str]) -> bool:
    """Whether it is known that nobody who is here can do all of this."""
    return bool(able) and not able_sessions(able, requires)


def explain(seen: TaskSnapshot, now: float, able: Able) -> Explanation:
    """What is to be said of a task."""
    if seen.damage:
        return Explanation(
            says=f"it is damaged: {seen.damage}", clear="see 'interlock doctor'", rank=6
        )
    if seen.status is None:
        clear = f"publish it: interlock task add {shell(seen.task)}"
        return Explanation(says="there is no such task", clear=clear, blocked=False, rank=5)
    if seen.batch:
        return _batch(seen)
    if seen.state == "pending":
        return _pending(seen, now, able)
    return _SAID[seen.state](seen, now)


def _batch(seen: TaskSnapshot) -> Explanation:
    return Explanation(
        says="not all that is published with it is there yet",
        clear="whoever imports is done; if that was interrupted, repeat it",
        since=seen.how.since,
        rank=4,
    )


def _blocked(seen: TaskSnapshot, _now: float) -> Explanation:
    clear = f"see 'interlock why {shell(f'task/{seen.how.on}')}'"
    return Explanation(says=f"it needs {seen.how.on}", clear=clear, since=seen.how.since, rank=-1)


def _running(seen: TaskSnapshot, now: float) -> Explanation:
    claim = seen.claim
    if claim is None or not seen.alive:
        return _lost(seen)
    deadline = seen.how.deadline
    late = "" if deadline is None or deadline >= now else ", past its deadline"
    return Explanation(
        says=f"{claim.agent} has worked on it for {span(now - claim.since)}{late}",
        clear=f"{claim.agent} completes {seen.task}, or does not renew it for {span(seen.left)}",
        by=claim.agent,
        since=claim.since,
        expires_in=None if seen.left is None else round(seen.left, 3),
    )


def _lost(seen: TaskSnapshot) -> Explanation:
    agent = "" if seen.claim is None else seen.claim.agent
    return Explanation(
        says=f"{agent or 'its worker'} was lost, and its claim is stale",
        clear=f"claim {seen.task}, or run 'interlock maintain'",
        by=agent,
        since=None if seen.claim is None else seen.claim.since,
        blocked=False,
        rank=3,
    )


def _pending(seen: TaskSnapshot, now: float, able: Able) -> Explanation:
    deadline = seen.how.deadline
    if deadline is not None and deadline < now:
        return Explanation(
            says="nobody began it before its deadline, so it is a dead letter as soon as it is met",
            clear=f"run 'interlock maintain', then send it back:"
            f" interlock task retry {shell(seen.task)} --agent NAME",
            since=deadline,
            rank=5,
        )
    if is_beyond_all(able, seen.what.requires):
        return Explanation(
            says=f"it waits for {_worker(seen.what)}, and nobody who is here said that it can",
            clear=f"{_worker(seen.what)} comes, and claims {seen.task}",
            since=seen.how.since or seen.what.at,
            rank=4,
        )
    return _resting(seen) if seen.left else _ready(seen)


def _resting(seen: TaskSnapshot) -> Explanation:
    says, how = f"it must not begin for {span(seen.left)}", seen.how
    if how.attempts:
        why = f" ({how.reason})" if how.reason else ""
        says = f"it rests for {span(seen.left)} after {_failed(how.attempts)}{why}"
    clear = f"its time comes, and {_worker(seen.what)} claims {seen.task}"
    return Explanation(says=says, clear=clear, since=how.since or None, rank=1)


def _ready(seen: TaskSnapshot) -> Explanation:
    return Explanation(
        says=f"it waits for {_worker(seen.what)}",
        clear=f"{_worker(seen.what)} claims {seen.task}",
        since=seen.how.since or seen.what.at,
        blocked=False,
        rank=2,
    )


def _complete(seen: TaskSnapshot, now: float) -> Explanation:
    says = f"{seen.how.by} completed it {span(now - seen.how.since)} ago"
    return Explanation(says=says, clear="nothing is left to do", by=seen.how.by, blocked=False)


def _ended(seen: TaskSnapshot, now: float) -> Explanation:
    how = seen.how
    after = f" after {_failed(how.attempts)}" if how.attempts else ""
    return Explanation(
        says=f"it {_ENDS[seen.state]} {span(now - how.since)} ago{after}:"
        f" {how.reason or 'no reason was given'}",
        clear=f"somebody sends it back: interlock task retry {shell(seen.task)} --agent NAME",
        by=how.by,
        since=how.since,
        rank=5,
    )


def _worker(spec: Spec) -> str:
    return f"a worker who can {' and '.join(spec.requires)}" if spec.requires else "a worker"


def _failed(attempts: int) -> str:
    return "1 failed attempt" if attempts == 1 else f"{attempts} failed attempts"


_ENDS = {"failed": "failed", "dead": "died"}
_SAID = {
    "blocked": _blocked,
    "running": _running,
    "complete": _complete,
    "failed": _ended,
    "dead": _ended,
}
