"""``observe``, which goes on for as long as somebody reads, unless only counters are asked for."""

from __future__ import annotations

from interlock.faces.cli.command import answer, is_read, stoppable
from interlock.faces.cli.connect import connected, speak_up
from interlock.faces.cli.parse import Parsed
from interlock.nouns.fleet.noun import fitting

_LOOK = 0.5
"""How often to see whether anybody still reads, while there is nothing to write."""


def observe(parsed: Parsed) -> int:
    """Every event, one line each, at once; or the counters."""
    request = fitting(parsed.request)
    with connected(parsed) as fleet:
        if request.counters:
            return answer(parsed, fleet.act(request))
        stoppable()
        speak_up()
        with fleet.observe(nouns=request.noun or None, after=request.after) as events:
            while is_read():
                for event in events.take(_LOOK):
                    answer(parsed, event)
    raise BrokenPipeError
