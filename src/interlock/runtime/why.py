"""Why something is blocked: the explanation as a value, and the noun that explains a thing.

A noun declares a function for each kind of thing that it can explain, and how ids of that kind
begin.  A plain name is offered to each noun in turn (``why_plain``).

Such a function explains one thing, and names the things that this one depends on (``leads_to``):
the lock that a guard asks about, the pipeline that holds a lock, the agent that was asked.  The
chain is followed here: to its end, each thing once, and a bounded number of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from interlock import registry
from interlock.core import validate
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.client_context import Context

FOLLOWED = 20
"""The most things of a chain that are explained."""
NAMED = 5
"""How many holders are named, each with what it waits for itself."""


class Queued(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent that waits for slots, for display."""

    agent: str
    weight: int
    since: float


class Need(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task that another one needs and that is not complete, ``depth`` needs below the first."""

    own_words = ("says",)

    task: str
    state: str
    says: str
    depth: int = 1


class WhyLink(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A thing that the explained one depends on, and what blocks that."""

    thing: str
    blocked: bool
    because: str
    clear: str
    by: str = ""
    since: float | None = None


class Why(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An explanation for a person, with its parts for a program.

    ``guard`` is the guard that keeps the thing, and ``leaf`` its condition that fails.
    ``leads_to`` are the things that this one depends on; ``chain`` explains those, and the things
    that they depend on, to the end.  ``cycle`` are agents that wait for each other, or things that
    do at their gates, from the first of them to itself.  ``meanwhile`` says what the agents wait
    for that could clear it, or that are to acquire it, and which hosts look.  ``state`` is the
    state of a task, and ``needs`` are the incomplete tasks that block it, direct and indirect.
    ``ended`` are grants that an operator ended within a day, and why.
    """

    own_words = ("ended",)

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
    guard: str = ""
    leaf: str = ""
    leads_to: tuple[str, ...] = ()
    chain: tuple[WhyLink, ...] = ()
    cycle: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is such a thing."""
        return self.exit_status == 0

    @property
    def exit_status(self) -> int:
        """0, or 1 if there is no such thing."""
        return 1 if self.state == "unknown" else 0


def explain(context: Context, thing: str) -> Op[Why]:
    """What blocks a thing, explained by its noun, and what blocks the things that it depends on."""
    first = yield from explain_one(context, thing)
    found = {first.thing: first}
    left = list(first.leads_to)
    more = dict.fromkeys(first.meanwhile)
    while left:
        if (following := left.pop(0)) in found:
            continue
        if len(found) > FOLLOWED:
            more["and so on"] = None
            break
        found[following] = why = yield from explain_one(context, following)
        left = [*why.leads_to, *left]  # depth first: a chain is followed to its end before the next
        more |= dict.fromkeys(why.meanwhile)
    chain = [
        WhyLink(
            thing=name,
            blocked=why.blocked,
            because=why.because,
            clear=why.clear,
            by=_clearer(why, found),
            since=why.since,
        )
        for name, why in found.items()
        if why is not first
    ]
    by = _clearer(first, found)
    return replace(first, by=by, chain=tuple(chain), meanwhile=tuple(more))


def _clearer(why: Why, found: Mapping[str, Why]) -> str:
    """Who can clear it: the agent that it names, or else the one that its chain names first."""
    passed: set[str] = set()
    while not why.by and why.thing not in passed:
        passed.add(why.thing)
        below = [found[each] for each in why.leads_to if each in found]
        why = next((each for each in below if each.blocked), why)
    return why.by


def explain_one(context: Context, thing: str) -> Op[Why]:
    """What blocks a thing, explained by its noun."""
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
