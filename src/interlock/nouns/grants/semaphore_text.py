"""Semaphores in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from interlock.runtime.text import (
    ago,
    as_json,
    ended,
    lasting,
    lives,
    never_ends,
    new_holders,
    since,
    state,
    table,
)

if TYPE_CHECKING:
    from interlock.nouns.grants import semaphore as core
    from interlock.nouns.grants.semaphore import SemaphoreView, Slots
    from interlock.nouns.grants.semaphore_noun import SemaphoreList
    from interlock.runtime.text import Paint, Text
    from interlock.runtime.why import Queued

_NAMED = 5


def granted(outcome: core.SlotsGranted, paint: Paint) -> str:
    """They are yours, and what is left for others."""
    word = paint("green", str(outcome.__struct_config__.tag).replace("_", " "))
    slots = f"{outcome.weight} of {outcome.semaphore}"
    left = f"{outcome.available} of {outcome.capacity} left"
    return f"{word} {slots}, token {outcome.token}{lives(outcome.expires_in)}; {left}"


def full(outcome: core.SlotsFull, paint: Paint) -> str:
    """How many are free, who has the others, and how many wait."""
    free = f"{outcome.available} of {outcome.capacity} free"
    held = f", held by {_some(outcome.holders)}" if outcome.holders else ""
    queue = f", {outcome.waiters} waiting" if outcome.waiters else ""
    return f"{paint('yellow', 'full')} {outcome.semaphore}: {free}{held}{queue}"


def deadlock(outcome: core.SlotsDeadlock, paint: Paint) -> str:
    """The cycle of waits."""
    return f"{paint('red', 'deadlock')} {outcome.semaphore}: {never_ends(outcome.cycle)}"


def fenced(outcome: core.SlotsFenced, paint: Paint) -> str:
    """It is over, and what to do."""
    why = ended(outcome.by, outcome.reason)
    return f"{paint('red', 'fenced')} {outcome.semaphore}: that grant is over{why}; acquire again"


def broken(outcome: core.SlotsBroken, paint: Paint) -> str:
    """Whose they were, and who has some next."""
    slots = f"{outcome.weight} slot{'' if outcome.weight == 1 else 's'}"
    whose = f"the grant of {outcome.holder}, {slots}, token {outcome.token}, is over"
    return f"{paint('green', 'broken')} {outcome.semaphore}: {whose}{new_holders(outcome.next)}"


def no_holder(outcome: core.NoHolder, paint: Paint) -> str:
    """The agents that hold some instead."""
    held = f"; held by {', '.join(outcome.holders)}" if outcome.holders else "; none is held"
    return f"{paint('yellow', 'nothing')} {outcome.semaphore}: there is no such grant{held}"


def released(outcome: core.SlotsReleased, paint: Paint) -> str:
    """Who has some next."""
    return f"{paint('green', 'released')} {outcome.semaphore}{new_holders(outcome.next)}"


def not_holder(outcome: core.NotHolder, paint: Paint) -> str:
    """None of it, and how to say which."""
    hint = "give the --token of your own grant, or work in the session that took it"
    return f"{paint('red', 'not holder')} {outcome.semaphore}: no such grant is yours; {hint}"


def resized(outcome: core.Resized, paint: Paint) -> str:
    """How many there were, and are."""
    if not outcome.before:
        return f"{paint('green', 'made')} {outcome.semaphore} with {outcome.capacity} slots"
    span = f"from {outcome.before} to {outcome.capacity}"
    return f"{paint('green', 'resized')} {outcome.semaphore} {span}{new_holders(outcome.next)}"


def removed(outcome: core.Removed, paint: Paint) -> str:
    """Not there any more."""
    return f"{paint('green', 'removed')} {outcome.semaphore}"


def no_semaphore(outcome: core.NoSemaphore, _paint: Paint) -> str:
    """None of that name, and how to make it."""
    return (
        f"there is no semaphore {outcome.semaphore}; 'interlock sem list' shows all,"
        " and the first 'sem acquire' with --capacity makes one"
    )


def shown(sem: SemaphoreView, paint: Paint) -> str:
    """One semaphore: its holders, and its queue in order."""
    lines = [f"{sem.semaphore} has {sem.available} of {sem.capacity} free"]
    if sem.holders:
        titles = ("HOLDER", "SLOTS", "TOKEN", "SINCE", "EXPIRES IN", "")
        lines.append(table(titles, [_holder(slots, paint) for slots in sem.holders], paint))
    if sem.waiters:
        lines.append(f"waiting: {', '.join(map(_queued, sem.waiters))}")
    return "\n".join(lines)


def semaphore_list(outcome: SemaphoreList, paint: Paint) -> str:
    """All semaphores."""
    if not outcome.semaphores:
        return "there is no semaphore"
    titles = ("SEMAPHORE", "FREE", "HOLDERS", "")
    return table(titles, [_row(sem) for sem in outcome.semaphores], paint)


def _row(sem: SemaphoreView) -> tuple[str, ...]:
    free = f"{sem.available} of {sem.capacity}"
    queue = f"{len(sem.waiters)} waiting" if sem.waiters else ""
    return sem.semaphore, free, _some(_weighed(s.holder, s.weight) for s in sem.holders), queue


def _holder(slots: Slots, paint: Paint) -> tuple[str, ...]:
    left = lasting(slots.expires_in) if slots.state == "held" else state(slots.state, paint)
    token = "" if slots.token is None else str(slots.token)
    note = as_json(slots.metadata)
    return slots.holder, str(slots.weight), token, ago(slots.since), left, note


def _queued(waiter: Queued) -> str:
    return f"{_weighed(waiter.agent, waiter.weight)} for {since(waiter.since)}"


def _weighed(name: str, weight: int) -> str:
    return name if weight == 1 else f"{name} ({weight})"


def _some(names: Iterable[str]) -> str:
    """The first of these, and how many more."""
    every = list(names)
    more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return ", ".join(every[:_NAMED]) + more


TEXTS: dict[str, Text] = {
    "SlotsAcquired": granted,
    "AlreadyHeld": granted,
    "Increased": granted,
    "SlotsFull": full,
    "SlotsDeadlock": deadlock,
    "SlotsFenced": fenced,
    "SlotsBroken": broken,
    "NoHolder": no_holder,
    "SlotsReleased": released,
    "NotHolder": not_holder,
    "Resized": resized,
    "Removed": removed,
    "NoSemaphore": no_semaphore,
    "SemaphoreView": shown,
    "SemaphoreList": semaphore_list,
}
"""The text of each outcome, by the name of its class."""
