"""Outcomes of snapshots and shared values, in words; values are text of other agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.core.validate import quote
from interlock.nouns.messages.text import body
from interlock.runtime.text import ago, listed, short_json, table

if TYPE_CHECKING:
    from interlock.nouns.swarms import sync_results as results
    from interlock.runtime.text import Paint, Text

_SHORT = 40
_WHY = {
    "simultaneous_update": "two swarms wrote it within 10 ms",
    "stale_base": "it has another value than the one that you saw",
}


# Snapshots.


def _states(outcome: results.SwarmStateList, paint: Paint) -> str:
    titles = (
        "SWARM", "STATE", "TAKEN", "AGENTS", "DONE", "PENDING", "TASK", "MEMORY", "LATENCY",
        "MSG/S", "NOTE",
    )  # fmt: skip
    rows = [_state(each, paint) for each in outcome.states]
    return "\n".join([table(titles, rows, paint), *_trouble(outcome.trouble, paint)])


def _state(each: results.SwarmState, paint: Paint) -> tuple[str, ...]:
    note = paint("red", each.refused) if each.refused else ""
    if each.version is None:
        return (each.swarm, *["-"] * 9, note or "not read yet")
    return (
        each.swarm,
        str(each.version),
        ago(each.at),
        str(len(each.agents)),
        str(each.completed_tasks),
        str(each.pending_tasks),
        f"{each.avg_execution_time_ms:.0f} ms",
        f"{each.memory / 2**20:.0f} MiB",
        f"{each.avg_latency_ms:.1f} ms",
        f"{each.message_throughput_per_sec:.1f}",
        note,
    )


# Shared values.


def _stored(outcome: results.ValueShared, paint: Paint) -> str:
    before = ": the same value was there" if outcome.already else ""
    revision = f", revision {outcome.revision}" if outcome.revision else ""
    head = f"{paint('green', 'shared')} {outcome.key}{revision}{before}"
    if outcome.won is None:
        return head
    lost = outcome.won
    said = f"it replaced a write of {lost.loser}, {lost.time_diff_ms:.0f} ms earlier"
    hint = f"both are kept: interlock swarm shared {quote(outcome.key)} --conflicts"
    return f"{head}\n{paint('yellow', 'conflict')}: {said}; {hint}"


def _spooled(outcome: results.ShareSpooled, paint: Paint) -> str:
    said = "it is stored here, and is put on the bus as soon as possible"
    word = paint("yellow", "spooled")
    return "\n".join([f"{word} {outcome.key}: {said}", *_trouble(outcome.trouble, paint)])


def _undecided(outcome: results.ShareUndecided, paint: Paint) -> str:
    if outcome.swarm:
        stays = f"the value of {outcome.swarm} stays until a person decides"
    elif outcome.revision:
        stays = "something that no trusted swarm signed stands there, until a person decides"
    else:
        stays = "it was deleted, and stays so until a person decides"
    lines = [
        f"{paint('yellow', 'undecided')} {outcome.key}: {_WHY[outcome.reason]}; {stays}",
        *(body(outcome.value, paint) if outcome.swarm else ()),
        f"to see both values: interlock decision show {quote(outcome.decision)}",
    ]
    return "\n".join(lines)


def _full(outcome: results.SharesFull, paint: Paint) -> str:
    waits = f"{outcome.waiting} writes of this home wait for the bus, and no more are stored"
    return f"{paint('yellow', 'full')} {outcome.key}: {waits}; run 'interlock swarm sync'"


def _value(outcome: results.SharedView, paint: Paint) -> str:
    facts = [("key", outcome.key)]
    if outcome.revision:
        facts.append(("revision", str(outcome.revision)))
    if outcome.swarm:
        facts.append(
            ("written by", f"{outcome.agent} of {outcome.swarm}, {ago(outcome.stored_at)}")
        )
    if outcome.waiting:
        writes = "1 write" if outcome.waiting == 1 else f"{outcome.waiting} writes"
        facts.append(("waiting", f"{writes} of this home, for the bus"))
    facts += [("undecided", f"interlock decision show {quote(each)}") for each in outcome.decisions]
    if outcome.refused:
        facts.append(("refused", paint("red", outcome.refused)))
    shown = body(outcome.value, paint) if outcome.swarm else []
    return "\n".join([listed(facts), *shown, *_trouble(outcome.trouble, paint)])


def _values(outcome: results.SharedList, paint: Paint) -> str:
    trouble = _trouble(outcome.trouble, paint)
    if not outcome.values:
        return "\n".join(
            ["no shared values yet; write one: interlock swarm share KEY VALUE", *trouble]
        )
    titles = ("KEY", "REVISION", "SWARM", "WRITTEN", "VALUE", "NOTE")
    rows = [
        (
            each.key,
            str(each.revision or "-"),
            each.swarm or "-",
            ago(each.stored_at) if each.stored_at else "-",
            _short(each.value) if each.swarm else "-",
            _note(each, paint),
        )
        for each in outcome.values
    ]
    return "\n".join([table(titles, rows, paint), *trouble])


def _note(each: results.SharedView, paint: Paint) -> str:
    if each.refused:
        return paint("red", f"refused: {each.refused}")
    if each.decisions:
        return paint("yellow", f"undecided: interlock decision show {quote(each.decisions[0])}")
    return f"waiting for the bus: {each.waiting}" if each.waiting else ""


def _unknown(outcome: results.UnknownShared, paint: Paint) -> str:
    word, hint = paint("yellow", "unknown"), "see 'interlock swarm shared'"
    lines = [f"{word} {outcome.key}: no value stands under this key; {hint}"]
    return "\n".join([*lines, *_trouble(outcome.trouble, paint)])


def _conflicts(outcome: results.ConflictList, paint: Paint) -> str:
    if not outcome.conflicts:
        return "no conflicts about shared values"
    titles = ("KEY", "WINNER", "VALUE", "LOSER", "VALUE", "APART", "RESOLUTION", "WHEN")
    rows = [
        (
            each.key,
            each.winner or "-",
            _short(each.winner_value),
            each.loser or "-",
            _short(each.loser_value),
            f"{each.time_diff_ms:.0f} ms",
            f"{each.resolution} {each.decision}".strip(),
            ago(each.at),
        )
        for each in outcome.conflicts
    ]
    return table(titles, rows, paint)


def _short(value: object) -> str:
    return short_json(value, _SHORT)


def _trouble(said: str, paint: Paint) -> list[str]:
    return [f"{paint('yellow', 'trouble')}: {said}"] if said else []


TEXTS: dict[str, Text] = {
    "SwarmStateList": _states,
    "ValueShared": _stored,
    "ShareSpooled": _spooled,
    "ShareUndecided": _undecided,
    "SharesFull": _full,
    "SharedView": _value,
    "SharedList": _values,
    "UnknownShared": _unknown,
    "ConflictList": _conflicts,
}
"""The text of each outcome, by the name of its class."""
