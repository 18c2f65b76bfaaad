"""Housekeeping of requests: what a pass of ``maintain`` deletes in a home that is a swarm.

The steps that need the bus are ``tend``, which ``maintain`` calls after the pass.
The keys of agents that were not used for a day are deleted, too.
Findings are deleted an hour after their request ended.  Requests, received ones and marks against
replay are deleted after the deadline, with the time that clocks may differ by: nothing of them can
arrive any more.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from interlock.core import keys
from interlock.errors import BadInput, NotAllowed
from interlock.nouns.requests.exchange import (
    decode_name,
    decode_quarantined,
    decode_received,
    decode_request,
    decode_seen,
)
from interlock.nouns.requests.request import FINDING_KEPT
from interlock.nouns.swarms.agent_keys import is_unused
from interlock.nouns.swarms.envelope import SKEW
from interlock.nouns.swarms.swarm import decode_agent_keys
from interlock.runtime.housekeeping import HousekeepingPart
from interlock.runtime.reads import every, looked_up, readable
from interlock.steps import Op, Read
from interlock.store import Item

if TYPE_CHECKING:
    from interlock.client_context import Context

QUARANTINE_KEPT = 7 * 86400.0
_MARGIN = 2 * SKEW


class RequestHousekeepingPart(HousekeepingPart):
    """The part of a pass of ``maintain`` that is about requests."""

    def expired(self, now: float) -> Op[list[Item]]:
        """The items that were kept for long enough."""
        if (yield Read(keys.OWN_SWARM))[keys.OWN_SWARM] is None:
            return []
        old = yield from self._requests(now)
        old += yield from self._received(now)
        for item in (yield from every(keys.AGENT_KEYS, most=self.work.bound)):
            stored = readable(decode_agent_keys, item)
            if stored is not None and is_unused(stored, now):
                old.append(item)
        for item in (yield from every(keys.SEEN, most=self.work.bound)):
            mark = readable(decode_seen, item)
            if mark is not None and mark.until + _MARGIN < now:
                old.append(item)
        for item in (yield from every(keys.QUARANTINE, most=self.work.bound)):
            kept = readable(decode_quarantined, item)
            if kept is not None and kept.at + QUARANTINE_KEPT < now:
                old.append(item)
                content = keys.quarantine_content(kept.id)
                if kept.content and (found_item := (yield Read(content))[content]) is not None:
                    old.append(found_item)
        return old

    def _received(self, now: float) -> Op[list[Item]]:
        """Requests of other swarms whose deadline is over, with the marks of unanswered ones."""
        old: list[Item] = []
        marks: list[str] = []
        for item in (yield from every(keys.RECEIVED, most=self.work.bound)):
            received = readable(decode_received, item)
            if received is None or received.head.deadline / 1000 + _MARGIN >= now:
                continue
            old.append(item)
            if received.answered is None:
                marks.append(keys.unanswered(received.head.from_swarm, received.head.request_id))
        found = yield from looked_up(marks)
        return old + [mark for mark in found.values() if mark is not None]

    def _requests(self, now: float) -> Op[list[Item]]:
        """Requests that ended and whose deadline is over, and findings that were kept an hour."""
        old: list[Item] = []
        over: list[str] = []
        for item in (yield from every(keys.REQUESTS, most=self.work.bound)):
            request = readable(decode_request, item)
            if request is None or request.ended is None:
                continue
            if request.ended + FINDING_KEPT < now:
                over.append(keys.finding(request.id))
            if request.deadline + _MARGIN < now:
                old.append(item)
        findings = yield from looked_up(over)
        old += [item for item in findings.values() if item is not None]
        gone = {keys.id_of(item.key) for item in old if item.key.startswith(keys.REQUESTS)}
        for item in (yield from every(keys.REQUEST_NAMES, most=self.work.bound)):
            named = readable(decode_name, item)
            if named is not None and named.request in gone:
                old.append(item)
        return old


def tend(context: Context) -> Op[int]:
    """Post, take in and repeat what is due, if this home is a swarm; how much that was.

    Without the key of the swarm this process can sign nothing, and leaves it to others.
    """
    if (yield Read(keys.OWN_SWARM))[keys.OWN_SWARM] is not None:
        with suppress(NotAllowed, BadInput):
            return (yield from context.requests.tend(context.identity.actor))
    return 0
