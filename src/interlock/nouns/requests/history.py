"""The history of a request, from entries of the record: across its task, and its decision.

An entry that empties the outbox has no event: it names the requests that it wrote, and these are
posted.  The other end of the exchange is in the record of the other swarm.

The module is imported for the history of any thing, so it imports little; ``audit.py`` says what
the details of the events are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Event
from interlock.core.entry import RecordLine
from interlock.core.history import HistoryEvent, NounHistory, history_event
from interlock.core.safe_text import foreign
from interlock.core.validate import span

_SECOND = 1000
_POSTS = "outbox.clear"
_CONFIRMS = "request.confirm"
_RECEIVED = "request:received"


class RequestHistory(NounHistory):
    """Requests after the entries so far."""

    words = ("request", "outbox", "quarantine")

    def events(self, line: RecordLine) -> Iterator[HistoryEvent]:
        """The history events of an entry."""
        if line.verb == _POSTS:
            for key in line.put:
                if key.startswith(keys.REQUESTS):
                    yield history_event(line, "", "posted", f"request/{keys.id_of(key)}")
        elif line.verb == _CONFIRMS and not line.events:
            own = keys.request(line.thing.removeprefix("request/")) in line.put
            yield history_event(line, "", "taken in" if own else "confirmed", line.thing)
        else:
            yield from super().events(line)

    def _event(self, line: RecordLine, event: Event) -> HistoryEvent:
        found = super()._event(line, event)
        return replace(found, says=", ".join(_said(event))) if event.details else found


def _said(event: Event) -> Iterator[str]:
    """What the details of an event say to a person."""
    details: dict[str, Any] = event.details
    for name in ("status", "reason"):
        if word := details.get(name):
            yield foreign(str(word))
    if event.name == "request:sent":
        yield f"to {_end(details, 'to')}"
    if event.name == "request:answered":
        yield f"by {_end(details, 'from')}"
    for name, word in (("execution_ms", "worked"), ("e2e_ms", "after")):
        if isinstance(taken := details.get(name), int | float):
            yield f"{word} {taken:.0f} ms" if taken < _SECOND else f"{word} {span(taken / 1000)}"


def _end(details: dict[str, Any], side: str) -> str:
    return " of ".join([foreign(str(details.get(f"{side}_{part}"))) for part in ("agent", "swarm")])


def related(lines: Iterable[RecordLine], name: str) -> Iterator[str]:
    """Things whose events belong to the history of a request: its task, and decisions about it.

    The task of a received request has the name of its swarm, too; one without does the work of a
    request here, as a person has decided.
    """
    yield f"task/{name}"
    for line in lines:
        for event in line.events:
            if event.name == "decision:opened" and event.thing:
                yield event.thing
            swarm = event.details.get("from_swarm")
            if event.name == _RECEIVED and swarm and _is_about(event, line, name):
                yield f"task/{name}@{swarm}"


def _is_about(event: Event, line: RecordLine, name: str) -> bool:
    return (event.thing or line.thing) == f"request/{name}"
