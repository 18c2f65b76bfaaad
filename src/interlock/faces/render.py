"""Outcomes as people read them: short, aligned, times in words, colour only where it is seen.

One function for each outcome, found by the name of its class behind that of its noun.  What it is
given is plain text already: line breaks and escapes in an answer are our own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from interlock.faces.plain import all_plain, plain

if TYPE_CHECKING:
    from interlock.core import lock as locks
    from interlock.core import session as sessions
    from interlock.core.story import Story
    from interlock.core.verdict import Anchored, Compared, Exported, Verified
    from interlock.core.verdict import Finding as Proof
    from interlock.faces.operations.agent import AgentList, Nobody
    from interlock.faces.operations.fleet import Created, Diagnosis, Exists
    from interlock.faces.operations.lock import LockList
    from interlock.faces.operations.record import Entries, Nothing
    from interlock.services.lock import Shown
    from interlock.services.maintain import Maintained
    from interlock.services.why import Why

_COLOURS = {"green": "32", "yellow": "33", "red": "31", "dim": "2", "bold": "1"}
_MINUTE = 60.0
_HOUR = 3600.0
_DAY = 86400.0


class Paint:
    """Colours, or their absence."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour

    def __call__(self, colour: str, text: str) -> str:
        """The text in this colour."""
        return f"\033[{_COLOURS[colour]}m{text}\033[0m" if self._colour else text


def render(outcome: object, *, colour: bool = False) -> str:
    """An outcome as text, without a final newline."""
    return RENDERERS[key(type(outcome))](all_plain(outcome), Paint(colour=colour))


def key(outcome: type) -> str:
    """The name under which the text for an outcome is found."""
    return f"{outcome.__module__.rpartition('.')[2]}.{outcome.__name__}"


def lasting(seconds: float | None) -> str:
    """A duration in words: ``12 s``, ``15 min``."""
    if seconds is None:
        return "a while"
    if seconds < 1:
        return f"{seconds:.1f} s"
    for limit, unit, name in ((_MINUTE, 1.0, "s"), (_HOUR, _MINUTE, "min"), (_DAY, _HOUR, "h")):
        if seconds < limit - unit / 2:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / _DAY:.0f} d"


def ago(moment: float | None) -> str:
    """A moment in words: ``12 s ago``."""
    if moment is None:
        return ""
    seconds = time.time() - moment
    return f"in {lasting(-seconds)}" if seconds < -1 else f"{lasting(max(seconds, 0.0))} ago"


