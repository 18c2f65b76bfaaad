"""Intake at the receiver: which verified request becomes a task, and what is written with it.

``envelope.py`` has judged the signature, the sender, the audience and the times.  What follows
needs the receiver's own items, and is decided inside the commit that relies on them:

    repeated   the mark against replay is there, with the same content: nothing is done twice.  A
               later attempt than any before is answered (``exchange.py``)
    replaced   the mark is there, and the content is another: quarantine
    future     its id was made after it was signed: quarantine
    backdated  its id was made before any deadline reaches: quarantine
    blocked    the record of the peer has too many conflicts: quarantine
    limited    the agent made more requests than its rate allows, by the signed times, or its swarm
               more than all its agents may: quarantine
    marks_full as many messages of the peer are remembered as may be: quarantine
    queue_full as many requests of the peer are not finished as may be: quarantine
    taken in   the mark, the request and its task, together

A mark is kept until the deadline of its message and the time that clocks may differ by; no mark is
ever deleted to make room.  The later attempts of an agent that are answered have a rate, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock.core import codec, keys, rate
from interlock.core.decision import Event, Write
from interlock.core.rate import RateLog
from interlock.core.safe_text import foreign
from interlock.nouns.messages.message import ALL, StoredMessage
from interlock.nouns.requests.audit import AuditFacts, facts_of_head
from interlock.nouns.requests.exchange import (
    REQUEST_LABEL,
    QuarantineContent,
    QuarantinedMessage,
    ReceivedRequest,
    SeenMark,
    requirement,
    task_id,
)
from interlock.nouns.requests.request import task_priority
from interlock.nouns.swarms import limits, reputation
from interlock.nouns.swarms.envelope import (
    SKEW,
    EnvelopeRefused,
    OpenedEnvelope,
)
from interlock.nouns.swarms.head import (
    ALL_AGENTS,
    MessageHead,
    RequestHead,
    ResultHead,
    fixed_digest,
)
from interlock.nouns.swarms.limits import DEFAULT_LIMITS, NO_COUNTS, PeerCounts, PeerLimits
from interlock.nouns.swarms.reputation import UNKNOWN, Reputation
from interlock.nouns.tasks.task import Spec

Refused: TypeAlias = Literal[
    "replaced", "future", "backdated", "blocked", "limited", "marks_full", "queue_full"
]
_WRONG_TIMES = {
    "future": "its id was made at a time to come; compare the clocks",
    "backdated": "its id was made longer before its deadline than any request lives",
}


class Arrival(Struct, frozen=True, kw_only=True):
    """A request from the bus whose envelope and body are right; ``opened`` says who sent it."""

    opened: OpenedEnvelope[RequestHead]
    envelope: bytes
    body: bytes
    released: bool = False
    """An operator has released it: neither the rate nor the reputation matters."""

    @property
    def head(self) -> RequestHead:
        """The signed head."""
        return self.opened.head

    @property
    def seen_key(self) -> str:
        """The key of its mark against replay."""
        return keys.seen(self.head.from_swarm, self.head.message_id)

    @property
    def rate_key(self) -> str:
        """The key of the times at which its agent made requests."""
        return keys.request_rate("from", self.head.from_swarm, self.head.from_agent)

    @property
    def repeats_key(self) -> str:
        """The key of the times at which later attempts of its agent were answered."""
        return keys.request_rate("again", self.head.from_swarm, self.head.from_agent)

    @property
    def received_key(self) -> str:
        """The key under which the request is stored until its deadline."""
        return keys.received(self.head.from_swarm, self.head.request_id)

    @property
    def task(self) -> str:
        """The id of its task."""
        return task_id(self.head.from_swarm, self.head.request_id)


class Known(Struct, kw_only=True):
    """What home knows while a batch is judged; each request of it sees those before it."""

    seen: dict[str, SeenMark | None]
    rates: dict[str, RateLog]
    """Also those of later attempts."""
    counts: dict[str, PeerCounts]
    unfinished: dict[str, int]
    """How many requests of each swarm were taken in and are not finished, about."""
    limits: Mapping[str, PeerLimits]
    reputations: Mapping[str, Reputation]
    taken: dict[str, bool]
    """By the id of its task, whether a request was taken in; its task may be deleted by now."""

    def limits_of(self, swarm: str) -> PeerLimits:
        """The limits of a swarm."""
        return self.limits.get(swarm, DEFAULT_LIMITS)


class TakenIn(Struct, frozen=True, kw_only=True):
    """A request that becomes a task, or a message to all agents if there is no spec."""

    arrival: Arrival
    received: ReceivedRequest
    spec: Spec | None


class Repeated(Struct, frozen=True, kw_only=True):
    """A message that was taken in before; ``later`` says that it is a later attempt."""

    arrival: Arrival
    later: bool


class RefusedRequest(Struct, frozen=True, kw_only=True):
    """A request that goes to quarantine."""

    arrival: Arrival
    reason: Refused
    detail: str


Verdict: TypeAlias = TakenIn | Repeated | RefusedRequest


def is_repeat(head: RequestHead, mark: SeenMark | None) -> bool:
    """Whether a message was taken in before and needs no answer; its payload is not read."""
    if mark is None or head.attempt > mark.attempt:
        return False
    return mark.content == fixed_digest(head)


def judge(arrival: Arrival, known: Known, now: float, at: float) -> Verdict:
    """Judge one request, and update ``known``; ``at`` is the time that orders its task."""
    head = arrival.head
    content = fixed_digest(head)
    mark = known.seen[arrival.seen_key]
    if mark is not None:
        if mark.content != content:
            detail = f"{foreign(head.message_id)} was taken in before, with another content"
            return RefusedRequest(arrival=arrival, reason="replaced", detail=detail)
        return Repeated(arrival=arrival, later=_answered_again(arrival, mark, known, now))
    if known.taken[arrival.task]:
        detail = f"{foreign(head.request_id)} was taken in before, as another message"
        return RefusedRequest(arrival=arrival, reason="replaced", detail=detail)
    if (refused := _refused(arrival, known, now)) is not None:
        return refused
    swarm, until = head.from_swarm, head.deadline / 1000 + SKEW
    known.taken[arrival.task] = True
    known.seen[arrival.seen_key] = SeenMark(
        request=head.request_id, content=content, attempt=head.attempt, until=until
    )
    known.counts[swarm] = limits.count_arrival(
        known.counts.get(swarm, NO_COUNTS), known.limits_of(swarm), until, now
    )
    known.unfinished[swarm] = known.unfinished.get(swarm, 0) + 1
    to_all = head.to_agent == ALL_AGENTS
    received = ReceivedRequest(
        head=head, digest=arrival.opened.digest, task="" if to_all else arrival.task, at=now
    )
    return TakenIn(arrival=arrival, received=received, spec=None if to_all else _spec(arrival, at))


def _answered_again(arrival: Arrival, mark: SeenMark, known: Known, now: float) -> bool:
    """Whether a repeated message is answered: it is a later attempt, and there are not too many."""
    head = arrival.head
    if head.attempt <= mark.attempt:
        return False
    before = known.rates.get(arrival.repeats_key, rate.EMPTY)
    moment = round(now * 1000)
    after = rate.admit(before, moment, known.limits_of(head.from_swarm).repeats, moment)
    if after is None:
        return False
    known.rates[arrival.repeats_key] = after
    known.seen[arrival.seen_key] = replace(mark, attempt=head.attempt)
    return True


def _refused(arrival: Arrival, known: Known, now: float) -> RefusedRequest | None:
    head = arrival.head
    made = limits.made_at(head)
    if made == "future":
        return RefusedRequest(arrival=arrival, reason="future", detail=_WRONG_TIMES["future"])
    if arrival.released:
        return None
    if made == "backdated":
        return RefusedRequest(arrival=arrival, reason=made, detail=_WRONG_TIMES[made])
    standing = reputation.standing(known.reputations.get(head.from_swarm, UNKNOWN), now)
    if "conflicts" in standing.blocked:
        detail = f"{standing.conflicts} of {standing.samples} exchanges with it were conflicts"
        return RefusedRequest(arrival=arrival, reason="blocked", detail=detail)
    return _no_room(arrival, known, now) or _too_often(arrival, known, made, now)


def _too_often(arrival: Arrival, known: Known, made: int, now: float) -> RefusedRequest | None:
    """The rate of the agent, by the signed times, and that of its whole swarm, by arrivals."""
    head = arrival.head
    bounds = known.limits_of(head.from_swarm)
    after = rate.admit(
        known.rates.get(arrival.rate_key, rate.EMPTY), made, bounds.requests, round(now * 1000)
    )
    if after is None:
        detail = (
            f"{foreign(head.from_agent)} made more requests than {bounds.rate} in"
            f" {bounds.window:.0f} s"
        )
        return RefusedRequest(arrival=arrival, reason="limited", detail=detail)
    counts, most = known.counts.get(head.from_swarm, NO_COUNTS), limits.swarm_limit(bounds)
    if most and limits.arrived_lately(counts, bounds, now) >= most:
        detail = (
            f"{foreign(head.from_swarm)} made more requests than {most} in {bounds.window:.0f} s"
        )
        return RefusedRequest(arrival=arrival, reason="limited", detail=detail)
    known.rates[arrival.rate_key] = after
    return None


def _no_room(arrival: Arrival, known: Known, now: float) -> RefusedRequest | None:
    swarm = arrival.head.from_swarm
    bounds = known.limits_of(swarm)
    if limits.marks_kept(known.counts.get(swarm, NO_COUNTS), now) >= bounds.marks:
        detail = f"{bounds.marks} messages of {foreign(swarm)} are remembered until their deadlines"
        return RefusedRequest(arrival=arrival, reason="marks_full", detail=detail)
    if (waiting := known.unfinished.get(swarm, 0)) >= bounds.queue_most:
        detail = f"{waiting} requests of {foreign(swarm)} are not finished"
        return RefusedRequest(arrival=arrival, reason="queue_full", detail=detail)
    return None


def _spec(arrival: Arrival, at: float) -> Spec:
    head = arrival.head
    return Spec(
        at=at,
        by=f"{head.from_agent}@{head.from_swarm}",
        data=task_data(head, arrival.body),
        priority=task_priority(head.priority),
        requires=(requirement(head.to_agent),),
        labels=(REQUEST_LABEL,),
        deadline=head.deadline / 1000,
        trace=head.correlation_id,
    )


def task_data(head: RequestHead, body: bytes) -> Raw:
    """The data of a request's task: what the worker should know of it, and the payload."""
    about: dict[str, Any] = {
        "id": head.request_id,
        "from_swarm": head.from_swarm,
        "from_agent": head.from_agent,
        "to_agent": head.to_agent,
        "act": head.act,
        "task_type": head.task_type,
        "priority": head.priority,
        "correlation_id": head.correlation_id,
        "timeout": head.request_timeout_ms / 1000,
        "deadline": head.deadline / 1000,
    }
    if head.confidence is not None:
        about["confidence"] = head.confidence
    if head.citations:
        about["citations"] = head.citations
    return Raw(msgspec.json.encode({"request": about, "payload": Raw(body)}))


