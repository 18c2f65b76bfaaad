"""Stories on a store: which entries one is told from."""

from __future__ import annotations

from msgspec.structs import replace

from interlock.core import keys
from interlock.core import story as core
from interlock.core.filter import RecordFilter
from interlock.core.history import Happening
from interlock.core.log import Entry, RecordLine
from interlock.drivers import Op
from interlock.nouns.messages.history import PLENTY
from interlock.nouns.tasks import decode
from interlock.runtime.history import search
from interlock.runtime.runner import Runner
from interlock.runtime.steps import Read
from interlock.store import Snapshot

_BEFORE = 400
"""Entries before those that are told: most of what ends in the story began there."""
_TALK = 1000
"""Entries about messages that are heard for the story of an agent, beside the others."""
_WORDED = ("failed", "dead", "cancelled")


class Stories:
    """Explanations of what happened, as generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def tell(self, thing: str, limit: int) -> Op[core.Story]:
        """The last happenings to a thing; none if the record does not know it."""
        base = yield from self._runner.base()
        wanted = yield from _wanted(thing)
        lines = yield from _lines(wanted, limit + _BEFORE)
        found = tuple(core.tell(lines, thing, base))
        if thing.startswith("task/"):
            found = yield from _with_words(found, thing.removeprefix("task/"))
        more = len(found) > limit or len(lines) == limit + _BEFORE
        return core.Story(thing=thing, happenings=found[-limit:], earlier=more)


class _Apart(RecordFilter, frozen=True, kw_only=True):
    """Of the entries that are asked for, those of which there may be plenty, or all others."""

    plenty: bool

    def keeps(self, entry: Entry) -> bool:
        """Whether this entry is asked for."""
        return (entry.verb in PLENTY) == self.plenty and super().keeps(entry)


def _lines(wanted: RecordFilter, limit: int) -> Op[tuple[RecordLine, ...]]:
    """The entries to tell from; what an agent says to others does not drown what it does."""
    if not wanted.by:
        return (yield from search(wanted, limit=limit))
    lines = yield from search(_Apart(by=wanted.by, plenty=False), limit=limit)
    begins = lines[0].revision if len(lines) == limit else 0
    talk = _Apart(by=wanted.by, plenty=True)
    more = yield from search(talk, after=begins, limit=_TALK)
    return tuple(sorted((*lines, *more), key=lambda line: line.revision))


def _with_words(found: tuple[Happening, ...], task: str) -> Op[tuple[Happening, ...]]:
    """The same, with the reason that the task itself still knows."""
    snapshot: Snapshot = yield Read(keys.status(task))
    status = decode.status(snapshot[keys.status(task)])
    last = next((each for each in reversed(found) if each.what in _WORDED), None)
    if last is None or status is None or status.state in ("running", "complete"):
        return found
    said = status.reason if last.what != "cancelled" else status.reason.partition(": ")[2]
    return tuple(replace(each, says=said) if each is last else each for each in found)


def _wanted(thing: str) -> Op[RecordFilter]:
    """The entries to hear: for a session all of its agent, since others know only that name."""
    kind, _, name = thing.partition("/")
    if kind != "agent":
        return RecordFilter(thing=thing)
    if name.startswith("ses_"):
        for line in (yield from search(RecordFilter(by=name), limit=1)):
            own = line.session == name
            return RecordFilter(by=line.agent if own else line.thing.removeprefix("agent/"))
    return RecordFilter(by=name)
