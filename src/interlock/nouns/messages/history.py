"""The history of messages, questions and decisions, from entries of the record.

    ada sends msg_1 to bob     message.send, message:sent ada, unread/bob/msg_1: to bob
    bob has read it            message.ack, message:received bob: with the time since it was sent
    ada asks bob               query.ask, query:asked ada, unread/bob/qry_1
    bob answers                query.reply, query:replied bob: with the time since it was asked
    no agent answers           query.hand, query:handed ada, decisions/dec_1: a person is asked
    it is deleted              message.forget, without an agent

An alert is a message and belongs to its type: the history of ``alert/TYPE`` has all of them.

An agent may send and receive thousands of messages between two other events. In its history these
become one line each, with a count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Event
from interlock.core.history import Happening, Open, lasted, said
from interlock.core.log import Entry, RecordLine
from interlock.core.thing_names import message_thing

NOUNS = ("message", "query", "alert", "decision")
PLENTY = frozenset(
    ("message.alert", "message.send", "message.share", "message.ack", "query.ask", "query.reply")
)
"""Verbs that may be very frequent."""

_WAITS = {"query.resume": "resumed", "query.leave": "parted"}
_BEGINS = ("sent", "asked")
_COUNTED = {
    ("message", "sent"): "messages",
    ("message", "received"): "messages",
    ("query", "asked"): "questions",
    ("query", "replied"): "questions",
}


class MessageHistory:
    """The state after the entries so far; ``kind`` is the kind of thing whose history is read."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._sent: dict[str, Open] = {}

    def hear(self, line: RecordLine) -> Iterator[Happening]:
        """What happened in an entry."""
        if line.verb.endswith(".forget"):
            yield from _forgotten(line)
            return
        for event in line.events:
            yield self._event(line, event)
        if line.verb in _WAITS:
            yield said(line, line.agent, _WAITS[line.verb], line.thing, session=line.session)
        if self._kind == "decision":
            yield from _decisions(line)

    def _event(self, line: RecordLine, event: Event) -> Happening:
        what = event.name.partition(":")[2]
        thing = event.thing or line.thing
        if self._kind == "alert" and line.thing.startswith("alert/"):
            thing = line.thing
        own = line.session if line.agent == event.agent else ""
        if what in _BEGINS:
            self._sent[thing] = Open(at=line.at, session=own, trace=line.trace)
            return said(
                line, event.agent, what, thing, session=own, went_to=readers(line), on=about(line)
            )
        since = lasted(self._sent.get(thing), line)
        return said(line, event.agent, what, thing, session=own, waited=since, on=about(line))


def merge_counted(happenings: Iterable[Happening]) -> Iterator[Happening]:
    """Merge sent and received messages between two other events into one line each."""
    run: dict[tuple[str, str], list[Happening]] = {}
    for each in happenings:
        key = (each.thing.partition("/")[0], each.what)
        if key in _COUNTED:
            run.setdefault(key, []).append(each)
            continue
        yield from _counted(run)
        run = {}
        yield each
    yield from _counted(run)


def _counted(run: dict[tuple[str, str], list[Happening]]) -> list[Happening]:
    found = [
        some[0] if len(some) == 1 else _together(some, _COUNTED[key]) for key, some in run.items()
    ]
    return sorted(found, key=lambda each: each.revision)


def _together(some: list[Happening], of: str) -> Happening:
    last = some[-1]
    return replace(last, thing="", went_to=(), waited=None, trace="", on=of, count=len(some))


def _forgotten(line: RecordLine) -> Iterator[Happening]:
    if line.verb == "alert.forget":
        yield said(line, "", "forgotten", line.thing, on="alerts", count=len(line.deleted))
        return
    for key in line.deleted:
        if key.startswith((keys.MESSAGES, keys.QUERIES, keys.DECISIONS)):
            yield said(line, "", "forgotten", message_thing(key))


def _decisions(line: RecordLine) -> Iterator[Happening]:
    """When a person was asked, and when that was cancelled."""
    if line.verb == "query.hand":
        for key in line.put:
            if key.startswith(keys.DECISIONS):
                yield said(line, line.agent, "asked", message_thing(key), on=line.thing)
    elif line.verb == "query.cancel":
        for key in line.deleted:
            if key.startswith(keys.DECISIONS):
                yield said(line, line.agent, "cancelled", message_thing(key), on=line.thing)


def readers(line: Entry) -> tuple[str, ...]:
    """The recipients: agents with an unread mark, or an ability."""
    found = [keys.agent_of(key) for key in line.put if key.startswith(keys.UNREAD)]
    able = [keys.topic_of(key) for key in line.put if key.startswith(keys.TOPICS)]
    return tuple(found or [each for each in able if not line.thing.startswith("alert/")])


def about(line: Entry) -> str:
    """The type of an alert, or the decision that a query led to."""
    if line.thing.startswith("alert/"):
        return line.thing
    decision = [key for key in line.put if key.startswith(keys.DECISIONS)]
    return message_thing(decision[0]) if decision and line.verb == "query.hand" else ""
