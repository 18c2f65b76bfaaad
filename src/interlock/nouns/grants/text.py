"""Outcomes of locks, semaphores, and several at once, in words; ``views_text.py`` has the lists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from interlock.runtime.text import (
    ended,
    guard_blocked,
    joined,
    lives,
    never_ends,
    new_holders,
    no_guard,
    reason_lines,
    renderer,
    since,
)

if TYPE_CHECKING:
    from interlock.core import outcomes
    from interlock.nouns.grants import lock, semaphore, several
    from interlock.runtime.text import Paint, Text

_NAMED = 5


def lock_granted(outcome: lock.LockGranted, paint: Paint) -> str:
    """It is yours."""
    word = paint("green", str(outcome.__struct_config__.tag))
    return f"{word} {outcome.lock}, token {outcome.token}{lives(outcome.expires_in)}"


def reclaimed(outcome: lock.Reclaimed, paint: Paint) -> str:
    """It is yours, and who lost it."""
    return f"{lock_granted(outcome, paint)}; its last holder {outcome.reclaimed_from} went stale"


def slots_granted(outcome: semaphore.SlotsGranted, paint: Paint) -> str:
    """They are yours, and what is left for others."""
    word = paint("green", str(outcome.__struct_config__.tag).replace("_", " "))
    slots = f"{outcome.weight} of {outcome.semaphore}"
    left = f"{outcome.available} of {outcome.capacity} left"
    return f"{word} {slots}, token {outcome.token}{lives(outcome.expires_in)}; {left}"


def several_acquired(outcome: several.SeveralAcquired, paint: Paint) -> str:
    """All of it is yours."""
    token = f"token {outcome.token}"
    return f"{paint('green', 'acquired')} {_what(outcome)}, {token}{lives(outcome.expires_in)}"


def busy(outcome: lock.LockBusy, paint: Paint) -> str:
    """Who has it, and for how long."""
    queue = f", {outcome.waiters} waiting" if outcome.waiters else ""
    held = "reserved for the first waiter"
    if outcome.holder:
        held = f"held by {outcome.holder} for {since(outcome.since)}"
    return f"{paint('yellow', 'busy')} {outcome.lock}: {held}{lives(outcome.expires_in)}{queue}"


def full(outcome: semaphore.SlotsFull, paint: Paint) -> str:
    """How many are free, who has the others, and how many wait."""
    free = f"{outcome.available} of {outcome.capacity} free"
    held = f", held by {first_names(outcome.holders)}" if outcome.holders else ""
    queue = f", {outcome.waiters} waiting" if outcome.waiters else ""
    return f"{paint('yellow', 'full')} {outcome.semaphore}: {free}{held}{queue}"


def several_busy(outcome: several.SeveralBusy, paint: Paint) -> str:
    """What of it cannot be had, a line for each."""
    word = paint("yellow", "busy")
    lines = [f"{word}, so you have none of {joined(outcome.things)}"]
    lines += [f"  {renderer(type(each))(each, paint)}" for each in outcome.blocked]
    return "\n".join(lines)


def deadlock(outcome: lock.LockDeadlock | semaphore.SlotsDeadlock, paint: Paint) -> str:
    """The cycle of waits."""
    return f"{paint('red', 'deadlock')} {_what(outcome)}: {never_ends(outcome.cycle)}"


def several_deadlock(outcome: several.SeveralDeadlock, paint: Paint) -> str:
    """The cycle of waits."""
    return f"{paint('red', 'deadlock')} {joined(outcome.things)}: {never_ends(outcome.cycle)}"


def lock_fenced(outcome: lock.LockFenced, paint: Paint) -> str:
    """Who has it by now."""
    holder = f"; {outcome.holder} has it with token {outcome.token}" if outcome.token else ""
    head = f"{paint('red', 'fenced')} {outcome.lock}: that grant is over{holder}"
    return f"{head}{ended(outcome.by)}{reason_lines(outcome.reason, paint)}"


def fenced(outcome: semaphore.SlotsFenced | several.SeveralFenced, paint: Paint) -> str:
    """It is over, and what to do."""
    head = f"{paint('red', 'fenced')} {_what(outcome)}: that grant is over{ended(outcome.by)}"
    return f"{head}; acquire again{reason_lines(outcome.reason, paint)}"


def given_fenced(outcome: outcomes.GivenFenced, paint: Paint) -> str:
    """A late holder did nothing."""
    word, thing = paint("red", "fenced"), outcome.given
    return f"{word} {thing}: that grant is over, so nothing was done; acquire {thing} again"


def lock_released(outcome: lock.LockReleased, paint: Paint) -> str:
    """Who has it next."""
    next_holder = f"; {outcome.next} has it now" if outcome.next else ""
    return f"{paint('green', 'released')} {outcome.lock}{next_holder}"


def released(outcome: semaphore.SlotsReleased | several.SeveralReleased, paint: Paint) -> str:
    """The released things, and their next holders."""
    return f"{paint('green', 'released')} {_what(outcome)}{new_holders(outcome.next)}"


def already_free(outcome: lock.AlreadyFree, paint: Paint) -> str:
    """There was nothing to do."""
    return f"{paint('dim', 'already free')} {outcome.lock}"


def lock_not_owner(outcome: lock.LockNotOwner, paint: Paint) -> str:
    """Who has it instead, or had it."""
    has = "had it and went stale; the next caller can acquire it" if outcome.stale else "has it"
    return f"{paint('red', 'not owner')} {outcome.lock}: {outcome.holder} {has}"


def not_holder(outcome: semaphore.NotHolder, paint: Paint) -> str:
    """None of it, and how to say which."""
    hint = "give the --token of your own grant, or work in the session that took it"
    return f"{paint('red', 'not holder')} {outcome.semaphore}: no such grant is yours; {hint}"


def several_not_owner(outcome: several.SeveralNotOwner, paint: Paint) -> str:
    """None of it, and how to say which."""
    hint = "give the --token of your grant, or work in the session that took it"
    return f"{paint('red', 'not owner')} {_what(outcome)}: no such grant is yours; {hint}"


def lock_broken(outcome: lock.LockBroken, paint: Paint) -> str:
    """Whose it was, and who has it next."""
    next_holder = f"; {outcome.next[0]} has it now" if outcome.next else ""
    whose = f"the grant of {outcome.holder}, token {outcome.token}, is over"
    return f"{paint('green', 'broken')} {outcome.lock}: {whose}{next_holder}"


def slots_broken(outcome: semaphore.SlotsBroken, paint: Paint) -> str:
    """Whose they were, and who has some next."""
    slots = f"{outcome.weight} slot{'' if outcome.weight == 1 else 's'}"
    whose = f"the grant of {outcome.holder}, {slots}, token {outcome.token}, is over"
    return f"{paint('green', 'broken')} {outcome.semaphore}: {whose}{new_holders(outcome.next)}"


def no_holder(outcome: semaphore.NoHolder, paint: Paint) -> str:
    """The agents that hold some instead."""
    held = f"; held by {joined(outcome.holders)}" if outcome.holders else "; none is held"
    return f"{paint('yellow', 'nothing')} {outcome.semaphore}: there is no such grant{held}"


def resized(outcome: semaphore.Resized, paint: Paint) -> str:
    """How many there were, and are."""
    if not outcome.before:
        return f"{paint('green', 'made')} {outcome.semaphore} with {outcome.capacity} slots"
    span = f"from {outcome.before} to {outcome.capacity}"
    return f"{paint('green', 'resized')} {outcome.semaphore} {span}{new_holders(outcome.next)}"


def removed(outcome: semaphore.Removed, paint: Paint) -> str:
    """Not there any more."""
    return f"{paint('green', 'removed')} {outcome.semaphore}"


def no_semaphore(outcome: semaphore.NoSemaphore, _paint: Paint) -> str:
    """None of that name, and how to make it."""
    return (
        f"there is no semaphore {outcome.semaphore}; 'interlock sem list' shows all,"
        " and the first 'sem acquire' with --capacity makes one"
    )


def first_names(names: Iterable[str]) -> str:
    """The first of these, and how many more."""
    every = list(names)
    more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return joined(every[:_NAMED]) + more


def _what(outcome: object) -> str:
    """The lock, the semaphore, or the things of an outcome."""
    name = getattr(outcome, "lock", "") or getattr(outcome, "semaphore", "")
    return name or joined(getattr(outcome, "things", ()), " and ")


TEXTS: dict[str, Text] = {
    "LockAcquired": lock_granted,
    "LockExtended": lock_granted,
    "Reclaimed": reclaimed,
    "SlotsAcquired": slots_granted,
    "AlreadyHeld": slots_granted,
    "Increased": slots_granted,
    "SeveralAcquired": several_acquired,
    "LockBusy": busy,
    "SlotsFull": full,
    "SeveralBusy": several_busy,
    "LockDeadlock": deadlock,
    "SlotsDeadlock": deadlock,
    "SeveralDeadlock": several_deadlock,
    "LockFenced": lock_fenced,
    "SlotsFenced": fenced,
    "SeveralFenced": fenced,
    "GivenFenced": given_fenced,
    "GuardBlocked": guard_blocked,
    "NoGuard": no_guard,
    "LockReleased": lock_released,
    "SlotsReleased": released,
    "SeveralReleased": released,
    "AlreadyFree": already_free,
    "LockNotOwner": lock_not_owner,
    "NotHolder": not_holder,
    "SeveralNotOwner": several_not_owner,
    "LockBroken": lock_broken,
    "SlotsBroken": slots_broken,
    "NoHolder": no_holder,
    "Resized": resized,
    "Removed": removed,
    "NoSemaphore": no_semaphore,
}
"""The text of each outcome, by the name of its class."""
