"""Health: one pass over the store that finds problems and changes nothing.

Interlock repairs most of its own problems, so most findings are about programs: an agent that died,
one that holds a lock for hours, one that waits for hours.  The fleet alone knows how long is too
long, so the limits are arguments.  Each noun finds its own problems; this module finds those of the
store.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import ClassVar, Literal

from msgspec import Struct
from msgspec.structs import replace

from interlock import registry
from interlock.core.outcomes import Listing
from interlock.runtime.integrity import kinds, unreadable
from interlock.runtime.noun import parts
from interlock.runtime.reads import every
from interlock.runtime.runner import Runner
from interlock.runtime.why import NAMED
from interlock.settings import Settings
from interlock.steps import Op, StandingMark
from interlock.store import Item, StoreMark

BOUND = 10_000
"""Items of each kind that a pass reads."""


class HealthCheck:
    """The pass, as a generator for a driver; each noun gets it, and adds its problems."""

    def __init__(
        self, runner: Runner, settings: Settings | None = None, patience: Patience | None = None
    ) -> None:
        self.runner = runner
        self.settings = settings or Settings()
        self.patience = patience or Patience()
        self.partial = False
        """Whether a noun has more than the pass reads."""

    def run(self) -> Op[Health]:
        """Read everything once."""
        if found := (yield from _marked()):  # the rest is as old as that, and nothing can change it
            return Health(healthy=False, problems=tuple(found))
        for part in parts(noun.health for noun in registry.nouns()):
            find: Callable[[HealthCheck], Op[list[Problem]]] = registry.load(part)
            found += yield from find(self)
        found += yield from _damaged()
        return Health(healthy=not found, problems=tuple(found), partial=self.partial)

    def read(self, prefix: str) -> Op[list[Item]]:
        """The items under a prefix, up to the bound."""
        items = yield from every(prefix, most=BOUND + 1)
        self.partial |= len(items) > BOUND
        return items[:BOUND]


def _marked() -> Op[list[Problem]]:
    """That the store accepts no changes."""
    mark: StoreMark | None = yield StandingMark()
    if mark is None:
        return []
    says = f"store: it {mark.words}, and accepts no changes"
    since = mark.at or None
    return [Problem(kind="moved", says=says, remedy=remedy(mark), thing="store", since=since)]


def remedy(mark: StoreMark) -> str:
    """What to do about the mark of a store."""
    place = shlex.quote(mark.place)
    match mark.state:
        case "moved":
            return f"use that one: --store {place}, or INTERLOCK_STORE={place}"
        case "moving" | "filling":
            return "wait, or run the same 'interlock store copy FROM TO' again to continue it"
        case "backup":
            return "restore it with 'interlock store restore', or use the store itself"


def _damaged() -> Op[list[Problem]]:
    """The items that cannot be read."""
    wrong = yield from unreadable([kind for kind in kinds() if not kind.bulk], BOUND)
    said = [str(each).partition("; ")[::2] for each in wrong[:NAMED]]
    if len(wrong) > NAMED:
        said.append((f"{len(wrong) - NAMED} more cannot be read", "run 'interlock doctor'"))
    return [
        Problem(kind="damaged", says=f"store: {fact}", remedy=remedy, thing="store")
        for fact, remedy in said
    ]


class Patience(Struct, frozen=True, kw_only=True):
    """How long is too long, in seconds."""

    dead_after: float = 300.0
    waiting: float = 3600.0
    held: float = 3600.0
    stuck: float = 3600.0


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem that needs attention: the thing, the agent, since when, and what to do.

    ``cycle`` are the agents or things of a deadlock, from the first of them to itself.
    """

    own_words = ("says",)

    kind: Literal[
        "dead",
        "silent",
        "stale",
        "stuck",
        "waiting",
        "deadlock",
        "record",
        "overdue",
        "unable",
        "unattended",
        "blocked",
        "dead_letter",
        "failed",
        "leftover",
        "unfinished",
        "unread",
        "full",
        "paused",
        "undecided",
        "refused",
        "damaged",
        "unsent",
        "unreachable",
        "moved",
    ]
    says: str
    remedy: str = ""
    thing: str = ""
    agent: str = ""
    since: float | None = None
    cycle: tuple[str, ...] = ()


GRAVEST_FIRST = (
    "moved", "damaged", "record", "unreachable", "deadlock", "full", "dead", "stale", "stuck",
    "dead_letter", "failed", "unable", "unattended", "overdue", "refused", "paused", "undecided",
    "silent", "blocked", "waiting", "unsent", "unread", "unfinished", "leftover",
)  # fmt: skip
"""Kinds of problems: first what stops all, then what does not end by itself."""


class Health(Listing[Problem], frozen=True, kw_only=True):
    """All problems, or the gravest and how many ``more`` there are.

    ``partial`` if the store has more than one pass reads.
    """

    exit_statuses: ClassVar[str] = "0 or 1"
    listed = "problems"

    healthy: bool
    problems: tuple[Problem, ...]
    partial: bool = False
    more: int = 0

    def gravest(self) -> Health:
        """The gravest problem alone, the oldest of its kind."""
        order = sorted(
            self.problems,
            key=lambda each: (GRAVEST_FIRST.index(each.kind), each.since or 0.0),
        )
        return replace(self, problems=tuple(order[:1]), more=len(order[1:]))

    def __bool__(self) -> bool:
        """Whether there is no problem."""
        return self.exit_status == 0

    @property
    def exit_status(self) -> int:
        """1 if there is a problem."""
        return 0 if self.healthy else 1
