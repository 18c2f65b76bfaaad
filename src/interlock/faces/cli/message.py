"""Messages at a shell: what is shown is written first and acknowledged then, never the other way.

So whoever is killed between the two sees a message again, and nobody loses one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from interlock.drivers import drive
from interlock.faces.cli.command import Stopped, answer, is_read, note, stoppable, write
from interlock.faces.cli.connect import connected, staying
from interlock.faces.cli.parse import Parsed
from interlock.nouns.messages import log_lines
from interlock.nouns.messages.inbox_noun import AlertSubscribe, introduced, look, settle, wanted

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.nouns.messages.inbox_noun import MessageWait
    from interlock.nouns.messages.noun import QueryAsk
    from interlock.nouns.messages.views import Inbox

_LOOK = 0.5
"""How often to see whether anybody still reads, while there is nothing to write."""


def wait(parsed: Parsed) -> int:
    """Wait for a message; under a name that is new that may be for ever, so it is said."""
    assert parsed.operation.act is not None  # noqa: S101 - the table says how
    act = parsed.operation.act

    def waiting(fleet: Fleet, request: MessageWait) -> object:
        if not parsed.common.json:
            _introduce(fleet)
        return act(fleet, request)

    return _lasting(parsed, waiting)


def _introduce(fleet: Fleet) -> None:
    from interlock.nouns.messages.presence import is_new
    from interlock.nouns.messages.text import newcomer
    from interlock.nouns.messages.views import Inbox

    you = fleet.calls.context.me().actor.agent
    if drive(is_new(you), fleet.store):
        note(newcomer(introduced(fleet, Inbox(agent=you, messages=(), new=True))))


def query(parsed: Parsed) -> int:
    """Ask; whoever is interrupted hears what becomes of the question."""
    assert parsed.operation.act is not None  # noqa: S101 - the table says how
    ask, begun = parsed.operation.act, time.monotonic()
    log_lines.at_a_shell()

    def asking(fleet: Fleet, request: QueryAsk) -> object:
        try:
            return ask(fleet, request)
        except (KeyboardInterrupt, Stopped):
            note(_left(fleet, request, time.monotonic() - begun))
            raise

    return _lasting(parsed, asking)


def _lasting(parsed: Parsed, act: Callable[[Fleet, Any], object]) -> int:
    stoppable()
    with staying(parsed) as fleet:
        outcome = act(fleet, parsed.request)
    return answer(parsed, outcome)


def _left(fleet: Fleet, request: QueryAsk, waited: float) -> str:
    """What becomes of a question that nobody waits for any more: one with a name stays."""
    if request.id is None:
        return "interrupted, so the question is taken back; one that is asked with --id stays"
    from interlock.core.validate import duration
    from interlock.nouns.messages.query_rules import TIMEOUT

    usual = fleet.calls.context.settings.query(request.who, request.type) or TIMEOUT
    timeout = usual if request.timeout is None else duration(request.timeout, "timeout")
    stays = f"{request.id} stays open for up to {max(timeout - waited, 0.0):.0f} s"
    return f"interrupted; {stays}: 'interlock cancel {request.id}', or ask again with this --id"


def inbox(parsed: Parsed) -> int:
    """What waits; acknowledged, if that was asked for, after it was written."""
    with connected(parsed) as fleet:
        found = look(fleet, parsed.request)
        status = answer(parsed, found)
        if not (parsed.common.json or parsed.common.quiet or parsed.request.ack):
            _hint(found)
        settle(fleet, parsed.request, found)
    return status


def _hint(found: Inbox) -> None:
    """How to acknowledge what waits, below all that was shown."""
    from interlock.nouns.messages.text import to_settle

    if found.view == "unread" and found.messages:
        write(f"{to_settle(found.messages)}\n".encode())


def subscribe(parsed: Parsed) -> int:
    """Subscribe, and show what comes if that was asked for."""
    request: AlertSubscribe = parsed.request
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
    from interlock.core.validate import FOREVER
    from interlock.runtime.outage import Outage

    with closing(fleet.messages.calls.receiver(only=type_)) as receiver:
        outage = Outage(fleet.calls.context, "the subscription")
        while is_read():
            for each in drive(outage.feed(receiver.take, _LOOK), fleet.store):
                answer(parsed, each)
                ack = partial(receiver.ack, [each.id])
                drive(outage.through(lambda _: ack(), FOREVER), fleet.store)  # noqa: B023 - at once
