"""``task watch``, which goes on for as long as somebody reads."""

from __future__ import annotations

from interlock.core.task import WORDS
from interlock.faces.cli.command import answer, stoppable
from interlock.faces.cli.connect import connected, speak_up
from interlock.faces.cli.parse import Parsed
from interlock.faces.operations.task import Watch


def watch(parsed: Parsed) -> int:
    """What happens to tasks, one line for each event, at once."""
    request: Watch = parsed.request
    with connected(parsed) as fleet:
        stoppable()
        speak_up()
        with fleet.tasks.subscribe(
            events=request.event or WORDS,
            prefix=request.prefix or "",
            can=request.can or None,
            after=request.after,
        ) as events:
            for event in events:
                answer(parsed, event)
    return 0
