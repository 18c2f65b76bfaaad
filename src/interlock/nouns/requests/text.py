"""The outcomes of requests and of the quarantine in words."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from interlock.core.validate import command, quote
from interlock.runtime.text import ago, as_json, joined, lasting, listed, reason_lines, since, table

if TYPE_CHECKING:
    from interlock.nouns.requests import outcomes as out
    from interlock.nouns.requests.audit import AuditEntry
    from interlock.runtime.text import Paint, Text


def _sent(outcome: out.RequestSent, paint: Paint) -> str:
    to = f"{outcome.to_agent} of {outcome.to_swarm}"
    if outcome.spooled:
        why = f"it waits in the outbox until the bus answers ({outcome.reason})"
        said = f"{paint('yellow', 'requested')} {outcome.request} of {to}: {why}"
        return said + _warned(outcome, paint)
    hint = f"for its result: interlock request result {quote(outcome.request)} --wait 30s"
    said = f"{paint('green', 'requested')} {outcome.request} of {to}; {hint}"
    return said + _warned(outcome, paint)


def _warned(outcome: out.RequestSent | out.RequestOpen, paint: Paint) -> str:
    return f"\n{paint('yellow', 'warning')} {outcome.warning}" if outcome.warning else ""


def _exists(outcome: out.RequestExists, paint: Paint) -> str:
    hint = command(f"interlock request result {quote(outcome.request)}")
    word = paint("yellow", "exists")
    if outcome.differs:
        return (
            f"{word} {outcome.request}: another request was sent under this id, and is"
            f" {outcome.state}; choose another id, or see {hint}"
        )
    return f"{word} {outcome.request}: it is {outcome.state}; see {hint}"


def _not_allowed(outcome: out.SwarmNotAllowed, paint: Paint) -> str:
    hint = f"interlock swarm allow {quote(outcome.swarm)} --key FINGERPRINT"
    return (
        f"{paint('red', 'not allowed')} {outcome.swarm}: this swarm has not allowed it;"
        f" 'interlock swarm list' has those that are; to allow it: {hint}"
    )


def _limited(outcome: out.RequestLimited, paint: Paint) -> str:
    rate = f"{outcome.limit} requests in {lasting(outcome.window)}"
    return (
        f"{paint('yellow', 'limited')} {outcome.agent} may make {rate} to {outcome.swarm};"
        f" retry in {lasting(outcome.retry_in)}"
    )


_UNAVAILABLE = {
    "circuit_open": "it did not answer three times in a row",
    "conflicts": "too many of its results were conflicts",
    "timeouts": "too many of its results came too late, or never",
}


def _unavailable(outcome: out.SwarmUnavailable, paint: Paint) -> str:
    if outcome.reason == "unable":
        word = paint("red", "unavailable")
        return (
            f"{word} no swarm that is known to be online can do it;"
            " to read the bus now: interlock swarm discover ABILITY --fresh"
        )
    why = _UNAVAILABLE[outcome.reason]
    hint = f"for the numbers: interlock swarm trust {quote(outcome.swarm)}; --forgive clears them"
    return (
        f"{paint('red', 'unavailable')} {outcome.swarm}: {why};"
        f" retry in {lasting(outcome.retry_in)}; {hint}"
    )


def _full(outcome: out.SwarmQueueFull, paint: Paint) -> str:
    return (
        f"{paint('yellow', 'full')} {outcome.depth} requests wait for {outcome.swarm},"
        f" {outcome.limit} are allowed; retry in {lasting(outcome.retry_in)}"
    )


def _coming(outcome: out.RequestOpen | out.RequestView) -> str:
    """What happens next, and in which time."""
    if outcome.next_at is None:
        return outcome.next
    left = outcome.next_at - time.time()
    return f"{outcome.next} in {lasting(left)}" if left > 0 else f"{outcome.next}, which is due"


def _answered(outcome: out.RequestAnswered, paint: Paint) -> str:
    head = f"{paint('green', 'answered')} by {outcome.executed_by} of {outcome.from_swarm}"
    sure = "" if outcome.confidence is None else f", confidence {outcome.confidence:g}"
    cites = f", cites {joined(outcome.citations)}" if outcome.citations else ""
    return f"{head}, {ago(outcome.executed_at)}{sure}{cites}\n{as_json(outcome.result)}"


def _failed(outcome: out.RequestFailed, paint: Paint) -> str:
    by = f"{outcome.executed_by} of {outcome.from_swarm}"
    return f"{paint('red', 'failed')} at {by}{reason_lines(outcome.error, paint)}"


def _open(outcome: out.RequestOpen, paint: Paint) -> str:
    head = f"{paint('yellow', 'unanswered')} {outcome.request}: {outcome.reason}"
    if outcome.decision:
        return f"{head}; see {command(f'interlock decision show {quote(outcome.decision)}')}"
    if outcome.next:
        head += f"; {_coming(outcome)}"
    head += f"; ask again: interlock request result {quote(outcome.request)} --wait 1m"
    return head + _warned(outcome, paint)


def _over(outcome: out.RequestOver, paint: Paint) -> str:
    instead = f"; {outcome.replaced_by} does the work instead" if outcome.replaced_by else ""
    word = paint("yellow", "gone")
    return f"{word} {outcome.request} is {outcome.state}: {outcome.reason}{instead}"


def _cancelled(outcome: out.RequestCancelled, paint: Paint) -> str:
    before = " before" if outcome.already else ""
    return f"{paint('green', 'cancelled')} {outcome.request}{before}"


def _unknown(outcome: out.UnknownRequest, paint: Paint) -> str:
    names = joined(outcome.unknown)
    return f"{paint('red', 'unknown')} {names}: see 'interlock request list'"


def _list(outcome: out.RequestList, paint: Paint) -> str:
    if not outcome.requests:
        return "no requests, or none that fits; 'interlock request list --help' has the filters"
    rows = [
        (
            each.request,
            each.state,
            each.place,
            f"{each.agent}@{each.from_swarm}" if each.from_swarm else each.agent,
            each.to_agent if each.from_swarm else f"{each.to_agent}@{each.to_swarm}",
            each.task_type,
            since(each.at),
            _coming(each),
        )
        for each in outcome.requests
    ]
    titles = ("REQUEST", "STATE", "WHERE", "FROM", "TO", "TYPE", "AGE", "NEXT")
    more = f"\nmore: --after {quote(outcome.more)}" if outcome.more else ""
    return table(titles, rows, paint) + more


def _audit(outcome: out.AuditList, paint: Paint) -> str:
    if not outcome.events:
        return "nothing happened between swarms on that day, or the record has no such event"
    rows = [
        (
            each.timestamp[11:23],
            each.action,
            f"{each.event_type} x{each.count}" if each.count > 1 else each.event_type,
            _end(each.from_agent, each.from_swarm),
            _end(each.to_agent, each.to_swarm),
            each.request_id,
            each.reason or each.status or _claimer(each),
        )
        for each in outcome.events
    ]
    titles = ("TIME (UTC)", "ACTION", "EVENT", "FROM", "TO", "REQUEST", "WHY")
    more = "\nthere are earlier ones: --limit" if outcome.earlier else ""
    return table(titles, rows, paint) + more


def _claimer(event: AuditEntry) -> str:
    return f"by {event.by}" if event.event_type == "cross_swarm_task_claimed" else ""


def _end(agent: str, swarm: str) -> str:
    return f"{agent}@{swarm}" if agent and swarm else agent or swarm


def _written(outcome: out.AuditWritten, paint: Paint) -> str:
    lines = "1 line" if outcome.lines == 1 else f"{outcome.lines} lines"
    said = f"{paint('green', 'written')} {lines} to {outcome.folder}"
    if outcome.deleted:
        said += f"; deleted {joined(outcome.deleted)}"
    if outcome.missed:
        said += "\nentries before these are gone from the record; run this more often"
    return said


def _busy(outcome: out.AuditBusy, paint: Paint) -> str:
    return f"{paint('yellow', 'busy')} another process writes to {outcome.folder}; nothing is lost"


def _quarantine(outcome: out.QuarantineList, paint: Paint) -> str:
    if not outcome.messages:
        return "the quarantine is empty"
    rows = [
        (each.id, each.kind, each.swarm or "?", each.reason, each.detail, since(each.at))
        for each in outcome.messages
    ]
    titles = ("ID", "KIND", "SWARM", "REASON", "DETAIL", "AGE")
    more = f"\nmore: --after {quote(outcome.more)}" if outcome.more else ""
    return table(titles, rows, paint) + more


def _quarantined(outcome: out.QuarantineView, paint: Paint) -> str:
    del paint
    facts = [
        ("id", outcome.id),
        ("kind", outcome.kind),
        ("refused", f"{outcome.reason}: {outcome.detail}"),
        ("when", ago(outcome.at)),
        ("from", f"{outcome.agent}@{outcome.swarm}" if outcome.swarm else "unknown"),
        ("key", outcome.key),
        ("request", outcome.request),
        ("release", "possible" if outcome.releasable else "not possible"),
        ("next", _REMEDIES.get(outcome.reason, "").format(key=quote(outcome.key))),
    ]
    if outcome.releasable:
        facts.append(("payload", as_json(outcome.payload)))
    return listed(fact for fact in facts if fact[1])


_REMEDIES = {
    "unknown_key": "if a swarm that you know has this key: interlock swarm allow NAME --key {key};"
    " its sender sends the message again by itself, up to four times",
    "revoked_key": "the swarm must sign with its new key: ask its operator",
}


def _released(outcome: out.QuarantineReleased, paint: Paint) -> str:
    before = ", which was taken in before" if outcome.already else ""
    return f"{paint('green', 'released')} {outcome.id}: task {outcome.task}{before}"


def _kept(outcome: out.QuarantineKept, paint: Paint) -> str:
    return f"{paint('red', 'kept')} {outcome.id}: {outcome.reason}, {outcome.detail}"


def _dropped(outcome: out.QuarantineDropped, paint: Paint) -> str:
    return f"{paint('green', 'dropped')} {joined(outcome.dropped)}"


def _no_quarantine(outcome: out.UnknownQuarantine, paint: Paint) -> str:
    names = joined(outcome.unknown)
    return f"{paint('red', 'unknown')} {names}: see 'interlock quarantine list'"


TEXTS: dict[str, Text] = {
    "RequestSent": _sent,
    "RequestExists": _exists,
    "SwarmNotAllowed": _not_allowed,
    "RequestLimited": _limited,
    "SwarmUnavailable": _unavailable,
    "SwarmQueueFull": _full,
    "RequestAnswered": _answered,
    "RequestFailed": _failed,
    "RequestOpen": _open,
    "RequestOver": _over,
    "RequestCancelled": _cancelled,
    "UnknownRequest": _unknown,
    "RequestList": _list,
    "AuditList": _audit,
    "AuditWritten": _written,
    "AuditBusy": _busy,
    "QuarantineList": _quarantine,
    "QuarantineView": _quarantined,
    "QuarantineReleased": _released,
    "QuarantineKept": _kept,
    "QuarantineDropped": _dropped,
    "UnknownQuarantine": _no_quarantine,
}
