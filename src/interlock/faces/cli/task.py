"""``task watch``, which continues while stdout has a reader."""

from __future__ import annotations

from interlock.faces.cli.command import answer, is_read, stoppable
from interlock.faces.cli.connect import connected, speak_up
from interlock.faces.cli.parse import Parsed
from interlock.nouns.tasks.noun import TaskWatch
from interlock.nouns.tasks.task import EVENT_NAMES

_LOOK = 0.5
"""How often to check that stdout still has a reader, while there is nothing to write."""


def watch(parsed: Parsed) -> int:
    """The events of tasks, one line each, as they are recorded."""
    request: TaskWatch = parsed.request
    with connected(parsed) as fleet:
        stoppable()
        speak_up()
        with fleet.tasks.subscribe(
            events=request.event or EVENT_NAMES,
            prefix=request.prefix or "",
            can=request.can or None,
            after=request.after,
        ) as events:
            while is_read():
                for event in events.take(_LOOK):
                    answer(parsed, event)
    raise BrokenPipeError
