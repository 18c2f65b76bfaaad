"""``task watch``, which goes on for as long as somebody reads."""

from __future__ import annotations

import select
import sys

from interlock.core.task import WORDS
from interlock.faces.cli.command import answer, stoppable
from interlock.faces.cli.connect import connected, speak_up
from interlock.faces.cli.parse import Parsed
from interlock.faces.operations.task import Watch

_LOOK = 0.5
"""How often to see whether anybody still reads, while there is nothing to write."""


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
            while _is_read():
                for event in events.take(_LOOK):
                    answer(parsed, event)
    raise BrokenPipeError


def _is_read() -> bool:
    """Whether what we write may still find a reader: of a pipe, its other end is open."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return not any(flags & select.POLLERR for _, flags in poll.poll(0))
