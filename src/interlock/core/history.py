"""History events: what happened to one agent or thing, as entries of the record show it.

A noun declares how its entries become history events (``Noun.history``), if they say more than
``NounHistory`` finds in every entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from msgspec import Struct

from interlock.core.decision import REFUSALS, Event
from interlock.core.log import RecordLine
from interlock.core.outcomes import Listing
from interlock.core.thing_names import split_things


class HistoryEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened to an agent.

    what        acquired, waiting, withdrew, released, reclaimed, refused (``reason`` says why),
                broken and requeued (an operator, ``by``, ended it, and ``says`` why);
                joined, left, lapsed for a session; published, blocked, unblocked, ready, claimed,
                completed, failed, dead, cancelled, retried for a task; sent, received for a
                message; asked, replied, expired, handed, cancelled for a question; stop for who is
                asked to end; forgotten; else the outcome of the entry
    held        for how many seconds, where it ended, or was worked on; ``waited`` likewise
    behind      who held it when the wait began
    count       how many of them are one line; ``on`` says of what
    came_from   whose grant ended in the same commit; ``went_to`` is the other side of it
    by          who did it, where that was somebody else
    on          the need that a task hangs on from now on, or does not any more; the type of an
                alert; the decision that a question was handed over as
    attempt     how often somebody has begun with a task, where all of it is known
    rests       for how many seconds nobody may begin with it
    says        why it failed, in the words of whoever said so: of the last time alone, since the
                record has no words
    trace       what it was done for: of whoever gets or loses something by the hand of another,
                the trace under which it began to wait, or acquired
    """

    revision: int
    at: float
    agent: str
    what: str
    thing: str
    token: int | None = None
    held: float | None = None
    waited: float | None = None
    behind: tuple[str, ...] = ()
    came_from: tuple[str, ...] = ()
    went_to: tuple[str, ...] = ()
    by: str = ""
    on: str = ""
    attempt: int | None = None
    rests: float | None = None
    count: int | None = None
    reason: str = ""
    says: str = ""
    session: str = ""
    trace: str = ""


class OpenSpan(Struct, frozen=True, kw_only=True):
    """A grant, a claim or a wait that has not ended yet."""

    at: float
    session: str
    trace: str
    token: int | None = None


def history_event(
    line: RecordLine, agent: str, what: str, thing: str, **more: object
) -> HistoryEvent:
    """What an entry says of an agent."""
    return HistoryEvent(
        revision=line.revision,
        at=line.at,
        agent=agent,
        what=what,
        thing=thing,
        **{  # type: ignore[arg-type]  # the callers are in two modules
            "by": "" if line.agent == agent else line.agent,
            "trace": line.trace,
            **more,
        },
    )


def seconds_since(began: OpenSpan | None, line: RecordLine) -> float | None:
    """Seconds since it began; clocks of two machines may disagree, but nothing ends before."""
    return None if began is None else round(max(line.at - began.at, 0.0), 3)


class Story(Listing[HistoryEvent], frozen=True, kw_only=True):
    """What happened to a thing, in order; ``earlier`` if there is more before."""

    listed = "happenings"

    thing: str
    happenings: tuple[HistoryEvent, ...]
    earlier: bool = False


class NounHistory:
    """The history of any noun: its events, and entries without events.

    words      the verbs of its entries begin with one of these and a dot
    frequent   verbs of which an agent may have thousands between two others
    counted    history events, by the kind of thing and ``what``, that become one with a count, and
               the word for what was counted
    """

    words: ClassVar[tuple[str, ...]] = ()
    frequent: ClassVar[frozenset[str]] = frozenset()
    counted: ClassVar[Mapping[tuple[str, str], str]] = {}

    def __init__(self, base: int, kind: str) -> None:
        self._base = base
        self._kind = kind
        """The kind of thing whose history is read; of an agent, entries of others are left out."""

    def events(self, line: RecordLine) -> Iterator[HistoryEvent]:
        """The history events of an entry."""
        for event in line.events:
            yield self._event(line, event)
        if not line.events and line.agent:
            verb = line.verb.rpartition(".")[2]
            for thing in split_things(line.thing):
                yield self._refused_or_done(line, thing, verb)

    def _event(self, line: RecordLine, event: Event) -> HistoryEvent:
        what = event.name.partition(":")[2]
        thing = event.thing or line.thing
        if what in REFUSALS:
            return self._refused_or_done(line, thing, what)
        own = line.session if event.agent == line.agent else ""
        return history_event(line, event.agent, what, thing, session=own)

    def _refused_or_done(self, line: RecordLine, thing: str, verb: str) -> HistoryEvent:
        refused = line.outcome in REFUSALS
        return history_event(
            line,
            line.agent,
            "refused" if refused else line.outcome or verb,
            thing,
            session=line.session,
            reason=line.outcome if refused else "",
        )
