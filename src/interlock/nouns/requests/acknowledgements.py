"""Acknowledgements: which results the asker has taken from the bus (step 10 of ``exchange.py``).

An asker deletes a result after the commit that stored it at its home.  So a result that was posted
and is no longer on the bus is acknowledged; no message is sent for that.  The commit that answers a
request also puts ``unacknowledged/{swarm}/{request}``.  A process that tends its swarm looks, every
few seconds and for many at once, whether these results are still on the bus, and deletes the marks
of those that are gone: one read of the bus and one commit at home, neither on the way of a request.

A client with the bus's credentials can delete a result, too: then the asker, which still has no
result, asks again, and the mark returns with the next result.  A result may also be gone because it
expired; after its deadline a missing result proves nothing, and its mark stays.

An asker may never come back.  So the swarm that posted a result also takes it from the bus once its
deadline is over: by its key, many with one commit, and only as it stands there.  The mark says so
from then on, and retention deletes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.decision import Decision, Event, Write
from interlock.nouns.requests.cleanup import TakenEnvelope, remove
from interlock.nouns.swarms.envelope import SKEW
from interlock.runtime.identity import Actor
from interlock.runtime.reads import looked_up, readable
from interlock.runtime.retention_clock import earlier_time
from interlock.steps import Op, Read
from interlock.store import Item, Range

if TYPE_CHECKING:
    from interlock.nouns.requests.home import Home
    from interlock.nouns.swarms.swarm import OwnSwarm
    from interlock.runtime.attempt import DecideOp
    from interlock.runtime.runner import Runner

AT_ONCE = 256
"""Marks that are looked at together."""
ROUNDS = 40
MARGIN = 2 * SKEW
"""Seconds after its deadline until a result is deleted from the bus."""


class UnacknowledgedMark(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A result that its asker has not taken yet: its message, and when it expires.

    ``refused`` says that it is not on the bus: the bus does not take it, or it expired there.
    """

    message: str
    until: float
    refused: bool = False


_MARK = codec.Decoder(UnacknowledgedMark)

decode_mark = _MARK.read_if_present


class Acknowledgements:
    """The results of one home that are not acknowledged; its methods are for a driver."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._at_once = home.at_once(AT_ONCE, 2)
        self._after = ""
        """Where the next look begins: a long list is looked at part by part."""

    def look(self, actor: Actor, own: OwnSwarm) -> Op[int]:
        """Delete the marks of results that are gone from the bus; how many that were."""
        done = 0
        for _ in range(ROUNDS):
            page = Range(keys.UNACKNOWLEDGED, self._after, self._at_once)
            items: tuple[Item, ...] = (yield Read(page)).ranges[page]
            full = len(items) == self._at_once
            self._after = items[-1].key if full else ""
            gone = yield from self._gone(own, items)
            yield from self._take_back(actor, own, items)
            if gone:
                yield from self._home.runner.change(lambda: _acknowledge(gone), actor)  # noqa: B023 - runs now
                done += len(gone)
            if not full or len(gone) < len(items) // 2:
                break  # most askers are away: the others wait for the next look
        return done

    def _gone(self, own: OwnSwarm, items: Sequence[Item]) -> Op[list[Item]]:
        """Those that were posted and that the bus does not have.

        The outbox is read before the bus: a result that left it before was on the bus by then.
        """
        now = self._home.now()
        marks = {item.key: readable(decode_mark, item) for item in items}
        known = {
            item.key: keys.outbox(keys.agent_of(item.key), mark.message)
            for item in items
            if (mark := marks[item.key]) is not None and not mark.refused and now < mark.until
        }
        outbox = yield from looked_up(known.values())
        posted = [key for key, entry in known.items() if outbox[entry] is None]
        if not posted:
            return []
        results = {key: keys.bus_result(keys.agent_of(key), keys.id_of(key)) for key in posted}

        def work(_runner: Runner) -> Op[dict[str, Item | None]]:
            return (yield from looked_up(results.values(), longest=0))

        there = yield from self._home.bus.on(own, work)
        return [item for item in items if item.key in results and there[results[item.key]] is None]

    def _take_back(self, actor: Actor, own: OwnSwarm, items: Sequence[Item]) -> Op[None]:
        """Delete the results from the bus that expired there, and mark them."""

        def expired(now: float) -> dict[str, Item]:
            marks = [(item, readable(decode_mark, item)) for item in items]
            return {
                keys.bus_result(keys.agent_of(item.key), keys.id_of(item.key)): item
                for item, mark in marks
                if mark is not None and not mark.refused and mark.until + MARGIN < now
            }

        if not expired(self._home.now()):
            return
        old = expired((yield from earlier_time(self._home.runner)))

        def work(_runner: Runner) -> Op[dict[str, Item | None]]:
            return (yield from looked_up(old, longest=0))

        there = (yield from self._home.bus.on(own, work)) if old else {}
        left = [
            TakenEnvelope.of(
                item, keys.bus_result_body(keys.agent_of(item.key), keys.id_of(item.key))
            )
            for item in there.values()
            if item is not None
        ]
        yield from remove(self._home.bus, own, left)
        if old:
            yield from self._home.runner.change(lambda: _mark_off(tuple(old.values())), actor)


def _mark_off(items: Sequence[Item]) -> DecideOp[int]:
    """These results are not on the bus any more, unless others have replaced them."""
    now = (yield tuple(item.key for item in items)).items
    same = [item for each in items if (item := now[each.key]) and item.revision == each.revision]
    puts = [
        Write(item.key, replace(mark, refused=True))
        for item in same
        if (mark := decode_mark(item)) is not None
    ]
    verb = "request.expire" if puts else ""
    return Decision(outcome=len(puts), verb=verb, thing="requests", puts=tuple(puts))


def _acknowledge(gone: Sequence[Item]) -> DecideOp[int]:
    """Delete these marks, as far as no other result has replaced them."""
    items = (yield tuple(item.key for item in gone)).items
    same = [
        item.key
        for item in gone
        if (now := items[item.key]) is not None and now.revision == item.revision
    ]
    if not same:
        return Decision(outcome=0)
    things = {key: f"request/{keys.id_of(key)}" for key in same}
    thing = next(iter(things.values())) if len(same) == 1 else "requests"
    return Decision(
        outcome=len(same),
        verb="request.ack",
        thing=thing,
        deletes=tuple(same),
        events=tuple(
            [
                Event("request:acknowledged", keys.agent_of(key), "" if own == thing else own)
                for key, own in things.items()
            ]
        ),
    )
