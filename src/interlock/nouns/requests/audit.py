"""The audit of requests between swarms: one entry for each event, its action, and the counters.

Each event is one of a fixed list, so that the record, the daily file and the metrics have the same
words.  The action says what became of the matter:

    SHARE     it was accepted or went its way
    HOLD      it was refused for now: limited, quarantined, or a swarm that cannot be reached
    ESCALATE  a person has to decide

``signature_verified`` and ``rate_limit_ok`` are None for an event where it was not checked: a
report must not claim a check that did not happen.  ``confidence`` and ``citations`` are what a
request or a result claims; they are carried through and never judged.
"""

from __future__ import annotations

import time
from typing import Literal, TypeAlias

from msgspec import Struct

from interlock.nouns.requests.request import ResultStatus

AuditAction: TypeAlias = Literal["SHARE", "HOLD", "ESCALATE"]
AuditEvent: TypeAlias = Literal[
    "cross_swarm_request_posted",
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
    """One line of the daily file; ``timestamp`` is ISO 8601 in UTC."""

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


class AuditSubject(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The request that an event is about, as far as it is known."""

    request: str = ""
    from_swarm: str = ""
    from_agent: str = ""
    to_swarm: str = ""
    to_agent: str = ""
    confidence: float | None = None
    citations: tuple[str, ...] = ()


def action(event: AuditEvent) -> AuditAction:
    """What became of the matter."""
    return _ACTIONS[event]


def counters(event: AuditEvent, status: ResultStatus | None = None) -> tuple[str, ...]:
    """The counters that an event adds one to; ``status`` is that of an accepted result."""
    if event == "cross_swarm_result_retrieved":
        return () if status is None else (_BY_STATUS[status],)
    return _COUNTERS.get(event, ())


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
