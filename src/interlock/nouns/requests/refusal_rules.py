"""Refusals of requests in the record: each one counts, and no caller can fill the record with them.

Two kinds of refusals change nothing else: a request of our own agent that is not sent, and a
message from the bus that is deleted because the quarantine is full.  Either may come thousands of
times a second.  So the first one of its kind within a minute is recorded; the others are counted,
and the next entry of that kind says how many there were (``count``).  An agent, or the bus, causes
at most one entry a minute for each kind.

The refusals of an agent are counted in two items, since a command ends at once.  A recorded commit
writes the tally: when each kind was last recorded, and the count at that time.  A quiet commit
writes the counts, which only grow; no entry writes these, so the record holds at any time.  What
the counts have beyond the tally is recorded with the next refusal of the kind, or by ``maintain``.
The numbers in the entries together are exactly the refusals.  Messages from
the bus are counted in memory, by the process that takes them in: an attacker must not make us
write.  A process that is killed loses the counts of its last minute.

The kinds are few.  A reason that depends on a peer is a kind for each peer that we allow; a swarm
that is not allowed may have any name, so all of these are one kind.  A message without a valid
signature has no sender.

A message that goes to quarantine needs no such limit: the quarantine is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.decision import REFUSAL_WINDOW, Decision, Event, Write
from interlock.nouns.requests import outcomes as out
from interlock.nouns.requests.audit import AuditFacts, facts_of_request
from interlock.nouns.requests.request import OutgoingRequest

DISCARDED = "request:discarded"
"""The event of a message from the bus that is refused and not kept."""
_NOT_ALLOWED = "not_allowed"


class TalliedKind(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Refusals of one kind: when one was recorded, and how many came since (``more``).

    In the store ``more`` is nothing, and ``counted`` is how many were counted until then.
    """

    event: str
    reason: str
    swarm: str = ""
    recorded: float = 0.0
    more: int = 0
    counted: int = 0

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
_COUNTS = codec.Decoder(dict[str, int])

decode_tally = _TALLY.read_if_present
decode_refused = _COUNTS.read_if_present


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


def counted(stored: RefusalTally, counts: Mapping[str, int]) -> RefusalTally:
    """A tally from the store, with how many refusals of each kind came since."""
    kinds = {
        name: replace(kind, more=max(0, counts.get(name, 0) - kind.counted))
        for name, kind in stored.kinds.items()
    }
    return RefusalTally(kinds=kinds)


def stored(known: RefusalTally, counts: Mapping[str, int]) -> RefusalTally:
    """A tally for the store."""
    kinds = {
        name: replace(kind, more=0, counted=counts.get(name, 0) - kind.more)
        for name, kind in known.kinds.items()
    }
    return RefusalTally(kinds=kinds)


def recording(
    before: RefusalTally,
    counts: Mapping[str, int],
    refused: UnrecordedRefusal,
    now: float,
) -> Decision[None]:
    """The write of a refusal: an entry and the tally if it is to be recorded, else the count."""
    after, events = tally(counted(before, counts), [refused], now)
    if not events:
        more = {**counts, refused.kind: counts.get(refused.kind, 0) + 1}
        put = Write(keys.requests_refused(refused.agent), more)
        return Decision(outcome=None, puts=(put,), quiet=True)
    return Decision(
        outcome=None,
        verb="request.refuse",
        thing=f"swarm/{refused.facts.to_swarm}",
        puts=(Write(keys.request_refusals(refused.agent), stored(after, counts)),),
        events=events,
    )


def record_left_over(
    agent: str, before: RefusalTally, counts: Mapping[str, int], now: float
) -> Decision[None]:
    """Record the refusals of an agent that are left; delete the items when nothing is."""
    known = counted(before, counts)
    after, events = left_over(known, agent, now)
    if after == known:
        return Decision(outcome=None)
    key = keys.request_refusals(agent)
    return Decision(
        outcome=None,
        verb="request.refuse" if events else "request.tidy",
        thing="requests",
        puts=(Write(key, stored(after, counts)),) if after.kinds else (),
        deletes=() if after.kinds else (key, keys.requests_refused(agent)),
        events=tuple(events),
    )
