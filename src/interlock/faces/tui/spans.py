"""Who held what from when to when, and who waited for it, from the entries of the record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from interlock.core.thing_names import split_things
from interlock.core.validate import span

if TYPE_CHECKING:
    from interlock.core.entry import RecordLine

SpanKind: TypeAlias = Literal["held", "waiting"]
_BEGINS = frozenset(("acquired", "claimed"))
_ENDS = frozenset(
    (
        "released", "reclaimed", "broken", "completed", "failed", "dead", "requeued", "cancelled",
        "dropped",
    )
)  # fmt: skip
_NOUNS = frozenset(("lock", "semaphore", "task"))


class TimelineSpan(Struct, frozen=True, kw_only=True):
    """One agent with one thing; ``ends`` is None while it lasts, ``how`` says why it ended."""

    thing: str
    agent: str
    kind: SpanKind
    begins: float
    ends: float | None = None
    how: str = ""

    def words(self, now: float) -> str:
        """It in words, with its times."""
        until = now if self.ends is None else self.ends
        verb = "waited for" if self.kind == "waiting" else "had"
        end = "still" if self.ends is None else f"until {_clock(self.ends)}, {self.how}"
        took = span(max(0.0, until - self.begins))
        return f"{_clock(self.begins)}  {self.agent} {verb} {self.thing} for {took}, {end}"


class Spans:
    """The spans of a record, entry by entry."""

    def __init__(self) -> None:
        self._over: list[TimelineSpan] = []
        self._open: dict[tuple[str, str, SpanKind], TimelineSpan] = {}

    def add(self, entry: RecordLine) -> None:
        """Add an entry; waits have no events, and are known by their verb."""
        verb = entry.verb.rpartition(".")[2]
        for thing in split_things(entry.thing):
            if verb == "wait" and entry.outcome == "waiting":
                self._begin(thing, entry.agent, "waiting", entry.at)
            elif verb == "withdraw":
                self._end(thing, entry.agent, "waiting", entry.at, "gave up")
        for event in entry.events:
            noun, _, what = event.name.partition(":")
            if noun in _NOUNS:
                self._event(noun, what, event.thing or entry.thing, event.agent, entry.at)

    def lanes(self, since: float, until: float) -> dict[tuple[str, SpanKind], list[TimelineSpan]]:
        """The spans that overlap a window: by thing, waits below what is held."""
        found: dict[tuple[str, SpanKind], list[TimelineSpan]] = {}
        every = [*self._over, *self._open.values()]
        for each in sorted(every, key=lambda one: (one.thing, one.kind, one.begins)):
            if each.begins <= until and (each.ends is None or each.ends >= since):
                found.setdefault((each.thing, each.kind), []).append(each)
        return found

    def _event(self, noun: str, what: str, thing: str, agent: str, at: float) -> None:
        if what in _BEGINS:
            self._end(thing, agent, "waiting", at, "got it")
            if noun != "semaphore":
                self._end_all(thing, at, "taken over")
            self._begin(thing, agent, "held", at)
        elif what in _ENDS and not self._end(thing, agent, "held", at, what) and noun == "task":
            self._end_all(thing, at, what)

    def _end_all(self, thing: str, at: float, how: str) -> None:
        for own, agent, kind in list(self._open):
            if own == thing and kind == "held":
                self._end(thing, agent, kind, at, how)

    def _begin(self, thing: str, agent: str, kind: SpanKind, at: float) -> None:
        self._open[thing, agent, kind] = TimelineSpan(
            thing=thing, agent=agent, kind=kind, begins=at
        )

    def _end(self, thing: str, agent: str, kind: SpanKind, at: float, how: str) -> bool:
        found = self._open.pop((thing, agent, kind), None)
        if found is not None:
            self._over.append(replace(found, ends=at, how=how))
        return found is not None


def bar(spans: Sequence[TimelineSpan], since: float, until: float, width: int) -> str:
    """The spans of one lane as a line, each with the name of its agent as far as it fits.

    A span begins with a cap, so that two of them in a row are two; dots are free time.
    """
    line = ["·"] * width
    for each in spans:
        first = _column(each.begins, since, until, width)
        last = max(first, _column(each.ends or until, since, until, width))
        fill, cap = ("┄", "┆") if each.kind == "waiting" else ("━", "┃")
        name = _plain(each.agent)[: max(0, last - first - 1)]
        text = cap + name + fill * (last - first - len(name))
        line[first : last + 1] = text[: last + 1 - first]
    return "".join(line)


def _column(moment: float, since: float, until: float, width: int) -> int:
    part = (moment - since) / max(until - since, 0.001)
    return min(width - 1, max(0, int(part * width)))


def _plain(name: str) -> str:
    """Characters of one column each, so that bars stay aligned."""
    return "".join(each if " " < each < "\x7f" else "?" for each in name)


def _clock(moment: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(moment))
