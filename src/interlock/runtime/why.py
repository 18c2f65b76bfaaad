"""Why something is blocked: the explanation as a value, and the noun that explains a thing.

A noun declares a function for each kind of thing that it can explain, and how ids of that kind
begin.  A plain name is offered to each noun in turn, tasks first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from interlock import registry
from interlock.core import validate
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.client_context import Context

_ABOVE: ContextVar[tuple[str, ...]] = ContextVar("explained", default=())
"""The things whose explanation led to this one: a cycle ends where it meets one of them."""
NAMED = 5
"""How many holders are named, each with what it waits for itself."""


class Queued(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent that waits for slots, for display."""

    agent: str
    weight: int
    since: float


class Need(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task that another one needs and that is not complete, ``depth`` needs below the first."""

    task: str
    state: str
    says: str
    depth: int = 1


class Why(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An explanation for a person, with its parts for a program.

    ``meanwhile`` says what the agents wait for that could clear it, or that are to acquire it.
    ``state`` is the state of a task, and ``needs`` are the incomplete tasks that block it, direct
    and indirect.  ``ended`` are grants that an operator ended within a day, and why.
    """

    exit_statuses: ClassVar[str] = "0 or 1"

    thing: str
    blocked: bool
    because: str
    clear: str
    by: str = ""
    since: float | None = None
    expires_in: float | None = None
    meanwhile: tuple[str, ...] = ()
    waiters: tuple[Queued, ...] = ()
    state: str = ""
    needs: tuple[Need, ...] = ()
    ended: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is such a thing."""
        return self.exit_status == 0

    @property
    def exit_status(self) -> int:
        """0, or 1 if there is no such thing."""
        return 1 if self.state == "unknown" else 0


def explain(context: Context, thing: str) -> Op[Why]:
    """What blocks a thing, explained by its noun."""
    above = _ABOVE.get()
    if thing in above:
        cycle = " -> ".join((*above[above.index(thing) :], thing))
        because = f"they wait for each other: {cycle}"
        return Why(thing=thing, blocked=True, because=because, clear="let one of them go on")
    _ABOVE.set((*above, thing))
    try:
        return (yield from _explain(context, thing))
    finally:
        _ABOVE.set(above)


def explained_further(context: Context, thing: str) -> Op[tuple[str, ...]]:
    """What another explanation leads to, in lines: what blocks that thing, to the end."""
    return lines_of((yield from explain(context, thing)))


def lines_of(why: Why) -> tuple[str, ...]:
    """An explanation as a part of another one."""
    if not why.blocked:
        return (f"{why.thing}: {why.because}",)
    return (f"{why.thing}: {why.because}; to clear it: {why.clear}", *why.meanwhile)


def _explain(context: Context, thing: str) -> Op[Why]:
    kind, _, name = validate.text(thing, "thing", validate.METADATA_LIMIT).partition("/")
    for noun in registry.nouns():
        for own, reference in noun.why.items():
            begins = noun.ids.get(own, "")
            if (name and kind == own) or (begins and kind.startswith(begins)):
                found: Callable[[Context, str], Op[Why]] = registry.load(reference)
                return (yield from found(context, name or kind))
    for noun in registry.nouns():
        if noun.why_plain:
            plain: Callable[[Context, str], Op[Why | None]] = registry.load(noun.why_plain)
            if (why := (yield from plain(context, thing))) is not None:
                return why
    raise AssertionError("no noun explains plain names")
