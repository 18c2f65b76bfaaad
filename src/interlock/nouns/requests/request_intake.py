"""Intake of requests at the receiver (steps 4 and 5 of ``exchange.py``), many at a time.

Any number of processes may do this at once: the marks against replay make all but one of them do
nothing.

**Work that others can cause** is bounded.  A message that was taken in before costs one signature
and one look at its mark: its payload is not read, and nothing is committed.  The payloads of one
batch have a bound, by the signed sizes (``incoming.py``).  What is refused is committed only as far
as the quarantine has room.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import Raw
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
    requirement,
)
from interlock.nouns.requests.incoming import STALE, EnvelopeOnBus, Incoming, read_all, unchanged
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
from interlock.nouns.swarms.head import ALL_AGENTS, RequestHead
from interlock.nouns.swarms.limits import NO_COUNTS
from interlock.nouns.swarms.reputation import UNKNOWN
from interlock.nouns.tasks import claim_rules, progress_rules
from interlock.nouns.tasks.task import ClaimRequest, Spec
from interlock.nouns.tasks.task_outcomes import Claimed
from interlock.nouns.tasks.task_reader import TaskReader
from interlock.nouns.tasks.waiting_workers import ReservedSlot, reserve
from interlock.runtime.attempt import Unchecked
from interlock.runtime.identity import Actor
from interlock.runtime.reads import every, looked_up, readable
from interlock.steps import Op
from interlock.store import Item

if TYPE_CHECKING:
    from interlock.nouns.requests.answer_service import Answers
    from interlock.nouns.requests.home import Home, Trust
    from interlock.nouns.swarms.swarm import OwnSwarm
    from interlock.nouns.tasks.service import TaskService
    from interlock.nouns.tasks.task_change import TaskChanges
    from interlock.runtime.attempt import DecideOp, ReadOp
    from interlock.runtime.runner import Decided


FRESH_DEPTH = 10.0
"""Seconds for which the number of unfinished requests of a peer is taken for known."""


class _Batch:
    """Requests that are taken in with one commit, and slots of our own workers for some of them."""

    def __init__(
        self,
        own: OwnSwarm,
        arrivals: Sequence[Arrival],
        refused: Sequence[EnvelopeRefused],
        trust: Trust,
        *,
        keep: bool = True,
    ) -> None:
        self.own = own
        self.arrivals = arrivals
        self.refused = refused
        self.trust = trust
        self.relied = trust.relied([each.opened.key for each in arrivals])
        self.keep = keep
        """Whether what is refused goes to quarantine."""
        self.verdicts: list[Verdict] = []
        self.slots: dict[str, ReservedSlot] = {}
        self.claimed: dict[str, Claimed] = {}
        """By their tasks: those that the commit claims."""

    def part(self, arrivals: Sequence[Arrival], refused: Sequence[EnvelopeRefused]) -> _Batch:
        """A part of it, with a commit of its own."""
        return _Batch(self.own, arrivals, refused, self.trust, keep=self.keep)


class RequestIntake:
    """Takes in requests for one home; its methods are generators for a driver."""

    def __init__(
        self,
        home: Home,
        incoming: Incoming,
        answers: Answers,
        tasks: TaskService,
    ) -> None:
        self._home = home
        self._incoming = incoming
        self._room = home.room
        self._answers = answers
        self._moment = tasks.moment
        self._workers = tasks.waiting
        self._unfinished: dict[str, tuple[float, int]] = {}
        """When the unfinished requests of a swarm were counted, and how many there are about."""

    def take(
        self, actor: Actor, own: OwnSwarm, found: Sequence[EnvelopeOnBus]
    ) -> Op[list[tuple[str, str]]]:
        """Take in these requests of other swarms; returns those to answer again, by their swarms.

        These are later attempts, and messages to all agents, which need no worker.
        """
        left, verdicts = list(found), list[Verdict]()
        while left:
            gone, done = yield from self._take_some(actor, own, left)
            left = [each for each in left if each.key not in gone]
            verdicts += done
        heads = [each.arrival.head for each in verdicts if _is_to_be_answered(each)]
        return [(head.from_swarm, head.request_id) for head in heads]

    def _take_some(
        self, actor: Actor, own: OwnSwarm, found: Sequence[EnvelopeOnBus]
    ) -> Op[tuple[frozenset[str], list[Verdict]]]:
        """Take in as many of these as one commit takes; the keys of those that are dealt with."""
        incoming, again = self._incoming, False
        while True:
            verified = yield from incoming.verified(own, found, RequestHead, again=again)
            new, repeats = yield from _divided(verified.opened)
            new, refused = incoming.fitting(new), list(verified.refused)
            whole = yield from incoming.with_bodies(own, new)
            arrivals = _arrivals(whole, refused)
            batch = _Batch(own, arrivals, [each for _, each in refused], verified.trust)
            done = yield from self._take_or_refuse(actor, batch)
            if done is not None:
                break
            again = True
        taken = [*[each for each, _ in (*whole, *repeats)], *[each for each, _ in refused]]
        yield from incoming.taken(actor, own, taken)
        return frozenset(each.key for each in (*taken, *[each for each, _ in new])), done

    def release(self, actor: Actor, own: OwnSwarm, envelope: bytes, body: bytes) -> Op[Any]:
        """Take in a request from quarantine, without regard to rate and reputation."""
        found = [EnvelopeOnBus(item=Item("", envelope, 0, 0), body_key="")]
        again = False
        while True:
            verified = yield from self._incoming.verified(own, found, RequestHead, again=again)
            if verified.refused:
                return verified.refused[0][1]
            arrival = replace(_arrival(verified.opened[0][1], envelope, body), released=True)
            batch = _Batch(own, [arrival], (), verified.trust, keep=False)
            done = yield from self._take(actor, batch)
            if done is not None:
                return done[0]
            again = True

    def _take_or_refuse(self, actor: Actor, batch: _Batch) -> Op[list[Verdict] | None]:
        """Take in requests; one by one if the home refuses them together, and none that it cannot.

        Doing it twice is harmless: a request that was taken in is known by its mark.
        """
        try:
            return (yield from self._take(actor, batch))
        except TooLarge as error:
            large = error
        arrivals, refused = batch.arrivals, batch.refused
        if len(arrivals) == 1:
            wrong = _too_large(arrivals[0], large)
            return (yield from self._take(actor, batch.part((), (wrong, *refused))))
        done: list[Verdict] = []
        for each in arrivals:
            one = yield from self._take_or_refuse(actor, batch.part((each,), refused))
            if one is None:
                return None
            done += one
            refused = ()
        return done

    def _take(self, actor: Actor, batch: _Batch) -> Op[list[Verdict] | None]:
        """Step 4; None if the trust, or our own swarm, changed before the commit."""
        self._reserve(batch)
        try:
            done = yield from self._commit(actor, batch)
        except TooLarge:
            for slot in batch.slots.values():
                slot.empty()
            raise
        except BaseException:  # trouble, or an interrupt: it may be committed
            for task, slot in batch.slots.items():
                slot.unknown(task)
            raise
        current = done.outcome != STALE
        new = [each for each in batch.verdicts if isinstance(each, TakenIn) and current]
        self._count_unfinished(new)
        self._answers.remember([each.received for each in new])
        base = yield from self._home.runner.base()
        for task, slot in batch.slots.items():
            if done.revision is not None and task in batch.claimed:
                yield from slot.fill(batch.claimed[task], base + done.revision)
            else:
                slot.empty()
        return batch.verdicts if current else None

    def _reserve(self, batch: _Batch) -> None:
        """Reserve slots of our workers that wait, for the most urgent of these requests."""
        urgent = sorted(batch.arrivals, key=lambda each: -each.head.priority)
        for each in urgent if self._workers else ():
            wanted = each.head.to_agent
            slot = None if wanted == ALL_AGENTS else reserve(self._workers, (requirement(wanted),))
            if slot is not None:
                batch.slots[each.task] = slot

    def _commit(self, actor: Actor, batch: _Batch) -> Op[Decided[str]]:
        home, arrivals = self._home, batch.arrivals
        base = yield from home.runner.base()
        at = self._moment(max(len(arrivals), 1))
        ids = [home.runner.new_id("qua") for _ in (*arrivals, *batch.refused)]
        waiting = yield from self._waiting({each.head.from_swarm for each in arrivals}, batch.trust)
        claims = {task: slot.request(task) for task, slot in batch.slots.items()}
        wakes = {task for task, slot in batch.slots.items() if slot.wakes}

        def deciding() -> DecideOp[str]:
            now = home.now()
            if not (yield from home.is_own(batch.own)):
                return Decision(outcome=STALE)
            if not (yield from unchanged(batch.relied)):
                return Decision(outcome=STALE)
            reader = TaskReader(home.runner, base)
            known = yield from self._known(batch, reader, waiting)
            verdicts = [
                intake_rules.judge(each, known, now, at + place * 0.000_001)
                for place, each in enumerate(arrivals)
            ]
            new = [each for each in verdicts if isinstance(each, TakenIn)]
            alive = yield from _alive(claims.values())
            published = yield from reader.change(
                partial(_publish, new=new, claims=claims if alive else {}, wakes=wakes)
            )
            batch.verdicts, batch.claimed = verdicts, published.outcome
            puts = [write for each in new for write in intake_rules.taken_in_writes(each)]
            puts += intake_rules.counting_writes(verdicts, known)
            held = [each for each in verdicts if isinstance(each, RefusedRequest) and batch.keep]
            kept = yield from self._room.keep(ids, [*held, *batch.refused], "request", now)
            thing = f"request/{new[0].arrival.head.request_id}" if len(new) == 1 else "requests"
            whole = Decision[Any](
                outcome="received" if new else "repeated" if puts else "refused",
                verb="request.receive" if new else "request.repeat" if puts else "",
                thing=thing,
                puts=tuple(puts),
                events=tuple([intake_rules.received_event(each) for each in new]),
            )
            return with_refused(merged(whole, [published]), kept)

        return (yield from self._room.commit(deciding, actor, self._guess(batch, claims)))

    def _guess(self, batch: _Batch, claims: Mapping[str, ClaimRequest]) -> dict[str, Item | None]:
        """Nearly every request is new, and the rest is as it was a moment ago."""
        if self._home.runner.capabilities.transacts:
            return {}
        arrivals = batch.arrivals
        swarms = {each.head.from_swarm for each in arrivals}
        fresh = [
            key
            for each in arrivals
            for key in (each.seen_key, each.received_key, keys.status(each.task))
        ]
        return {
            **self._home.guess(*swarms, also=_shared(arrivals)),
            **batch.relied,
            **dict.fromkeys((*fresh, *map(keys.owner, claims), keys.NEW_TASKS)),
        }

    def _known(
        self, batch: _Batch, reader: TaskReader, waiting: Mapping[str, int]
    ) -> ReadOp[Known]:
        """The marks, rates, counts, reputations and tasks that decide about these requests."""
        arrivals, limits = batch.arrivals, batch.trust.limits
        swarms = {each.head.from_swarm for each in arrivals}
        shared = _shared(arrivals)
        tasks = [keys.status(each.task) for each in arrivals]
        tasks += [*_sets(arrivals), *((keys.NEW_TASKS,) if arrivals else ())]
        own = [key for each in arrivals for key in (each.seen_key, each.received_key)]
        items = yield from read_all((*own, *shared, *tasks))
        reader.learn({key: items[key] for key in tasks})
        records = (yield Unchecked(map(keys.reputation, swarms))).items if swarms else {}
        self._home.learn({**{key: items[key] for key in shared}, **records})
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
                swarm: decode_counts(items[keys.peer_counts(swarm)]) or NO_COUNTS
                for swarm in swarms
            },
            unfinished=dict(waiting),
            limits=limits,
            reputations={
                swarm: decode_reputation(records[keys.reputation(swarm)]) or UNKNOWN
                for swarm in swarms
            },
            taken={
                each.task: (items[each.received_key] or items[keys.status(each.task)]) is not None
                for each in arrivals
            },
        )

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

    def _count_unfinished(self, new: Iterable[TakenIn]) -> None:
        for each in new:
            swarm = each.arrival.head.from_swarm
            counted, number = self._unfinished[swarm]
            self._unfinished[swarm] = counted, number + 1


OpenedRequests: TypeAlias = list[tuple[EnvelopeOnBus, OpenedEnvelope[RequestHead]]]


def _divided(opened: OpenedRequests) -> Op[tuple[OpenedRequests, OpenedRequests]]:
    """The envelopes to judge, and those that were taken in before and need no answer.

    Few envelopes come with their bodies, so there is nothing to save; the commit looks at the mark.
    """
    if all(on_bus.body is not None for on_bus, _ in opened):
        return opened, []
    marks = yield from looked_up(_seen_key(each.head) for _, each in opened)
    found: tuple[OpenedRequests, OpenedRequests] = ([], [])
    for on_bus, each in opened:
        mark = readable(decode_seen, marks[_seen_key(each.head)])
        found[is_repeat(each.head, mark)].append((on_bus, each))
    return found


def _arrivals(
    opened: OpenedRequests, refused: list[tuple[EnvelopeOnBus, EnvelopeRefused]]
) -> list[Arrival]:
    """The requests whose bodies are those that were signed for; the others are refused."""
    arrivals: list[Arrival] = []
    for each, envelope in opened:
        body = each.body or b""
        wrong = body_refusal(envelope.head, body, each.body_size) or _no_json(envelope, body)
        if wrong is not None:
            refused.append((each, wrong))
        else:
            arrivals.append(_arrival(envelope, each.value, body))
    return arrivals


def _seen_key(head: RequestHead) -> str:
    return keys.seen(head.from_swarm, head.message_id)


def _sets(arrivals: Sequence[Arrival]) -> set[str]:
    """The keys of the sets of requirements that their tasks have."""
    wanted = {each.head.to_agent for each in arrivals} - {ALL_AGENTS}
    return {keys.requirement_set(keys.requirements((requirement(to),))) for to in wanted}


def _shared(arrivals: Sequence[Arrival]) -> list[str]:
    """The keys of the items that many requests share: rates, counts, sets of requirements."""
    rates = {each.rate_key for each in arrivals}
    counts = {keys.peer_counts(each.head.from_swarm) for each in arrivals}
    return [*rates, *counts, *_sets(arrivals)]


def _alive(claims: Collection[ClaimRequest]) -> ReadOp[bool]:
    """Whether the sessions of our workers are alive; the commit checks that."""
    sessions = tuple({keys.live(each.session) for each in claims})
    return bool(sessions) and all((yield sessions).items.values())


def _publish(
    changes: TaskChanges,
    new: Sequence[TakenIn],
    claims: Mapping[str, ClaimRequest],
    wakes: Collection[str],
) -> Decision[dict[str, Claimed]]:
    """Publish the tasks of requests that are taken in; some are claimed by our own workers."""
    specs: dict[str, Spec] = {each.arrival.task: each.spec for each in new if each.spec is not None}
    if not specs:
        return Decision(outcome={})
    progress_rules.read_needs(changes, (), specs)
    progress_rules.read_requirement_sets(changes, specs.values())
    claimed: dict[str, Claimed] = {}
    for id_, spec in specs.items():
        if id_ in claims:
            claimed[id_] = claim_rules.create_claimed(changes, claims[id_], spec)
            if id_ in wakes:
                changes.wake_workers(spec)
        else:
            progress_rules.create(changes, id_, spec)
    return changes.decision(claimed, "request.receive", "requests")


def _is_to_be_answered(verdict: Verdict) -> bool:
    """Whether it is a later attempt, or a message to all agents, which needs no worker."""
    if isinstance(verdict, TakenIn):
        return verdict.spec is None
    return isinstance(verdict, Repeated) and verdict.later


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
