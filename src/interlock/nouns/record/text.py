"""The outcomes of the record in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from interlock.runtime.text import ago, columns

if TYPE_CHECKING:
    from interlock.core.history import Story
    from interlock.core.log import RecordLine
    from interlock.nouns.record.noun import Entries, NoHistory
    from interlock.nouns.record.outcomes import (
        Anchored,
        Compared,
        Exported,
        RecordFinding,
        Verified,
    )
    from interlock.runtime.text import Paint, Text

NAMED = 5
"""Tasks that are named for one entry."""


def entries(outcome: Entries, paint: Paint) -> str:
    """A line for each entry."""
    if not outcome.entries:
        return "no entry is recorded, or none that fits"
    return "\n".join(
        columns(
            [
                (
                    f"{line.revision:>6}",
                    paint("dim", f"{ago(line.at):>10}"),
                    line.agent or "-",
                    f"{line.verb} {line.outcome}",
                    _about(line),
                )
                for line in outcome.entries
            ]
        )
    )


def nothing(outcome: NoHistory, _paint: Paint) -> str:
    """No entry about the thing, and other names to try."""
    kind, _, name = outcome.thing.partition("/")
    said = f"the record knows nothing of {outcome.thing}"
    if kind == "lock":
        said += f"; for a task write task/{name}, for an agent agent/{name}"
    return f"{said}; 'interlock record log' shows all"


def story(outcome: Story, paint: Paint) -> str:
    """What happened to one thing."""
    from interlock.nouns.record.history_text import history_text

    return history_text(outcome, paint)


def _about(line: RecordLine) -> str:
    """The thing of an entry; for tasks also what came of others with it."""
    if line.reason:
        return f"{line.thing}: {line.reason}"
    if not line.verb.startswith("task."):
        return line.thing
    others: dict[str, list[str]] = {}
    for event in line.events:
        word = event.name.partition(":")[2]
        if word != line.outcome:
            others.setdefault(word, []).append(event.thing.removeprefix("task/"))
    return ", ".join([line.thing, *(_became(word, names) for word, names in others.items())])


def _became(word: str, names: Sequence[str]) -> str:
    """What tasks became, the first of them by name."""
    named = [name for name in names if name]
    if not named:
        return word
    more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return f"{word}: {', '.join(named[:NAMED])}{more}"


def verified(outcome: Verified, paint: Paint) -> str:
    """Three verdicts with their reasons, then the findings."""
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


def _found(finding: RecordFinding) -> str:
    return f"{_position(finding)}: {finding.says}"


def _position(finding: RecordFinding) -> str:
    return f"revision {finding.revision}" if finding.revision else finding.key


def _count(entries: int) -> str:
    return "1 entry" if entries == 1 else f"{entries} entries"


def exported(outcome: Exported, paint: Paint) -> str:
    """What is in the file."""
    left = f"{_count(outcome.entries)}, {outcome.items} items"
    return f"{paint('green', 'exported')} {outcome.path}: {left}"


def anchored(outcome: Anchored, paint: Paint) -> str:
    """How far the mark goes."""
    where = f"at revision {outcome.revision}, {_count(outcome.entries)}"
    return f"{paint('green', 'anchored')} {outcome.place}: {where}"


TEXTS: dict[str, Text] = {
    "Entries": entries,
    "NoHistory": nothing,
    "Story": story,
    "Verified": verified,
    "Exported": exported,
    "Anchored": anchored,
}
"""The text of each outcome, by the name of its class."""
