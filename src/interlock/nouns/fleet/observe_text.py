"""The texts of observed events and of counters."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from interlock.nouns.messages.text import recipients
from interlock.runtime.text import ago, listed

if TYPE_CHECKING:
    from interlock.runtime.observe import Counters, Observed
    from interlock.runtime.text import Paint, Text


def observed(outcome: Observed, paint: Paint) -> str:
    """One line for an event."""
    if not outcome.thing:
        return f"{paint('yellow', outcome.event)} some events, up to revision {outcome.revision}"
    clock = time.strftime("%H:%M:%S", time.localtime(outcome.at))
    parts = [
        paint("dim", clock),
        outcome.agent or "-",
        paint("green", outcome.event),
        outcome.thing,
        outcome.on if outcome.on != outcome.thing else "",
        f"to {recipients(outcome.to)}" if outcome.to else "",
        f"by {outcome.by}" if outcome.by else "",
    ]
    return " ".join(filter(None, parts))


def counters(outcome: Counters, _paint: Paint) -> str:
    """Each counter with its name, zeros too."""
    more = " (partial: there were more entries than were read)" if outcome.partial else ""
    return listed(
        [
            ("registered agents", str(outcome.registered)),
            ("pending queries", str(outcome.pending_queries)),
            ("since", f"{ago(outcome.since)}{more}"),
            ("  sent", str(outcome.sent)),
            ("  received", str(outcome.received)),
            ("  asked", str(outcome.asked)),
            ("  replied", str(outcome.replied)),
            ("  query timeouts", str(outcome.timeouts)),
            ("  left to a person", str(outcome.handed)),
            ("  rate-limit violations", str(outcome.rate_limit_violations)),
            ("  refusals", str(outcome.refusals)),
        ]
    )


TEXTS: dict[str, Text] = {
    "Observed": observed,
    "Counters": counters,
}
"""The text of each outcome, by the name of its class."""
