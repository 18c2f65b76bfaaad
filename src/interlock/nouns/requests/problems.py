"""Problems of requests for ``health``, and counts for ``doctor``; read at home alone.

Decisions about escalated requests are reported with all others (``undecided``), and received
requests that no worker takes as tasks (``waiting``, ``unable``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from interlock.core import keys
from interlock.core.safe_text import foreign
from interlock.core.validate import command, quote, span
from interlock.nouns.requests.exchange import (
    QUARANTINE_LIMIT,
    decode_breaker,
    decode_quarantined,
    decode_reputation,
    decode_request,
)
from interlock.nouns.requests.metrics import queue_depths
from interlock.nouns.requests.progress import of_sent
from interlock.nouns.requests.request import OutgoingRequest
from interlock.nouns.swarms import breaker, reputation
from interlock.nouns.swarms.limits import QUEUE_ALERT, QUEUE_NOTICE, queue_level
from interlock.nouns.swarms.own_keys import own_swarm
from interlock.runtime.health import HealthCheck, Problem
from interlock.runtime.reads import every, looked_up, readable
from interlock.runtime.why import NAMED
from interlock.steps import Op
from interlock.store import Finding, Item, finding

UNSENT = 60.0
"""Seconds after which an envelope in the outbox is reported: reconnecting takes ten."""


def problems(checkup: HealthCheck) -> Op[list[Problem]]:
    """Requests that need attention."""
    now = checkup.runner.clock.wall()
    own = yield from own_swarm()
    depths = {} if own is None else (yield from queue_depths(own.name))
    return [
        *_unsent((yield from checkup.read(keys.OUTBOX)), now),
        *(yield from _unreachable(checkup, now)),
        *(yield from _unanswered(checkup, now)),
        *_quarantined((yield from checkup.read(keys.QUARANTINE)), now),
        *_deep(depths),
    ]


def _unsent(items: Sequence[Item], now: float) -> Iterator[Problem]:
    """Envelopes that wait in the outbox for long: the bus is away, or refuses them."""
    for swarm, (count, since) in waiting_in_outbox(items).items():
        if now - since > UNSENT:
            yield Problem(
                kind="unsent",
                says=f"swarm/{foreign(swarm)}: {_envelopes(count)} for {foreign(swarm)} in the"
                " outbox, the first for"
                f" {span(now - since)}",
                remedy="see whether the bus answers: interlock doctor; then run 'interlock"
                " maintain', or 'interlock request serve'",
                thing=f"swarm/{swarm}",
                since=since,
            )


def waiting_in_outbox(items: Sequence[Item]) -> dict[str, tuple[int, float]]:
    """For each swarm how many envelopes wait for it, and since when the first one does."""
    found: dict[str, tuple[int, float]] = {}
    for item in items:
        swarm, at = keys.agent_of(item.key), _made(keys.id_of(item.key))
        count, since = found.get(swarm, (0, at))
        found[swarm] = count + 1, min(since, at)
    return found


def _made(message: str) -> float:
    """When a message was made: its id begins with that; never for an id of another form."""
    try:
        return int(message[4:16], 16) / 1000
    except ValueError:
        return float("inf")


def _unreachable(checkup: HealthCheck, now: float) -> Op[list[Problem]]:
    """Peers to which nothing is sent for now."""
    found: list[Problem] = []
    for item in (yield from checkup.read(keys.BREAKERS)):
        circuit, swarm = readable(decode_breaker, item), keys.swarm_of(item.key)
        if circuit is None or breaker.state(circuit, now) == "closed":
            continue
        left = max(circuit.until - now, 0.0)
        until = f"refused for {span(left)} more" if left else "refused until one is answered"
        found.append(
            Problem(
                kind="unreachable",
                says=f"swarm/{foreign(swarm)}: it did not answer in time, three times or more in a"
                " row;"
                f" requests to it are {until}",
                remedy="see whether it is there: interlock swarm list; or ask its operator",
                thing=f"swarm/{swarm}",
            )
        )
    for item in (yield from checkup.read(keys.REPUTATIONS)):
        record, swarm = readable(decode_reputation, item), keys.swarm_of(item.key)
        if record is None or not (numbers := reputation.standing(record, now)).blocked:
            continue
        found.append(
            Problem(
                kind="unreachable",
                says=f"swarm/{foreign(swarm)}: {numbers.timeouts} of its last {numbers.samples}"
                " answers came"
                f" too late and {numbers.conflicts} were conflicts, so nothing is sent to it",
                remedy=f"see {command(f'interlock swarm trust {quote(swarm)}')}; when the cause is"
                " fixed, add"
                " --forgive",
                thing=f"swarm/{swarm}",
            )
        )
    return found


def _unanswered(checkup: HealthCheck, now: float) -> Op[list[Problem]]:
    """Open requests that wait for long; one line for each swarm, with the oldest."""
    due = yield from checkup.read(keys.REQUEST_DUE)
    items = yield from looked_up(keys.request(keys.id_of(item.key)) for item in due)
    read = [readable(decode_request, item) for item in items.values()]
    old: dict[str, list[OutgoingRequest]] = {}
    for each in sorted([each for each in read if each is not None], key=lambda each: each.made):
        if each.state == "open" and now - each.made > checkup.patience.waiting:
            old.setdefault(each.to_swarm, []).append(each)
    return [_waiting(swarm, some, now) for swarm, some in old.items()]


def _waiting(swarm: str, some: Sequence[OutgoingRequest], now: float) -> Problem:
    first = some[0]
    more = f" and {len(some) - NAMED} more" if len(some) > NAMED else ""
    names = ", ".join(each.id for each in some[:NAMED])
    waits = "waits" if len(some) == 1 else "wait"
    return Problem(
        kind="waiting",
        says=f"swarm/{foreign(swarm)}: {names}{more} {waits} for an answer of {foreign(swarm)}, the"
        " first for"
        f" {span(now - first.made)}: {of_sent(first).says}",
        remedy=f"see {command(f'interlock why {quote(first.id)}')}",
        thing=f"request/{first.id}",
        agent=first.agent,
        since=first.made,
    )


def _quarantined(items: Sequence[Item], now: float) -> Iterator[Problem]:
    """Messages that were refused, by reason."""
    kept = [each for item in items if (each := readable(decode_quarantined, item)) is not None]
    if not kept:
        return
    reasons = ", ".join(f"{n} {reason}" for reason, n in Counter(k.reason for k in kept).items())
    last = max(each.at for each in kept)
    full = (
        f", and no more than {QUARANTINE_LIMIT} are kept" if len(kept) >= QUARANTINE_LIMIT else ""
    )
    yield Problem(
        kind="refused",
        says=f"quarantine: {len(kept)} messages of other swarms were refused ({reasons}), the last"
        f" {span(now - last)} ago{full}",
        remedy="see 'interlock quarantine list', and 'interlock quarantine show ID' for what to do;"
        " then release or drop them",
        thing="quarantine",
        since=min(each.at for each in kept),
    )


def _deep(depths: dict[str, int]) -> Iterator[Problem]:
    """Long queues: above 1,000 requests, and far too long above 10,000."""
    for swarm, depth in depths.items():
        level = queue_level(depth)
        if level:
            bound = QUEUE_ALERT if level == "alert" else QUEUE_NOTICE
            yield Problem(
                kind="full",
                says=f"swarm/{foreign(swarm)}: {depth} requests wait for {foreign(swarm)}, which is"
                f" above {bound}",
                remedy=f"start more workers in {foreign(swarm)}: interlock request serve --can X"
                " --jobs N",
                thing=f"swarm/{swarm}",
            )


def counts(now: float) -> Op[Finding]:
    """What ``doctor`` says about requests: how many there are, and where."""
    counted = yield from every(keys.REQUEST_DUE, most=QUARANTINE_LIMIT)
    outbox = yield from every(keys.OUTBOX, most=QUARANTINE_LIMIT)
    kept = yield from every(keys.QUARANTINE, most=QUARANTINE_LIMIT)
    received = yield from every(keys.UNANSWERED, most=QUARANTINE_LIMIT)
    fact = (
        f"{_count(counted)} open, {_count(outbox)} in the outbox, {_count(received)} received and"
        f" not finished, {_count(kept)} in quarantine"
    )
    oldest = min((since for _, since in waiting_in_outbox(outbox).values()), default=now)
    remedy = ""
    if now - oldest > UNSENT:
        remedy = f"the first waits in the outbox for {span(now - oldest)}: run 'interlock maintain'"
    elif len(received) >= QUEUE_NOTICE:
        remedy = "start more workers: interlock request serve --can X --jobs N"
    return finding("requests", fact, remedy)


def _count(items: Sequence[Item]) -> str:
    return f"{len(items)} or more" if len(items) >= QUARANTINE_LIMIT else str(len(items))


def _envelopes(count: int) -> str:
    return "1 envelope waits" if count == 1 else f"{count} envelopes wait"
