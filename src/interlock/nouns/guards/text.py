"""Outcomes of guards, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from interlock.core.safe_text import printable
from interlock.runtime.text import (
    ago,
    columns,
    guard_blocked,
    joined,
    lasting,
    listed,
    no_guard,
    table,
)

if TYPE_CHECKING:
    from interlock.nouns.guards import noun, results
    from interlock.runtime.text import Paint, Text

_COLOURS = {
    "true": "green", "passed": "green", "false": "red", "failed": "red", "unknown": "yellow",
}  # fmt: skip
_DIGEST = 12


def checked(outcome: results.GuardCheck, paint: Paint) -> str:
    """Each leaf with its verdict and reason, then what would clear it."""
    lines: list[str] = []
    for verdict in outcome.guards or (outcome,):
        lines += _verdict(verdict, paint)
    return "\n".join(lines)


def _verdict(verdict: results.GuardVerdict, paint: Paint) -> Iterator[str]:
    yield from columns(
        [
            (paint(_COLOURS[leaf.verdict], leaf.verdict), leaf.condition, leaf.reason)
            for leaf in verdict.leaves
        ]
        or [("", "", "")]
    )
    word = paint(_COLOURS[verdict.outcome], verdict.outcome)
    name = f" {verdict.guard}" if verdict.guard else ""
    means = _action(verdict)
    yield f"{word}{name}{means}" + ("; to clear it:" if verdict.acts else "")
    yield from (f"  {act}" for act in verdict.acts)


def _action(verdict: results.GuardVerdict) -> str:
    """What a guard that does not pass means; one that is unknown neither retries nor fails."""
    if verdict.outcome != "passed" and verdict.action == "warn":
        return " (it only warns)"
    said = {"retry": "it is tried again", "fail": verdict.message}
    words = said.get(verdict.action, "") if verdict.outcome == "failed" else ""
    return f" ({words})" if words else ""


def allowed(outcome: noun.GuardsAllowed, paint: Paint) -> str:
    """Each definition with its digest, and what it can do here."""
    if not outcome.guards:
        return f"nothing in {outcome.file} looks at the outside; it needs no permission"
    lines = [f"{paint('green', 'allowed')} below {outcome.root}:"]
    for guard in outcome.guards:
        lines.append(f"{guard.guard}  {guard.digest}")
        lines += [f"  runs  {each}" for each in guard.runs]
        lines += [f"  looks at  {each}" for each in guard.looks]
    return "\n".join(lines)


def denied(outcome: noun.GuardsDenied, paint: Paint) -> str:
    """The definitions that this host does not look for."""
    if not outcome.guards:
        return f"nothing in {outcome.file} looks at the outside"
    said = f"{paint('green', 'denied')} {joined(outcome.guards)}"
    if outcome.left:
        more = "other hosts rely on what this one saw until it is too old"
        return f"{said}; nothing was deleted from the store, so {more}: {outcome.left}"
    count = f"{outcome.withdrawn} observation{'s' * (outcome.withdrawn != 1)}"
    return f"{said}; deleted {count} of this host" if outcome.withdrawn else said


def permissions(outcome: noun.GuardPermissionList, paint: Paint) -> str:
    """A line for each definition."""
    if not outcome.permissions:
        return f"this host allows nothing (its list is {outcome.place})"
    rows = [
        (
            each.digest[:_DIGEST],
            "allowed" if each.allowed else "denied",
            ago(each.since),
            each.root,
            each.note,
        )
        for each in outcome.permissions
    ]
    return table(("DIGEST", "HERE", "SINCE", "ROOT", "DEFINITION"), rows, paint)


def defined(outcome: results.GuardsDefined, paint: Paint) -> str:
    """Which are new, changed, the same."""
    parts = (("new", outcome.new), ("changed", outcome.changed), ("the same", outcome.same))
    said = [f"{joined(names)} ({word})" for word, names in parts if names]
    return f"{paint('green', 'defined')} {joined(said)}"


def dropped(outcome: results.GuardDropped, paint: Paint) -> str:
    """It is gone, and what waits for it goes on waiting."""
    said = f"{paint('green', 'dropped')} {outcome.guard}"
    if not outcome.waiting:
        return said
    waiting = joined(map(printable, outcome.waiting))
    return f"{said}; what waits for it waits until it is defined again: {waiting}"


def guards(outcome: noun.GuardList, paint: Paint) -> str:
    """A line for each guard."""
    if not outcome.guards:
        return "no guards"
    rows = [
        (each.guard, each.action, _here(each), each.digest[:_DIGEST], each.condition)
        for each in outcome.guards
    ]
    return table(("GUARD", "ACTION", "HERE", "DIGEST", "CONDITION"), rows, paint)


def guard(outcome: results.GuardView, paint: Paint) -> str:
    """The definition, whether this host allows it, and the last observations."""
    here = _here(outcome)
    if outcome.outside:
        here += f" below {outcome.root}" if outcome.allowed else f": {outcome.because}"
    facts = [("digest", outcome.digest), ("this host", here)]
    if outcome.outside:
        facts.append(("other hosts", _hosts(outcome)))
    lines = [*outcome.definition, "", listed(facts)]
    if outcome.observations:
        lines += ["", table(("CONDITION", "SAYS", "HOST", "AT", ""), _rows(outcome), paint)]
    elif outcome.outside:
        lines += ["no host has looked yet"]
    return "\n".join(lines)


def _hosts(outcome: results.GuardView) -> str:
    said = []
    for each in outcome.hosts:
        idle = "" if each.live else " (no agent runs there)"
        said.append(f"{each.host} (it looks again and again)" if each.looks else each.host + idle)
    return joined(said) or ("none" if outcome.allowed else "no live host may look")


def _rows(outcome: results.GuardView) -> Sequence[Sequence[str]]:
    age = lasting(outcome.max_age)
    return [
        (each.condition, each.says, each.host, ago(each.at), "" if each.current else f"over {age}")
        for each in outcome.observations
    ]


def _here(view: results.GuardView) -> str:
    if not view.outside:
        return "not needed"
    return "allowed" if view.allowed else "not allowed"


def looked(outcome: results.GuardsLooked, paint: Paint) -> str:
    """What this host looked for, and what it may not look for."""
    news = f"; there was news about {joined(outcome.changed)}" if outcome.changed else ""
    lines = [f"{paint('green', 'looked')} for {joined(outcome.guards) or 'nothing'}{news}"]
    if outcome.not_allowed:
        lines.append(f"not allowed here: {joined(outcome.not_allowed)}")
    return "\n".join(lines)


TEXTS: dict[str, Text] = {
    "GuardBlocked": guard_blocked,
    "GuardCheck": checked,
    "GuardDropped": dropped,
    "GuardList": guards,
    "GuardPermissionList": permissions,
    "GuardView": guard,
    "GuardsLooked": looked,
    "GuardsAllowed": allowed,
    "GuardsDefined": defined,
    "GuardsDenied": denied,
    "NoGuard": no_guard,
}
