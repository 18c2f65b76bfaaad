"""The present state of a task: read with all it depends on, and explained in words.

An explanation says what keeps the task from being done, what clears that, and how bad it is.
``why.py`` follows the needs of a blocked task down to such explanations; ``health.py`` uses the
snapshots.

Only reports of agents say what they can do.  Where no agent reports, a worker may still come that
can do a task; so nothing is said about that then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias, TypeVar

from msgspec import Struct

from interlock.core import keys
from interlock.core.validate import ALL_ABILITIES, quote, span
from interlock.drivers import Op
from interlock.errors import StoreDamaged
from interlock.nouns.tasks.task import BATCH, DueEntry, Spec, TaskOwner, TaskStatus
from interlock.nouns.tasks.task_reader import decode_claim, decode_due, decode_spec, decode_status
from interlock.runtime.reads import looked_up
from interlock.runtime.runner import Runner
from interlock.store import Item

T = TypeVar("T")

DAMAGED = "damaged"
_SPECIFIED = ("blocked", "pending")


class TaskSnapshot(Struct, frozen=True, kw_only=True):
    """A task with the items that its state makes relevant.

    ``left`` is the remaining life of its claim, or the time until it may begin.  ``damage`` says
    which item cannot be read.
    """

    task: str
    status: TaskStatus | None
    spec: Spec | None = None
    claim: TaskOwner | None = None
    token: int = 0
    alive: bool = False
    left: float | None = None
    damage: str = ""

    @property
    def state(self) -> str:
        """Its state, ``damaged`` or ``unknown``."""
        if self.damage:
            return DAMAGED
        return "unknown" if self.status is None else self.status.state

    @property
    def known_status(self) -> TaskStatus:
        """The status of a task that exists."""
        assert self.status is not None  # noqa: S101 - callers have looked at the state
        return self.status

    @property
    def known_spec(self) -> Spec:
        """The data of a task, where they were read."""
        assert self.spec is not None  # noqa: S101 - written with the status, and never changed
        return self.spec

    @property
    def hangs(self) -> bool:
        """Whether it hangs on another task."""
        return self.state == "blocked" and not self.batch

    @property
    def batch(self) -> bool:
        """Whether this is the batch of an import."""
        return self.task.startswith(BATCH)


def read_snapshots(
    runner: Runner, tasks: Iterable[str], *, states_of: tuple[str, ...] = _SPECIFIED
) -> Op[dict[str, TaskSnapshot]]:
    """Read these tasks; the data only of those in ``states_of``."""
    base = yield from runner.base()
    named = list(dict.fromkeys(tasks))
    items = yield from looked_up(map(keys.status, named))
    damage: dict[str, str] = {}
    found = {
        task: _decoded(decode_status, items[keys.status(task)], task, damage) for task in named
    }
    more = yield from looked_up(_particulars(found, states_of))
    specs = {task: _decoded(decode_spec, more.get(keys.data(task)), task, damage) for task in named}
    claims = {
        task: _decoded(decode_claim, more.get(keys.owner(task)), task, damage) for task in named
    }
    dues = {
        task: _decoded(decode_due, more.get(each.due), task, damage)
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
    """The decoded item; None and a line in ``damage`` if it cannot be read."""
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


def _is_alive(live: Mapping[str, Item | None], claim: TaskOwner | None) -> bool:
    return claim is not None and all(live[key] is not None for key in claim.live)


def _left(
    live: Mapping[str, Item | None],
    status: TaskStatus | None,
    claim: TaskOwner | None,
    due: DueEntry | None,
    now: float,
) -> float | None:
    if status is not None and status.due:
        if due is None or not due.rest:
            return max(0.0, keys.due_at(status.due) - now)
        return _shortest_life(live, (due.rest,)) or 0.0
    return None if claim is None else _shortest_life(live, claim.live)


def _shortest_life(live: Mapping[str, Item | None], names: Iterable[str]) -> float | None:
    found = [live[name] for name in names]
    return min([i.expires_in for i in found if i and i.expires_in is not None], default=None)


Able: TypeAlias = Mapping[str, frozenset[str]]
"""The abilities of each session that is here and reports."""


class Explanation(Struct, frozen=True, kw_only=True):
    """What keeps a task from being done, and who can clear it.

    The higher the ``rank``, the less likely it clears by itself.
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
        session for session, can in able.items() if ALL_ABILITIES in can or can.issuperset(requires)
    ]


def is_beyond_all(able: Able, requires: Iterable[str]) -> bool:
    """Whether sessions report their abilities, and none can do all of this."""
    return bool(able) and not able_sessions(able, requires)


