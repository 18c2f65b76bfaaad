"""Messages at a shell: what is shown is written first and acknowledged then, never the other way.

So whoever is killed between the two sees a message again, and nobody loses one.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from interlock.driving import drive
from interlock.faces.cli.command import answer, is_read, stoppable
from interlock.faces.cli.connect import connected, staying
from interlock.faces.cli.parse import Parsed
from interlock.faces.operations.inbox import Subscribe, look, settle, wanted

if TYPE_CHECKING:
    from interlock.client import Fleet

_LOOK = 0.5
"""How often to see whether anybody still reads, while there is nothing to write."""


def lasting(parsed: Parsed) -> int:
    """A command that waits: a signal ends it in order, so a question is taken back."""
    assert parsed.operation.act is not None  # noqa: S101 - the table says how
    stoppable()
    with staying(parsed) as fleet:
        outcome = parsed.operation.act(fleet, parsed.request)
    return answer(parsed, outcome)


def inbox(parsed: Parsed) -> int:
    """What waits; acknowledged, if that was asked for, after it was written."""
    with connected(parsed) as fleet:
        found = look(fleet, parsed.request)
        status = answer(parsed, found)
        settle(fleet, parsed.request, found)
    return status


def subscribe(parsed: Parsed) -> int:
    """Subscribe, and show what comes if that was asked for."""
    request: Subscribe = parsed.request
    assert parsed.operation.act is not None  # noqa: S101 - the table says how
    type_ = wanted(request)
    if not request.follow:
        with connected(parsed) as fleet:
            return answer(parsed, parsed.operation.act(fleet, request))
    stoppable()
    with staying(parsed) as fleet:
        parsed.operation.act(fleet, request)
        _follow(parsed, fleet, type_)
    raise BrokenPipeError


def _follow(parsed: Parsed, fleet: Fleet, type_: str) -> None:
    """Alerts of this type, each acknowledged after it was written, for as long as one reads."""
    with closing(fleet.messages.calls.receiver(only=type_)) as receiver:
        while is_read():
            came = drive(receiver.take(_LOOK), fleet.store)
            for each in came:
                answer(parsed, each)
            if came:
                drive(receiver.ack([each.id for each in came]), fleet.store)
