"""The history of locks, semaphores and sessions, from entries of the record.

An entry says who did what; its events say what became of which agent.  This puts the two together
and remembers holders and waiters, so that an end can say how long it lasted:

    ada acquires          lock.acquire, lock:acquired ada
    bob waits             lock.wait; behind the holder
    bob waits             lock.await; for a guard, outside of the queue
    ada hands it to bob   lock.release, lock:released ada, lock:acquired bob
    cleo takes over       lock.acquire, lock:reclaimed bob, lock:acquired cleo: his grant expired
    ada is refused        lock.release, lock:fenced ada; before, without any event

The token of a grant is the base of the store plus the revision of the entry that granted it.

An event names an agent, not a session.  The session is known from the entry that began the wait or
the grant.  Where one agent has several grants on a semaphore and the record does not say which of
them ended, the history leaves out how long it was held.

Entries about sessions belong here because a session that ends ends its grants and waits in the same
commit.
"""

from __future__ import annotations

from collections.abc import Iterator

from interlock.core import keys
from interlock.core.decision import REFUSALS, Event
from interlock.core.entry import RecordLine
from interlock.core.history import HistoryEvent, NounHistory, OpenSpan, history_event, seconds_since
from interlock.core.thing_names import split_things

_ENDS = ("released", "reclaimed", "broken")
_SILENT = ("agent.log", "agent.serve", "agent.retire", "agent.mailbox")
"""These are many, and no reader wants them."""


class GrantHistory(NounHistory):
    """The holders and waiters after the entries so far."""

    words = ("lock", "sem", "agent", "")
    """The last one for entries about several pools, whose verbs name no noun."""

    def __init__(self, base: int, kind: str) -> None:
        super().__init__(base, kind)
        self._grants: dict[tuple[str, str], list[OpenSpan]] = {}
        self._waits: dict[tuple[str, str], list[OpenSpan]] = {}

    def events(self, line: RecordLine) -> Iterator[HistoryEvent]:
        """The history events of an entry."""
        verb = line.verb.rpartition(".")[2]
        if verb == "wait" and line.outcome == "waiting":
            each = self._wait
        elif verb == "withdraw":
            each = self._withdraw
        elif verb == "await":
            each = self._await
        else:
            if line.events or line.verb not in _SILENT:
                yield from super().events(line)
            return
        for event in line.events:
            if not event.name.endswith(":deadlock"):  # the refused wait says it
                yield self._event(line, event)
        yield from (each(line, thing) for thing in split_things(line.thing))

    def _event(self, line: RecordLine, event: Event) -> HistoryEvent:
        noun, _, what = event.name.partition(":")
        thing = event.thing or line.thing
        if noun == "agent":
            return self._session(line, event, thing, what)
        if what == "acquired":
            return self._grant(line, event, thing)
        if what in _ENDS:
            return self._end(line, event, thing, what)
        if what == "warned":
            session = line.session
            return history_event(line, event.agent, what, thing, session=session, says=line.reason)
        return super()._event(line, event)

    def _session(self, line: RecordLine, event: Event, thing: str, what: str) -> HistoryEvent:
        session = _session(line)
        if what in ("left", "lapsed"):  # all its waits ended with it
            for waits in self._waits.values():
                waits[:] = [each for each in waits if each.session != session]
        return history_event(line, event.agent, what, thing, session=session)

    def _grant(self, line: RecordLine, event: Event, thing: str) -> HistoryEvent:
        queue = self._waits.get((thing, event.agent))
        waited = queue.pop(0) if queue else None  # first come, first served
        own = line.session if line.agent == event.agent else ""
        grant = OpenSpan(
            at=line.at,
            session=own if waited is None else waited.session,
            trace=line.trace if waited is None else waited.trace,
            token=self._base + line.revision,
        )
        if thing.startswith("lock/"):  # one holder: entries of other agents may be unread
            for place in [place for place in self._grants if place[0] == thing]:
                del self._grants[place]
        self._grants.setdefault((thing, event.agent), []).append(grant)
        return history_event(
            line,
            event.agent,
            "acquired",
            thing,
            session=grant.session,
            trace=grant.trace,
            token=grant.token,
            waited=seconds_since(waited, line),
            came_from=tuple(_others(line, thing, *_ENDS)),
        )

    def _end(self, line: RecordLine, event: Event, thing: str, what: str) -> HistoryEvent:
        own = line.session if line.agent == event.agent and what == "released" else ""
        grant = _closed(self._grants, thing, event.agent, own)
        return history_event(
            line,
            event.agent,
            what,
            thing,
            session=own if grant is None else grant.session,
            trace=line.trace if own or grant is None else grant.trace,
            token=None if grant is None else grant.token,
            held=seconds_since(grant, line),
            went_to=tuple(_others(line, thing, "acquired")),
            reason="left" if line.verb == "agent.leave" else "",
            says="" if _acquires(line) else line.reason,  # there a guard that warned is the reason
        )

    def _wait(self, line: RecordLine, thing: str) -> HistoryEvent:
        wait = OpenSpan(at=line.at, session=line.session, trace=line.trace)
        self._waits.setdefault((thing, line.agent), []).append(wait)
        return history_event(
            line,
            line.agent,
            "waiting",
            thing,
            session=line.session,
            behind=() if self._kind == "agent" else tuple(self._holders(thing)),
        )

    def _await(self, line: RecordLine, thing: str) -> HistoryEvent:
        """A wait for a guard: it stands in no queue, so no grant ends it."""
        session, says = line.session, line.reason
        return history_event(line, line.agent, "waiting", thing, session=session, says=says)

    def _withdraw(self, line: RecordLine, thing: str) -> HistoryEvent:
        wait = _closed(self._waits, thing, line.agent, line.session)
        waited = seconds_since(wait, line)
        refused = line.outcome in REFUSALS
        return history_event(
            line,
            line.agent,
            "refused" if refused else "withdrew",
            thing,
            session=line.session,
            waited=waited,
            reason=line.outcome if refused else "",
        )

    def _holders(self, thing: str) -> Iterator[str]:
        for (held, agent), grants in self._grants.items():
            if held == thing and grants:
                yield agent


def _acquires(line: RecordLine) -> bool:
    return line.verb.rpartition(".")[2] == "acquire"


def _closed(
    open_: dict[tuple[str, str], list[OpenSpan]], thing: str, agent: str, session: str = ""
) -> OpenSpan | None:
    """The span that ends: of the session, else the only one; None if the record does not say."""
    known = open_.get((thing, agent), [])
    mine = [each for each in known if session and each.session == session] or list(known)
    if not mine:
        return None
    known.remove(mine[0])
    return mine[0] if len(mine) == 1 else None


def _others(line: RecordLine, thing: str, *what: str) -> Iterator[str]:
    """The agents whose grants ended, or began, in the same commit."""
    for event in line.events:
        noun, _, word = event.name.partition(":")
        if noun != "agent" and word in what and (event.thing or line.thing) == thing:
            yield event.agent


def _session(line: RecordLine) -> str:
    """The session that an entry about an agent is about: the one whose item it wrote or deleted."""
    for key in (*line.put, *line.deleted):
        if key.startswith(keys.SESSIONS):
            return key.removeprefix(keys.SESSIONS)
    return line.session
