"""Decisions about reservations: pure functions of the entries, records and liveness that were read.

``reservation.py`` has the theory.  The service reads the entries that may overlap, the queue, and
the liveness of the reservations that conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Event, Write
from interlock.core.wait import UnqueuedWait, wait_keys, wait_writes
from interlock.errors import NotAllowed
from interlock.nouns.reservations import pattern as patterns
from interlock.nouns.reservations import reservation as r
from interlock.nouns.reservations.conflicts import (
    PatternEntry,
    QueuedReservation,
    conflicting,
    overlap,
    own_entries,
)
from interlock.nouns.reservations.pattern import INDEXED
from interlock.nouns.reservations.reservation import Reservation

Alive: TypeAlias = Callable[[str], bool]
"""Whether a liveness key exists."""
PATHS = 100
"""Paths that the record of an override names."""
SHOWN = 5
"""Conflicts that a refusal names."""
_LISTED = 10
"""Patterns that the message to a waiter lists."""
_NOTICE = 3
"""Operations of the message to a waiter that is served."""


def grant(
    repository: str, wanted: Reservation, despite: Sequence[PatternEntry] = ()
) -> Decision[r.ReserveOutcome]:
    """Reserve it."""
    granted = replace(wanted, despite=tuple(entry.of.id for entry in despite))
    outcome = r.Reserved(
        token=None,
        holder=wanted.agent,
        patterns=wanted.patterns,
        shared=wanted.shared,
        expires_in=wanted.ttl,
        grant=wanted.id,
        conflicts=tuple(overlap(wanted, entry) for entry in despite[:SHOWN]),
    )
    return Decision(
        outcome=outcome,
        verb="reservation.reserve",
        thing=thing(wanted.id),
        puts=(*_grant_writes(repository, granted), Write(keys.reserved_mark(repository), {})),
        events=(event("reserved", wanted),),
    )


def queue(
    repository: str,
    wanted: Reservation,
    entries: Sequence[PatternEntry],
    waiting: int,
    *,
    listed: bool,
) -> Decision[r.ReserveOutcome]:
    """Wait behind the reservations in the way; ``listed`` if the caller sleeps until the end."""
    if waiting >= r.WAITERS:
        raise NotAllowed(
            f"{r.WAITERS} reservations already wait in {repository!r}; retry later, or do not wait"
        )
    first = overlap(wanted, entries[0])
    outcome = r.ReservationQueued(
        holder=first.holder,
        witness=first.witness,
        patterns=wanted.patterns,
        before=len(entries),
        grant=wanted.id,
        expires_in=wanted.ttl,
        conflicts=tuple(overlap(wanted, entry) for entry in entries[:SHOWN]),
    )
    own = wanted.live == keys.live(wanted.id)
    waits = wait_writes(wait_of(repository, wanted), wanted.id) if listed else ()
    return Decision(
        outcome=outcome,
        verb="reservation.wait",
        thing=thing(wanted.id),
        puts=(
            Write(keys.reserve_queue(repository, wanted.id), wanted),
            *_entry_writes(repository, wanted, queued=True),
            Write(keys.reserving(wanted.agent, repository, wanted.id), {}),
            Write(keys.reserved_mark(repository), {}),
            *([Write(wanted.live, {"agent": wanted.agent}, wanted.ttl)] if own else []),
            *waits,
        ),
        events=(event("waiting", wanted),),
    )


def refuse(wanted: Reservation, entries: Sequence[PatternEntry]) -> Decision[r.ReserveOutcome]:
    """Name what is in the way."""
    found = [overlap(wanted, entry) for entry in entries[:SHOWN]]
    first = found[0]
    return Decision(
        outcome=r.ReservationConflict(
            holder=first.holder,
            witness=first.witness,
            pattern=first.pattern,
            wanted=first.wanted,
            since=first.since,
            reason=first.reason,
            conflicts=tuple(found),
        )
    )


def extend(wanted: Reservation, mine: Reservation, token: int) -> Decision[r.ReserveOutcome]:
    """Renew a reservation of the same paths; the commit is not recorded."""
    outcome = r.ReservationExtended(
        token=token,
        holder=mine.agent,
        patterns=mine.patterns,
        shared=mine.shared,
        expires_in=wanted.ttl,
        grant=mine.id,
    )
    if wanted.ttl is None:  # it lives as long as its session
        return Decision(outcome=outcome)
    renewal = Write(mine.live, {"agent": mine.agent}, wanted.ttl)
    return Decision(outcome=outcome, puts=(renewal,), quiet=True)


class EndingReservations(Struct, frozen=True, kw_only=True):
    """Reservations that end, and what is needed to serve the waiters: the queue and all entries."""

    repository: str
    ended: tuple[Reservation, ...]
    queue: tuple[QueuedReservation, ...] = ()
    entries: tuple[PatternEntry, ...] = ()
    room: int = 1000
    """How many operations the commit may still have."""


class Served(Struct, frozen=True, kw_only=True):
    """The writes of an end: what is deleted and written, and which waiters are served."""

    puts: tuple[Write, ...]
    deletes: tuple[str, ...]
    signals: tuple[str, ...]
    served: tuple[Reservation, ...]
    events: tuple[Event, ...]


def serve(ending: EndingReservations, alive: Alive, now: float) -> Served:
    """End reservations, and serve the waiters that conflict with nothing before them.

    Dead waiters are dropped.  Waiters that the commit has no room for are served by the next one:
    each of them looks again.
    """
    repository = ending.repository
    gone = {each.id for each in ending.ended}
    deletes = [key for each in ending.ended for key in _all_keys(repository, each)]
    entries = [each for each in ending.entries if each.of.id not in gone]
    puts: list[Write] = []
    served: list[Reservation] = []
    dropped: list[Reservation] = []
    begun: set[str] = set()  # liveness keys that this commit writes: no store has them yet
    room = ending.room - len(deletes)
    for waiter in sorted(ending.queue, key=lambda each: each.order):
        size = 2 * len(waiter.of.patterns) + 8 + (_NOTICE if waiter.of.announce else 0)
        if waiter.of.id in gone or size > room:
            continue
        if not alive(waiter.of.live):
            dropped.append(waiter.of)
            deletes += _all_keys(repository, waiter.of)
            entries = [each for each in entries if each.of.id != waiter.of.id]
            room -= size
            continue
        blocking = conflicting(waiter.of, entries, waiter.order)
        if any(each.of.live in begun or alive(each.of.live) for each in blocking):
            continue
        granted = _served(waiter.of, now)
        begun.add(granted.live)
        deletes += [keys.reserve_queue(repository, granted.id), *_wait_keys(repository, granted)]
        puts += _grant_writes(repository, granted)
        puts += _notice(repository, granted, waiter.of.since, now) if waiter.of.announce else ()
        entries = [each for each in entries if each.of.id != granted.id]
        entries += [PatternEntry(each, 0) for each in own_entries(granted, queued=False)]
        served.append(granted)
        room -= size
    if served:
        puts.append(Write(keys.reserved_mark(repository), {}))
    written = {write.key for write in puts}
    return Served(
        puts=tuple(puts),
        deletes=tuple(dict.fromkeys(key for key in deletes if key not in written)),
        signals=tuple(keys.wake(each.id) for each in (*served, *dropped)),
        served=tuple(served),
        events=tuple(event("reserved", each) for each in served),
    )


def release(
    ending: EndingReservations, alive: Alive, now: float, *, by: str = "", reason: str = ""
) -> Decision[r.UnreserveOutcome]:
    """End reservations of the caller, or (``by`` an operator) of another agent."""
    done = serve(ending, alive, now)
    texts = tuple(dict.fromkeys(text for each in ending.ended for text in each.patterns))
    following = tuple(each.agent for each in done.served)
    outcome: r.UnreserveOutcome = r.Unreserved(patterns=texts, next=following)
    word = "release"
    if by:
        word, holder = "break", ending.ended[0].agent
        outcome = r.ReservationBroken(
            holder=holder, patterns=texts, token=None, reason=reason, next=following
        )
    what = "broken" if by else "released"
    return Decision(
        outcome=outcome,
        verb=f"reservation.{word}",
        thing=thing(ending.ended[0].id),
        puts=done.puts,
        deletes=done.deletes,
        signals=done.signals,
        reason=reason,
        events=(*(event(what, each) for each in ending.ended), *done.events),
    )


def reclaim(ending: EndingReservations, alive: Alive, now: float) -> Decision[str]:
    """End stale reservations, drop dead waiters, and serve the others."""
    done = serve(ending, alive, now)
    if not done.puts and not done.deletes:
        return Decision(outcome="alive")
    first = next(iter((*ending.ended, *done.served, *[each.of for each in ending.queue])))
    return Decision(
        outcome="reclaimed",
        verb="reservation.reclaim",
        thing=thing(first.id),
        puts=done.puts,
        deletes=done.deletes,
        signals=done.signals,
        events=(*(event("reclaimed", each) for each in ending.ended), *done.events),
    )


def keep_place(repository: str, waiter: Reservation) -> Decision[bool]:
    """Wait on without a sleeping call; its agent gets a message when it is served."""
    kept = replace(waiter, announce=True)
    return Decision(
        outcome=True,
        verb="reservation.wait",
        thing=thing(waiter.id),
        puts=(Write(keys.reserve_queue(repository, waiter.id), kept),),
        deletes=_wait_keys(repository, waiter),
        events=(event("waiting", kept),),
    )


def withdraw(
    repository: str, wanted: Reservation, outcome: r.ReserveOutcome
) -> Decision[r.ReserveOutcome]:
    """Leave the queue."""
    return Decision(
        outcome=outcome,
        verb="reservation.withdraw",
        thing=thing(wanted.id),
        deletes=tuple(_all_keys(repository, wanted)),
        events=(event("withdrew", wanted),),
    )


def override(
    id_: str, agent: str, repository: str, paths: Sequence[str], reason: str
) -> Decision[r.Overridden]:
    """Record that paths are changed in spite of their reservations."""
    details = {"repository": repository, "paths": list(paths[:PATHS])}
    return Decision(
        outcome=r.Overridden(paths=tuple(paths), reason=reason),
        verb="reservation.override",
        thing=thing(id_),
        reason=reason,
        events=(Event("reservation:overridden", agent, details=details),),
    )


def wait_of(repository: str, wanted: Reservation) -> UnqueuedWait:
    """The wait of a queued reservation, for the wait graph."""
    return UnqueuedWait(
        wants=keys.reserve_queue(repository, wanted.id),
        agent=wanted.agent,
        session=wanted.session,
        live=wanted.live,
        since=wanted.since,
        caller=wanted.caller,
        indexed=wanted.indexed,
        also=wanted.also,
    )


def thing(id_: str) -> str:
    """A reservation in the record."""
    return f"reservation/{id_}"


def event(what: str, of: Reservation) -> Event:
    """What became of a reservation, with its patterns."""
    details = {"patterns": list(of.patterns), **({"despite": [*of.despite]} if of.despite else {})}
    return Event(f"reservation:{what}", of.agent, thing(of.id), details=details)


def _served(waiter: Reservation, now: float) -> Reservation:
    """A waiter that has what it waits for, from now on."""
    live = keys.live(waiter.session if waiter.ttl is None else waiter.id)
    return replace(waiter, live=live, since=now)


def _notice(repository: str, granted: Reservation, since: float, now: float) -> Iterable[Write]:
    """A message to a waiter that has what it waits for, in the commit that serves it."""
    from msgspec import Raw  # an edit needs none of this

    from interlock.core import codec
    from interlock.core.validate import span
    from interlock.nouns.messages.message import StoredMessage
    from interlock.nouns.messages.send_rules import notice_writes

    few, more = ", ".join(granted.patterns[:3]), len(granted.patterns) - 3
    names = f"{few} and {more} more" if more > 0 else few
    lasts = "" if granted.ttl is None else f" for {span(granted.ttl)}"
    data = {
        "reservation": granted.id,
        "repository": repository,
        "patterns": granted.patterns[:_LISTED],
        "worktree": granted.tree,
        "ttl": granted.ttl,
        "waited": round(max(now - since, 0.0), 3),
        "next": "edit them, then release them: interlock unreserve",
    }
    told = StoredMessage(
        id=f"msg_{granted.id.removeprefix('rsv_')}",  # once, as it is served once
        kind="mail",
        sender="reservations",
        at=round(now, 3),
        to=(granted.agent,),
        type="reserved",
        subject=f"reserved for you now{lasts}: {names}"[:200],
        thread=granted.id,
        data=Raw(codec.encode({key: value for key, value in data.items() if value})),
    )
    return notice_writes(told)


def _grant_writes(repository: str, granted: Reservation) -> list[Write]:
    own = [Write(granted.live, {"agent": granted.agent}, granted.ttl)] if granted.ttl else []
    return [
        Write(keys.reservation(repository, granted.id), granted),
        *_entry_writes(repository, granted, queued=False),
        Write(keys.reserving(granted.agent, repository, granted.id), {}),
        *own,
    ]


def _entry_writes(repository: str, of: Reservation, *, queued: bool) -> Iterator[Write]:
    entries = own_entries(of, queued=queued)
    for key, entry in zip(entry_keys(repository, of), entries, strict=True):
        yield Write(key, entry)


def entry_keys(repository: str, of: Reservation) -> list[str]:
    """The keys of the entries of a reservation."""
    found = [patterns.parse(text, fold=of.fold).prefix for text in of.patterns]
    return [
        keys.reserved(repository, prefix[:INDEXED], f"{of.id}.{number}")
        for number, prefix in enumerate(found)
    ]


def _wait_keys(repository: str, of: Reservation) -> tuple[str, ...]:
    return wait_keys(wait_of(repository, of), of.id)


def _all_keys(repository: str, of: Reservation) -> list[str]:
    """Every key of a reservation, held or waiting."""
    own = [keys.live(of.id)] if of.ttl is not None else []
    return [
        keys.reservation(repository, of.id),
        keys.reserve_queue(repository, of.id),
        *entry_keys(repository, of),
        keys.reserving(of.agent, repository, of.id),
        *own,
        *_wait_keys(repository, of),
    ]
