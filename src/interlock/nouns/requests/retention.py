"""Retention: what is deleted of requests, and when; in passes that are bounded.

    received, marks against replay   after the deadline: nothing of them can arrive any more
    marks of results                 once the result is not on the bus, with the request; a week
                                     after the deadline of the result if the bus does not return
    requests, with their names       after the deadline, and an hour after they ended
    findings                         an hour after their request ended
    quarantine                       after a week
    rates                            a day after the last request: the longest window is over

Each with twice the time that clocks may differ by, and by the earlier of two clocks
(``retention_clock``): a client whose clock is ahead must not delete the marks of others, or a
message would be taken in twice.

Keys are not ordered by these times: a peer chooses deadlines, and a request may stay open for days.
So a pass walks whole folders, page by page.  ``maintain`` walks all and deletes a bounded number in
each folder; a process that tends its swarm walks one page every few seconds, and continues there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from interlock.core import keys
from interlock.nouns.requests.acknowledgements import decode_mark
from interlock.nouns.requests.exchange import (
    decode_name,
    decode_quarantined,
    decode_rate,
    decode_received,
    decode_request,
    decode_seen,
)
from interlock.nouns.requests.request import FINDING_KEPT
from interlock.nouns.swarms.envelope import SKEW
from interlock.runtime.identity import Actor
from interlock.runtime.reads import MOST_PAGE, Pages, looked_up, readable
from interlock.runtime.retention import delete_items
from interlock.runtime.retention_clock import earlier_time
from interlock.runtime.runner import Runner
from interlock.steps import Op
from interlock.store import Item

QUARANTINE_KEPT = 7 * 86400.0
LONGEST_WINDOW = 86400.0
NAME_KEPT = 3600.0
"""Seconds for which a name stays without its request, which may be made by the same commit."""
MARGIN = 2 * SKEW
ABANDONED = 7 * 86400.0
"""Seconds after its deadline for which a result is looked for on a bus that does not answer."""
BOUND = 10_000
"""Items of one folder that one pass deletes at most."""
SMALL = 500
"""Items that a small pass reads."""
EVERY = 30.0
"""Seconds between two small passes of one process, and before the first."""

Expired: TypeAlias = Callable[[Sequence[Item], float], Op[list[Item]]]
"""The items of a page that were kept for long enough, with those that go with them."""


class RequestRetention:
    """Deletes what is old in one home; its methods are generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._due = runner.clock.monotonic() + EVERY
        self._folder = -1
        self._after = ""
        """Where a small pass continues: many processes begin in different folders."""

    def run(self, actor: Actor, bound: int = BOUND) -> Op[int]:
        """Make a whole pass; how many folders still have something that is old."""
        now = yield from earlier_time(self._runner)
        left = 0
        for folder, expired in FOLDERS.items():
            left += yield from self._walk(actor, folder, expired, now, bound)
        return left

    def some(self, actor: Actor) -> Op[int]:
        """Make a small pass if it is due, where the last one ended; how much it deleted."""
        moment = self._runner.clock.monotonic()
        if moment < self._due:
            return 0
        self._due = moment + self._runner.capabilities.allow(EVERY)
        now = yield from earlier_time(self._runner)
        if self._folder < 0:
            self._folder = self._runner.random_below(len(FOLDERS))
        folder, expired = tuple(FOLDERS.items())[self._folder]
        pages = Pages(folder, self._after, SMALL)
        items = yield from pages.read(SMALL)
        done = yield from self._delete(actor, (yield from expired(items, now)))
        self._after = "" if pages.finished else pages.after
        if pages.finished:
            self._folder = (self._folder + 1) % len(FOLDERS)
        return done

    def _walk(
        self, actor: Actor, folder: str, expired: Expired, now: float, bound: int
    ) -> Op[bool]:
        """Walk a folder and delete what is old, up to a bound; whether something is left."""
        pages, done = Pages(folder, limit=MOST_PAGE), 0
        while not pages.finished:
            old = yield from expired((yield from pages.read()), now)
            if old and done >= bound:
                return True
            done += yield from self._delete(actor, old)
        return False

    def _delete(self, actor: Actor, old: Sequence[Item]) -> Op[int]:
        read = {item.key: item.revision for item in old}

        def unchanged(item: Item) -> bool:
            return item.revision == read[item.key]

        return (
            yield from delete_items(
                self._runner, actor, tuple(read), unchanged, verb="request.forget"
            )
        )


