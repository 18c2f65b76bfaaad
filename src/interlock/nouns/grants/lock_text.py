"""Locks in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.runtime.text import (
    ago,
    as_json,
    ended,
    lasting,
    listed,
    lives,
    never_ends,
    since,
    state,
    table,
)

if TYPE_CHECKING:
    from interlock.nouns.grants import lock as core
    from interlock.nouns.grants.lock import LockView
    from interlock.nouns.grants.lock_noun import LockList
    from interlock.runtime.text import Paint, Text


def granted(outcome: core.LockGranted, paint: Paint) -> str:
    """It is yours."""
    word = paint("green", str(outcome.__struct_config__.tag))
    return f"{word} {outcome.lock}, token {outcome.token}{lives(outcome.expires_in)}"


def reclaimed(outcome: core.Reclaimed, paint: Paint) -> str:
    """It is yours, and who lost it."""
    return f"{granted(outcome, paint)}; its last holder {outcome.reclaimed_from} went stale"


def busy(outcome: core.LockBusy, paint: Paint) -> str:
    """Who has it, and for how long."""
    queue = f", {outcome.waiters} waiting" if outcome.waiters else ""
    held = "reserved for the first waiter"
    if outcome.holder:
        held = f"held by {outcome.holder} for {since(outcome.since)}"
    return f"{paint('yellow', 'busy')} {outcome.lock}: {held}{lives(outcome.expires_in)}{queue}"


def deadlock(outcome: core.LockDeadlock, paint: Paint) -> str:
    """The cycle of waits."""
    return f"{paint('red', 'deadlock')} {outcome.lock}: {never_ends(outcome.cycle)}"


def fenced(outcome: core.LockFenced, paint: Paint) -> str:
    """Who has it by now."""
    holder = f"; {outcome.holder} has it with token {outcome.token}" if outcome.token else ""
    why = ended(outcome.by, outcome.reason)
    return f"{paint('red', 'fenced')} {outcome.lock}: that grant is over{holder}{why}"


def broken(outcome: core.LockBroken, paint: Paint) -> str:
    """Whose it was, and who has it next."""
    next_holder = f"; {outcome.next[0]} has it now" if outcome.next else ""
    whose = f"the grant of {outcome.holder}, token {outcome.token}, is over"
    return f"{paint('green', 'broken')} {outcome.lock}: {whose}{next_holder}"


def released(outcome: core.LockReleased, paint: Paint) -> str:
    """Who has it next."""
    next_holder = f"; {outcome.next} has it now" if outcome.next else ""
    return f"{paint('green', 'released')} {outcome.lock}{next_holder}"


def already_free(outcome: core.AlreadyFree, paint: Paint) -> str:
    """There was nothing to do."""
    return f"{paint('dim', 'already free')} {outcome.lock}"


def not_owner(outcome: core.LockNotOwner, paint: Paint) -> str:
    """Who has it instead, or had it."""
    has = "had it and went stale; whoever acquires it has it" if outcome.stale else "has it"
    return f"{paint('red', 'not owner')} {outcome.lock}: {outcome.holder} {has}"


def shown(lock: LockView, paint: Paint) -> str:
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
        ("waiting", ", ".join(lock.waiters)),
        ("metadata", as_json(lock.metadata)),
    ]
    return listed(facts)


def lock_list(outcome: LockList, paint: Paint) -> str:
    """All locks."""
    if not outcome.locks:
        return "no lock is held"
    titles = ("LOCK", "HOLDER", "TOKEN", "SINCE", "EXPIRES IN", "")
    return table(titles, [_row(lock, paint) for lock in outcome.locks], paint)


def _row(lock: LockView, paint: Paint) -> tuple[str, ...]:
    left = lasting(lock.expires_in) if lock.state == "held" else state(lock.state, paint)
    queue = f"{len(lock.waiters)} waiting" if lock.waiters else ""
    return lock.lock, lock.holder, _token(lock), ago(lock.since), left, queue


def _token(lock: LockView) -> str:
    return "" if lock.token is None else str(lock.token)


TEXTS: dict[str, Text] = {
    "LockAcquired": granted,
    "LockExtended": granted,
    "Reclaimed": reclaimed,
    "LockBusy": busy,
    "LockDeadlock": deadlock,
    "LockFenced": fenced,
    "LockBroken": broken,
    "LockReleased": released,
    "AlreadyFree": already_free,
    "LockNotOwner": not_owner,
    "LockView": shown,
    "LockList": lock_list,
}
"""The text of each outcome, by the name of its class."""
