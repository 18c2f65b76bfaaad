"""The quarantine: how much room it has, and what operators do with a message in it.

Its messages are read only when something is refused, and at most every ``FRESH_COUNT`` seconds: the
limits protect the store from a flood, and need not be exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Event, Write
from interlock.nouns.guards.gates import merged
from interlock.nouns.requests import intake_rules
from interlock.nouns.requests import outcomes as out
from interlock.nouns.requests.audit import AuditFacts
from interlock.nouns.requests.exchange import (
    QUARANTINE_LIMIT,
    SIGNED_LIMIT,
    UNSIGNED_LIMIT,
    EntryKind,
    QuarantinedMessage,
    decode_content,
    decode_quarantined,
)
from interlock.nouns.requests.intake_rules import RefusedRequest, Repeated, TakenIn
from interlock.nouns.requests.refusal_rules import (
    DISCARDED,
    RefusalTally,
    UnrecordedRefusal,
    left_over,
    tally,
)
from interlock.nouns.swarms.envelope import EnvelopeRefused
from interlock.runtime.reads import every_inside, readable
from interlock.steps import Op, Read
from interlock.store import Item

if TYPE_CHECKING:
    from interlock.nouns.requests.home import Home
    from interlock.nouns.requests.service import RequestService
    from interlock.runtime.attempt import DecideOp, ReadOp
    from interlock.runtime.identity import Actor
    from interlock.runtime.runner import Decided

T = TypeVar("T")

_OURS = "/"
"""Instead of a swarm: messages of our own, which rubbish on the bus must not push out."""
FRESH_COUNT = 60.0
"""Seconds for which what is in quarantine is taken for known."""


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
    swarm = yield from service.home.own(fresh=True)
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

    done = yield from service.home.runner.change(deciding, actor)
    service.home.room.forget()
    return done.outcome


def _released(message: QuarantinedMessage, actor: Actor) -> Event:
    facts = AuditFacts(
        from_swarm=message.swarm, from_agent=message.agent, reason=message.reason, verified=True
    )
    thing = f"request/{message.request}"
    return Event("quarantine:released", actor.agent, thing, details=facts.details())


class QuarantineRoom:
    """How much room the quarantine of one home has, as far as this process knows.

    A message is kept once: a copy of it has the same id.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._read_at = float("-inf")
        self._swarms: dict[str, str] = {}
        """The messages in quarantine by their ids: the swarm of each, ``_OURS``, or empty."""
        self._adding: dict[str, str] = {}
        """What the batch in progress adds."""
        self._dropped = self._dropping = RefusalTally()
        """Messages that were deleted for lack of room, and with those of the batch in progress."""

    def keep(
        self,
        ids: Sequence[str],
        refused: Sequence[RefusedRequest | EnvelopeRefused],
        kind: EntryKind,
        now: float,
    ) -> DecideOp[None]:
        """What goes to quarantine, as far as there is room; the rest is counted.

        ``ids`` are for messages without a valid signature, whose own ids say nothing.
        """
        self._adding, self._dropping = {}, self._dropped
        puts: list[Write] = []
        events: list[Event] = []
        dropped: list[UnrecordedRefusal] = []
        if refused:
            yield from self._look()
        for fresh, each in zip(ids, refused, strict=False):
            facts = intake_rules.refused_facts(each)
            swarm, id_ = facts.from_swarm, intake_rules.quarantine_id(each) or fresh
            if id_ in self._swarms or id_ in self._adding or not self._has_room(swarm):
                dropped.append(UnrecordedRefusal(event=DISCARDED, agent=swarm, facts=facts))
                continue
            self._adding[id_] = swarm
            puts += intake_rules.quarantine(id_, each, kind, now)
            events.append(intake_rules.quarantined_event(each, id_))
        verb = "request.refuse" if puts else ""
        kept = Decision[None](outcome=None, verb=verb, puts=tuple(puts), events=tuple(events))
        if not dropped:
            return kept
        self._dropping, more = tally(self._dropped, dropped, now)
        verb = "request.refuse" if more else ""
        return with_refused(kept, Decision(outcome=None, verb=verb, events=more))

    def keep_own(self, message: QuarantinedMessage) -> ReadOp[tuple[Write, ...]]:
        """The writes of a message of our own that cannot be posted, if there is room."""
        self._adding = {}
        yield from self._look()
        if not self._has_room(_OURS):
            return ()
        self._adding[message.id] = _OURS
        return (Write(keys.quarantined(message.id), message),)

    def commit(
        self,
        deciding: Callable[[], DecideOp[T]],
        actor: Actor,
        guess: Mapping[str, Item | None] | None = None,
    ) -> Op[Decided[T]]:
        """Commit a batch, and count what it added to the quarantine, and what had no room."""
        self._adding, self._dropping = {}, self._dropped
        done: Decided[T] = yield from self._home.runner.change(deciding, actor, guess)
        if done.revision is not None:
            self._swarms |= self._adding
        self._dropped = self._dropping
        return done

    def record_dropped(self, actor: Actor) -> Op[None]:
        """Record the messages that had no room and that no later one recorded, after a minute."""
        after, events = left_over(self._dropped, "", self._home.now())
        if not events:
            return

        def deciding() -> DecideOp[None]:
            yield from ()
            return Decision(
                outcome=None, verb="request.refuse", thing="requests", events=tuple(events)
            )

        yield from self._home.runner.change(deciding, actor)
        self._dropped = after

    def forget(self) -> None:
        """Read what is there again: an operator has changed it."""
        self._read_at = float("-inf")

    def _look(self) -> ReadOp[None]:
        now = self._home.runner.clock.monotonic()
        if now - self._read_at < FRESH_COUNT:
            return
        items = yield from every_inside(keys.QUARANTINE, most=QUARANTINE_LIMIT)
        kept = [each for item in items if (each := readable(decode_quarantined, item))]
        self._swarms = {each.id: each.swarm or (_OURS if each.message else "") for each in kept}
        self._read_at = now

    def _has_room(self, swarm: str) -> bool:
        there = [*self._swarms.values(), *self._adding.values()]
        most = SIGNED_LIMIT if swarm else UNSIGNED_LIMIT
        return len(there) < QUARANTINE_LIMIT and there.count(swarm) < most


def with_refused(own: Decision[T], refused: Decision[None]) -> Decision[T]:
    """A decision with the refusals beside it."""
    return replace(merged(own, [refused]), verb=own.verb or refused.verb)
