"""A note for a caller that is refused because its own agent is the holder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from interlock.core.outcomes import Fenced
from interlock.faces.cli.command import note


def remind(request: object, outcome: object, you: str) -> None:
    """Write the note, but not for a fenced grant: its caller must not act for the next holder."""
    if you in _holders(outcome) and not isinstance(outcome, Fenced):
        note(f"{you} is you{_remedy(request)}")


def _remedy(request: object) -> str:
    if not hasattr(request, "token"):
        return ": you have it already; continue with the --token of that grant, or release it first"
    if request.token is None:
        return ": give the --token of that grant, or work in a session (agent join)"
    return f", but {request.token} is not the token of that grant; give the one you got with it"


def _holders(outcome: Any) -> Iterator[str]:  # noqa: ANN401 - any outcome, each with its own fields
    """The agents that are the only holder of a refused thing."""
    yield getattr(outcome, "holder", "")
    holders = getattr(outcome, "holders", ())
    yield from holders if len(holders) == 1 else ()
    blocked = getattr(outcome, "blocked", ())
    for part in blocked if isinstance(blocked, tuple) else ():
        yield from _holders(part)
