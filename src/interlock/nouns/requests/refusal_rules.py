"""Refusals of requests in the record: each one counts, and no caller can fill the record with them.

Two kinds of refusals change nothing else: a request of our own agent that is not sent, and a
message from the bus that is deleted because the quarantine is full.  Either may come thousands of
times a second.  So the first one of its kind within a minute is recorded; the others are counted,
and the next entry of that kind says how many there were (``count``).  An agent, or the bus, causes
at most one entry a minute for each kind.

The refusals of an agent are counted in an item, since a command ends at once; ``maintain`` records
those that are left.  The counts of the entries together are exactly the refusals.  Messages from
the bus are counted in memory, by the process that takes them in: an attacker must not make us
write.  A process that is killed loses the counts of its last minute.

The kinds are few.  A reason that depends on a peer is a kind for each peer that we allow; a swarm
that is not allowed may have any name, so all of these are one kind.  A message without a valid
signature has no sender.

A message that goes to quarantine needs no such limit: the quarantine is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import codec
from interlock.core.decision import REFUSAL_WINDOW, Decision, Event, Write
from interlock.nouns.requests import outcomes as out
from interlock.nouns.requests.audit import AuditFacts, facts_of_request
from interlock.nouns.requests.request import OutgoingRequest

DISCARDED = "request:discarded"
"""The event of a message from the bus that is refused and not kept."""
_NOT_ALLOWED = "not_allowed"


class TalliedKind(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Refusals of one kind: when one was recorded, and how many came since."""

    event: str
    reason: str
    swarm: str = ""
    recorded: float = 0.0
    more: int = 0

    def open(self, now: float) -> bool:
        """Whether the next one is recorded; also if the clock was set back."""
        return abs(now - self.recorded) >= REFUSAL_WINDOW


class RefusalTally(Struct, frozen=True, kw_only=True):
    """The refusals of one agent at home, or of messages from the bus, by kind."""

    kinds: dict[str, TalliedKind] = {}


class UnrecordedRefusal(Struct, frozen=True, kw_only=True):
    """A refusal that nothing else records: the event, and what it is about."""

    event: str
    agent: str
    facts: AuditFacts

    @property
    def swarm(self) -> str:
        """The peer that it is counted with, if it is one."""
        if self.event == DISCARDED:
            return self.facts.from_swarm
        return "" if self.facts.reason == _NOT_ALLOWED else self.facts.to_swarm

    @property
    def kind(self) -> str:
        """What it is counted with."""
        return f"{self.facts.reason} {self.swarm}"


_TALLY = codec.Decoder(RefusalTally)

decode_tally = _TALLY.read_if_present


def tally(
    before: RefusalTally, refusals: Iterable[UnrecordedRefusal], now: float
) -> tuple[RefusalTally, tuple[Event, ...]]:
    """Count refusals; the events are to be recorded, each for itself and those counted before."""
    kinds = {name: kind for name, kind in before.kinds.items() if kind.more or not kind.open(now)}
    events: list[Event] = []
    for each in refusals:
        kind = kinds.get(each.kind) or TalliedKind(
            event=each.event, reason=each.facts.reason, swarm=each.swarm, recorded=-REFUSAL_WINDOW
        )
        if kind.open(now):
            facts = replace(each.facts, count=kind.more + 1)
            events.append(Event(each.event, each.agent, details=facts.details()))
            kinds[each.kind] = replace(kind, recorded=now, more=0)
        else:
            kinds[each.kind] = replace(kind, more=kind.more + 1)
    return RefusalTally(kinds=kinds), tuple(events)


def left_over(before: RefusalTally, agent: str, now: float) -> tuple[RefusalTally, list[Event]]:
    """Record refusals that were counted and that no later one recorded; delete kinds that end."""
    kinds: dict[str, TalliedKind] = {}
    events: list[Event] = []
    for name, kind in before.kinds.items():
        if not kind.open(now):
            kinds[name] = kind
        elif kind.more:
            incoming = kind.event == DISCARDED
            facts = AuditFacts(
                reason=kind.reason,
                count=kind.more,
                from_swarm=kind.swarm if incoming else "",
                from_agent="" if incoming else agent,
                to_swarm="" if incoming else kind.swarm,
            )
            events.append(Event(kind.event, agent, details=facts.details()))
    return RefusalTally(kinds=kinds), events


def of_send(request: OutgoingRequest, refused: object) -> UnrecordedRefusal | None:
    """The refusal of a request that was not sent; None for one that was sent before."""
    event, reason, depth = "", "", None
    match refused:
        case out.SwarmNotAllowed():
            event, reason = "request:not_allowed", _NOT_ALLOWED
        case out.RequestLimited():
            event, reason = "request:limited", "limited"
        case out.SwarmUnavailable():
            event, reason = "request:unavailable", refused.reason
        case out.SwarmQueueFull():
            event, reason, depth = "request:full", "queue_full", refused.depth
        case _:
            return None
    in_rate = False if reason == "limited" else None
    facts = facts_of_request(request, reason=reason, depth=depth, in_rate=in_rate)
    return UnrecordedRefusal(event=event, agent=request.agent, facts=facts)


def recording(
    key: str, before: RefusalTally, refusals: Iterable[UnrecordedRefusal], now: float, thing: str
) -> Decision[None]:
    """The writes of refusals: an entry if one is to be recorded, else only the count."""
    after, events = tally(before, refusals, now)
    return Decision(
        outcome=None,
        verb="request.refuse" if events else "",
        thing=thing if events else "",
        puts=(Write(key, after),),
        events=events,
        quiet=not events,
    )
