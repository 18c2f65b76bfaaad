"""Messages at a shell: a message is written first and acknowledged then, never the other way.

So a reader that is killed between the two gets the message again, and no message is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from interlock.core.validate import command, quote
from interlock.faces.cli.command import LOOK, Stopped, answer, is_read, note, stoppable, write
from interlock.faces.cli.connect import connected, staying
from interlock.faces.cli.parse import Parsed
from interlock.nouns.fleet.calls import FleetCalls
from interlock.nouns.messages import log_lines
from interlock.nouns.messages.inbox_noun import (
    AlertSubscribe,
    acknowledge_listed,
    introduced,
    list_inbox,
    subscribed_type,
)
from interlock.steps import drive

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.nouns.messages.inbox_noun import MessageWait
    from interlock.nouns.messages.message import Inbox
    from interlock.nouns.messages.noun import QueryAsk


def wait(parsed: Parsed) -> int:
    """Wait for a message; under a new name that may never end, so a note says so."""

    def waiting(fleet: Fleet, request: MessageWait) -> object:
        if not parsed.common.json:
            _introduce(fleet)
        return fleet.act(request)

    return _lasting(parsed, waiting)


def _introduce(fleet: Fleet) -> None:
    from interlock.nouns.messages.message import Inbox
    from interlock.nouns.messages.presence import is_new
    from interlock.nouns.messages.text import newcomer

    you = fleet.context.me().actor.agent
    if drive(is_new(you), fleet.store):
        inbox = drive(introduced(Inbox(agent=you, messages=(), new=True)), fleet.store)
        note(newcomer(inbox))


def query(parsed: Parsed) -> int:
    """Ask; after an interrupt a note says whether the question stays."""
    begun = time.monotonic()
    log_lines.at_a_shell()

    def asking(fleet: Fleet, request: QueryAsk) -> object:
        try:
            return fleet.act(request)
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
    """Whether a question stays after an interrupt: one with an id does."""
    if request.id is None:
        return "interrupted, so the question is taken back; one that is asked with --id stays"
    from interlock.core.validate import duration
    from interlock.nouns.messages.query import TIMEOUT

    usual = fleet.context.settings.query(request.who, request.type) or TIMEOUT
    timeout = usual if request.timeout is None else duration(request.timeout, "timeout")
    stays = f"{request.id} stays open for up to {max(timeout - waited, 0.0):.0f} s"
    return (
        f"interrupted; {stays}: {command(f'interlock cancel {quote(request.id)}')}, or ask again"
        " with this --id"
    )


def inbox(parsed: Parsed) -> int:
    """What waits; acknowledged, if that was asked for, after it was written."""
    with connected(parsed) as fleet:
        steps = FleetCalls(fleet.context)
        found = drive(list_inbox(steps, parsed.request), fleet.store)
        status = answer(parsed, found)
        if not (parsed.common.json or parsed.common.quiet or parsed.request.ack):
            _hint(found)
        drive(acknowledge_listed(steps, parsed.request, found), fleet.store)
    return status


def _hint(found: Inbox) -> None:
    """How to acknowledge what waits, below all that was shown."""
    from interlock.nouns.messages.text import to_settle

    if found.view == "unread" and found.messages:
        write(f"{to_settle(found.messages)}\n".encode())


def subscribe(parsed: Parsed) -> int:
    """Subscribe, and show what comes if that was asked for."""
    request: AlertSubscribe = parsed.request
    type_ = subscribed_type(request)
    if not request.follow:
        with connected(parsed) as fleet:
            return answer(parsed, fleet.act(request))
    stoppable()
    with staying(parsed) as fleet:
        fleet.act(request)
        _follow(parsed, fleet, type_)
    raise BrokenPipeError


def _follow(parsed: Parsed, fleet: Fleet, type_: str) -> None:
    """Alerts of this type, each acknowledged after it was written, for as long as one reads."""
    from interlock.core.validate import FOREVER
    from interlock.runtime.outage import OutageRetry

    with closing(fleet.messages.receiver(only=type_)) as receiver:
        outage = OutageRetry(fleet.context, "the subscription")
        while is_read():
            for each in drive(outage.feed(receiver.take, LOOK), fleet.store):
                answer(parsed, each)
                ack = partial(receiver.ack, [each.id])
                drive(outage.through(lambda _: ack(), FOREVER), fleet.store)  # noqa: B023 - at once
