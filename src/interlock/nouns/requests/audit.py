"""The audit of requests between swarms: one entry for each event, its action, and the counters.

Each event is one of a fixed list, so that the record, the daily file and the metrics have the same
words.  The action says what became of the matter:

    SHARE     it was accepted or went its way
    HOLD      it was refused for now: limited, quarantined, or a swarm that cannot be reached
    ESCALATE  a person has to decide

``signature_verified`` and ``rate_limit_ok`` are None for an event where it was not checked: a
report must not claim a check that did not happen.  ``confidence`` and ``citations`` are what a
request or a result claims; they are carried through and never judged.

**The record is the audit.**  Each line is an event of an entry of the record; the facts that an
entry lacks are in the details of the event (``AuditFacts``).  So a line is as old, as ordered and
as hard to change as its entry, and no second write can be lost.  A claim is an entry of the task:
it names the request, and the rest is known from the entry by which the request was taken in.

**A refusal may stand for many** (``count``, see ``refusal_rules.py``): the first one of its kind in
a minute is recorded, the others with the next.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from interlock.core import codec
from interlock.core.decision import Event
from interlock.core.entry import Entry
from interlock.nouns.requests.request import OutgoingRequest, ResultStatus
from interlock.nouns.swarms.head import RequestHead, ResultHead

AuditAction: TypeAlias = Literal["SHARE", "HOLD", "ESCALATE"]
AuditEvent: TypeAlias = Literal[
    "cross_swarm_request_posted",
    "cross_swarm_request_received",
    "cross_swarm_task_claimed",
    "cross_swarm_result_posted",
    "cross_swarm_result_retrieved",
    "cross_swarm_request_timeout",
    "cross_swarm_request_escalated",
    "signature_verification_failed",
    "rate_limit_exceeded",
    "swarm_not_authorized",
    "swarm_unavailable",
    "queue_full",
    "message_quarantined",
    "quarantine_released",
    "conflict_resolved",
    "conflict_escalated",
]

AUDIT_KEPT = 90 * 24 * 3600.0

_ACTIONS: dict[AuditEvent, AuditAction] = {
    "cross_swarm_request_posted": "SHARE",
    "cross_swarm_request_received": "SHARE",
    "cross_swarm_task_claimed": "SHARE",
    "cross_swarm_result_posted": "SHARE",
    "cross_swarm_result_retrieved": "SHARE",
    "cross_swarm_request_timeout": "HOLD",
    "cross_swarm_request_escalated": "ESCALATE",
    "signature_verification_failed": "HOLD",
    "rate_limit_exceeded": "HOLD",
    "swarm_not_authorized": "HOLD",
    "swarm_unavailable": "HOLD",
    "queue_full": "HOLD",
    "message_quarantined": "HOLD",
    "quarantine_released": "SHARE",
    "conflict_resolved": "SHARE",
    "conflict_escalated": "ESCALATE",
}

_RECORDED: dict[str, AuditEvent] = {
    "request:sent": "cross_swarm_request_posted",
    "request:received": "cross_swarm_request_received",
    "request:executed": "cross_swarm_result_posted",
    "request:answered": "cross_swarm_result_retrieved",
    "request:timed_out": "cross_swarm_request_timeout",
    "request:escalated": "cross_swarm_request_escalated",
    "quarantine:released": "quarantine_released",
    "swarm:conflict": "conflict_resolved",
    "swarm:undecided": "conflict_escalated",
}
"""Which event of the record is which event of the audit."""
REFUSED_EVENTS = (
    "request:not_allowed",
    "request:unavailable",
    "request:limited",
    "request:full",
    "request:quarantined",
    "request:discarded",
)
"""Events of refusals: of our own agents, and of messages from the bus; the reason says which."""
_BY_REASON: dict[str, AuditEvent] = {
    "not_allowed": "swarm_not_authorized",
    "unknown_key": "swarm_not_authorized",
    "revoked_key": "swarm_not_authorized",
    "blocked": "swarm_not_authorized",
    "circuit_open": "swarm_unavailable",
    "conflicts": "swarm_unavailable",
    "timeouts": "swarm_unavailable",
    "limited": "rate_limit_exceeded",
    "queue_full": "queue_full",
    "signature_verification_failed": "signature_verification_failed",
}
"""Refusals with a name of their own; all others are ``message_quarantined``."""
_CLAIMED = "task:claimed"
_TASK = re.compile(r"task/(req_[0-9a-f]{32})@(.+)", re.DOTALL)
MARKS = (
    b'"request:',
    b'"quarantine:',
    b'"task:claimed"',
    b'"swarm:conflict"',
    b'"swarm:undecided"',
)
"""An entry without any of these has no event of the audit."""

_COUNTERS: dict[AuditEvent, tuple[str, ...]] = {
    "cross_swarm_request_posted": ("requests_cross_swarm_posted_total",),
    "cross_swarm_task_claimed": ("requests_cross_swarm_claimed_total",),
    "cross_swarm_request_timeout": ("requests_cross_swarm_timeout_total",),
    "signature_verification_failed": ("signature_verification_failed_total",),
    "rate_limit_exceeded": ("rate_limit_exceeded_total",),
    "swarm_not_authorized": ("swarm_not_authorized_total",),
    "swarm_unavailable": ("swarm_unavailable_total",),
    "conflict_resolved": (
        "conflicts_detected_total",
        "conflicts_resolved_by_timestamp_total",
    ),
    "conflict_escalated": (
        "conflicts_detected_total",
        "conflicts_escalated_to_coordinator_total",
    ),
}
_EQUIVOCATION = "equivocation"
"""A second result with other bytes: a conflict, which is refused and kept in quarantine."""
_BY_STATUS: dict[ResultStatus, str] = {
    "success": "requests_cross_swarm_completed_total",
    "error": "requests_cross_swarm_failed_total",
}

COUNTER_NAMES = tuple(
    dict.fromkeys([*[name for names in _COUNTERS.values() for name in names], *_BY_STATUS.values()])
)
HISTOGRAM_NAMES = (
    "histogram_discovery_latency_ms",
    "histogram_execution_latency_ms",
    "histogram_result_retrieval_latency_ms",
    "histogram_e2e_latency_ms",
)
GAUGE_NAMES = ("queue_depth", "queue_depth_max_seen")
"""``queue_depth`` has one value for each swarm."""


class AuditEntry(Struct, frozen=True, kw_only=True):
    """One line of the daily file; ``timestamp`` is ISO 8601 in UTC.

    ``by`` is the agent that acted here: it claimed, released or asked.  ``thing`` is named by the
    record: a request, a message in quarantine, a shared value.  ``count`` is the number of events
    that the line stands for.  ``revision`` is that of the entry of the record.
    """

    timestamp: str
    event_type: AuditEvent
    from_swarm: str
    from_agent: str
    to_swarm: str
    to_agent: str
    request_id: str
    signature_verified: bool | None
    rate_limit_ok: bool | None
    action: AuditAction
    confidence: float | None
    citations: tuple[str, ...]
    status: str = ""
    reason: str = ""
    by: str = ""
    thing: str = ""
    count: int = 1
    revision: int = 0


class AuditSubject(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The request that an event is about, as far as it is known."""

    request: str = ""
    from_swarm: str = ""
    from_agent: str = ""
    to_swarm: str = ""
    to_agent: str = ""
    confidence: float | None = None
    citations: tuple[str, ...] = ()


