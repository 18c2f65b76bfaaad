"""``observe``, which continues while stdout has a reader; with ``--counters`` it ends at once."""

from __future__ import annotations

from interlock.faces.cli.command import answer, is_read, stoppable
from interlock.faces.cli.connect import connected, speak_up
from interlock.faces.cli.parse import Parsed
from interlock.nouns.fleet.noun import fitting

_LOOK = 0.5
"""How often to check that stdout still has a reader, while there is nothing to write."""


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
