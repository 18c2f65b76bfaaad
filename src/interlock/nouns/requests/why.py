"""Explain a request: at which of the ten steps it is, what it waits for, and what comes next.

Also a message in quarantine: why it was refused, and what can be done with it.

The bus is asked, too: it alone knows whether the receiver has taken a request in.  If it does not
answer, that is part of the explanation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.core import keys, validate
from interlock.core.safe_text import foreign
from interlock.core.validate import command, quote, span
from interlock.errors import BusTrouble
from interlock.nouns.requests import progress
from interlock.nouns.requests.acknowledgements import decode_mark
from interlock.nouns.requests.exchange import (
    ReceivedRequest,
    decode_breaker,
    decode_quarantined,
    decode_received,
    decode_reputation,
    decode_request,
)
from interlock.nouns.requests.progress import Progress, SeenOnBus
from interlock.nouns.requests.request import OutgoingRequest
from interlock.nouns.requests.views import request_task
from interlock.nouns.swarms import breaker, reputation
from interlock.nouns.swarms.swarm import OwnSwarm, decode_floor, decode_own, decode_peer
from interlock.runtime.reads import every, looked_up, readable, whole_id
from interlock.runtime.why import Why
from interlock.steps import Op, Read

if TYPE_CHECKING:
    from interlock.client_context import Context
    from interlock.runtime.runner import Runner
    from interlock.store import Item

_STEPS = 10


def request(context: Context, name: str) -> Op[Why]:
    """Explain a request that was sent from here, or received: by its id, or its chosen name."""
    asked, _, swarm = validate.name(name, "request").partition("@")
    id_ = yield from context.requests.sender.find(asked)
    id_ = yield from whole_id(id_, keys.REQUESTS)
    key = keys.request(id_)
    sent = decode_request((yield Read(key))[key])
    if sent is not None and not swarm:
        return (yield from _sent(context, sent))
    received = yield from _find_received(id_, swarm)
    if received is not None:
        return (yield from _received(context, received))
    return Why(
        thing=f"request/{id_}",
        blocked=False,
        state="unknown",
        because="no such request was sent or received here, or it was deleted after its deadline",
        clear="see 'interlock request list', with --received for those of other swarms",
    )


def quarantine(context: Context, name: str) -> Op[Why]:
    """Explain why a message is in quarantine, and what can be done with it."""
    del context
    id_ = yield from whole_id(validate.name(name, "message in quarantine"), keys.QUARANTINE)
    thing, key = f"quarantine/{id_}", keys.quarantined(id_)
    kept = readable(decode_quarantined, (yield Read(key))[key])
    if kept is None:
        return Why(
            thing=thing,
            blocked=False,
            state="unknown",
            because="no such message is in quarantine, or it was released or deleted",
            clear="see 'interlock quarantine list'",
        )
    ours = bool(kept.message) and not kept.swarm
    sender = (
        f"{foreign(kept.agent)} of {foreign(kept.swarm)}" if kept.swarm else "an unknown sender"
    )
    origin = "made here, and not posted" if ours else f"from {sender}, and not taken in"
    drop = f"interlock quarantine drop {quote(id_)}"
    clear = f"see {command(f'interlock quarantine show {quote(id_)}')}; to delete it: {drop}"
    if kept.content and kept.kind == "request":
        clear = (
            f"to take it in after all: interlock quarantine release {quote(id_)}; to delete it:"
            f" {drop}"
        )
    if ours and kept.kind == "request":
        clear = f"a person decides about its request: interlock why {quote(kept.request)}"
    return Why(
        thing=thing,
        blocked=True,
        state=kept.reason,
        because=f"a {kept.kind} {origin}: {kept.reason}: {kept.detail}",
        clear=clear,
        by="" if ours else kept.swarm,
        since=kept.at,
        leads_to=(f"request/{kept.request}",) if ours and kept.kind == "request" else (),
    )


# Sent.


def _sent(context: Context, sent: OutgoingRequest) -> Op[Why]:
    now = context.runner.clock.wall()
    on_bus, trouble = None, ""
    if sent.state == "open":
        on_bus, trouble = yield from _look_on_bus(context, sent)
    found = progress.of_sent(sent, on_bus)
    says = f"step {found.step} of {_STEPS}: {found.says}"
    blocked = sent.state in ("open", "escalated")
    return Why(
        thing=f"request/{sent.id}",
        blocked=blocked,
        state=sent.state,
        because=f"{says} ({trouble})" if trouble else says,
        clear=_clears(sent, found, reached=on_bus is not None),
        by=found.place if sent.state == "escalated" else sent.to_swarm if blocked else "",
        since=(sent.posted or sent.sent) if blocked else sent.ended,
        meanwhile=tuple((yield from _meanwhile(context, sent, found, now))) if blocked else (),
        leads_to=(sent.replaced_by,) if sent.replaced_by else (),
    )


def _look_on_bus(context: Context, sent: OutgoingRequest) -> Op[tuple[SeenOnBus | None, str]]:
    """Whether its envelope and its result are on the bus; or why that is not known."""
    item = (yield Read(keys.OWN_SWARM))[keys.OWN_SWARM]
    if item is None:
        return None, "this home is no swarm any more"
    own: OwnSwarm = decode_own(item)
    request_key = keys.bus_request(sent.to_swarm, sent.message)
    result_key = keys.bus_result(own.name, sent.id)

    def work(_runner: Runner) -> Op[dict[str, Item | None]]:
        return (yield from looked_up((request_key, result_key), longest=0))

    try:
        there = yield from context.bus.on(own, work, urgent=True)
    except BusTrouble as error:
        return None, str(error)
    seen = SeenOnBus(request=there[request_key] is not None, result=there[result_key] is not None)
    return seen, ""


def _clears(sent: OutgoingRequest, found: Progress, *, reached: bool) -> str:
    result = f"interlock request result {quote(sent.id)}"
    by_state = {
        "escalated": f"a person decides: interlock decision resolve {quote(sent.decision)} ANSWER;"
        " a late answer ends it, too",
        "answered": f"its result is kept for an hour: {result}",
        "cancelled": f"see {command(f'interlock record explain {quote(sent.id)}')}",
    }
    by_step = {
        1: "run 'interlock maintain', or a process that serves or waits"
        if reached
        else "the bus answers: any process of this swarm then posts it; see 'interlock doctor'",
        3: f"a process of {foreign(sent.to_swarm)} takes it in",
        8: f"take it in: {result}",
    }
    answers = f"a worker of {foreign(sent.to_swarm)} answers: {result} --wait 10m"
    if sent.taken is None:  # the envelope is gone from the bus, and nothing says what became of it
        answers += (
            f"; if none does, ask its operator whether {foreign(sent.to_swarm)} allows"
            f" {foreign(sent.from_swarm)}"
            " (interlock quarantine list)"
        )
    return by_state.get(sent.state) or by_step.get(found.step, answers)


def _meanwhile(
    context: Context, sent: OutgoingRequest, found: Progress, now: float
) -> Op[list[str]]:
    """What comes next, and what is known of the peer."""
    swarm = sent.to_swarm
    wanted = keys.peer(swarm), keys.floor(swarm), keys.breaker(swarm), keys.reputation(swarm)
    items = (yield Read(*wanted)).items
    peer_item, floor_item, breaker_item, record_item = (items[key] for key in wanted)
    said = [found.coming(now)] if found.next and sent.state == "open" else []
    if sent.posted is not None and sent.taken is None and sent.state == "open":
        said.append(f"attempt {sent.attempt} reached the bus {span(now - sent.posted)} ago")
    peer = None if peer_item is None else readable(decode_peer, peer_item)
    if peer is None or not peer.allowed:
        said.append(
            f"{foreign(swarm)} is not allowed here any more, so its result would be refused"
        )
    full = yield from context.requests.home.queues.full(swarm)
    if full is not None and sent.posted is None:
        said.append(
            f"{full.depth} requests wait for {foreign(swarm)}, and {full.limit} are allowed"
        )
    floor = None if floor_item is None else readable(decode_floor, floor_item)
    if floor is not None and floor.fetched and not floor.live:
        ago = span(max(now - floor.fetched, 0.0))
        said.append(f"no process of {foreign(swarm)} was live {ago} ago")
    circuit = readable(decode_breaker, breaker_item) or breaker.CLOSED
    if breaker.state(circuit, now) != "closed":
        left = max(circuit.until - now, 0.0)
        until = f"for {span(left)} more" if left else "until one request is answered"
        said.append(f"the circuit breaker of {foreign(swarm)} refuses new requests {until}")
    standing = reputation.standing(
        readable(decode_reputation, record_item) or reputation.UNKNOWN, now
    )
    if standing.blocked:
        said.append(f"{foreign(swarm)} is blocked for its {' and '.join(standing.blocked)}")
    return said


# Received.


def _find_received(id_: str, swarm: str) -> Op[ReceivedRequest | None]:
    """A request of another swarm; its key names the swarm, so all peers are tried."""
    swarms = [swarm] if swarm else [keys.swarm_of(i.key) for i in (yield from every(keys.PEERS))]
    items = yield from looked_up(keys.received(each, id_) for each in swarms)
    found = [readable(decode_received, item) for item in items.values()]
    return next((each for each in found if each is not None), None)


def _received(context: Context, received: ReceivedRequest) -> Op[Why]:
    head, now = received.head, context.runner.clock.wall()
    mark_key = keys.unacknowledged(head.from_swarm, head.request_id)
    task = keys.status(received.task), keys.owner(received.task)
    items = (yield Read(mark_key, *(task if received.task else ()))).items
    mark = readable(decode_mark, items[mark_key])
    in_outbox = False
    if mark is not None:
        entry = keys.outbox(head.from_swarm, mark.message)
        in_outbox = (yield Read(entry))[entry] is not None
    found = progress.of_received(
        received,
        request_task(received, items),
        acknowledged=mark is None,
        in_outbox=in_outbox,
    )
    open_ = received.answered is None
    asker = f"{foreign(head.from_agent)} of {foreign(head.from_swarm)}"
    late = f"; its deadline is in {span(head.deadline / 1000 - now)}" if open_ else ""
    return Why(
        thing=f"request/{head.request_id}",
        blocked=open_ or mark is not None,
        state=_word(received, found),
        because=f"step {found.step} of {_STEPS}: {found.says}; {asker} asked{late}",
        clear=found.next or f"see {command(f'interlock record explain {quote(head.request_id)}')}",
        by=found.place if found.step == _WORKING else head.from_swarm if not open_ else "",
        since=received.at if open_ else received.answered,
        leads_to=(f"task/{received.task}",) if open_ and received.task else (),
    )


_WORKING = 6


def _word(received: ReceivedRequest, found: Progress) -> str:
    if received.answered is not None:
        return "acknowledged" if found.step == _STEPS else "answered"
    return "running" if found.step == _WORKING else "received"