def taken_in_writes(taken: TakenIn) -> tuple[Write, ...]:
    """The writes beside those of the task: the request, and the mark that it has no result yet."""
    head = taken.arrival.head
    puts = [
        Write(keys.received(head.from_swarm, head.request_id), taken.received),
        Write(keys.unanswered(head.from_swarm, head.request_id), {}),
    ]
    if taken.spec is None:
        id_ = own_id("msg", head)
        message = StoredMessage(
            id=id_,
            kind="mail",
            sender=f"{head.from_agent}@{head.from_swarm}",
            at=round(taken.received.at, 3),
            to=(ALL,),
            subject=head.task_type,
            thread=head.correlation_id,
            data=Raw(taken.arrival.body),
            trace=head.correlation_id,
        )
        puts.append(Write(keys.topic(ALL, id_), message))
    return tuple(puts)


def received_event(taken: TakenIn) -> Event:
    """The event of a request that is taken in, with what the audit has to know of it."""
    head = taken.arrival.head
    in_rate = None if taken.arrival.released else True
    facts = facts_of_head(head, verified=True, in_rate=in_rate)
    sender = f"{head.from_agent}@{head.from_swarm}"
    return Event("request:received", sender, f"request/{head.request_id}", details=facts.details())


def refused_facts(refused: RefusedRequest | EnvelopeRefused) -> AuditFacts:
    """What is known of a message that is refused; nothing if its signature says nothing."""
    head = refused.arrival.head if isinstance(refused, RefusedRequest) else refused.head
    in_rate = False if refused.reason == "limited" else None
    if isinstance(head, RequestHead | ResultHead):
        return facts_of_head(head, verified=True, reason=refused.reason, in_rate=in_rate)
    failed = refused.reason == "signature_verification_failed"
    return AuditFacts(reason=refused.reason, verified=False if failed else None)


