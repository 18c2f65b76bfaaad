"""The audit has one action for each event, and never claims a check that did not happen."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from interlock.nouns.requests import audit
from interlock.nouns.requests.audit import AuditEvent, AuditSubject

AT = 1_764_516_765.1234
SUBJECT = AuditSubject(
    request="req_1",
    from_swarm="shop",
    from_agent="ada",
    to_swarm="bank",
    to_agent="bob",
    confidence=0.8,
    citations=("doc:1",),
)
EVENTS: tuple[AuditEvent, ...] = get_args(AuditEvent)


@pytest.mark.parametrize("event", EVENTS)
def test_each_event_has_an_action(event: AuditEvent) -> None:
    assert audit.action(event) in ("SHARE", "HOLD", "ESCALATE")


def test_what_is_accepted_is_shared_what_is_refused_is_held_and_decisions_are_escalated() -> None:
    assert audit.action("cross_swarm_result_retrieved") == "SHARE"
    assert audit.action("rate_limit_exceeded") == "HOLD"
    assert audit.action("message_quarantined") == "HOLD"
    assert audit.action("cross_swarm_request_escalated") == "ESCALATE"
    assert audit.action("conflict_escalated") == "ESCALATE"


def test_an_entry_has_the_fields_of_the_daily_file() -> None:
    entry = audit.audit("cross_swarm_request_posted", SUBJECT, AT, rate_limit_ok=True)
    line = msgspec.to_builtins(entry)
    assert (line.pop("status"), line.pop("reason"), line.pop("by")) == ("", "", "")
    assert line.pop("thing") == ""
    assert (line.pop("count"), line.pop("revision")) == (1, 0)
    assert line == {
        "timestamp": "2025-11-30T15:32:45.123Z",
        "event_type": "cross_swarm_request_posted",
        "from_swarm": "shop",
        "from_agent": "ada",
        "to_swarm": "bank",
        "to_agent": "bob",
        "request_id": "req_1",
        "signature_verified": None,
        "rate_limit_ok": True,
        "action": "SHARE",
        "confidence": 0.8,
        "citations": ("doc:1",),
    }
    assert audit.audit_day(AT) == "2025-11-30"


def test_a_failed_check_is_never_reported_as_passed() -> None:
    forged = audit.audit("signature_verification_failed", SUBJECT, AT, signature_verified=True)
    assert forged.signature_verified is False
    flood = audit.audit("rate_limit_exceeded", SUBJECT, AT, rate_limit_ok=True)
    assert flood.rate_limit_ok is False


def test_the_counters_have_the_names_that_dashboards_know() -> None:
    assert set(audit.COUNTER_NAMES) == {
        "requests_cross_swarm_posted_total",
        "requests_cross_swarm_claimed_total",
        "requests_cross_swarm_completed_total",
        "requests_cross_swarm_failed_total",
        "requests_cross_swarm_timeout_total",
        "signature_verification_failed_total",
        "rate_limit_exceeded_total",
        "swarm_not_authorized_total",
        "swarm_unavailable_total",
        "conflicts_detected_total",
        "conflicts_resolved_by_timestamp_total",
        "conflicts_escalated_to_coordinator_total",
    }


def test_a_result_counts_by_its_status_and_a_conflict_twice() -> None:
    retrieved: AuditEvent = "cross_swarm_result_retrieved"
    assert audit.counters(retrieved, "success") == ("requests_cross_swarm_completed_total",)
    assert audit.counters(retrieved, "error") == ("requests_cross_swarm_failed_total",)
    assert audit.counters("conflict_escalated") == (
        "conflicts_detected_total",
        "conflicts_escalated_to_coordinator_total",
    )
    assert audit.counters("quarantine_released") == ()
