"""Sending a request: what allows it, and the writes of each step at the asker's home.

All that a request needs is one commit: the request, its payload, its outbox entry, its place in the
rate of its agent, and the time of its next step.  So it is either refused, or it is never lost.

The order of the refusals: the list of peers, the circuit breaker, the reputation, the rate, the
queue.  A request that probes a peer (``breaker.py``, ``reputation.py``) writes that it does, so
that there is one probe among all processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock.core import keys, rate
from interlock.core.decision import Decision, Event, Write
from interlock.core.rate import RateLog
from interlock.core.safe_text import foreign
from interlock.nouns.messages.decision import HumanDecision
from interlock.nouns.messages.decision_rules import opening
from interlock.nouns.messages.message import StoredMessage
from interlock.nouns.messages.send_rules import notice_writes
from interlock.nouns.requests import rules
from interlock.nouns.requests.audit import AuditFacts, facts_of_request, passed_ms
from interlock.nouns.requests.exchange import OutboxEntry, RequestName
from interlock.nouns.requests.outcomes import (
    RequestExists,
    RequestLimited,
    RequestSent,
    SendRefusal,
    SwarmNotAllowed,
    SwarmQueueFull,
    SwarmUnavailable,
)
from interlock.nouns.requests.request import OutgoingRequest, RequestFinding
from interlock.nouns.requests.rules import EscalationReason
from interlock.nouns.swarms import breaker, reputation
from interlock.nouns.swarms.breaker import CLOSED, PROBE_LEASE, Breaker, BreakerOpen
from interlock.nouns.swarms.limits import DEFAULT_LIMITS, PeerLimits, QueueFull, id_time
from interlock.nouns.swarms.reputation import UNKNOWN, Reputation, ReputationBlocked
from interlock.nouns.swarms.results import SwarmStatus


class PeerFacts(Struct, frozen=True, kw_only=True):
    """What home knows of a peer when a request is sent to it, or ends.

    ``probing`` is whether another request probes it; ``rates`` are the times at which the agent
    made its last requests to it; ``queue`` is why nothing more is to be sent.
    """

    allowed: bool = True
    limits: PeerLimits = DEFAULT_LIMITS
    breaker: Breaker = CLOSED
    probing: bool = False
    reputation: Reputation = UNKNOWN
    rates: RateLog = rate.EMPTY
    queue: QueueFull | None = None


class NewRequest(Struct, frozen=True, kw_only=True):
    """A request to send: as it is stored, its payload and the envelope of its first attempt.

    ``name`` is an id that the sender chose, if it is not that of the request itself.
    """

    request: OutgoingRequest
    body: Raw
    entry: OutboxEntry
    name: str = ""


def send(
    new: NewRequest, before: OutgoingRequest | None, peer: PeerFacts, now: float
) -> Decision[RequestSent | SendRefusal]:
    """Send a request; ``before`` is the one that has its id already."""
    request = new.request
    if before is not None:
        return Decision(
            outcome=RequestExists(
                request=before.id, state=before.state, differs=_asked(before) != _asked(request)
            )
        )
    passed = _passed(request, peer, now)
    if not isinstance(passed, _Passed):
        return Decision(outcome=passed)
    request = replace(request, probe=passed.probe, record_probe=passed.record_probe)
    named = RequestName(request=request.id, at=now)
    puts, deletes = changed(None, request)
    return Decision(
        outcome=RequestSent(
            request=request.id,
            to_swarm=request.to_swarm,
            to_agent=request.to_agent,
            deadline=request.deadline,
        ),
        verb="request.send",
        thing=f"request/{request.id}",
        puts=(
            *puts,
            Write(keys.request_body(request.id), new.body),
            Write(keys.outbox(request.to_swarm, request.message), new.entry),
            *(
                (Write(keys.request_rate("to", request.to_swarm, request.agent), passed.rates),)
                if peer.limits.rate
                else ()
            ),
            *((Write(keys.request_name(new.name), named),) if new.name else ()),
            *passed.puts,
        ),
        deletes=deletes,
        events=(_event("sent", request, in_rate=True if peer.limits.rate else None),),
        trace=request.correlation_id,
    )


def _asked(request: OutgoingRequest) -> tuple[str, ...]:
    """What a request asks for; not of which swarm, since any that is able may be chosen."""
    return request.to_agent, request.task_type, request.source_hash


class _Passed(Struct, frozen=True, kw_only=True):
    """A request that may be sent: the rate with it, and whether it is a probe."""

    rates: RateLog
    puts: tuple[Write, ...]
    probe: bool
    record_probe: bool


def _passed(request: OutgoingRequest, peer: PeerFacts, now: float) -> _Passed | SendRefusal:
    swarm, limit = request.to_swarm, peer.limits.requests
    if not peer.allowed:
        return SwarmNotAllowed(swarm=swarm)
    puts: list[Write] = []
    closed = breaker.check(peer.breaker, now, probing=peer.probing)
    if isinstance(closed, BreakerOpen):
        return SwarmUnavailable(swarm=swarm, reason="circuit_open", retry_in=closed.retry_in)
    trusted = reputation.check(peer.reputation, now)
    if isinstance(trusted, ReputationBlocked):
        return SwarmUnavailable(
            swarm=swarm, reason=trusted.standing.blocked[0], retry_in=trusted.retry_in
        )
    if closed.probe:
        lease = max(PROBE_LEASE, request.timeout)
        puts.append(Write(keys.breaker_probe(swarm), {"request": request.id}, lease))
    if trusted.probe:
        probed = reputation.probe_sent(peer.reputation, now)
        puts.append(Write(keys.reputation(swarm), probed))
    milliseconds = round(now * 1000)
    rates = rate.admit(peer.rates, id_time(request.message), limit, milliseconds)
    if rates is None:
        return RequestLimited(
            agent=request.agent,
            swarm=swarm,
            limit=limit.limit,
            window=limit.window,
            retry_in=rate.retry_in(peer.rates, limit, milliseconds),
        )
    if (full := peer.queue) is not None:
        return SwarmQueueFull(
            swarm=swarm, depth=full.depth, limit=full.limit, retry_in=full.retry_in
        )
    return _Passed(rates=rates, puts=tuple(puts), probe=closed.probe, record_probe=trusted.probe)


# The index of the next steps.


def changed(
    before: OutgoingRequest | None, after: OutgoingRequest
) -> tuple[tuple[Write, ...], tuple[str, ...]]:
    """The puts and deletes that replace a request, with its entry for the next step."""
    old, new = _place(before), _place(after)
    puts = [Write(keys.request(after.id), after)]
    if new and new != old:
        puts.append(Write(new, {}))
    return tuple(puts), (old,) if old and old != new else ()


def _place(request: OutgoingRequest | None) -> str:
    if request is None:
        return ""
    if request.state == "escalated":
        return keys.escalated(request.id)
    step = rules.next_step(request)
    return "" if step is None else keys.request_due(step.at, request.id)


# Steps.


def post(
    posted: Iterable[tuple[str, OutgoingRequest | None]], swarm: str, now: float
) -> Decision[int]:
    """Delete outbox entries whose envelopes are on the bus; these are keys with their requests."""
    puts: list[Write] = []
    deletes: list[str] = []
    for key, request in posted:
        deletes.append(key)
        if request is not None and request.state == "open" and request.posted is None:
            more, less = changed(request, rules.post(request, now))
            puts += more
            deletes += less
    if not deletes:
        return Decision(outcome=0)
    return Decision(
        outcome=len(deletes),
        verb="outbox.clear",
        thing=f"swarm/{swarm}",
        puts=tuple(puts),
        deletes=tuple(deletes),
    )


def attempt(request: OutgoingRequest, after: OutgoingRequest, entry: OutboxEntry) -> Decision[str]:
    """Put another attempt, which is signed already, in the outbox."""
    puts, deletes = changed(request, after)
    return Decision(
        outcome="sent again",
        verb="request.repeat",
        thing=f"request/{request.id}",
        puts=(*puts, Write(keys.outbox(request.to_swarm, request.message), entry)),
        deletes=deletes,
        events=(Event("request:repeated", request.agent),),
        trace=request.correlation_id,
    )


def time_out(
    request: OutgoingRequest, peer: PeerFacts, now: float, jitter: float, answers: int = 0
) -> Decision[str]:
    """Count the timeout of an attempt, for the circuit breaker and the reputation.

    ``answers`` came before it and are not in the reputation yet.
    """
    puts, deletes = changed(request, rules.time_out(request))
    circuit = breaker.after_timeout(peer.breaker, now, jitter, probe=request.probe)
    if circuit != peer.breaker:
        puts = (*puts, Write(keys.breaker(request.to_swarm), circuit))
    if not peer.breaker.opened:
        before = reputation.record(peer.reputation, ["answered"] * answers)
        record = after_request(request, before, "timeout")
        puts = (*puts, Write(keys.reputation(request.to_swarm), record))
    elif request.record_probe:
        record = reputation.probe_failed(peer.reputation)
        puts = (*puts, Write(keys.reputation(request.to_swarm), record))
    return Decision(
        outcome="timed out",
        verb="request.expire",
        thing=f"request/{request.id}",
        puts=puts,
        deletes=(*deletes, *((keys.breaker_probe(request.to_swarm),) if request.probe else ())),
        events=(_event("timed_out", request),),
        trace=request.correlation_id,
    )


def after_request(
    request: OutgoingRequest, record: Reputation, outcome: reputation.PeerOutcome
) -> Reputation:
    """The reputation of a peer after a request to it ended, or timed out."""
    if request.record_probe:
        return reputation.record_probe(record, outcome)
    return reputation.record(record, [outcome])


def escalate(
    request: OutgoingRequest,
    reason: EscalationReason,
    decision: str,
    now: float,
    *,
    least: float,
    status: SwarmStatus = "online",
) -> Decision[str]:
    """Ask a person what to do about a request without an answer; ``least`` is the shortest ttl."""
    after, asked = rules.escalate(request, reason, decision, now, status)
    puts, deletes = changed(request, after)
    return Decision(
        outcome="escalated",
        verb="request.escalate",
        thing=f"request/{request.id}",
        puts=(*puts, *opening(asked, now, least)),
        deletes=(*deletes, keys.outbox(request.to_swarm, request.message)),
        events=(
            _event("escalated", request, reason=reason),
            Event("decision:opened", request.agent, f"decision/{decision}"),
        ),
        trace=request.correlation_id,
    )


def ask_again(
    request: OutgoingRequest, decision: str, why: str, now: float, least: float
) -> Decision[str]:
    """Ask a person again: the option that was chosen has no effect."""
    after, asked = rules.ask_again(request, decision, why, now)
    puts, deletes = changed(request, after)
    return Decision(
        outcome="asked again",
        verb="request.escalate",
        thing=f"request/{request.id}",
        puts=(*puts, *opening(asked, now, least)),
        deletes=deletes,
        events=(Event("decision:opened", request.agent, f"decision/{decision}"),),
        reason=why,
        trace=request.correlation_id,
    )


def take(request: OutgoingRequest, now: float) -> Decision[str]:
    """The receiver has a request and works on it: no further attempt is needed."""
    if request.state != "open" or request.taken is not None:
        return Decision(outcome="repeated")
    puts, deletes = changed(request, rules.take(request, now))
    return Decision(
        outcome="taken",
        verb="request.confirm",
        thing=f"request/{request.id}",
        puts=puts,
        deletes=deletes,
        trace=request.correlation_id,
    )


def cancel(
    request: OutgoingRequest, reason: str, now: float, replaced_by: str = ""
) -> Decision[str]:
    """End a request without an answer; an envelope that was not posted yet is not posted."""
    puts, deletes = changed(request, rules.cancel(request, reason, now, replaced_by))
    return Decision(
        outcome="cancelled",
        verb="request.cancel",
        thing=f"request/{request.id}",
        puts=(*puts, Write(keys.REQUEST_CANCELLED, request.id)),
        deletes=(
            *deletes,
            keys.request_body(request.id),
            keys.outbox(request.to_swarm, request.message),
        ),
        events=(Event("request:cancelled", request.agent),),
        trace=request.correlation_id,
    )


def answer(
    before: OutgoingRequest,
    accepted: rules.ResultAccepted,
    circuit: Breaker,
    now: float,
    *,
    asked: HumanDecision | None,
    notice: str,
) -> Decision[str]:
    """Keep the result of a request and end it, notify its asker, and close the circuit.

    The caller adds the answer to the reputation, which need not be written one by one.
    ``asked`` is the open decision about it; ``notice`` is the id of the message to the asker.
    """
    after, found = accepted.request, accepted.finding
    puts, deletes = changed(before, after)
    swarm = before.to_swarm
    if breaker.after_answer(circuit) != circuit:
        deletes = (*deletes, keys.breaker(swarm))
    closed: tuple[Write, ...] = ()
    if asked is not None and asked.state == "open":
        said = Raw(b'"answered"')
        done = replace(asked, state="resolved", by=swarm, answer=said, resolved=now)
        closed = (Write(keys.decision(asked.id), done),)
        deletes = (*deletes, keys.live(asked.id))
    return Decision(
        outcome="answered",
        verb="request.complete",
        thing=f"request/{before.id}",
        puts=(
            *puts,
            Write(keys.finding(before.id), found),
            *closed,
            *(_notice(before, found, notice, now) if before.notice else ()),
        ),
        deletes=(
            *deletes,
            keys.request_body(before.id),
            keys.outbox(swarm, before.message),
            *((keys.breaker_probe(swarm),) if before.probe else ()),
        ),
        events=(
            Event("request:answered", before.agent, details=_answer_facts(before, found, now)),
        ),
        trace=before.correlation_id,
    )


def _event(word: str, request: OutgoingRequest, **more: Any) -> Event:  # noqa: ANN401
    """An event of a request, with what the audit has to know of it."""
    facts = facts_of_request(request, **more)
    return Event(f"request:{word}", request.agent, details=facts.details())


def _answer_facts(request: OutgoingRequest, found: RequestFinding, now: float) -> dict[str, Any]:
    return AuditFacts(
        from_swarm=found.from_swarm,
        from_agent=found.executed_by,
        to_swarm=request.from_swarm,
        to_agent=request.agent,
        confidence=found.confidence,
        citations=found.citations,
        verified=True,
        status=found.status,
        retrieval_ms=passed_ms(found.result_posted_at, now),
        e2e_ms=passed_ms(request.made, now),
    ).details()


def _notice(
    request: OutgoingRequest, found: RequestFinding, id_: str, now: float
) -> Iterable[Write]:
    """A message to the asker, which does not wait."""
    message = StoredMessage(
        id=id_,
        kind="mail",
        sender=f"{found.executed_by}@{found.from_swarm}",
        at=round(now, 3),
        to=(request.agent,),
        subject=f"{found.status} of {foreign(request.id)}",
        thread=request.id,
        data=Raw(b'{"request":"%b","status":"%b"}' % (request.id.encode(), found.status.encode())),
        trace=request.correlation_id,
    )
    return notice_writes(message)
