"""The outcomes of reservations in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from interlock.core.validate import quote, span
from interlock.runtime.text import ago, joined, reason_lines, table

if TYPE_CHECKING:
    from interlock.nouns.reservations import reservation as r
    from interlock.runtime.text import Paint, Text

_COLOURS = {"reserved": "green", "queued": "yellow", "stale": "red"}


def _names(patterns: Iterable[str]) -> str:
    return " ".join(quote(each) for each in patterns)


def _lives(seconds: float | None) -> str:
    return "" if seconds is None else f", expires in {span(seconds)}"


def _reserved(outcome: r.Reserved | r.ReservationExtended, paint: Paint) -> str:
    shared = ", shared" if outcome.shared else ""
    word = paint("green", "extended" if "Extended" in type(outcome).__name__ else "reserved")
    head = f"{word} {_names(outcome.patterns)}{shared}, token {outcome.token}"
    lines = [head + _lives(outcome.expires_in)]
    lines += [
        f"  in spite of {_overlap(each, paint)}" for each in getattr(outcome, "conflicts", ())
    ]
    return "\n".join(lines)


def _overlap(each: r.ReservationOverlap, paint: Paint) -> str:
    word = "waits for" if each.queued else "has reserved"
    since = ago(each.since)
    head = f"{each.holder}, who {word} {quote(each.pattern)} since {since}: {each.witness}"
    return head + reason_lines(each.reason, paint)


def _conflict(outcome: r.ReservationConflict, paint: Paint) -> str:
    if not outcome.holder:
        return f"{paint('yellow', 'conflict')}: the place in the queue expired; reserve again"
    lines = [f"{paint('yellow', 'conflict')} at {outcome.witness}: {_overlap_of(outcome, paint)}"]
    lines += [f"  also {_overlap(each, paint)}" for each in outcome.conflicts[1:]]
    lines.append(
        "wait for it with --on-conflict queue, ask its holder"
        f" (interlock query {quote(outcome.holder)} ...), or reserve something else"
    )
    return "\n".join(lines)


def _overlap_of(outcome: r.ReservationConflict, paint: Paint) -> str:
    ends = _lives(outcome.expires_in)
    head = f"{outcome.holder} reserved {quote(outcome.pattern)} {ago(outcome.since)}{ends}"
    return head + reason_lines(outcome.reason, paint)


def _queued(outcome: r.ReservationQueued, paint: Paint) -> str:
    head = f"{paint('yellow', 'queued')} {_names(outcome.patterns)} behind {outcome.holder}"
    return f"{head}, who has {outcome.witness}; it is yours when that ends: a message will say so"


def _deadlock(outcome: r.ReservationDeadlock, paint: Paint) -> str:
    cycle = joined((*outcome.cycle, *outcome.cycle[:1]), " -> ")
    return (
        f"{paint('red', 'deadlock')}: the wait would never end ({cycle});"
        " release what you have reserved, and reserve all of it at once"
    )


def _next(agents: tuple[str, ...]) -> str:
    return f"; {joined(agents)} may go on" if agents else ""


def _unreserved(outcome: r.Unreserved, paint: Paint) -> str:
    return f"{paint('green', 'unreserved')} {_names(outcome.patterns)}{_next(outcome.next)}"


def _nothing(outcome: r.NothingReserved, paint: Paint) -> str:
    what = f" {_names(outcome.patterns)}" if outcome.patterns else ""
    return f"{paint('green', 'not reserved')}{what}: you have reserved nothing like that"


def _not_owner(outcome: r.ReservationNotOwner, paint: Paint) -> str:
    holder = quote(outcome.holder)
    return (
        f"{paint('yellow', 'not yours')}: {outcome.holder} has reserved"
        f" {_names(outcome.patterns)}; ask it, or end it with --holder {holder} --reason WHY"
    )


def _fenced(outcome: r.ReservationFenced, paint: Paint) -> str:
    return (
        f"{paint('yellow', 'fenced')}: no reservation of yours has token {outcome.token} any more"
    )


def _broken(outcome: r.ReservationBroken, paint: Paint) -> str:
    head = f"{paint('green', 'ended')} {_names(outcome.patterns)} of {outcome.holder}"
    return f"{head}{_next(outcome.next)}{reason_lines(outcome.reason, paint)}"


def _overridden(outcome: r.Overridden, paint: Paint) -> str:
    return (
        f"{paint('yellow', 'overridden')}"
        f" {_names(outcome.paths)}{reason_lines(outcome.reason, paint)}"
    )


def _list(outcome: r.ReservationList, paint: Paint) -> str:
    if not outcome.reservations:
        return f"nothing is reserved{f' in {outcome.repository}' if outcome.repository else ''}"
    several = not outcome.repository
    rows = [
        (
            *((each.repository,) if several else ()),
            _names(each.patterns),
            each.holder,
            paint(_COLOURS[each.state], each.state) + (" shared" if each.shared else ""),
            str(each.token or ""),
            ago(each.since),
            "" if each.expires_in is None else span(each.expires_in),
            each.reason,
        )
        for each in outcome.reservations
    ]
    titles = (
        *(("REPOSITORY",) if several else ()),
        *("PATTERNS", "HOLDER", "STATE", "TOKEN", "SINCE", "EXPIRES IN", "REASON"),
    )
    more = "\nmore are left out; raise --limit" if outcome.more else ""
    return table(titles, rows, paint) + more


TEXTS: dict[str, Text] = {
    "Reserved": _reserved,
    "ReservationExtended": _reserved,
    "ReservationConflict": _conflict,
    "ReservationQueued": _queued,
    "ReservationDeadlock": _deadlock,
    "Unreserved": _unreserved,
    "NothingReserved": _nothing,
    "ReservationNotOwner": _not_owner,
    "ReservationFenced": _fenced,
    "ReservationBroken": _broken,
    "Overridden": _overridden,
    "ReservationList": _list,
}
