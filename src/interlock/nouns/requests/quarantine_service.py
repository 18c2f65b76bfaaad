"""The quarantine: how much room it has, and what operators do with a message in it.

Its messages are counted from time to time, not with every batch: the limits protect the store from
a flood, and need not be exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.nouns.requests import intake_rules
from interlock.nouns.requests import outcomes as out
from interlock.nouns.requests.exchange import (
    QUARANTINE_LIMIT,
    UNSIGNED_LIMIT,
    EntryKind,
    decode_content,
    decode_quarantined,
)
from interlock.nouns.requests.intake_rules import RefusedRequest, Repeated, TakenIn
from interlock.nouns.swarms.envelope import EnvelopeRefused
from interlock.runtime.reads import every, readable
from interlock.steps import Op, Read

if TYPE_CHECKING:
    from interlock.nouns.requests.home import Home
    from interlock.nouns.requests.service import RequestService
    from interlock.runtime.attempt import DecideOp
    from interlock.runtime.identity import Actor
    from interlock.runtime.runner import Decided

T = TypeVar("T")

_FRESH_COUNT = 60.0
"""Seconds for which the number of messages in quarantine is taken for known."""


def release(
    service: RequestService, actor: Actor, id_: str
) -> Op[out.QuarantineReleased | out.QuarantineKept | out.UnknownQuarantine]:
    """Take a request in from quarantine."""
    own, content = keys.quarantined(id_), keys.quarantine_content(id_)
    items = (yield Read(own, content)).items
    message, kept = decode_quarantined(items[own]), decode_content(items[content])
    if message is None:
        return out.UnknownQuarantine(unknown=(id_,))
    if kept is None or message.kind != "request":
        detail = "only a request whose signature was verified can be released"
        return out.QuarantineKept(id=id_, reason=message.reason, detail=detail)
    swarm = yield from service.home.own()
    verdict = yield from service.request_intake.release(actor, swarm, kept.envelope, kept.body)
    if isinstance(verdict, EnvelopeRefused | RefusedRequest):
        return out.QuarantineKept(id=id_, reason=verdict.reason, detail=verdict.detail)
    yield from drop(service, actor, (id_,), verb="quarantine.release")
    task = verdict.arrival.task if isinstance(verdict, TakenIn | Repeated) else ""
    return out.QuarantineReleased(id=id_, task=task, already=isinstance(verdict, Repeated))


def drop(
    service: RequestService, actor: Actor, ids: tuple[str, ...], verb: str = "quarantine.drop"
) -> Op[out.QuarantineDropped | out.UnknownQuarantine]:
    """Delete messages; all of them, or none if one is unknown."""
    wanted = tuple(map(keys.quarantined, ids))

    def deciding() -> DecideOp[out.QuarantineDropped | out.UnknownQuarantine]:
        items = (yield wanted).items
        unknown = tuple(id_ for id_ in ids if items[keys.quarantined(id_)] is None)
        if unknown:
            return Decision(outcome=out.UnknownQuarantine(unknown=unknown))
        return Decision(
            outcome=out.QuarantineDropped(dropped=ids),
            verb=verb,
            thing=f"quarantine/{ids[0]}",
            deletes=(*wanted, *map(keys.quarantine_content, ids)),
        )

    return (yield from service.home.runner.change(deciding, actor)).outcome


class QuarantineRoom:
    """How much room the quarantine of one home has, as far as this process knows."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._counted = float("-inf")
        self._signed = self._unsigned = 0
        self._adding = [0, 0]
        """What the batch in progress adds to the quarantine: without a known sender, and with."""

    def count(self) -> Op[None]:
        """Count what is in quarantine, from time to time."""
        now = self._home.runner.clock.monotonic()
        if now - self._counted < _FRESH_COUNT:
            return
        items = yield from every(keys.QUARANTINE, most=QUARANTINE_LIMIT)
        kept = [each for item in items if (each := readable(decode_quarantined, item))]
        self._signed = sum(each.signed for each in kept)
        self._unsigned = len(kept) - self._signed
        self._counted = now

    def kept(
        self,
        ids: Sequence[str],
        refused: Sequence[RefusedRequest | EnvelopeRefused],
        kind: EntryKind,
        now: float,
    ) -> Iterable[Write]:
        """The writes of what goes to quarantine, as far as there is room."""
        room = QUARANTINE_LIMIT - self._signed - self._unsigned
        unsigned = min(room, UNSIGNED_LIMIT - self._unsigned)
        self._adding = [0, 0]
        for id_, each in zip(ids, refused, strict=False):
            signed = isinstance(each, RefusedRequest) or each.head is not None
            if room <= 0 or (not signed and unsigned <= 0):
                continue
            room -= 1
            unsigned -= not signed
            self._adding[signed] += 1
            yield from intake_rules.quarantine(id_, each, kind, now)

    def commit(self, deciding: Callable[[], DecideOp[T]], actor: Actor) -> Op[T]:
        """Commit a batch, and count what it added to the quarantine."""
        self._adding = [0, 0]
        done: Decided[T] = yield from self._home.runner.change(deciding, actor)
        self._unsigned += self._adding[False]
        self._signed += self._adding[True]
        return done.outcome
