"""Stories on a store: which entries one is told from."""

from __future__ import annotations

from interlock.core import story as core
from interlock.core.filter import Filter
from interlock.driving import Op
from interlock.services.history import search
from interlock.services.runner import Runner

_BEFORE = 400
"""Entries before those that are told: most of what ends in the story began there."""


class Stories:
    """Explanations of what happened, as generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def tell(self, thing: str, limit: int) -> Op[core.Story]:
        """The last happenings to a thing; none if the record does not know it."""
        base = yield from self._runner.base()
        wanted = yield from _wanted(thing)
        lines = yield from search(wanted, limit=limit + _BEFORE)
        found = tuple(core.tell(lines, thing, base))
        more = len(found) > limit or len(lines) == limit + _BEFORE
        return core.Story(thing=thing, happenings=found[-limit:], earlier=more)


def _wanted(thing: str) -> Op[Filter]:
    """The entries to hear: for a session all of its agent, since others know only that name."""
    kind, _, name = thing.partition("/")
    if kind != "agent":
        return Filter(thing=thing)
    if name.startswith("ses_"):
        for line in (yield from search(Filter(agent=name), limit=1)):
            own = line.session == name
            return Filter(agent=line.agent if own else line.thing.removeprefix("agent/"))
    return Filter(agent=name)
