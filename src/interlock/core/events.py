"""Observable events: every event of the record as one value, and counters of them.

An entry of the record names the agent that acted; its events name the agents that were affected.
The names of events are stable.  An observer gets each event by itself, with the facts of its entry.
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
                           own, a full inbox, a paused sender.  The first refusal of a grant or a
                           sender within a minute is recorded; the others are counted by the
                           minute, for four hours
    partial                the record has more entries since that moment than were read
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
"""Which events a counter counts."""
REFUSED = ("fenced", "not_owner", "not_holder", "limited", "full")
"""How the events of refusals end."""


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
    """Add events, by their names, to the counts."""
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