def explain(snapshot: TaskSnapshot, now: float, able: Able) -> Explanation:
    """Explain why a task is not being done, or that it is."""
    if snapshot.damage:
        return Explanation(
            says=f"it is damaged: {snapshot.damage}", clear="see 'interlock doctor'", rank=6
        )
    if snapshot.status is None:
        clear = f"publish it: interlock task add {quote(snapshot.task)}"
        return Explanation(says="there is no such task", clear=clear, blocked=False, rank=5)
    if snapshot.batch:
        return _batch(snapshot)
    if snapshot.state == "pending":
        return _pending(snapshot, now, able)
    return _SAID[snapshot.state](snapshot, now)


def _batch(snapshot: TaskSnapshot) -> Explanation:
    return Explanation(
        says="the import that publishes it has not finished",
        clear="the import finishes; if it was interrupted, repeat it",
        since=snapshot.known_status.since,
        rank=4,
    )


def _blocked(snapshot: TaskSnapshot, _now: float) -> Explanation:
    clear = f"see 'interlock why {quote(f'task/{snapshot.known_status.on}')}'"
    return Explanation(
        says=f"it needs {snapshot.known_status.on}",
        clear=clear,
        since=snapshot.known_status.since,
        rank=-1,
    )


def _running(snapshot: TaskSnapshot, now: float) -> Explanation:
    claim = snapshot.claim
    if claim is None or not snapshot.alive:
        return _lost(snapshot)
    deadline = snapshot.known_status.deadline
    late = "" if deadline is None or deadline >= now else ", past its deadline"
    return Explanation(
        says=f"{claim.agent} has worked on it for {span(now - claim.since)}{late}",
        clear=f"{claim.agent} completes {snapshot.task},"
        f" or does not renew it for {span(snapshot.left)}",
        by=claim.agent,
        since=claim.since,
        expires_in=None if snapshot.left is None else round(snapshot.left, 3),
    )


def _lost(snapshot: TaskSnapshot) -> Explanation:
    agent = "" if snapshot.claim is None else snapshot.claim.agent
    return Explanation(
        says=f"{agent or 'its worker'} was lost, and its claim is stale",
        clear=f"claim {snapshot.task}, or run 'interlock maintain'",
        by=agent,
        since=None if snapshot.claim is None else snapshot.claim.since,
        blocked=False,
        rank=3,
    )


def _pending(snapshot: TaskSnapshot, now: float, able: Able) -> Explanation:
    deadline = snapshot.known_status.deadline
    if deadline is not None and deadline < now:
        return Explanation(
            says="no worker began it before its deadline,"
            " so the next worker makes it a dead letter",
            clear=f"run 'interlock maintain', then send it back:"
            f" interlock task retry {quote(snapshot.task)} --agent NAME",
            since=deadline,
            rank=5,
        )
    if is_beyond_all(able, snapshot.known_spec.requires):
        return Explanation(
            says=f"it waits for {_worker(snapshot.known_spec)},"
            " and no agent that is here reports that it can",
            clear=f"{_worker(snapshot.known_spec)} comes, and claims {snapshot.task}",
            since=snapshot.known_status.since or snapshot.known_spec.at,
            rank=4,
        )
    return _resting(snapshot) if snapshot.left else _ready(snapshot)


def _resting(snapshot: TaskSnapshot) -> Explanation:
    says, status = f"it must not begin for {span(snapshot.left)}", snapshot.known_status
    if status.attempts:
        why = f" ({status.reason})" if status.reason else ""
        says = f"it rests for {span(snapshot.left)} after {_failed(status.attempts)}{why}"
    clear = f"its time comes, and {_worker(snapshot.known_spec)} claims {snapshot.task}"
    return Explanation(says=says, clear=clear, since=status.since or None, rank=1)


def _ready(snapshot: TaskSnapshot) -> Explanation:
    return Explanation(
        says=f"it waits for {_worker(snapshot.known_spec)}",
        clear=f"{_worker(snapshot.known_spec)} claims {snapshot.task}",
        since=snapshot.known_status.since or snapshot.known_spec.at,
        blocked=False,
        rank=2,
    )


def _complete(snapshot: TaskSnapshot, now: float) -> Explanation:
    says = f"{snapshot.known_status.by} completed it {span(now - snapshot.known_status.since)} ago"
    return Explanation(
        says=says, clear="nothing is left to do", by=snapshot.known_status.by, blocked=False
    )


def _ended(snapshot: TaskSnapshot, now: float) -> Explanation:
    status = snapshot.known_status
    after = f" after {_failed(status.attempts)}" if status.attempts else ""
    return Explanation(
        says=f"it {_ENDS[snapshot.state]} {span(now - status.since)} ago{after}:"
        f" {status.reason or 'no reason was given'}",
        clear=f"retry it: interlock task retry {quote(snapshot.task)} --agent NAME",
        by=status.by,
        since=status.since,
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
