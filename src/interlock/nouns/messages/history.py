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

from collections.abc import Iterator
from types import MappingProxyType

from interlock.core import keys
from interlock.core.decision import Event
from interlock.core.entry import RecordLine
from interlock.core.history import HistoryEvent, NounHistory, OpenSpan, history_event, seconds_since
from interlock.core.thing_names import message_thing
from interlock.runtime.observe import about, recipients

_WAITS = {"query.resume": "resumed", "query.leave": "parted"}
_BEGINS = ("sent", "asked")


class MessageHistory(NounHistory):
    """The messages and queries after the entries so far."""

    words = ("message", "query", "alert", "decision")
    frequent = frozenset(
        (
            "message.alert", "message.send", "message.share", "message.ack",
            "query.ask", "query.reply",
        )
    )  # fmt: skip
    counted = MappingProxyType(
        {
            ("message", "sent"): "messages",
            ("message", "received"): "messages",
            ("query", "asked"): "questions",
            ("query", "replied"): "questions",
        }
    )

    def __init__(self, base: int, kind: str) -> None:
        super().__init__(base, kind)
        self._sent: dict[str, OpenSpan] = {}

    def events(self, line: RecordLine) -> Iterator[HistoryEvent]:
        """The history events of an entry."""
        if line.verb.endswith(".forget"):
            yield from _forgotten(line)
            return
        for event in line.events:
            yield self._event(line, event)
        if line.verb in _WAITS:
            yield history_event(
                line, line.agent, _WAITS[line.verb], line.thing, session=line.session
            )
        if self._kind == "decision":
            yield from _decisions(line)

    def _event(self, line: RecordLine, event: Event) -> HistoryEvent:
        what = event.name.partition(":")[2]
        thing = event.thing or line.thing
        if self._kind == "alert" and line.thing.startswith("alert/"):
            thing = line.thing
        own = line.session if line.agent == event.agent else ""
        if what in _BEGINS:
            self._sent[thing] = OpenSpan(at=line.at, session=own, trace=line.trace)
            return history_event(
                line,
                event.agent,
                what,
                thing,
                session=own,
                went_to=recipients(line),
                on=about(line),
            )
        since = seconds_since(self._sent.get(thing), line)
        return history_event(
            line, event.agent, what, thing, session=own, waited=since, on=about(line)
        )


def _forgotten(line: RecordLine) -> Iterator[HistoryEvent]:
    if line.verb == "alert.forget":
        yield history_event(line, "", "forgotten", line.thing, on="alerts", count=len(line.deleted))
        return
    for key in line.deleted:
        if key.startswith((keys.MESSAGES, keys.QUERIES, keys.DECISIONS)):
            yield history_event(line, "", "forgotten", message_thing(key))


def _decisions(line: RecordLine) -> Iterator[HistoryEvent]:
    """When a person was asked, and when that was cancelled."""
    if line.verb == "query.hand":
        for key in line.put:
            if key.startswith(keys.DECISIONS):
                yield history_event(line, line.agent, "asked", message_thing(key), on=line.thing)
    elif line.verb == "query.cancel":
        for key in line.deleted:
            if key.startswith(keys.DECISIONS):
                yield history_event(
                    line, line.agent, "cancelled", message_thing(key), on=line.thing
                )
