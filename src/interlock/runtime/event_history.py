"""The history of a thing: which entries it is read from, and what each noun makes of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec.structs import replace

from interlock import registry
from interlock.core.filter import RecordFilter
from interlock.core.history import HistoryEvent, NounHistory, Story
from interlock.core.log import Entry, RecordLine
from interlock.drivers import Op
from interlock.runtime.history import search
from interlock.runtime.runner import Runner

_BEFORE = 400
"""Entries read before those that are shown: most of what ends in the history began there."""
_FREQUENT = 1000
"""Entries with frequent verbs that are read for the history of an agent, beside the others."""


def history_of(runner: Runner, thing: str, limit: int) -> Op[Story]:
    """The last history events of a thing; none if the record does not know it."""
    base = yield from runner.base()
    wanted = yield from _wanted(thing)
    lines = yield from _lines(wanted, limit + _BEFORE)
    found = tuple(history_events(lines, thing, base))
    kind, _, name = thing.partition("/")
    for noun in registry.nouns():
        if noun.name == kind and noun.history_details:
            details: Callable[[tuple[HistoryEvent, ...], str], Op[tuple[HistoryEvent, ...]]]
            details = registry.load(noun.history_details)
            found = yield from details(found, name)
    more = len(found) > limit or len(lines) == limit + _BEFORE
    return Story(thing=thing, happenings=found[-limit:], earlier=more)


def history_events(lines: Iterable[RecordLine], thing: str, base: int) -> Iterator[HistoryEvent]:
    """The history events of a thing: ``lock/merge``, ``task/t1``, ``agent/NAME``."""
    kind, _, name = thing.partition("/")
    nouns = _declared()
    found = _read(lines, [noun(base, kind) for noun in nouns], NounHistory(base, kind))
    if kind != "agent":
        yield from (each for each in found if each.thing == thing)
        return
    counted = {key: word for noun in nouns for key, word in noun.counted.items()}
    own = (each for each in found if name in (each.agent, each.session))
    yield from _merge_counted(own, counted)


def _declared() -> list[type[NounHistory]]:
    return [registry.load(noun.history) for noun in registry.nouns() if noun.history]


def _read(
    lines: Iterable[RecordLine], nouns: Iterable[NounHistory], other: NounHistory
) -> Iterator[HistoryEvent]:
    by_word = {word: noun for noun in nouns for word in noun.words}
    for line in lines:
        yield from by_word.get(line.verb.rpartition(".")[0], other).events(line)


def _merge_counted(
    events: Iterable[HistoryEvent], counted: Mapping[tuple[str, str], str]
) -> Iterator[HistoryEvent]:
    """Merge events that are counted, between two others, into one each."""
    run: dict[tuple[str, str], list[HistoryEvent]] = {}
    for each in events:
        key = (each.thing.partition("/")[0], each.what)
        if key in counted:
            run.setdefault(key, []).append(each)
            continue
        yield from _merged(run, counted)
        run = {}
        yield each
    yield from _merged(run, counted)


def _merged(
    run: dict[tuple[str, str], list[HistoryEvent]], counted: Mapping[tuple[str, str], str]
) -> list[HistoryEvent]:
    found = [
        some[0] if len(some) == 1 else _together(some, counted[key]) for key, some in run.items()
    ]
    return sorted(found, key=lambda each: each.revision)


def _together(some: list[HistoryEvent], of: str) -> HistoryEvent:
    last = some[-1]
    return replace(last, thing="", went_to=(), waited=None, trace="", on=of, count=len(some))


class _ByFrequency(RecordFilter, frozen=True, kw_only=True):
    """Of the wanted entries, those with these verbs, or all others."""

    verbs: frozenset[str]
    frequent: bool

    def keeps(self, entry: Entry) -> bool:
        """Whether this entry is wanted."""
        return (entry.verb in self.verbs) == self.frequent and super().keeps(entry)


def _lines(wanted: RecordFilter, limit: int) -> Op[tuple[RecordLine, ...]]:
    """The entries to read; the frequent ones of an agent do not crowd the others out."""
    if not wanted.by:
        return (yield from search(wanted, limit=limit))
    verbs = frozenset[str]().union(*(noun.frequent for noun in _declared()))
    rare = _ByFrequency(by=wanted.by, verbs=verbs, frequent=False)
    lines = yield from search(rare, limit=limit)
    begins = lines[0].revision if len(lines) == limit else 0
    frequent = _ByFrequency(by=wanted.by, verbs=verbs, frequent=True)
    more = yield from search(frequent, after=begins, limit=_FREQUENT)
    return tuple(sorted((*lines, *more), key=lambda line: line.revision))


def _wanted(thing: str) -> Op[RecordFilter]:
    """The entries to read: of a session all of its agent, since others know only that name."""
    kind, _, name = thing.partition("/")
    if kind != "agent":
        return RecordFilter(thing=thing)
    if name.startswith("ses_"):
        for line in (yield from search(RecordFilter(by=name), limit=1)):
            own = line.session == name
            return RecordFilter(by=line.agent if own else line.thing.removeprefix("agent/"))
    return RecordFilter(by=name)
