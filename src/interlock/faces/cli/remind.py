"""Whoever is refused what it has itself, under the same name, is told how to be the same one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from interlock.core.outcomes import Fenced
from interlock.faces.cli.command import note


def remind(request: object, outcome: object, you: str) -> None:
    """Say it, if that is why; whose grant is over must not speak for the next one."""
    if you in _holders(outcome) and not isinstance(outcome, Fenced):
        note(f"{you} is you{_remedy(request)}")


def _remedy(request: object) -> str:
    if not hasattr(request, "token"):
        return ": you have it already; go on with the --token of that grant, or give it back first"
    if request.token is None:
        return ": give the --token of that grant, or work in a session (agent join)"
    return f", but {request.token} is not the token of that grant; give the one you got with it"


def _holders(outcome: Any) -> Iterator[str]:  # noqa: ANN401 - any outcome, each with its own fields
    """Who alone has what is refused."""
    yield getattr(outcome, "holder", "")
    holders = getattr(outcome, "holders", ())
    yield from holders if len(holders) == 1 else ()
    blocked = getattr(outcome, "blocked", ())
    for part in blocked if isinstance(blocked, tuple) else ():
        yield from _holders(part)
