"""Intake of requests at the receiver (steps 4 and 5 of ``exchange.py``), many at a time.

Any number of processes may do this at once: the marks against replay make all but one of them do
nothing.

**Work that others can cause** is bounded.  A message that was taken in before costs one signature
and one look at its mark: its payload is not read, and nothing is committed.  The payloads of one
batch have a bound, by the signed sizes (``incoming.py``).  What is refused is committed only as far
as the quarantine has room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock.core import codec, keys, rate
from interlock.core.decision import Decision
from interlock.errors import TooLarge
from interlock.nouns.guards.gates import merged
from interlock.nouns.requests import intake_rules
from interlock.nouns.requests.exchange import (
    decode_counts,
    decode_rate,
    decode_reputation,
    decode_seen,
)
from interlock.nouns.requests.incoming import Incoming, OnBus, read_all, unchanged
from interlock.nouns.requests.intake_rules import (
    Arrival,
    Known,
    RefusedRequest,
    Repeated,
    TakenIn,
    Verdict,
    is_repeat,
)
from interlock.nouns.requests.quarantine_service import with_refused
from interlock.nouns.swarms.envelope import EnvelopeRefused, OpenedEnvelope, body_refusal
from interlock.nouns.swarms.head import RequestHead
from interlock.nouns.swarms.limits import NO_COUNTS
from interlock.nouns.swarms.reputation import UNKNOWN
from interlock.nouns.tasks import progress_rules
from interlock.nouns.tasks.task import Spec
from interlock.nouns.tasks.task_reader import TaskReader
from interlock.runtime.identity import Actor
from interlock.runtime.reads import every, looked_up, readable
from interlock.steps import Op

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock.nouns.requests.home import Home, Trust
    from interlock.nouns.swarms.swarm import OwnSwarm
    from interlock.nouns.tasks.task_change import TaskChanges
    from interlock.runtime.attempt import DecideOp, ReadOp


FRESH_DEPTH = 10.0
"""Seconds for which the number of unfinished requests of a peer is taken for known."""


class RequestsTakenIn(Struct, frozen=True, kw_only=True):
    """What an intake of requests did: those that became tasks, and those to answer again."""

    requests: tuple[str, ...] = ()
    repeated: tuple[tuple[str, str], ...] = ()
    """Each with its swarm."""


class RequestIntake:
    """Takes in requests for one home; its methods are generators for a driver."""

    def __init__(
        self,
        home: Home,
        incoming: Incoming,
        moment: Callable[[int], float],
    ) -> None:
        self._home = home
        self._incoming = incoming
        self._room = home.room
        self._moment = moment
        self._unfinished: dict[str, tuple[float, int]] = {}
        """When the unfinished requests of a swarm were counted, and how many there are about."""

    def take(self, actor: Actor, own: OwnSwarm, found: Sequence[OnBus]) -> Op[RequestsTakenIn]:
        """Take in these requests of other swarms."""
        left, verdicts = list(found), list[Verdict]()
        while left:
            gone, done = yield from self._take_some(actor, own, left)
            left = [each for each in left if each.key not in gone]
            verdicts += done
        return RequestsTakenIn(
            requests=tuple([each.arrival.head.request_id for each in verdicts if _is_new(each)]),
            repeated=tuple([_name(each) for each in verdicts if _is_to_be_answered(each)]),
        )

    def _take_some(
        self, actor: Actor, own: OwnSwarm, found: Sequence[OnBus]
    ) -> Op[tuple[frozenset[str], list[Verdict]]]:
        """Take in as many of these as one commit takes; the keys that are deleted from the bus."""
        incoming = self._incoming
        while True:
            trust = yield from incoming.trust(own, found, RequestHead)
            opened, refused = incoming.open(found, RequestHead, trust, own)
            new, repeats = yield from _divided(opened)
            new = incoming.fitting(new)
            arrivals = yield from self._with_bodies(own, new, refused)
            done = yield from self._take_or_refuse(actor, arrivals, refused, trust)
            if done is not None:
                break
        taken = [*[each for each, _ in (*new, *repeats)], *[each for each, _ in refused]]
        gone = frozenset(key for each in taken for key in each.keys)
        yield from incoming.delete(own, gone)
        return gone, done

    def release(self, actor: Actor, own: OwnSwarm, envelope: bytes, body: bytes) -> Op[Any]:
        """Take in a request from quarantine, without regard to rate and reputation."""
        found = [OnBus(key="", value=envelope, body_key="")]
        while True:
            trust = yield from self._incoming.trust(own, found, RequestHead)
            opened, refused = self._incoming.open(found, RequestHead, trust, own)
            if refused:
                return refused[0][1]
            arrival = replace(_arrival(opened[0][1], envelope, body), released=True)
            done = yield from self._take(actor, [arrival], [], trust, keep=False)
            if done is not None:
                return done[0]

    def _take_or_refuse(
        self,
        actor: Actor,
        arrivals: Sequence[Arrival],
        refused: Sequence[tuple[OnBus, EnvelopeRefused]],
        trust: Trust,
    ) -> Op[list[Verdict] | None]:
        """Take in requests; one by one if the home refuses them together, and none that it cannot.

        Doing it twice is harmless: a request that was taken in is known by its mark.
        """
        try:
            return (yield from self._take(actor, arrivals, refused, trust))
        except TooLarge as error:
            large = error
        if len(arrivals) == 1:
            found = OnBus(key="", value=b"", body_key="")
            wrong = (found, _too_large(arrivals[0], large))
            return (yield from self._take(actor, (), (wrong, *refused), trust))
        done: list[Verdict] = []
        for each in arrivals:
            one = yield from self._take_or_refuse(actor, (each,), refused, trust)
            if one is None:
                return None
            done += one
            refused = ()
        return done

    def _take(
        self,
        actor: Actor,
        arrivals: Sequence[Arrival],
        refused: Sequence[tuple[OnBus, EnvelopeRefused]],
        trust: Trust,
        *,
        keep: bool = True,
    ) -> Op[list[Verdict] | None]:
        """Step 4; None if the trust changed before the commit."""
        base = yield from self._home.runner.base()
        at = self._moment(max(len(arrivals), 1))
        ids = [self._home.runner.new_id("qua") for _ in (*arrivals, *refused)]
        waiting = yield from self._waiting({each.head.from_swarm for each in arrivals}, trust)

        def deciding() -> DecideOp[list[Verdict] | None]:
            now = self._home.now()
            relied = {key for each in arrivals for key in trust.relied(each.opened.key)}
            if not (yield from unchanged(relied, trust.revisions)):
                return Decision(outcome=None)
            reader = TaskReader(self._home.runner, base)
            known = yield from _known(arrivals, reader, trust, waiting)
            verdicts = [
                intake_rules.judge(each, known, now, at + place * 0.000_001)
                for place, each in enumerate(arrivals)
            ]
            new = [each for each in verdicts if isinstance(each, TakenIn)]
            published = yield from _publish(reader, new)
            puts = [write for each in new for write in intake_rules.taken_in_writes(each)]
            puts += intake_rules.counting_writes(verdicts, known)
            held = [each for each in verdicts if isinstance(each, RefusedRequest) and keep]
            wrong: list[RefusedRequest | EnvelopeRefused] = [*held]
            wrong += [each for _, each in refused]
            kept = yield from self._room.keep(ids, wrong, "request", now)
            thing = f"request/{new[0].arrival.head.request_id}" if len(new) == 1 else "requests"
            own = Decision[Any](
                outcome=verdicts,
                verb="request.receive" if new else "request.repeat" if puts else "",
                thing=thing,
                puts=tuple(puts),
                events=tuple([intake_rules.received_event(each) for each in new]),
            )
            return with_refused(merged(own, [published]), kept)

        done = yield from self._room.commit(deciding, actor)
        self._count_unfinished(done or ())
        return done

    def _waiting(self, swarms: Iterable[str], trust: Trust) -> Op[dict[str, int]]:
        """How many requests of these swarms are not finished, about: counted from time to time."""
        now = self._home.runner.clock.monotonic()
        for swarm in swarms:
            counted, _ = self._unfinished.get(swarm, (float("-inf"), 0))
            if now - counted >= FRESH_DEPTH:
                most = trust.limits[swarm].queue_most
                items = yield from every(keys.unanswered(swarm), most=most)
                self._unfinished[swarm] = now, len(items)
        return {swarm: self._unfinished[swarm][1] for swarm in swarms}

    def _count_unfinished(self, verdicts: Iterable[Verdict]) -> None:
        for each in verdicts:
            if isinstance(each, TakenIn):
                swarm = each.arrival.head.from_swarm
                counted, number = self._unfinished[swarm]
                self._unfinished[swarm] = counted, number + 1

    def _with_bodies(
        self,
        own: OwnSwarm,
        opened: Sequence[tuple[OnBus, OpenedEnvelope[RequestHead]]],
        refused: list[tuple[OnBus, EnvelopeRefused]],
    ) -> Op[list[Arrival]]:
        """The requests whose bodies are those that were signed for."""
        bodies = yield from self._incoming.bodies(own, [each for each, _ in opened])
        arrivals: list[Arrival] = []
        for each, envelope in opened:
            body = bodies.get(each.body_key, b"")
            if (wrong := body_refusal(envelope.head, body) or _no_json(envelope, body)) is not None:
                refused.append((each, wrong))
            else:
                arrivals.append(_arrival(envelope, each.value, body))
        return arrivals


OpenedRequests: TypeAlias = list[tuple[OnBus, OpenedEnvelope[RequestHead]]]


def _divided(opened: OpenedRequests) -> Op[tuple[OpenedRequests, OpenedRequests]]:
    """The envelopes to judge, and those that were taken in before and need no answer."""
    marks = yield from looked_up(_seen_key(each.head) for _, each in opened)
    found: tuple[OpenedRequests, OpenedRequests] = ([], [])
    for on_bus, each in opened:
        mark = readable(decode_seen, marks[_seen_key(each.head)])
        found[is_repeat(each.head, mark)].append((on_bus, each))
    return found


def _seen_key(head: RequestHead) -> str:
    return keys.seen(head.from_swarm, head.message_id)


def _known(
    arrivals: Sequence[Arrival], reader: TaskReader, trust: Trust, waiting: Mapping[str, int]
) -> ReadOp[Known]:
    """The marks, rates, counts, reputations and tasks that decide about these requests."""
    swarms = {each.head.from_swarm for each in arrivals}
    wanted = [key for each in arrivals for key in (each.seen_key, each.rate_key, each.received_key)]
    wanted += [key for swarm in swarms for key in (keys.peer_counts(swarm), keys.reputation(swarm))]
    items = yield from read_all(dict.fromkeys(wanted))
    statuses = yield from read_all(dict.fromkeys(keys.status(each.task) for each in arrivals))
    reader.learn(statuses)
    seen = {each.seen_key: decode_seen(items[each.seen_key]) for each in arrivals}
    repeated = [each.repeats_key for each in arrivals if seen[each.seen_key] is not None]
    items |= yield from read_all(dict.fromkeys(repeated))
    return Known(
        seen=seen,
        rates={
            key: decode_rate(items[key]) or rate.EMPTY
            for key in (*[each.rate_key for each in arrivals], *repeated)
        },
        counts={
            swarm: decode_counts(items[keys.peer_counts(swarm)]) or NO_COUNTS for swarm in swarms
        },
        unfinished=dict(waiting),
        limits=trust.limits,
        reputations={
            swarm: decode_reputation(items[keys.reputation(swarm)]) or UNKNOWN for swarm in swarms
        },
        taken={
            each.task: (items[each.received_key] or statuses[keys.status(each.task)]) is not None
            for each in arrivals
        },
    )


def _publish(reader: TaskReader, new: Sequence[TakenIn]) -> DecideOp[None]:
    """Publish the tasks of requests that are taken in."""
    specs: dict[str, Spec] = {each.arrival.task: each.spec for each in new if each.spec is not None}

    def decide(changes: TaskChanges) -> Decision[None]:
        if not specs:
            return Decision(outcome=None)
        progress_rules.read_needs(changes, (), specs)
        progress_rules.read_requirement_sets(changes, specs.values())
        for id_, spec in specs.items():
            progress_rules.create(changes, id_, spec)
        return changes.decision(None, "request.receive", "requests")

    return (yield from reader.change(decide))


def _is_new(verdict: Verdict) -> bool:
    return isinstance(verdict, TakenIn)


def _is_to_be_answered(verdict: Verdict) -> bool:
    """Whether it is a later attempt, or a message to all agents, which needs no worker."""
    if isinstance(verdict, TakenIn):
        return verdict.spec is None
    return isinstance(verdict, Repeated) and verdict.later


def _name(verdict: Verdict) -> tuple[str, str]:
    head = verdict.arrival.head
    return head.from_swarm, head.request_id


def _too_large(arrival: Arrival, error: TooLarge) -> EnvelopeRefused:
    detail = f"this home cannot store it: {error}"[:200]
    head = arrival.head
    return EnvelopeRefused(reason="too_large", detail=detail, key=head.key, head=head)


def _arrival(opened: OpenedEnvelope[RequestHead], envelope: bytes, body: bytes) -> Arrival:
    return Arrival(opened=opened, envelope=envelope, body=body)


def _no_json(opened: OpenedEnvelope[RequestHead], body: bytes) -> EnvelopeRefused | None:
    try:
        msgspec.json.decode(body, type=Raw)
        msgspec.json.decode(body)
    except codec.UNREADABLE as error:
        detail = f"its payload is not JSON: {error}"[:200]
        head = opened.head
        return EnvelopeRefused(reason="malformed", detail=detail, key=head.key, head=head)
    return None
