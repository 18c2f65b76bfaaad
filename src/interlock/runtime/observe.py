"""Observing: every event of the record as one value, as the record grows, and counters of them.

An entry of the record names the agent that acted; its events name the agents that were affected.
The names of events are stable.  An observer gets each event by itself, with the facts of its entry.
It follows the log of the record, so it costs the observed agents nothing and misses no commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from interlock import registry
from interlock.clock import Clock
from interlock.core import codec, keys, validate
from interlock.core.decision import Event
from interlock.core.entry import Entry
from interlock.core.thing_names import message_thing
from interlock.errors import BadInput
from interlock.runtime.history import EntriesBackward, open_log, read_entry
from interlock.runtime.metrics import CountedEntry, Metric, NounMetrics
from interlock.runtime.reads import every, looked_up, readable
from interlock.runtime.refusals import all_refused
from interlock.steps import NextChanges, Op
from interlock.store import Change, Item, Resync, Watch

MOST = 200_000
"""Entries that are read for counters, at most."""
SKEW = 60.0
"""Seconds by which the clocks of two writers may differ."""


_COUNTED = codec.Decoder(CountedEntry)


class Observing:
    """The events after a revision, as they are recorded; the caller that opened it closes it."""

    about = "observing"

    def __init__(self, nouns: frozenset[str], clock: Clock) -> None:
        self._nouns = nouns
        self._marks = tuple(f'"{noun}:'.encode() for noun in sorted(nouns))
        self._clock = clock
        self._watch: Watch | None = None

    def open(self, after: int | None) -> Op[None]:
        """Begin after a revision, or from now on."""
        self._watch = yield from open_log(after)

    def take(self, timeout: float | None) -> Op[tuple[Observed, ...]]:
        """The events since the last call; waits up to ``timeout`` for the first one."""
        ends = None if timeout is None else self._clock.monotonic() + timeout
        while True:
            left = None if ends is None else max(0.0, ends - self._clock.monotonic())
            changes = yield NextChanges(self._watch, left)  # type: ignore[arg-type]  # it is open
            found: list[Observed] = []
            for change in changes:
                if isinstance(change, Resync):
                    found = [Observed(event=MISSED, revision=change.revision)]
                elif any(mark in change.value for mark in self._marks):
                    found += self._events_of(change)
            if found or (ends is not None and self._clock.monotonic() >= ends):
                return tuple(found)

    def each(self, taken: tuple[Observed, ...]) -> tuple[Observed, ...]:
        """The values one by one."""
        return taken

    def close(self) -> None:
        """Stop listening."""
        if self._watch is not None:
            self._watch.close()

    def _events_of(self, change: Change) -> Iterable[Observed]:
        """The events of an entry; the event ``missed`` for one that cannot be read."""
        item = Item(change.key, change.value, change.revision, change.revision)
        entry = readable(read_entry, item)
        if entry is None:
            return (Observed(event=MISSED, revision=change.revision),)
        return filter(self._wants, observed(entry, change.revision))

    def _wants(self, each: Observed) -> bool:
        return each.event.partition(":")[0] in self._nouns


def nouns(wanted: Iterable[str] | None) -> frozenset[str]:
    """The nouns to observe, checked; all nouns if ``wanted`` is None."""
    if isinstance(wanted, str):
        raise BadInput(f"'nouns' takes a list of words; put brackets around {wanted!r:.40}")
    known = dict.fromkeys((*NOUNS, *(noun.name for noun in registry.nouns() if noun.events)))
    asked = frozenset(
        known if wanted is None else map(str, validate.require_iterable(wanted, "'nouns'"))
    )
    if unknown := sorted(asked.difference(known)):
        raise BadInput(f"no event is of {unknown[0]!r:.40}; there are: {', '.join(known)}")
    return frozenset("semaphore" if each == "sem" else each for each in asked)


def counters(since: float, most: int = MOST) -> Op[Counters]:
    """The current totals, and counts of the events that were recorded since a moment."""
    registered = yield from _registered()
    pending = yield from _pending()
    counts, partial, metrics = yield from _counts(since, most)
    of_agents = yield from all_refused()
    for name, word in (("rate_limit_violations", "limited"), ("refusals", "")):
        more = sum(each.since(since, word) for each in of_agents.values())
        counts[name] = counts.get(name, 0) + more
    refused = {agent: number for agent, each in of_agents.items() if (number := each.since(since))}
    return Counters(
        since=round(since, 3),
        registered=registered,
        pending_queries=pending,
        refused=dict(sorted(refused.items(), key=lambda each: -each[1])[:REFUSED_AGENTS]),
        partial=partial,
        metrics=metrics,
        **counts,
    )


def _registered() -> Op[int]:
    items = yield from every(keys.AGENTS)
    lives = {item.key: keys.live(keys.id_of(item.key)) for item in items}
    live = yield from looked_up(lives.values())
    return len({keys.agent_of(key) for key, each in lives.items() if live[each] is not None})


def _pending() -> Op[int]:
    items = yield from every(keys.OPEN)
    live = yield from looked_up(keys.live(keys.id_of(item.key)) for item in items)
    return sum(each is not None for each in live.values())


def _counts(since: float, most: int) -> Op[tuple[dict[str, int], bool, tuple[Metric, ...]]]:
    """The counts of the entries since a moment, whether there are more, and what nouns counted."""
    counts: dict[str, int] = {}
    walk, seen, partial = EntriesBackward(), 0, False
    nouns: list[NounMetrics] = [
        registry.load(noun.metrics)() for noun in registry.nouns() if noun.metrics
    ]
    while items := (yield from walk.page()):
        said = [each for item in items if (each := _said(item)) is not None]
        young = [each for each in said if each.at >= since]
        counted((event for each in young for event in each.events), counts)
        for noun in nouns:
            for each in young:
                noun.add(each)
        seen += len(items)
        if said and max(each.at for each in said) < since - SKEW:
            break
        if partial := seen >= most:
            break
    found: list[Metric] = []
    for noun in nouns:
        found += yield from noun.read()
    return counts, partial, tuple(found)


def _said(item: Item) -> CountedEntry | None:
    """The parts of an entry; None if it cannot be read, which ``record verify`` reports."""
    try:
        return _COUNTED.decode(item.value)
    except codec.UNREADABLE:
        return None


NOUNS = ("agent", "alert", "decision", "lock", "message", "query", "sem", "task")
"""What events are about."""
MISSED = "missed"
"""The event that reports lost events: those up to its revision cannot be read any more."""

_SAYS_WHOM = ("message:sent", "query:asked")


class Observed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event that affected ``agent``: ``message:sent``, ``lock:acquired``, ``task:ready``.

    thing   the thing that changed: ``message/ID``, ``lock/NAME``
    on      the type of an alert, or the decision that a question was escalated to
    by      the agent that caused the event, if it is another one
    to      the recipients of a message or a question
    """

    event: str
    revision: int
    at: float = 0.0
    thing: str = ""
    agent: str = ""
    by: str = ""
    to: tuple[str, ...] = ()
    on: str = ""
    verb: str = ""
    session: str = ""
    trace: str = ""


