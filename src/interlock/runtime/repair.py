"""Mending what can be made again: items that only repeat what others say, or that nobody misses.

A mark that a message waits is written anew; what stood in it is in the message.  A note of who is
asked or of how often somebody sent goes, and comes again by itself.  What is nowhere else stays as
it is, for somebody to look at.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.drivers import Op
from interlock.nouns.messages import decode
from interlock.nouns.messages.message import ReadMark, Unread
from interlock.nouns.messages.send_rules import MAILBOX
from interlock.runtime.decode import readable
from interlock.runtime.identity import Actor
from interlock.runtime.integrity import broken, damage
from interlock.runtime.runner import DecideOp, ReadOp, Runner
from interlock.store import Item

BOUND = 1000
"""What a pass mends, at most."""


def mend(runner: Runner, actor: Actor) -> Op[int]:
    """Mend what can be; returns how much that was."""
    found: list[Item] = []
    for prefix in keys.DERIVED:
        found += yield from broken(prefix)
    for item in found[:BOUND]:
        yield from runner.change(partial(_deciding, item.key, runner.clock.wall()), actor)
    return min(len(found), BOUND)


def _deciding(key: str, now: float) -> DecideOp[str]:
    item = (yield (key,))[key]
    if item is None or damage(item) is None:
        return Decision(outcome="gone")
    again = yield from _AGAIN.get(key.partition("/")[0] + "/", _nothing)(item, now)
    puts = () if again is None else (Write(key, again),)
    deletes = (key,) if again is None else ()
    return Decision(
        outcome="mended", verb="record.mend", thing="record", puts=puts, deletes=deletes
    )


def _nothing(_item: Item, _now: float) -> ReadOp[object | None]:
    yield ()
    return None


def _unread(item: Item, _now: float) -> ReadOp[object | None]:
    key = keys.message(keys.id_of(item.key))
    found = (yield (key,))[key]
    message = None if found is None else readable(decode.message, found)
    return Unread() if message is None else Unread(message.urgent, message.trace)


def _marked(_item: Item, now: float) -> ReadOp[object | None]:
    yield ()
    return ReadMark(now)


def _mailbox(_item: Item, _now: float) -> ReadOp[object | None]:
    yield ()
    return MAILBOX


def _open(item: Item, _now: float) -> ReadOp[object | None]:
    key = keys.query(keys.id_of(item.key))
    query = readable(decode.query, (yield (key,))[key])
    return None if query is None else {"to": query.to}


_AGAIN: dict[str, Callable[[Item, float], ReadOp[object | None]]] = {
    keys.UNREAD: _unread,
    keys.READ: _marked,
    keys.SENT: _marked,
    keys.MAILBOXES: _mailbox,
    keys.OPEN: _open,
}