def quarantined_event(refused: RefusedRequest | EnvelopeRefused, id_: str) -> Event:
    """The event of a message that goes to quarantine."""
    facts = refused_facts(refused)
    head = refused.arrival.head if isinstance(refused, RefusedRequest) else refused.head
    thing = f"request/{head.request_id}" if isinstance(head, MessageHead) else f"quarantine/{id_}"
    sender = f"{facts.from_agent}@{facts.from_swarm}" if facts.from_swarm else ""
    return Event("request:quarantined", sender, thing, details=facts.details())


def counting_writes(verdicts: Iterable[Verdict], known: Known) -> list[Write]:
    """The marks, rates and counts as these verdicts have left them."""
    puts: dict[str, object] = {}
    for each in verdicts:
        if isinstance(each, RefusedRequest) or (isinstance(each, Repeated) and not each.later):
            continue
        arrival = each.arrival
        puts[arrival.seen_key] = known.seen[arrival.seen_key]
        if isinstance(each, Repeated):
            puts[arrival.repeats_key] = known.rates[arrival.repeats_key]
            continue
        swarm = arrival.head.from_swarm
        puts[keys.peer_counts(swarm)] = known.counts[swarm]
        if not arrival.released and known.limits_of(swarm).rate:
            puts[arrival.rate_key] = known.rates[arrival.rate_key]
    return [Write(key, value) for key, value in puts.items()]


