"""Several things at once, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.runtime.text import ended, lives, never_ends, new_holders, renderer

if TYPE_CHECKING:
    from interlock.core import outcomes
    from interlock.nouns.grants import several as core
    from interlock.runtime.text import Paint, Text


def acquired(outcome: core.SeveralAcquired, paint: Paint) -> str:
    """All of it is yours."""
    things = " and ".join(outcome.things)
    token = f"token {outcome.token}"
    return f"{paint('green', 'acquired')} {things}, {token}{lives(outcome.expires_in)}"


def busy(outcome: core.SeveralBusy, paint: Paint) -> str:
    """What of it cannot be had, a line for each."""
    word = paint("yellow", "busy")
    lines = [f"{word}, so you have none of {', '.join(outcome.things)}"]
    lines += [f"  {renderer(type(each))(each, paint)}" for each in outcome.blocked]
    return "\n".join(lines)


def deadlock(outcome: core.SeveralDeadlock, paint: Paint) -> str:
    """The cycle of waits."""
    return f"{paint('red', 'deadlock')} {', '.join(outcome.things)}: {never_ends(outcome.cycle)}"


def fenced(outcome: core.SeveralFenced, paint: Paint) -> str:
    """It is over, and what to do."""
    things = " and ".join(outcome.things)
    why = ended(outcome.by, outcome.reason)
    return f"{paint('red', 'fenced')} {things}: that grant is over{why}; acquire again"


def released(outcome: core.SeveralReleased, paint: Paint) -> str:
    """The released things, and their next holders."""
    return f"{paint('green', 'released')} {' and '.join(outcome.things)}{new_holders(outcome.next)}"


def not_owner(outcome: core.SeveralNotOwner, paint: Paint) -> str:
    """None of it, and how to say which."""
    hint = "give the --token of your grant, or work in the session that took it"
    things = " and ".join(outcome.things)
    return f"{paint('red', 'not owner')} {things}: no such grant is yours; {hint}"


def given_fenced(outcome: outcomes.GivenFenced, paint: Paint) -> str:
    """A late holder did nothing."""
    word, thing = paint("red", "fenced"), outcome.given
    return f"{word} {thing}: that grant is over, so nothing was done; acquire {thing} again"


TEXTS: dict[str, Text] = {
    "SeveralAcquired": acquired,
    "SeveralBusy": busy,
    "SeveralDeadlock": deadlock,
    "SeveralFenced": fenced,
    "SeveralReleased": released,
    "SeveralNotOwner": not_owner,
    "GivenFenced": given_fenced,
}
"""The text of each outcome, by the name of its class."""
