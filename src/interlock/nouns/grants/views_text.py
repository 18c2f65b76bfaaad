"""Locks and semaphores as they stand, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.nouns.grants.text import first_names
from interlock.runtime.text import ago, as_json, joined, lasting, listed, since, state, table

if TYPE_CHECKING:
    from interlock.nouns.grants.lock import LockView
    from interlock.nouns.grants.lock_operator_noun import LockList
    from interlock.nouns.grants.semaphore import SemaphoreView, Slots
    from interlock.nouns.grants.semaphore_noun import SemaphoreList
    from interlock.runtime.text import Paint, Text


def lock_view(lock: LockView, paint: Paint) -> str:
    """One lock."""
    if lock.state == "free":
        return f"{lock.lock} is {paint('green', 'free')}"
    facts = [
        ("lock", lock.lock),
        ("state", state(lock.state, paint)),
        ("holder", lock.holder),
        ("token", _token(lock)),
        ("since", ago(lock.since)),
        ("expires in", lasting(lock.expires_in) if lock.expires_in is not None else ""),
        ("max hold", lasting(lock.max_hold) if lock.max_hold else ""),
        ("session", lock.session),
        ("waiting", joined(lock.waiters)),
        ("metadata", as_json(lock.metadata)),
    ]
    return listed(facts)


def lock_list(outcome: LockList, paint: Paint) -> str:
    """All locks."""
    if not outcome.locks:
        return "no lock is held"
    titles = ("LOCK", "HOLDER", "TOKEN", "SINCE", "EXPIRES IN", "")
    return table(titles, [_lock_row(lock, paint) for lock in outcome.locks], paint)


def semaphore_view(sem: SemaphoreView, paint: Paint) -> str:
    """One semaphore: its holders, and its queue in order."""
    lines = [f"{sem.semaphore} has {sem.available} of {sem.capacity} free"]
    if sem.holders:
        titles = ("HOLDER", "SLOTS", "TOKEN", "SINCE", "EXPIRES IN", "")
        lines.append(table(titles, [_holder_row(slots, paint) for slots in sem.holders], paint))
    if sem.waiters:
        queue = [f"{_weighed(w.agent, w.weight)} for {since(w.since)}" for w in sem.waiters]
        lines.append(f"waiting: {joined(queue)}")
    return "\n".join(lines)


def semaphore_list(outcome: SemaphoreList, paint: Paint) -> str:
    """All semaphores."""
    if not outcome.semaphores:
        return "there is no semaphore"
    titles = ("SEMAPHORE", "FREE", "HOLDERS", "")
    return table(titles, [_semaphore_row(sem) for sem in outcome.semaphores], paint)


def _lock_row(lock: LockView, paint: Paint) -> tuple[str, ...]:
    queue = f"{len(lock.waiters)} waiting" if lock.waiters else ""
    return lock.lock, lock.holder, _token(lock), ago(lock.since), _left(lock, paint), queue


def _holder_row(slots: Slots, paint: Paint) -> tuple[str, ...]:
    left, note = _left(slots, paint), as_json(slots.metadata)
    return slots.holder, str(slots.weight), _token(slots), ago(slots.since), left, note


def _semaphore_row(sem: SemaphoreView) -> tuple[str, ...]:
    free = f"{sem.available} of {sem.capacity}"
    queue = f"{len(sem.waiters)} waiting" if sem.waiters else ""
    names = first_names(_weighed(slots.holder, slots.weight) for slots in sem.holders)
    return sem.semaphore, free, names, queue


def _left(grant: LockView | Slots, paint: Paint) -> str:
    if grant.state != "held":
        return state(grant.state, paint)
    return "" if grant.expires_in is None else lasting(grant.expires_in)


def _token(grant: LockView | Slots) -> str:
    return "" if grant.token is None else str(grant.token)


def _weighed(name: str, weight: int) -> str:
    return name if weight == 1 else f"{name} ({weight})"


TEXTS: dict[str, Text] = {
    "LockView": lock_view,
    "LockList": lock_list,
    "SemaphoreView": semaphore_view,
    "SemaphoreList": semaphore_list,
}
"""The text of each view, by the name of its class."""