def quarantine_id(refused: RefusedRequest | EnvelopeRefused) -> str:
    """The id under which a signed message is kept, which all of its copies have; else empty."""
    head = refused.arrival.head if isinstance(refused, RefusedRequest) else refused.head
    return own_id("qua", head) if isinstance(head, MessageHead) else ""


def own_id(kind: str, head: MessageHead) -> str:
    """The id under which this home stores a message of another swarm.

    A sender chooses its own ids, so two swarms can choose the same one: neither may replace what
    the other has sent.
    """
    tail = bytes.fromhex(codec.digest(f"{head.from_swarm} {head.message_id}".encode()))
    return codec.make_id(kind, limits.id_time(head.message_id), tail[:10])


def quarantine(
    id_: str, refused: RefusedRequest | EnvelopeRefused, kind: str, now: float
) -> tuple[Write, ...]:
    """The writes that keep a message with the reason; its content only if its sender is known."""
    content: QuarantineContent | None = None
    if isinstance(refused, RefusedRequest):
        arrival = refused.arrival
        head: object = arrival.head
        key = arrival.head.key
        content = QuarantineContent(envelope=arrival.envelope, body=arrival.body)
    else:
        head, key = refused.head, refused.key
    known = head if isinstance(head, MessageHead) else None
    kept = QuarantinedMessage(
        id=id_,
        kind=kind,  # type: ignore[arg-type]  # one of three words
        reason=refused.reason,
        detail=refused.detail,
        at=now,
        message="" if known is None else known.message_id,
        request="" if known is None else known.request_id,
        swarm="" if known is None else known.from_swarm,
        agent="" if known is None else known.from_agent,
        key=key,
        content=known is not None and content is not None,
    )
    puts = [Write(keys.quarantined(id_), kept)]
    if kept.content:
        puts.append(Write(keys.quarantine_content(id_), content))
    return tuple(puts)
