"""The quarantine: how much room it has, and what operators do with a message in it.

Its messages are counted from time to time, not with every batch: the limits protect the store from
a flood, and need not be exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Event, Write
from interlock.nouns.guards.gates import merged
from interlock.nouns.requests import intake_rules, refusal_rules
from interlock.nouns.requests import outcomes as out
from interlock.nouns.requests.audit import AuditFacts
from interlock.nouns.requests.exchange import (
    QUARANTINE_LIMIT,
    UNSIGNED_LIMIT,
    EntryKind,
    QuarantinedMessage,
    decode_content,
    decode_quarantined,
)
from interlock.nouns.requests.intake_rules import RefusedRequest, Repeated, TakenIn
from interlock.nouns.requests.refusal_rules import DISCARDED, UnrecordedRefusal
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
    yield from drop(service, actor, (id_,), released=message)
    task = verdict.arrival.task if isinstance(verdict, TakenIn | Repeated) else ""
    return out.QuarantineReleased(id=id_, task=task, already=isinstance(verdict, Repeated))


def drop(
    service: RequestService,
    actor: Actor,
    ids: tuple[str, ...],
    released: QuarantinedMessage | None = None,
) -> Op[out.QuarantineDropped | out.UnknownQuarantine]:
    """Delete messages; all of them, or none if one is unknown, or the one that was released."""
    wanted = tuple(map(keys.quarantined, ids))
    events = () if released is None else (_released(released, actor),)

    def deciding() -> DecideOp[out.QuarantineDropped | out.UnknownQuarantine]:
        items = (yield wanted).items
        unknown = tuple(id_ for id_ in ids if items[keys.quarantined(id_)] is None)
        if unknown:
            return Decision(outcome=out.UnknownQuarantine(unknown=unknown))
        return Decision(
            outcome=out.QuarantineDropped(dropped=ids),
            verb="quarantine.release" if released else "quarantine.drop",
            thing=f"quarantine/{ids[0]}",
            deletes=(*wanted, *map(keys.quarantine_content, ids)),
            events=events,
        )

    return (yield from service.home.runner.change(deciding, actor)).outcome


def _released(message: QuarantinedMessage, actor: Actor) -> Event:
    facts = AuditFacts(
        from_swarm=message.swarm, from_agent=message.agent, reason=message.reason, verified=True
    )
    thing = f"request/{message.request}"
    return Event("quarantine:released", actor.agent, thing, details=facts.details())


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
    ) -> DecideOp[None]:
        """What goes to quarantine, as far as there is room; the rest is counted."""
        room = QUARANTINE_LIMIT - self._signed - self._unsigned
        unsigned = min(room, UNSIGNED_LIMIT - self._unsigned)
        self._adding = [0, 0]
        puts: list[Write] = []
        events: list[Event] = []
        dropped: list[UnrecordedRefusal] = []
        for id_, each in zip(ids, refused, strict=False):
            signed = isinstance(each, RefusedRequest) or each.head is not None
            if room <= 0 or (not signed and unsigned <= 0):
                facts = intake_rules.refused_facts(each)
                swarm = facts.from_swarm
                dropped.append(UnrecordedRefusal(event=DISCARDED, agent=swarm, facts=facts))
                continue
            room -= 1
            unsigned -= not signed
            self._adding[signed] += 1
            puts += intake_rules.quarantine(id_, each, kind, now)
            events.append(intake_rules.quarantined_event(each, id_))
        verb = "request.refuse" if puts else ""
        kept = Decision[None](outcome=None, verb=verb, puts=tuple(puts), events=tuple(events))
        if not dropped:
            return kept
        key = keys.request_refusals()
        before = refusal_rules.decode_tally((yield (key,)).items[key])
        counted = refusal_rules.recording(
            key, before or refusal_rules.RefusalTally(), dropped, now, "requests"
        )
        return with_refused(kept, counted)

    def commit(self, deciding: Callable[[], DecideOp[T]], actor: Actor) -> Op[T]:
        """Commit a batch, and count what it added to the quarantine."""
        self._adding = [0, 0]
        done: Decided[T] = yield from self._home.runner.change(deciding, actor)
        self._unsigned += self._adding[False]
        self._signed += self._adding[True]
        return done.outcome


def with_refused(own: Decision[T], refused: Decision[None]) -> Decision[T]:
    """A decision with the refusals beside it; a count alone is not recorded."""
    verb = own.verb or refused.verb
    return replace(merged(own, [refused]), verb=verb, quiet=not verb and refused.quiet)