# What is old.


def _seen(items: Sequence[Item], now: float) -> Op[list[Item]]:
    yield from ()
    return [
        item
        for item in items
        if (mark := readable(decode_seen, item)) and mark.until + MARGIN < now
    ]


def _received(items: Sequence[Item], now: float) -> Op[list[Item]]:
    """Requests of other swarms whose deadline is over, with their marks.

    The mark of a result that may be on the bus stays until that is deleted there.
    """
    old: list[Item] = []
    marks: list[str] = []
    for item in items:
        received = readable(decode_received, item)
        if received is None or received.head.deadline / 1000 + MARGIN >= now:
            continue
        old.append(item)
        mark = keys.unanswered if received.answered is None else keys.unacknowledged
        marks.append(mark(received.head.from_swarm, received.head.request_id))
    return old + [item for item in (yield from _there(marks)) if not _may_be_on_bus(item, now)]


def _may_be_on_bus(item: Item, now: float) -> bool:
    """Whether an item is the mark of a result that its asker or its sender has to delete."""
    if not item.key.startswith(keys.UNACKNOWLEDGED):
        return False
    mark = readable(decode_mark, item)
    return mark is not None and not mark.refused and mark.until + ABANDONED >= now


def _unacknowledged(items: Sequence[Item], now: float) -> Op[list[Item]]:
    """Marks of results that are off the bus, and whose request is deleted."""
    over = [item for item in items if not _may_be_on_bus(item, now)]
    requests = {
        item.key: keys.received(keys.agent_of(item.key), keys.id_of(item.key)) for item in over
    }
    there = yield from looked_up(requests.values())
    return [item for item in over if there[requests[item.key]] is None]


def _requests(items: Sequence[Item], now: float) -> Op[list[Item]]:
    """Findings that were kept for an hour, and requests that nothing can arrive for any more."""
    old: list[Item] = []
    over: list[str] = []
    for item in items:
        request = readable(decode_request, item)
        if request is None or request.ended is None or request.ended + FINDING_KEPT >= now:
            continue
        over.append(keys.finding(request.id))
        if request.deadline + MARGIN < now:
            old.append(item)
    return old + (yield from _there(over))


def _names(items: Sequence[Item], now: float) -> Op[list[Item]]:
    """Names whose request is deleted."""
    named = [
        (item, keys.request(each.request))
        for item in items
        if (each := readable(decode_name, item)) and each.at + NAME_KEPT < now
    ]
    there = yield from looked_up(key for _, key in named)
    return [item for item, key in named if there[key] is None]


def _quarantined(items: Sequence[Item], now: float) -> Op[list[Item]]:
    old: list[Item] = []
    contents: list[str] = []
    for item in items:
        kept = readable(decode_quarantined, item)
        if kept is not None and kept.at + QUARANTINE_KEPT < now:
            old.append(item)
            contents += [keys.quarantine_content(kept.id)] if kept.content else []
    return old + (yield from _there(contents))


def _rates(items: Sequence[Item], now: float) -> Op[list[Item]]:
    yield from ()
    old: list[Item] = []
    for item in items:
        log = readable(decode_rate, item)
        if log is not None and max(log.floor, *log.times, 0) / 1000 + LONGEST_WINDOW < now:
            old.append(item)
    return old


def _there(wanted: Sequence[str]) -> Op[list[Item]]:
    found = yield from looked_up(wanted)
    return [item for item in found.values() if item is not None]


FOLDERS: dict[str, Expired] = {
    keys.SEEN: _seen,
    keys.RECEIVED: _received,
    keys.UNACKNOWLEDGED: _unacknowledged,
    keys.REQUESTS: _requests,
    keys.REQUEST_NAMES: _names,
    keys.QUARANTINE: _quarantined,
    keys.REQUEST_RATES: _rates,
}
