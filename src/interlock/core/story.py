"""The story of one lock, semaphore, task, message or agent, told from the entries about it.

An entry says who did what; its events say what became of whom.  A story puts the two together and
remembers who holds and who waits, so that an end can say how long it lasted:

    ada acquires          lock.acquire, lock:acquired ada
    bob waits             lock.wait; behind whoever holds
    ada hands it to bob   lock.release, lock:released ada, lock:acquired bob
    cleo takes over       lock.acquire, lock:reclaimed bob, lock:acquired cleo: his grant had lapsed
    ada is refused        lock.release, lock:fenced ada; before, without any event

The token of a grant is the base of the store plus the revision of the entry that granted it.

An entry does not say which session an event is about, only which agent.  What the story knows it
has from the entry that began it: whoever waited is granted, whoever acquired releases.  Where one
agent has several grants on a semaphore and the record does not say which of them ended, the story
leaves out how long it was held.

Tasks have a history of their own (``nouns/tasks/history.py``), and so have messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from interlock.core import keys
from interlock.core.decision import REFUSALS, Event
from interlock.core.history import Happening, Open, lasted, said
from interlock.core.log import RecordLine
from interlock.core.outcomes import Listing
from interlock.core.thing_names import split_things
from interlock.nouns.messages.history import NOUNS, MessageHistory, merge_counted
from interlock.nouns.tasks.history import TaskHistory

_ENDS = ("released", "reclaimed", "broken")
_SILENT = ("agent.log", "agent.serve", "agent.retire", "agent.mailbox")
"""Of these there are many, and nobody asks for them."""


class Story(Listing[Happening], frozen=True, kw_only=True):
    """What happened to a thing, in order; ``earlier`` if there is more before."""

    listed = "happenings"

    thing: str
    happenings: tuple[Happening, ...]
    earlier: bool = False


def tell(lines: Iterable[RecordLine], thing: str, base: int) -> Iterator[Happening]:
    """The happenings to a thing: ``lock/merge``, ``sem/builds``, ``task/t1``, ``agent/NAME``."""
    kind, _, name = thing.partition("/")
    found = _heard(lines, _Telling(base, kind))
    if kind == "agent":
        yield from merge_counted(each for each in found if name in (each.agent, each.session))
    else:
        yield from (each for each in found if each.thing == thing)


def _heard(lines: Iterable[RecordLine], telling: _Telling) -> Iterator[Happening]:
    for line in lines:
        yield from telling.hear(line)


class _Telling:
    """What is known after the entries so far."""

    def __init__(self, base: int, kind: str) -> None:
        self._base = base
        self._agents = kind == "agent"
        """Only entries about some agents are heard, so others may hold unheard of."""
        self._tasks = TaskHistory(base, whole=not self._agents)
        self._talk = MessageHistory(kind)
        self._grants: dict[tuple[str, str], list[Open]] = {}
        self._waits: dict[tuple[str, str], list[Open]] = {}

    def hear(self, line: RecordLine) -> Iterator[Happening]:
        """What happened by an entry."""
        if line.verb.startswith("task."):
            yield from self._tasks.hear(line)
            return
        if line.verb.partition(".")[0] in NOUNS:
            yield from self._talk.hear(line)
            return
        for event in line.events:
            yield self._event(line, event)
        verb = line.verb.rpartition(".")[2]
        if verb == "wait" and line.outcome == "waiting":
            yield from (self._wait(line, thing) for thing in split_things(line.thing))
        elif verb == "withdraw":
            yield from (self._withdraw(line, thing) for thing in split_things(line.thing))
        elif not line.events and line.agent and line.verb not in _SILENT:
            yield from (self._other(line, thing, verb) for thing in split_things(line.thing))

    def _event(self, line: RecordLine, event: Event) -> Happening:
        noun, _, what = event.name.partition(":")
        thing = event.thing or line.thing
        if noun == "agent":
            return self._session(line, event, thing, what)
        if what == "acquired":
            return self._grant(line, event, thing)
        if what in _ENDS:
            return self._end(line, event, thing, what)
        if what in REFUSALS:
            return self._other(line, thing, what)
        own = line.session if event.agent == line.agent else ""
        return said(line, event.agent, what, thing, session=own)

    def _session(self, line: RecordLine, event: Event, thing: str, what: str) -> Happening:
        session = _session(line)
        if what in ("left", "lapsed"):  # whatever it waited for, it does not any more
            for waits in self._waits.values():
                waits[:] = [each for each in waits if each.session != session]
        return said(line, event.agent, what, thing, session=session)

    def _grant(self, line: RecordLine, event: Event, thing: str) -> Happening:
        queue = self._waits.get((thing, event.agent))
        waited = queue.pop(0) if queue else None  # first come, first served
        own = line.session if line.agent == event.agent else ""
        grant = Open(
            at=line.at,
            session=own if waited is None else waited.session,
            trace=line.trace if waited is None else waited.trace,
            token=self._base + line.revision,
        )
        if thing.startswith("lock/"):  # one at a time, whatever we did not hear of
            for place in [place for place in self._grants if place[0] == thing]:
                del self._grants[place]
        self._grants.setdefault((thing, event.agent), []).append(grant)
        return said(
            line,
            event.agent,
            "acquired",
            thing,
            session=grant.session,
            trace=grant.trace,
            token=grant.token,
            waited=lasted(waited, line),
            came_from=tuple(_others(line, thing, *_ENDS)),
        )

    def _end(self, line: RecordLine, event: Event, thing: str, what: str) -> Happening:
        own = line.session if line.agent == event.agent and what == "released" else ""
        grant = _closed(self._grants, thing, event.agent, own)
        return said(
            line,
            event.agent,
            what,
            thing,
            session=own if grant is None else grant.session,
            trace=line.trace if own or grant is None else grant.trace,
            token=None if grant is None else grant.token,
            held=lasted(grant, line),
            went_to=tuple(_others(line, thing, "acquired")),
            reason="left" if line.verb == "agent.leave" else "",
            says=line.reason,
        )

    def _wait(self, line: RecordLine, thing: str) -> Happening:
        wait = Open(at=line.at, session=line.session, trace=line.trace)
        self._waits.setdefault((thing, line.agent), []).append(wait)
        return said(
            line,
            line.agent,
            "waiting",
            thing,
            session=line.session,
            behind=() if self._agents else tuple(self._holders(thing)),
        )

    def _withdraw(self, line: RecordLine, thing: str) -> Happening:
        wait = _closed(self._waits, thing, line.agent, line.session)
        waited = lasted(wait, line)
        refused = line.outcome in REFUSALS
        return said(
            line,
            line.agent,
            "refused" if refused else "withdrew",
            thing,
            session=line.session,
            waited=waited,
            reason=line.outcome if refused else "",
        )

    def _other(self, line: RecordLine, thing: str, verb: str) -> Happening:
        refused = line.outcome in REFUSALS
        return said(
            line,
            line.agent,
            "refused" if refused else line.outcome or verb,
            thing,
            session=line.session,
            reason=line.outcome if refused else "",
        )

    def _holders(self, thing: str) -> Iterator[str]:
        for (held, agent), grants in self._grants.items():
            if held == thing and grants:
                yield agent


def _closed(
    open_: dict[tuple[str, str], list[Open]], thing: str, agent: str, session: str = ""
) -> Open | None:
    """What ends here: that of the session, else the only one; None if nobody can say."""
    known = open_.get((thing, agent), [])
    mine = [each for each in known if session and each.session == session] or list(known)
    if not mine:
        return None
    known.remove(mine[0])
    return mine[0] if len(mine) == 1 else None


def _others(line: RecordLine, thing: str, *what: str) -> Iterator[str]:
    """Whose grants ended, or began, in the same commit."""
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
