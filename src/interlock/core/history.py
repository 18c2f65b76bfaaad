"""History events: the events of one agent or thing, as entries of the record show them.

A noun declares how its entries become history events (``Noun.history``), if ``NounHistory``, which
reads the entries of any noun, is not enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from msgspec import Struct

from interlock.core.decision import REFUSALS, Event
from interlock.core.entry import RecordLine
from interlock.core.outcomes import Listing
from interlock.core.thing_names import split_things


class HistoryEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event in the history of an agent.

    what        acquired, waiting, withdrew, released, reclaimed, refused (``reason`` says why),
                broken and requeued (an operator, ``by``, ended it, and ``says`` why);
                ``joined``, ``left``, ``lapsed`` for a session; published, blocked, unblocked,
                ready, claimed, completed, failed, dead, cancelled, retried, noted, edited
                (``changed`` has the values before and after), dropped for a task; sent,
                received for a message; asked, replied, expired, handed, cancelled for a question;
                stop for the agent that is asked to end; ``forgotten`` for data that was deleted;
                else the outcome of the entry
    held        seconds that a grant or a claim lasted, once it ended
    waited      seconds that a wait lasted, once it ended
    behind      the holders when the wait began
    count       how many events this line stands for; ``on`` says of which kind
    came_from   the agents whose grants ended in the same commit
    went_to     the agents that were granted it in the same commit
    by          the agent that caused the event, if it is another one
    on          the need that begins or ceases to block a task; the number of a note; the type of an
                alert; the decision that a question was escalated to
    attempt     which attempt at the task this is, if the record has all of them
    rests       seconds until a worker may claim the task again
    says        the reason of a failure as the worker gave it; only that of the last failure, since
                the record has no reasons; the first words of a note, while that exists
    trace       the trace of the work; if another agent caused the event, the trace under which
                this agent began to wait or acquired
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
    changed: dict[str, Any] = {}
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
    """An entry of the record as an event of an agent."""
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
    """Seconds since it began; never negative, although the clocks of two machines may differ."""
    return None if began is None else round(max(line.at - began.at, 0.0), 3)


class Story(Listing[HistoryEvent], frozen=True, kw_only=True):
    """The history of a thing, oldest first; ``earlier`` if the record has more before it."""

    listed = "happenings"

    thing: str
    happenings: tuple[HistoryEvent, ...]
    earlier: bool = False


class NounHistory:
    """The history of any noun: its events, and entries without events.

    words      the verbs of its entries begin with one of these and a dot
    frequent   verbs of which an agent may have thousands in a row
    counted    history events, by the kind of thing and ``what``, that become one with a count, and
               the word for the counted events
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