class AuditFacts(AuditSubject, frozen=True, kw_only=True, omit_defaults=True):
    """What an event of the record keeps for the audit and the metrics (``Event.details``).

    ``verified`` and ``in_rate`` are the checks that were made.  The times are in milliseconds, by
    the clock of this home; ``retrieval_ms`` begins at the time in the signed head of the result, by
    the clock of its executor.
    """

    verified: bool | None = None
    in_rate: bool | None = None
    status: ResultStatus | None = None
    reason: str = ""
    count: int = 1
    depth: int | None = None
    execution_ms: float | None = None
    retrieval_ms: float | None = None
    e2e_ms: float | None = None

    def details(self) -> dict[str, Any]:
        """The details of an event; it names the request by its thing."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        found.pop("request", None)
        return found


def passed_ms(begin: float, end: float) -> float:
    """Milliseconds between two times; none if the clocks of two hosts say that it ended before."""
    return round(max(end - begin, 0.0) * 1000, 3)


def facts_of_request(request: OutgoingRequest, **more: Any) -> AuditFacts:  # noqa: ANN401
    """The facts of a request that we sent."""
    return AuditFacts(
        from_swarm=request.from_swarm,
        from_agent=request.agent,
        to_swarm=request.to_swarm,
        to_agent=request.to_agent,
        confidence=request.confidence,
        citations=request.citations,
        **more,
    )


def facts_of_head(head: RequestHead | ResultHead, **more: Any) -> AuditFacts:  # noqa: ANN401
    """The facts of a signed request or result."""
    return AuditFacts(
        from_swarm=head.from_swarm,
        from_agent=head.from_agent,
        to_swarm=head.to_swarm,
        to_agent=head.to_agent,
        confidence=head.confidence,
        citations=head.citations,
        **more,
    )


def action(event: AuditEvent) -> AuditAction:
    """What became of the matter."""
    return _ACTIONS[event]


def counters(
    event: AuditEvent, status: ResultStatus | None = None, reason: str = ""
) -> tuple[str, ...]:
    """The counters that an event adds to; ``status`` is that of an accepted result."""
    if event == "cross_swarm_result_retrieved":
        return () if status is None else (_BY_STATUS[status],)
    if reason == _EQUIVOCATION:
        return ("conflicts_detected_total",)
    return _COUNTERS.get(event, ())


def latencies(facts: AuditFacts) -> Iterator[tuple[str, float]]:
    """The times that an event adds to the histograms."""
    times = facts.execution_ms, facts.retrieval_ms, facts.e2e_ms
    for name, milliseconds in zip(HISTOGRAM_NAMES[1:], times, strict=True):
        if milliseconds is not None:
            yield name, milliseconds


def recognised(event: Event, thing: str) -> tuple[AuditEvent, AuditFacts] | None:
    """The event of the audit that an event of the record is; ``thing`` is that of its entry."""
    about = event.thing or thing
    if event.name == _CLAIMED:
        found = _TASK.fullmatch(about)
        if found is None:
            return None
        return "cross_swarm_task_claimed", AuditFacts(request=found[1], from_swarm=found[2])
    named = _RECORDED.get(event.name)
    if named is None and event.name not in REFUSED_EVENTS:
        return None
    facts = _facts(event.details)
    if about.startswith("request/"):
        facts = replace(facts, request=about.removeprefix("request/"))
    return named or _BY_REASON.get(facts.reason, "message_quarantined"), facts


def _facts(details: dict[str, Any]) -> AuditFacts:
    """The details of an event; those of an older or newer version may say less."""
    try:
        return msgspec.convert(details, AuditFacts)
    except codec.UNREADABLE:
        return AuditFacts()


def audited(
    entry: Entry, revision: int, subjects: Mapping[tuple[str, str], AuditSubject]
) -> Iterator[AuditEntry]:
    """The lines of an entry; ``subjects`` are requests by the swarm that sent them, and their id.

    Only claims need these.
    """
    for event in entry.events:
        found = recognised(event, entry.thing)
        if found is None:
            continue
        kind, facts = found
        about = facts if kind != "cross_swarm_task_claimed" else _subject(facts, subjects)
        line = audit(
            kind, about, entry.at, signature_verified=facts.verified, rate_limit_ok=facts.in_rate
        )
        yield replace(
            line,
            status=facts.status or "",
            reason=facts.reason,
            by=event.agent if kind == "cross_swarm_task_claimed" else entry.agent,
            thing=event.thing or entry.thing,
            count=facts.count,
            revision=revision,
        )


def _subject(facts: AuditFacts, subjects: Mapping[tuple[str, str], AuditSubject]) -> AuditSubject:
    return subjects.get((facts.from_swarm, facts.request), facts)


def subject_taken_in(event: Event, thing: str) -> AuditFacts | None:
    """The request that an event took in; claims of its task are about it."""
    found = recognised(event, thing)
    if found is None or found[0] != "cross_swarm_request_received":
        return None
    return found[1]


def audit(
    event: AuditEvent,
    subject: AuditSubject,
    at: float,
    *,
    signature_verified: bool | None = None,
    rate_limit_ok: bool | None = None,
) -> AuditEntry:
    """The entry of an event; a failed check is false, also if the caller does not say so."""
    return AuditEntry(
        timestamp=_iso(at),
        event_type=event,
        from_swarm=subject.from_swarm,
        from_agent=subject.from_agent,
        to_swarm=subject.to_swarm,
        to_agent=subject.to_agent,
        request_id=subject.request,
        signature_verified=(
            False if event == "signature_verification_failed" else signature_verified
        ),
        rate_limit_ok=False if event == "rate_limit_exceeded" else rate_limit_ok,
        action=action(event),
        confidence=subject.confidence,
        citations=subject.citations,
    )


def audit_day(at: float) -> str:
    """The day of an entry in UTC, as its file is called: ``2026-11-30``."""
    return _iso(at)[:10]


def _iso(at: float) -> str:
    milliseconds = round(at * 1000)
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000))
    return f"{whole}.{milliseconds % 1000:03d}Z"
