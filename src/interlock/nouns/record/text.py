"""The record in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from interlock.runtime.text import ago, columns

if TYPE_CHECKING:
    from interlock.core.log import Line
    from interlock.core.story import Story
    from interlock.nouns.record.noun import Entries, NoHistory
    from interlock.runtime.text import Paint, Text

NAMED = 5
"""So many tasks are named that became something by one entry."""


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
    """Unknown to it, and what else may have been meant."""
    kind, _, name = outcome.thing.partition("/")
    said = f"the record knows nothing of {outcome.thing}"
    if kind == "lock":
        said += f"; for a task write task/{name}, for an agent agent/{name}"
    return f"{said}; 'interlock record log' shows all"


def story(outcome: Story, paint: Paint) -> str:
    """What happened to one thing."""
    from interlock.faces.story import told

    return told(outcome, paint)


def _about(line: Line) -> str:
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


TEXTS: dict[str, Text] = {
    "Entries": entries,
    "NoHistory": nothing,
    "Story": story,
}
"""The text of each outcome, by the name of its class."""
