"""How a task stands that waits for no other, in words: why, what clears it, and how bad that is.

Whether anybody can do what a task requires is known only from what agents report.  Where nobody
reports, workers may still come who can; so nothing is said about it then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from msgspec import Struct

from interlock.core.validate import EVERYTHING, shell, span
from interlock.nouns.tasks.task import Spec
from interlock.nouns.tasks.why_state import Looked

Able: TypeAlias = Mapping[str, frozenset[str]]
"""What everybody who is here and reports can do, by session."""


class Leaf(Struct, frozen=True, kw_only=True):
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


def fit(able: Able, requires: Iterable[str]) -> list[str]:
    """The sessions that can do all of this."""
    return [
        session for session, can in able.items() if EVERYTHING in can or can.issuperset(requires)
    ]


def nobody(able: Able, requires: Iterable[str]) -> bool:
    """Whether it is known that nobody who is here can do all of this."""
    return bool(able) and not fit(able, requires)


def leaf(seen: Looked, now: float, able: Able) -> Leaf:
    """What is to be said of a task."""
    if seen.damage:
        return Leaf(says=f"it is damaged: {seen.damage}", clear="see 'interlock doctor'", rank=6)
    if seen.status is None:
        clear = f"publish it: interlock task add {shell(seen.task)}"
        return Leaf(says="there is no such task", clear=clear, blocked=False, rank=5)
    if seen.batch:
        return _batch(seen)
    if seen.state == "pending":
        return _pending(seen, now, able)
    return _SAID[seen.state](seen, now)


def _batch(seen: Looked) -> Leaf:
    return Leaf(
        says="not all that is published with it is there yet",
        clear="whoever imports is done; if that was interrupted, repeat it",
        since=seen.how.since,
        rank=4,
    )


def _blocked(seen: Looked, _now: float) -> Leaf:
    clear = f"see 'interlock why {shell(f'task/{seen.how.on}')}'"
    return Leaf(says=f"it needs {seen.how.on}", clear=clear, since=seen.how.since, rank=-1)


def _running(seen: Looked, now: float) -> Leaf:
    claim = seen.claim
    if claim is None or not seen.alive:
        return _lost(seen)
    deadline = seen.how.deadline
    late = "" if deadline is None or deadline >= now else ", past its deadline"
    return Leaf(
        says=f"{claim.agent} has worked on it for {span(now - claim.since)}{late}",
        clear=f"{claim.agent} completes {seen.task}, or does not renew it for {span(seen.left)}",
        by=claim.agent,
        since=claim.since,
        expires_in=None if seen.left is None else round(seen.left, 3),
    )


def _lost(seen: Looked) -> Leaf:
    agent = "" if seen.claim is None else seen.claim.agent
    return Leaf(
        says=f"{agent or 'its worker'} was lost, and its claim is stale",
        clear=f"claim {seen.task}, or run 'interlock maintain'",
        by=agent,
        since=None if seen.claim is None else seen.claim.since,
        blocked=False,
        rank=3,
    )


def _pending(seen: Looked, now: float, able: Able) -> Leaf:
    deadline = seen.how.deadline
    if deadline is not None and deadline < now:
        return Leaf(
            says="nobody began it before its deadline, so it is a dead letter as soon as it is met",
            clear=f"run 'interlock maintain', then send it back:"
            f" interlock task retry {shell(seen.task)} --agent NAME",
            since=deadline,
            rank=5,
        )
    if nobody(able, seen.what.requires):
        return Leaf(
            says=f"it waits for {_worker(seen.what)}, and nobody who is here said that it can",
            clear=f"{_worker(seen.what)} comes, and claims {seen.task}",
            since=seen.how.since or seen.what.at,
            rank=4,
        )
    return _resting(seen) if seen.left else _ready(seen)


def _resting(seen: Looked) -> Leaf:
    says, how = f"it must not begin for {span(seen.left)}", seen.how
    if how.attempts:
        why = f" ({how.reason})" if how.reason else ""
        says = f"it rests for {span(seen.left)} after {_failed(how.attempts)}{why}"
    clear = f"its time comes, and {_worker(seen.what)} claims {seen.task}"
    return Leaf(says=says, clear=clear, since=how.since or None, rank=1)


def _ready(seen: Looked) -> Leaf:
    return Leaf(
        says=f"it waits for {_worker(seen.what)}",
        clear=f"{_worker(seen.what)} claims {seen.task}",
        since=seen.how.since or seen.what.at,
        blocked=False,
        rank=2,
    )


def _complete(seen: Looked, now: float) -> Leaf:
    says = f"{seen.how.by} completed it {span(now - seen.how.since)} ago"
    return Leaf(says=says, clear="nothing is left to do", by=seen.how.by, blocked=False)


def _ended(seen: Looked, now: float) -> Leaf:
    how = seen.how
    after = f" after {_failed(how.attempts)}" if how.attempts else ""
    return Leaf(
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
