"""The record in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.faces.render import ago, columns

if TYPE_CHECKING:
    from interlock.core.story import Story
    from interlock.faces.operations.record import Entries, Nothing
    from interlock.faces.render import Paint


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
                    line.thing,
                )
                for line in outcome.entries
            ]
        )
    )


def nothing(outcome: Nothing, _paint: Paint) -> str:
    """Unknown to it, and what else may have been meant."""
    kind, _, name = outcome.thing.partition("/")
    agent = f"for an agent write agent/{name}; " if kind == "lock" else ""
    return f"the record knows nothing of {outcome.thing}; {agent}'interlock record log' shows all"


def story(outcome: Story, paint: Paint) -> str:
    """What happened to one thing."""
    from interlock.faces.story import told

    return told(outcome, paint)