class Counters(Struct, frozen=True, kw_only=True):
    """Totals of the current state, and of the events recorded ``since`` a moment.

    registered             agents with a live session
    pending_queries        questions that can still be answered
    sent, asked            messages and questions
    received, replied      acknowledged messages and answered questions
    timeouts               questions without an answer in time
    handed                 questions that were escalated to a person
    rate_limit_violations  refusals of senders that exceeded their rate limit
    refusals               all refusals: rate limits, a caller whose grant ended or never was its
                           own, a full inbox, a paused sender; counted by the minute, for four
                           hours
    refused                how many of them each agent had, for the fifty agents with the most
    partial                the record has more entries since that moment than were read
    metrics                what nouns count under names of their own: those of requests between
                           swarms, if the home is a swarm
    """

    since: float
    registered: int = 0
    pending_queries: int = 0
    sent: int = 0
    asked: int = 0
    received: int = 0
    replied: int = 0
    timeouts: int = 0
    handed: int = 0
    rate_limit_violations: int = 0
    refusals: int = 0
    refused: dict[str, int] = {}
    partial: bool = False
    metrics: tuple[Metric, ...] = ()


COUNTED = {
    "message:sent": "sent",
    "query:asked": "asked",
    "message:received": "received",
    "query:replied": "replied",
    "query:expired": "timeouts",
    "query:handed": "handed",
    "request:limited": "rate_limit_violations",
}
"""Which events a counter counts."""
REFUSED = ("request:limited", "request:full", "request:not_allowed", "request:unavailable")
"""Refusals that their events count; the others are counted for each agent (``refusals.py``)."""
REFUSED_AGENTS = 50
"""The most agents whose refusals are listed."""


def observed(entry: Entry, revision: int) -> Iterator[Observed]:
    """The events of an entry."""
    for event in entry.events:
        whom = event.name in _SAYS_WHOM
        yield Observed(
            event=event.name,
            revision=revision,
            at=entry.at,
            thing=event.thing or entry.thing,
            agent=event.agent,
            by="" if event.agent == entry.agent else entry.agent,
            to=recipients(entry) if whom else (),
            on=about(entry) if event.name.startswith(("message:", "query:")) else "",
            verb=entry.verb,
            session=entry.session,
            trace=entry.trace,
        )


def counted(events: Iterable[Event], counts: dict[str, int]) -> None:
    """Add events to the counts; one may stand for several."""
    for event in events:
        number = event.details.get("count", 1) if event.details else 1
        if (counter := COUNTED.get(event.name)) is not None:
            counts[counter] = counts.get(counter, 0) + number
        if event.name in REFUSED:
            counts["refusals"] = counts.get("refusals", 0) + number


def recipients(entry: Entry) -> tuple[str, ...]:
    """The recipients: agents with an unread mark, or an ability."""
    found = [keys.agent_of(key) for key in entry.put if key.startswith(keys.UNREAD)]
    able = [keys.topic_of(key) for key in entry.put if key.startswith(keys.TOPICS)]
    return tuple(found or [each for each in able if not entry.thing.startswith("alert/")])


def about(entry: Entry) -> str:
    """The type of an alert, or the decision that a query led to."""
    if entry.thing.startswith("alert/"):
        return entry.thing
    decision = [key for key in entry.put if key.startswith(keys.DECISIONS)]
    return message_thing(decision[0]) if decision and entry.verb == "query.hand" else ""
