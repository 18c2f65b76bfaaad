"""What can be observed: every event of the record as one value, and what they come to.

An entry of the record says who did something; its events say what became of whom, in words that
stay the same.  Whoever observes gets each event by itself, with what its entry says of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from interlock.core import keys
from interlock.core.log import Entry
from interlock.core.thing_names import message_thing

NOUNS = ("agent", "alert", "decision", "lock", "message", "query", "sem", "task")
"""What events are about."""
MISSED = "missed"
"""The event that says that some are gone, up to its revision, and cannot be told."""

_SAYS_WHOM = ("message:sent", "query:asked")


class Observed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened to ``agent``: ``message:sent``, ``lock:acquired``, ``task:ready``.

    thing   what it happened with: ``message/ID``, ``lock/NAME``; ``on`` is the type of an alert, or
            the decision that a question was handed over as
    by      who did it, where that was somebody else
    to      whom a message or a question is to
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
    """How things stand, and what was recorded ``since`` a moment.

    registered             agents with a session that lives
    pending_queries        questions that may still be answered
    sent, asked            messages and questions
    received, replied      messages that were acknowledged, and questions that were answered
    timeouts               questions that nobody answered in time
    handed                 questions that were left to a person
    rate_limit_violations  refusals because somebody sent too often
    refusals               these, and all others of callers that may not do what they asked: their
                           grant is over or never was theirs, an inbox is full, they are paused;
                           the first for a grant, or of a sender, within a minute is recorded, the
                           others are counted by the minute, for four hours
    partial                there is more since that moment than was looked at
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
    partial: bool = False


COUNTED = {
    "message:sent": "sent",
    "query:asked": "asked",
    "message:received": "received",
    "query:replied": "replied",
    "query:expired": "timeouts",
    "query:handed": "handed",
    "message:limited": "rate_limit_violations",
}
REFUSED = ("fenced", "not_owner", "not_holder", "limited", "full")
"""How the events of refusals end."""
"""Which events a counter counts."""


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


def counted(names: Iterable[str], counts: dict[str, int]) -> None:
    """Add events, by their names, to what was counted so far."""
    for name in names:
        if (counter := COUNTED.get(name)) is not None:
            counts[counter] = counts.get(counter, 0) + 1
        if name.partition(":")[2] in REFUSED:
            counts["refusals"] = counts.get("refusals", 0) + 1


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