def columns(rows: Sequence[Sequence[str]], *, gap: str = "  ") -> list[str]:
    """Rows with their cells under each other; measured without colours."""
    widths = [max(_width(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        gap.join(
            cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def _width(cell: str) -> int:
    if "\033" not in cell:
        return len(cell)
    import re

    return len(re.sub(r"\033\[\d+m", "", cell))


def _granted(outcome: locks.Granted, paint: Paint) -> str:
    lives = f", expires in {lasting(outcome.expires_in)}" if outcome.expires_in else ""
    word = paint("green", str(outcome.__struct_config__.tag))
    return f"{word} {outcome.lock}, token {outcome.token}{lives}"


def _reclaimed(outcome: locks.Reclaimed, paint: Paint) -> str:
    return f"{_granted(outcome, paint)}; its last holder {outcome.reclaimed_from} went stale"


def _busy(outcome: locks.Busy, paint: Paint) -> str:
    queue = f", {outcome.waiters} waiting" if outcome.waiters else ""
    lives = f", expires in {lasting(outcome.expires_in)}" if outcome.expires_in else ""
    since = lasting(max(time.time() - outcome.since, 0.0))
    held = f"held by {outcome.holder} for {since}" if outcome.holder else "kept for who waits first"
    return f"{paint('yellow', 'busy')} {outcome.lock}: {held}{lives}{queue}"


def _deadlock(outcome: locks.Deadlock, paint: Paint) -> str:
    circle = " -> ".join((*outcome.cycle, outcome.cycle[0]))
    return (
        f"{paint('red', 'deadlock')}: waiting would never end, {circle};"
        " give back what you hold, then try again"
    )


def _fenced(outcome: locks.Fenced, paint: Paint) -> str:
    holder = f"; {outcome.holder} has it with token {outcome.token}" if outcome.token else ""
    return f"{paint('red', 'fenced')} {outcome.lock}: that grant is over{holder}"


def _released(outcome: locks.Released, paint: Paint) -> str:
    heir = f"; {outcome.next} has it now" if outcome.next else ""
    return f"{paint('green', 'released')} {outcome.lock}{heir}"


def _already_free(outcome: locks.AlreadyFree, paint: Paint) -> str:
    return f"{paint('dim', 'already free')} {outcome.lock}"


def _not_owner(outcome: locks.NotOwner, paint: Paint) -> str:
    return f"{paint('red', 'not owner')} {outcome.lock}: {outcome.holder} has it"


def _shown(lock: Shown, paint: Paint) -> str:
    if lock.state == "free":
        return f"{lock.lock} is {paint('green', 'free')}"
    facts = [
        ("lock", lock.lock),
        ("state", _state(lock.state, paint)),
        ("holder", lock.holder),
        ("token", str(lock.token)),
        ("since", ago(lock.since)),
        ("expires in", lasting(lock.expires_in) if lock.expires_in is not None else ""),
        ("max hold", lasting(lock.max_hold) if lock.max_hold else ""),
        ("session", lock.session),
        ("waiting", ", ".join(lock.waiters)),
        ("metadata", _json(lock.metadata)),
    ]
    return "\n".join(columns([fact for fact in facts if fact[1]]))


def _lock_list(outcome: LockList, paint: Paint) -> str:
    if not outcome.locks:
        return "no lock is held"
    head = tuple(
        paint("dim", title) for title in ("LOCK", "HOLDER", "TOKEN", "SINCE", "EXPIRES IN", "")
    )
    rows = [head]
    for lock in outcome.locks:
        lives = lasting(lock.expires_in) if lock.state == "held" else _state(lock.state, paint)
        queue = f"{len(lock.waiters)} waiting" if lock.waiters else ""
        rows.append((lock.lock, lock.holder, str(lock.token), ago(lock.since), lives, queue))
    return "\n".join(columns(rows))


def _joined(outcome: sessions.Joined, _paint: Paint) -> str:
    return f"export INTERLOCK_SESSION={outcome.session}"


def _left(outcome: sessions.Left, paint: Paint) -> str:
    gave = f"; released {', '.join(outcome.released)}" if outcome.released else ""
    return f"{paint('green', 'left')} {outcome.session}{gave}"


def _renewed(outcome: sessions.Renewed, paint: Paint) -> str:
    return (
        f"{paint('green', 'renewed')} {outcome.session}, expires in {lasting(outcome.expires_in)}"
    )


def _lapsed(outcome: sessions.Lapsed, paint: Paint) -> str:
    return f"{paint('red', 'lapsed')} {outcome.session} is over; join again"


def _nobody(outcome: Nobody, _paint: Paint) -> str:
    return f"there is no session of {outcome.agent}; 'interlock agent list' shows all"


def _agent_list(outcome: AgentList, paint: Paint) -> str:
    if not outcome.agents:
        return "nobody is here"
    titles = ("AGENT", "STATE", "SINCE", "EXPIRES IN", "WHERE", "HOLDS", "SESSION")
    rows = [tuple(paint("dim", title) for title in titles)]
    for agent in outcome.agents:
        lives = "" if agent.expires_in is None else lasting(agent.expires_in)
        where = f"{agent.host}:{agent.pid}"
        state = _state(agent.state, paint)
        holds = ", ".join(agent.holds)
        rows.append((agent.agent, state, ago(agent.since), lives, where, holds, agent.session))
    return "\n".join(columns(rows))


def _entries(outcome: Entries, paint: Paint) -> str:
    if not outcome.entries:
        return "nothing is recorded"
    return "\n".join(
        columns(
            [
                (
                    f"{line.revision:>6}",
                    paint("dim", f"{ago(line.at):>10}"),
                    line.agent or "-",
                    f"{line.verb} {line.outcome}",
                    line.thing,
                )
                for line in outcome.entries
            ]
        )
    )


def _nothing(outcome: Nothing, _paint: Paint) -> str:
    kind, _, name = outcome.thing.partition("/")
    agent = f"for an agent write agent/{name}; " if kind == "lock" else ""
    return f"the record knows nothing of {outcome.thing}; {agent}'interlock record log' shows all"


def _story(outcome: Story, paint: Paint) -> str:
    from interlock.faces.story import told

    return told(outcome, paint)


def _verified(outcome: Verified, paint: Paint) -> str:
    colours = {"ok": "green", "unproven": "yellow", "bad": "red"}
    words = {name: getattr(outcome, name) for name in ("integrity", "completeness", "truncation")}
    rows = [
        (name, paint(colours[word], word), _reason(outcome, name)) for name, word in words.items()
    ]
    if outcome.against is not None:
        rows.append(("against", outcome.against.record, _beside(outcome.against)))
    lines = columns(rows)
    lines += [_found(finding) for finding in outcome.findings]
    if outcome.more:
        lines.append(f"and {outcome.more} more")
    return "\n".join(lines)


def _reason(outcome: Verified, name: str) -> str:
    """Why a verdict is what it is, or what to do about it."""
    if getattr(outcome, name) == "bad":
        places = [_position(each) for each in outcome.findings if each.verdict == name]
        return f"at {', '.join(places[:3])}{' ...' if len(places) > len(places[:3]) else ''}"
    match name:
        case "integrity":
            span = f", revision {outcome.begins} to {outcome.ends}" if outcome.ends else ""
            return f"{_count(outcome.entries)}{span}"
        case "completeness" if outcome.since:
            return f"entries before revision {outcome.since} are gone, and nothing stands for them"
        case "completeness":
            left = f"; {outcome.dropped} more were dropped, as retention wants" * bool(
                outcome.dropped
            )
            return f"record and state tell the same{left}"
        case _ if outcome.anchored:
            return f"nothing is missing up to revision {outcome.anchored}"
        case _:
            return "a cut end would not show; from now on it does: interlock record anchor FILE"


def _beside(compared: Compared) -> str:
    """How a record stands to an export."""
    if not compared.common:
        return "they have no entry in common"
    common = f"up to revision {compared.common} they are the same"
    match compared.record:
        case "same":
            return common
        case "longer":
            return f"{common}, then the record goes on"
        case "shorter":
            return f"{common}, then only the export goes on: a cut record, or a newer copy"
        case "parted":
            return f"{common}, then each goes its own way"


def _found(finding: Proof) -> str:
    return f"{_position(finding)}: {finding.says}"


def _position(finding: Proof) -> str:
    return f"revision {finding.revision}" if finding.revision else finding.key


def _count(entries: int) -> str:
    return "1 entry" if entries == 1 else f"{entries} entries"


def _exported(outcome: Exported, paint: Paint) -> str:
    left = f"{_count(outcome.entries)}, {outcome.items} items"
    return f"{paint('green', 'exported')} {outcome.path}: {left}"


def _anchored(outcome: Anchored, paint: Paint) -> str:
    where = f"at revision {outcome.revision}, {_count(outcome.entries)}"
    return f"{paint('green', 'anchored')} {outcome.place}: {where}"


def _why(outcome: Why, paint: Paint) -> str:
    if not outcome.blocked:
        word = paint("green", "not blocked")
        return f"{outcome.thing} is {word}: {outcome.because}; {outcome.clear}"
    facts = [
        ("thing", f"{outcome.thing} is {paint('yellow', 'blocked')}"),
        ("because", outcome.because),
        ("since", ago(outcome.since)),
        ("waiting", ", ".join(outcome.waiters)),
        ("clears when", outcome.clear),
    ]
    return "\n".join(columns([fact for fact in facts if fact[1]]))


def _maintained(outcome: Maintained, _paint: Paint) -> str:
    done = f"reclaimed {outcome.reclaimed}, sealed {outcome.sealed}, left {outcome.left}"
    return f"{done}\n{outcome.finding}" if outcome.finding else done


def _created(outcome: Created, paint: Paint) -> str:
    return f"{paint('green', 'created')} {outcome.store}"


def _exists(outcome: Exists, paint: Paint) -> str:
    return f"{paint('dim', 'already there')} {outcome.store}"


def _diagnosis(outcome: Diagnosis, paint: Paint) -> str:
    colours = {"ok": "green", "warn": "yellow", "bad": "red"}
    return "\n".join(
        f"{paint(colours[check.verdict], f'{check.verdict:<4}')} {check.name}: {check.fact}"
        + (f"; {check.remedy}" if check.remedy else "")
        for check in outcome.checks
    )


def _facts(outcome: dict[str, object], paint: Paint) -> str:
    facts = [(_named(name), _fact(name, fact)) for name, fact in outcome.items()]
    return "\n".join(columns([(paint("dim", name), fact) for name, fact in facts if fact]))


def _named(name: str) -> str:
    """``wal_bytes`` is shown as a size, so that is its name."""
    words = ["size" if word == "bytes" else word for word in name.split("_")]
    return " ".join(words)


def _fact(name: str, fact: object) -> str:
    match fact:
        case int() if "bytes" in name.split("_"):
            return _size(fact)
        case list() | tuple():
            return ", ".join(_fact(name, part) for part in fact)
        case dict():
            return ", ".join(f"{_named(part)} {_fact(part, fact[part])}" for part in fact)
        case True | False:
            return "yes" if fact else "no"
        case _:
            return "" if fact is None else plain(str(fact))


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KB", "MB"):
        if size < 1024:  # noqa: PLR2004 - that many make one of the next unit
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GB"


def _state(state: str, paint: Paint) -> str:
    return paint("red" if state in ("stale", "lapsed") else "green", state)


def _json(value: object) -> str:
    if value is None:
        return ""
    import msgspec

    return plain(msgspec.json.encode(value).decode())


RENDERERS: dict[str, Callable[[Any, Paint], str]] = {
    "lock.Acquired": _granted,
    "lock.Extended": _granted,
    "lock.Reclaimed": _reclaimed,
    "lock.Busy": _busy,
    "lock.Deadlock": _deadlock,
    "lock.Fenced": _fenced,
    "lock.Released": _released,
    "lock.AlreadyFree": _already_free,
    "lock.NotOwner": _not_owner,
    "lock.Shown": _shown,
    "lock.LockList": _lock_list,
    "session.Joined": _joined,
    "session.Left": _left,
    "session.Renewed": _renewed,
    "session.Lapsed": _lapsed,
    "agent.AgentList": _agent_list,
    "agent.Nobody": _nobody,
    "record.Entries": _entries,
    "record.Nothing": _nothing,
    "story.Story": _story,
    "verdict.Verified": _verified,
    "verdict.Exported": _exported,
    "verdict.Anchored": _anchored,
    "why.Why": _why,
    "maintain.Maintained": _maintained,
    "fleet.Created": _created,
    "fleet.Exists": _exists,
    "fleet.Diagnosis": _diagnosis,
    "builtins.dict": _facts,
}
